//! The guest process: its memory, its children, and attacks by a hostile command.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use nix::unistd::Pid;
use skilld_proto::Outcome;
use skilld_proto::guest::v1 as wire;
use skilld_proto::v1::{self, ExitReason};

use crate::support::{DEADLINE, Guest, STARTED, duration, in_time, until};

/// Returns the direct children of a process, zombies included, with their states.
fn children(pid: u32) -> Vec<(u32, char)> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").expect("/proc").flatten() {
        let Ok(stat) = std::fs::read_to_string(entry.path().join("stat")) else {
            continue;
        };
        let Some((head, rest)) = stat.rsplit_once(") ") else {
            continue;
        };
        let mut fields = rest.split(' ');
        let state = fields.next().and_then(|state| state.chars().next());
        let parent = fields.next().and_then(|parent| parent.parse().ok());
        let own = head.split(' ').next().and_then(|pid| pid.parse().ok());
        if let (Some(state), Some(own), true) = (state, own, parent == Some(pid)) {
            found.push((own, state));
        }
    }
    found
}

#[tokio::test]
async fn two_hundred_execs_leave_no_zombie_and_no_descriptor() {
    let guest = Guest::start().await;
    let pid = guest.child.id();
    guest.sh("first", ":").await;
    // Without the socket of each supervisor: how many there are depends on how soon commands end. `None` unless all
    // supervisors sleep: one that starts or ends may have no socket.
    let fds = || {
        let supervisors = children(pid);
        let all = std::fs::read_dir(format!("/proc/{pid}/fd")).expect("root reads it");
        let count = all.count();
        let all_sleep = supervisors.iter().all(|(_, state)| *state == 'S');
        (all_sleep && children(pid) == supervisors).then(|| count - supervisors.len())
    };
    let mut before = None;
    until("all supervisors sleep", || {
        before = fds();
        before.is_some()
    })
    .await;
    let before = before.expect("counted");
    for number in 0..200 {
        guest.sh(&format!("n{number}"), "sleep 0 & :").await;
    }
    until("supervisors reap", || {
        let supervisors = children(pid);
        let below: Vec<_> = supervisors
            .iter()
            .flat_map(|(pid, _)| children(*pid))
            .collect();
        below.is_empty() && supervisors.iter().all(|(_, state)| *state != 'Z')
    })
    .await;
    assert!(children(pid).len() <= 16, "{:?}", children(pid));
    until("descriptors are closed", || {
        fds().is_some_and(|count| count <= before + 1)
    })
    .await;
}

#[tokio::test]
async fn the_guest_cannot_be_dumped_or_read() {
    let guest = Guest::start().await;
    let pid = guest.child.id();
    let environ = std::fs::read(format!("/proc/{pid}/environ")).expect("root reads it");
    let environ = String::from_utf8_lossy(&environ);
    assert!(!environ.contains("00ff10"), "{environ}");
    // An undumpable process's files belong to root, whatever its uid.
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("readable");
    assert!(status.contains("SigCgt:\t0000000000000"), "{status}");
    let limits = std::fs::read_to_string(format!("/proc/{pid}/limits")).expect("readable");
    let core = limits
        .lines()
        .find(|line| line.starts_with("Max core"))
        .expect("a line");
    assert_eq!(core.split_whitespace().nth(4), Some("0"), "{core}");
}

