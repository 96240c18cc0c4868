//! Ends that others cause: timeouts, limits, kills and signals, and what becomes of the tree.

use std::time::{Duration, Instant};

use skilld_proto::guest::v1 as wire;
use skilld_proto::v1;
use skilld_proto::v1::exec_result::{Outcome, Reason};

use crate::support::{
    Guest, SeenEvents, alive, configuration, duration, reason, shortest_of_three, until,
};

pub(crate) async fn kill(guest: &Guest, id: &str, grace: u64) -> v1::Exec {
    let request = wire::KillExecRequest {
        exec_id: id.to_owned(),
        grace: duration(grace),
        reason: Reason::Unspecified.into(),
    };
    guest
        .client
        .clone()
        .kill_exec(request)
        .await
        .expect("killed")
        .into_inner()
}

/// Shell text for a child that left the session twice, ignores SIGTERM and prints its pid.
const ESCAPEE: &str = "trap '' TERM; \
    setsid bash -c 'trap \"\" TERM; (setsid bash -c \"trap : TERM; echo \\$\\$ > $0; while :; do sleep 1; done\" &) ; sleep 100' \"$PWD/$1\" & \
    while :; do sleep 1; done";

async fn pid_in(guest: &Guest, name: &str) -> String {
    let file = guest.workspace().join(name);
    let read = || std::fs::read_to_string(&file).unwrap_or_default();
    until("a pid", || read().ends_with('\n')).await;
    read().trim().to_owned()
}

#[tokio::test]
async fn a_timeout_ends_the_whole_tree_and_keeps_the_output() {
    let guest = Guest::start().await;
    // 400 ms, 200 ms of grace, and at most 100 ms to kill.
    let most = Duration::from_millis(700);
    let shortest = shortest_of_three(most, async |id| {
        let script = "echo before; setsid bash -c 'trap \"\" TERM; echo $$ > $0; (setsid sleep 1000 &); \
                      while :; do sleep 1; done' $0 & trap '' TERM; while :; do sleep 1; done";
        let mut request = guest.request(id, &["bash", "-c", script, id]);
        if let Some(spec) = &mut request.spec {
            spec.timeout = duration(400);
        }
        let begin = Instant::now();
        let seen = guest.run(request).await;
        let took = begin.elapsed();
        assert_eq!(seen.reason(), Reason::Timeout);
        assert_eq!(seen.outcome(), Outcome::Signal(9));
        assert_eq!(seen.out, b"before\n");
        let wall = seen.result.and_then(|result| result.wall_time);
        let wall = Duration::try_from(wall.expect("a time")).expect("positive");
        assert!(
            wall >= Duration::from_millis(590) && wall <= took,
            "{wall:?} of {took:?}"
        );
        assert!(!alive(&pid_in(&guest, id).await));
        let exec = kill(&guest, id, 0).await;
        assert_eq!(exec.state(), v1::ExecState::Closed);
        took
    })
    .await;
    assert!(
        shortest >= Duration::from_millis(600) && shortest < most,
        "{shortest:?}"
    );
}

#[tokio::test]
async fn kill_answers_when_nothing_is_left() {
    let guest = Guest::start().await;
    let mut client = guest.client.clone();
    let request = guest.request("wild", &["bash", "-c", ESCAPEE, "bash", "deep"]);
    client.start_exec(request).await.expect("started");
    let pid = pid_in(&guest, "deep").await;
    assert!(alive(&pid));
    let begin = Instant::now();
    let exec = kill(&guest, "wild", 100).await;
    assert!(
        begin.elapsed() < Duration::from_secs(5),
        "{:?}",
        begin.elapsed()
    );
    assert!(!alive(&pid));
    assert_eq!(
        exec.result.expect("a result").reason(),
        Reason::KilledByClient
    );

    // One that TERM ends is not waited for.
    client
        .start_exec(guest.request("tame", &["sleep", "100"]))
        .await
        .expect("started");
    let begin = Instant::now();
    let exec = kill(&guest, "tame", 10_000).await;
    assert!(
        begin.elapsed() < Duration::from_secs(5),
        "{:?}",
        begin.elapsed()
    );
    let result = exec.result.expect("a result");
    assert_eq!(result.outcome, Some(Outcome::Signal(15)));
    assert_eq!(result.reason(), Reason::KilledByClient);
}

