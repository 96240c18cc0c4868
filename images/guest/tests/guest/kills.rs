//! Ends that others cause: timeouts, limits, kills and signals, and what becomes of the tree.

use std::time::{Duration, Instant};

use skilld_proto::Outcome;
use skilld_proto::guest::v1 as wire;
use skilld_proto::v1::{self, ExitReason};

use crate::support::{
    Guest, SeenEvents, alive, configuration, duration, in_time, until, with_longer_times,
};

/// Longest grace of a kill, in milliseconds.
const GRACE_MAX: u64 = 60_000;

pub(crate) async fn kill(guest: &Guest, id: &str, grace: u64) -> v1::Exec {
    let request = wire::KillExecRequest {
        exec_id: id.to_owned(),
        grace: duration(grace),
        reason: ExitReason::Unspecified.into(),
    };
    let mut client = guest.client.clone();
    let killed = in_time("the answer to a kill", client.kill_exec(request)).await;
    killed.expect("killed").into_inner()
}

/// Shell text for a child that left the session twice, ignores SIGTERM and prints its pid.
const ESCAPEE: &str = "trap '' TERM; \
    setsid bash -c 'trap \"\" TERM; (setsid bash -c \"trap : TERM; echo \\$\\$ > $0; while :; do sleep 1; done\" &) ; sleep 100' \"$PWD/$1\" & \
    while :; do sleep 1; done";

/// Shell text whose handler of SIGTERM leaves two processes in sessions of their own, which ignore SIGTERM and print
/// their pids.
const SPAWNS_ON_TERM: &str = "leave='trap \"\" TERM; echo $$ > $0; sleep 1000; sleep 1000'; \
    spawn() { setsid bash -c \"$leave\" $0.child & (setsid bash -c \"$leave\" $0.orphan &); }; \
    trap spawn TERM; echo $$ > $0.up; while :; do sleep 0.02; done";
/// Names of the files with the pids of [`SPAWNS_ON_TERM`], behind the name of the exec.
const SPAWNED: [&str; 2] = [".child", ".orphan"];

/// Shell text that leaves a process in a session of its own and an orphan, and prints their pids.
const STRAGGLERS: &str = "setsid sleep 1000 & echo $! > $0.session; \
    (sleep 1000 & echo $! > $0.orphan); echo done";

async fn pid_in(guest: &Guest, name: &str) -> String {
    let file = guest.workspace().join(name);
    let read = || std::fs::read_to_string(&file).unwrap_or_default();
    until("a pid", || read().ends_with('\n')).await;
    read().trim().to_owned()
}

#[tokio::test]
async fn a_timeout_ends_the_whole_tree_and_keeps_the_output() {
    let guest = Guest::start().await;
    with_longer_times(async |id, timeout| {
        let script = "trap '' TERM; echo before; \
                      setsid bash -c 'trap \"\" TERM; echo $$ > $0; (setsid sleep 1000 &); \
                      while :; do sleep 1; done' $0 & while :; do sleep 1; done";
        let mut request = guest.request(id, &["bash", "-c", script, id]);
        if let Some(spec) = &mut request.spec {
            spec.timeout = duration(timeout);
        }
        let begin = Instant::now();
        let seen = guest.run(request).await;
        let took = begin.elapsed();
        assert_eq!(seen.reason(), ExitReason::Timeout);
        let file = guest.workspace().join(id);
        let pid = std::fs::read_to_string(file).unwrap_or_default();
        if !pid.ends_with('\n') {
            return false;
        }
        assert_eq!(seen.outcome(), Outcome::Signal(9));
        assert_eq!(seen.out, b"before\n");
        // The timeout and the grace.
        let least = Duration::from_millis(timeout + 200);
        let wall = seen.result.and_then(|result| result.wall_duration);
        let wall = Duration::try_from(wall.expect("a time")).expect("positive");
        assert!(wall >= least && wall <= took, "{wall:?} of {took:?}");
        // Every process of the exec holds its output, so the stream ends when none is left.
        assert!(!alive(pid.trim()));
        let exec = kill(&guest, id, 0).await;
        assert_eq!(exec.state(), v1::ExecState::Closed);
        true
    })
    .await;
}