#[tokio::test]
async fn a_killed_supervisor_neither_loses_nor_invents_an_exit() {
    let guest = Guest::start().await;
    let mut client = guest.client.clone();
    // The leader kills its parent, which is its supervisor, and goes on.
    let script = format!(
        "echo before; (sleep 1000; :) & {STARTED} kill -9 $PPID; sleep 0.1; echo after; exit 7"
    );
    let seen = guest.sh("orphan", &script).await;
    assert_eq!(seen.out, b"before\nafter\n");
    assert_eq!(seen.outcome(), Outcome::ExitCode(7));
    assert_eq!(seen.reason(), ExitReason::Exited);
    let pid = guest.child.id();
    let sleepers = || {
        let all = children(pid);
        all.iter()
            .filter(|(pid, _)| cmdline(*pid).contains("1000"))
            .count()
    };
    until("its straggler is killed", || sleepers() == 0).await;

    // And one that is killed after it lost its supervisor.
    let script =
        format!("{STARTED} kill -9 $PPID; trap '' TERM; echo ready; while :; do sleep 1; done");
    client
        .start_exec(guest.request("stubborn", &["bash", "-c", &script]))
        .await
        .expect("started");
    let get = wire::GetExecRequest {
        exec_id: "stubborn".to_owned(),
    };
    let mut total = 0;
    let begin = Instant::now();
    while total == 0 {
        assert!(begin.elapsed() < DEADLINE, "never ready");
        let exec = client
            .get_exec(get.clone())
            .await
            .expect("there")
            .into_inner();
        total = exec.total.expect("offsets").stdout_bytes;
    }
    let kill = wire::KillExecRequest {
        exec_id: "stubborn".to_owned(),
        grace: duration(50),
        ..Default::default()
    };
    let exec = client.kill_exec(kill).await.expect("killed").into_inner();
    let result = exec.result.expect("a result");
    assert_eq!(result.outcome(), Some(Outcome::Signal(9)));
    assert_eq!(result.reason(), ExitReason::KilledByClient);
    assert_eq!(guest.sh("next", "echo fine").await.out, b"fine\n");
}

fn cmdline(pid: u32) -> String {
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&line).replace('\0', " ")
}

/// A killed process takes a moment to end, in which its socket still takes messages.
#[tokio::test]
async fn a_command_that_is_handed_to_a_dying_supervisor_runs() {
    let guest = Guest::start().await;
    for round in 0..300 {
        for (pid, _) in children(guest.child.id()) {
            let pid = Pid::from_raw(i32::try_from(pid).expect("a pid"));
            // It may have ended.
            let _gone = nix::sys::signal::kill(pid, Signal::SIGKILL);
        }
        let seen = guest.sh(&format!("next{round}"), "echo alive").await;
        assert_eq!(seen.reason(), ExitReason::Exited, "round {round}");
        assert_eq!(seen.stdout(), "alive\n", "round {round}");
    }
}

#[tokio::test]
async fn a_stopped_supervisor_does_not_save_its_tree() {
    let guest = Guest::start().await;
    let script = format!("{STARTED} kill -STOP $PPID; sleep 1000");
    let mut request = guest.request("stop", &["bash", "-c", &script]);
    if let Some(spec) = &mut request.spec {
        spec.timeout = duration(200);
    }
    let seen = guest.run(request).await;
    assert_eq!(seen.reason(), ExitReason::Timeout);
    assert_eq!(seen.outcome(), Outcome::Signal(15));
}

#[tokio::test]
async fn a_fork_bomb_is_ended_by_its_timeout() {
    let guest = Guest::start().await;
    // Bounded by itself as well, lest a defect here takes the machine along.
    let script = "trap '' TERM; grow() { [ $1 -gt 6 ] && sleep 100; setsid bash -c \"$(declare -f grow); \
                  trap '' TERM; grow $(($1+1)) & grow $(($1+1)) & wait\" & wait; }; grow 0 & grow 0 & wait";
    let mut request = guest.request("bomb", &["bash", "-c", script]);
    if let Some(spec) = &mut request.spec {
        spec.timeout = duration(500);
    }
    let seen = guest.run(request).await;
    assert_eq!(seen.reason(), ExitReason::Timeout);
    let supervisors = children(guest.child.id());
    until("nothing is left", || {
        supervisors.iter().all(|(pid, _)| children(*pid).is_empty())
    })
    .await;
}