#[tokio::test]
async fn a_background_child_that_holds_the_pipe_does_not_delay_exited() {
    let guest = Guest::configured(wire::ConfigureRequest {
        leak_grace: duration(5_000),
        ..configuration()
    })
    .await;
    let begin = Instant::now();
    let seen = guest.sh("bg", "sleep 100 & echo $! > pid; echo done").await;
    let exited = seen.exited_after.expect("exited");
    // Long before the grace for stragglers ends. Commands have the lowest priority, and other tests run beside this one.
    assert!(exited < Duration::from_secs(4), "{exited:?}");
    let closed = begin.elapsed();
    assert!(
        closed >= Duration::from_millis(4_980) && closed < Duration::from_secs(15),
        "{closed:?}"
    );
    assert_eq!(seen.out, b"done\n");
    let pid = pid_in(&guest, "pid").await;
    until("the straggler is killed", || !alive(&pid)).await;

    let mut keep = guest.request("keep", &["bash", "-c", "sleep 100 & echo $! > kept"]);
    if let Some(spec) = &mut keep.spec {
        spec.stragglers = v1::Stragglers::Keep.into();
    }
    guest.run(keep).await;
    let kept = pid_in(&guest, "kept").await;
    assert!(alive(&kept));
    kill(&guest, "keep", 0).await;
    assert!(!alive(&kept));
}

#[tokio::test]
async fn silence_and_output_have_limits() {
    let guest = Guest::start().await;
    let mut silent = guest.request(
        "silent",
        &[
            "bash",
            "-c",
            "for i in 1 2 3 4 5 6 7 8; do echo $i; sleep 0.6; done; sleep 100",
        ],
    );
    if let Some(spec) = &mut silent.spec {
        spec.no_output_timeout = duration(3_500);
    }
    let seen = guest.run(silent).await;
    assert_eq!(seen.reason(), Reason::NoOutputTimeout);
    assert_eq!(seen.out, b"1\n2\n3\n4\n5\n6\n7\n8\n");

    let mut loud = guest.request("loud", &["yes"]);
    if let Some(spec) = &mut loud.spec {
        spec.limits = Some(v1::ExecLimits {
            output_bytes: 100_001,
            ..Default::default()
        });
    }
    let seen = guest.run(loud).await;
    assert_eq!(seen.reason(), Reason::OutputLimit);
    assert_eq!(seen.out.len(), 100_001);

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

#[tokio::test]
async fn signals_reach_whom_they_are_for() {
    let guest = Guest::start().await;
    let mut client = guest.client.clone();
    let script = "trap 'echo usr1' USR1; echo ready; while :; do sleep 0.02; done";
    let request = guest.request("sig", &["bash", "-c", script]);
    let mut stream = client.run_exec(request).await.expect("runs").into_inner();
    let mut seen = SeenEvents::default();
    let begin = Instant::now();
    while seen.out != b"ready\n" {
        seen.take(
            stream.message().await.expect("an event").expect("open"),
            begin,
        );
    }
    let signal = |signal| wire::SignalExecRequest {
        exec_id: "sig".to_owned(),
        signal,
        ..Default::default()
    };
    client.signal_exec(signal(10)).await.expect("sent");
    while seen.out != b"ready\nusr1\n" {
        seen.take(
            stream.message().await.expect("an event").expect("open"),
            begin,
        );
    }
    client.signal_exec(signal(15)).await.expect("sent");
    while let Some(event) = stream.message().await.expect("an event") {
        seen.take(event, begin);
    }
    assert_eq!(seen.outcome(), Outcome::Signal(15));
    assert_eq!(seen.reason(), Reason::Signaled);
    let late = client.signal_exec(signal(15)).await.expect_err("over");
    assert_eq!(reason(&late), "EXEC_NOT_RUNNING");
    let bad = client.signal_exec(signal(65)).await.expect_err("no signal");
    assert_eq!(reason(&bad), "INVALID_REQUEST");
}