#[tokio::test]
async fn kill_answers_when_nothing_is_left() {
    let guest = Guest::start().await;
    let mut client = guest.client.clone();
    let request = guest.request("wild", &["bash", "-c", ESCAPEE, "bash", "deep"]);
    client.start_exec(request).await.expect("started");
    let pid = pid_in(&guest, "deep").await;
    assert!(alive(&pid));
    let exec = kill(&guest, "wild", 100).await;
    assert!(!alive(&pid));
    assert_eq!(
        exec.result.expect("a result").reason(),
        ExitReason::KilledByClient
    );

    // The answer does not wait for the end of the grace, which is not before the deadline.
    client
        .start_exec(guest.request("tame", &["sleep", "1000"]))
        .await
        .expect("started");
    let exec = kill(&guest, "tame", GRACE_MAX).await;
    let result = exec.result.expect("a result");
    assert_eq!(result.outcome(), Some(Outcome::Signal(15)));
    assert_eq!(result.reason(), ExitReason::KilledByClient);
}

#[tokio::test]
async fn a_kill_leaves_nothing_that_a_handler_of_sigterm_has_started() {
    let guest = Guest::start().await;
    let request = guest.request("wild", &["bash", "-c", SPAWNS_ON_TERM, "wild"]);
    let mut client = guest.client.clone();
    client.start_exec(request).await.expect("started");
    let leader = pid_in(&guest, "wild.up").await;
    // The second kill ends the grace of the first, in which the handler runs.
    let second = async {
        let mut pids = vec![leader];
        for name in SPAWNED {
            pids.push(pid_in(&guest, &format!("wild{name}")).await);
        }
        assert!(pids.iter().all(|pid| alive(pid)));
        let exec = kill(&guest, "wild", 0).await;
        assert!(!pids.iter().any(|pid| alive(pid)));
        exec
    };
    let (first, second) = tokio::join!(kill(&guest, "wild", GRACE_MAX), second);
    for exec in [first, second] {
        let result = exec.result.expect("a result");
        assert_eq!(result.outcome(), Some(Outcome::Signal(9)));
        assert_eq!(result.reason(), ExitReason::KilledByClient);
    }
}

#[tokio::test]
async fn a_timeout_leaves_nothing_that_a_sigterm_handler_started() {
    with_longer_times(async |id, millis| {
        let guest = Guest::configured(wire::ConfigureRequest {
            kill_grace: duration(millis),
            ..configuration()
        })
        .await;
        let mut request = guest.request(id, &["bash", "-c", SPAWNS_ON_TERM, id]);
        if let Some(spec) = &mut request.spec {
            spec.timeout = duration(millis);
        }
        let seen = guest.run(request).await;
        assert_eq!(seen.reason(), ExitReason::Timeout);
        let pids = SPAWNED.map(|name| {
            let file = guest.workspace().join(format!("{id}{name}"));
            std::fs::read_to_string(file).unwrap_or_default()
        });
        assert!(!pids.iter().any(|pid| alive(pid.trim())));
        let has_spawned = pids.iter().all(|pid| pid.ends_with('\n'));
        assert!(!has_spawned || seen.outcome() == Outcome::Signal(9));
        has_spawned
    })
    .await;
}

#[tokio::test]
async fn a_background_child_that_holds_the_pipe_does_not_delay_exited() {
    // The grace for stragglers ends far beyond the deadline.
    let guest = Guest::configured(wire::ConfigureRequest {
        leak_grace: duration(600_000),
        ..configuration()
    })
    .await;
    let script = "sleep 1000 & echo $! > pid; echo done";
    let request = guest.request("bg", &["bash", "-c", script]);
    let mut client = guest.client.clone();
    let mut stream = client.run_exec(request).await.expect("runs").into_inner();
    let mut seen = SeenEvents::default();
    seen.take_until(&mut stream, "exited", |seen| seen.result.is_some())
        .await;
    assert_eq!(seen.outcome(), Outcome::ExitCode(0));
    assert_eq!(seen.out, b"done\n");
    assert!(alive(&pid_in(&guest, "pid").await));
}

#[tokio::test]
async fn a_background_child_is_killed_after_its_grace_or_kept() {
    let guest = Guest::start().await;
    let leave = async |id: &str, stragglers: v1::StragglerPolicy| {
        let mut request = guest.request(id, &["bash", "-c", STRAGGLERS, id]);
        if let Some(spec) = &mut request.spec {
            spec.stragglers = stragglers.into();
        }
        let seen = in_time("the end", guest.run(request)).await;
        assert_eq!(seen.out, b"done\n");
        let files = [format!("{id}.session"), format!("{id}.orphan")];
        [
            pid_in(&guest, &files[0]).await,
            pid_in(&guest, &files[1]).await,
        ]
    };
    for (id, stragglers) in [
        ("default", v1::StragglerPolicy::Unspecified),
        ("kill", v1::StragglerPolicy::Kill),
    ] {
        let begin = Instant::now();
        let killed = leave(id, stragglers).await;
        let closed = begin.elapsed();
        assert!(closed >= Duration::from_millis(500), "{closed:?}");
        // Both hold the output, so the stream ends when none is left.
        assert!(!killed.iter().any(|pid| alive(pid)), "{killed:?}");
    }

    let kept = leave("keep", v1::StragglerPolicy::Keep).await;
    assert!(kept.iter().all(|pid| alive(pid)), "{kept:?}");
    kill(&guest, "keep", 0).await;
    assert!(!kept.iter().any(|pid| alive(pid)), "{kept:?}");
}