#[tokio::test]
async fn shutdown_kills_everything_and_refuses_what_comes_after() {
    let guest = Guest::start().await;
    let mut client = guest.client.clone();
    let before: HashSet<u32> = children(guest.child.id())
        .iter()
        .map(|(pid, _)| *pid)
        .collect();
    for id in ["a", "b"] {
        let request = guest.request(
            id,
            &["bash", "-c", "trap '' TERM; setsid sleep 1000 & wait"],
        );
        client.start_exec(request).await.expect("started");
    }
    client
        .shutdown(wire::ShutdownRequest::default())
        .await
        .expect("answers");
    // On a busy machine a killed process may end after the answer.
    until("everything is killed", || {
        let left = children(guest.child.id());
        left.iter()
            .all(|(pid, _)| !before.contains(pid) || cmdline(*pid).is_empty())
    })
    .await;
    assert!(
        client
            .run_exec(guest.request("c", &["true"]))
            .await
            .is_err()
    );
    let get = wire::GetExecRequest {
        exec_id: "a".to_owned(),
    };
    let begin = Instant::now();
    loop {
        let exec = client
            .get_exec(get.clone())
            .await
            .expect("kept")
            .into_inner();
        if exec.state() == v1::ExecState::Closed {
            break;
        }
        assert!(begin.elapsed() < DEADLINE, "{exec:?}");
    }
}

#[tokio::test]
async fn a_warm_up_runs_to_its_end_and_leaves_nothing() {
    let mut guest = Guest::bare().await;
    let mark = guest.workspace().join("mark");
    let run = |script: String, millis| wire::WarmUpRequest {
        argv: ["bash", "-c", &script].map(str::to_owned).to_vec(),
        env: vec!["PATH=/usr/bin:/bin".to_owned()],
        timeout: duration(millis),
    };
    let script = format!("echo noise; (sleep 0.2; touch {}) &", mark.display());
    let ran = guest.client.warm_up(run(script, 600_000)).await;
    ran.expect("it ran");
    assert!(mark.exists(), "it answers when all of it has ended");

    let begin = Instant::now();
    let endless = run("setsid sleep 1000 & sleep 1000".into(), 200);
    let ran = in_time("the end", guest.client.warm_up(endless)).await;
    ran.expect("it was ended");
    let took = begin.elapsed();
    assert!(took >= Duration::from_millis(200), "{took:?}");
    let below: Vec<_> = children(guest.child.id())
        .iter()
        .flat_map(|(pid, _)| children(*pid))
        .collect();
    assert!(below.is_empty(), "{below:?}");

    let missing = wire::WarmUpRequest {
        argv: vec!["no-such-program".into()],
        ..Default::default()
    };
    guest
        .client
        .warm_up(missing)
        .await
        .expect("a program that is missing is no fault");
    let configured = Guest::start().await;
    let late = configured
        .client
        .clone()
        .warm_up(run("true".into(), 1_000))
        .await
        .expect_err("only before it is a workspace");
    assert_eq!(late.code(), tonic::Code::FailedPrecondition);
}

#[tokio::test]
async fn commands_are_likelier_victims_than_the_guest() {
    let own = std::fs::read_to_string("/proc/self/oom_score_adj").expect("readable");
    let score: i32 = own.trim().parse().expect("a number");
    assert!(score < 900, "nothing to be seen here with {score}");
    let guest = Guest::start().await;
    // More than were forked ahead of need.
    for number in 0..4 {
        let seen = guest
            .sh(&format!("oom{number}"), "cat /proc/self/oom_score_adj")
            .await;
        assert_eq!(seen.out, b"900\n");
    }
    let guests = std::fs::read_to_string(format!("/proc/{}/oom_score_adj", guest.child.id()));
    assert_eq!(guests.expect("root reads it"), own);
}

#[tokio::test]
async fn a_command_starts_on_all_cpus_even_if_the_guest_is_pinned() {
    let guest = Guest::launched(&["taskset", "-c", "0"]).await;
    let cpus = |status: &str| {
        let line = status
            .lines()
            .find(|line| line.starts_with("Cpus_allowed:"));
        let mask = line.and_then(|line| line.strip_prefix("Cpus_allowed:"));
        let bits = mask
            .expect("affinity")
            .chars()
            .filter_map(|digit| digit.to_digit(16));
        bits.map(u32::count_ones).sum::<u32>()
    };
    let own = std::fs::read_to_string("/proc/self/status").expect("read");
    for id in ["first", "second"] {
        let seen = guest.sh(id, "cat /proc/self/status").await;
        assert!(cpus(&seen.stdout()) >= cpus(&own), "{id}");
    }
}