/// Shell text that leaves six processes in sessions of their own, without the command's streams, as servers are started.
const SERVERS: &str = "for n in 1 2 3 4 5 6; do setsid sleep 100$n > /dev/null 2>&1 & \
    until read -rd '' name < /proc/$!/cmdline && [ \"$name\" = sleep ]; do :; done; done; echo up";

#[tokio::test]
async fn the_end_names_the_processes_that_ended_with_the_command() {
    let guest = Guest::start().await;
    let seen = in_time("the end", guest.sh("servers", SERVERS)).await;
    assert_eq!(
        (seen.outcome(), &*seen.out),
        (Outcome::ExitCode(0), &b"up\n"[..])
    );
    let ended = seen.ended.expect("named");
    assert_eq!(ended.count, 6);
    let named = [1, 2, 3, 4, 5].map(|n| format!("sleep 100{n}"));
    assert_eq!(ended.command_lines, named);
    // A client that comes later learns the same.
    let exec = kill(&guest, "servers", 0).await;
    let result = exec.result.expect("a result");
    assert_eq!(
        (result.reason(), result.ended_processes),
        (ExitReason::Exited, Some(ended))
    );
}

#[tokio::test]
async fn the_end_names_no_process_that_stays_or_ended_for_a_reason() {
    let guest = Guest::start().await;
    assert_eq!(guest.sh("alone", "sleep 0 | :").await.ended, None);
    let mut kept = guest.request("kept", &["bash", "-c", SERVERS]);
    let mut late = guest.request("late", &["bash", "-c", "setsid sleep 1000 & sleep 1000"]);
    if let (Some(kept), Some(late)) = (&mut kept.spec, &mut late.spec) {
        kept.set_stragglers(v1::StragglerPolicy::Keep);
        late.timeout = duration(500);
    }
    let kept = in_time("the end of a command with servers", guest.run(kept)).await;
    assert_eq!((kept.reason(), kept.ended), (ExitReason::Exited, None));
    let late = in_time("the timeout", guest.run(late)).await;
    assert_eq!((late.reason(), late.ended), (ExitReason::Timeout, None));
}

#[tokio::test]
async fn silence_and_output_have_limits() {
    let guest = Guest::start().await;
    // Each stream alone is silent for longer than the time, but both together are not.
    with_longer_times(async |id, silence| {
        let pause = silence * 3 / 5;
        let pause = format!("sleep {}.{:03}", pause / 1000, pause % 1000);
        let script = format!(
            "echo 1; {pause}; echo a >&2; {pause}; echo 2; {pause}; echo b >&2; sleep 1000"
        );
        let mut silent = guest.request(id, &["bash", "-c", &script]);
        if let Some(spec) = &mut silent.spec {
            spec.no_output_timeout = duration(silence);
        }
        let seen = guest.run(silent).await;
        assert_eq!(seen.reason(), ExitReason::NoOutputTimeout);
        seen.out == b"1\n2\n" && seen.err == b"a\nb\n"
    })
    .await;

    // The limit is that of both streams together. Neither holds all of it, because the program waits for both.
    let script = "while :; do echo 123456789; echo abcdefghi >&2; done";
    let mut loud = guest.request("loud", &["bash", "-c", script]);
    if let Some(spec) = &mut loud.spec {
        spec.limits = Some(v1::ExecLimits {
            output_bytes: 100_001,
            ..Default::default()
        });
    }
    let seen = guest.run(loud).await;
    assert_eq!(seen.reason(), ExitReason::OutputLimit);
    assert_eq!(seen.out.len() + seen.err.len(), 100_001);
    for (bytes, line) in [(&seen.out, b"123456789\n"), (&seen.err, b"abcdefghi\n")] {
        assert!(!bytes.is_empty() && line.repeat(10_001).starts_with(bytes));
    }

    let mut files = guest.request("files", &["bash", "-c", "ulimit -n; ulimit -f; ulimit -t"]);
    if let Some(spec) = &mut files.spec {
        spec.limits = Some(v1::ExecLimits {
            open_files: 77,
            file_bytes: 1024 * 5,
            cpu_seconds: 9,
            ..Default::default()
        });
    }
    assert_eq!(guest.run(files).await.stdout(), "77\n5\n9\n");
}
