//! Hostile process trees: all of them end in time, and the guest goes on serving. Trees that fill a workspace are in
//! the suite `load`, whose tests have the machine to themselves.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use skilld_client::v1::exec_result::{Outcome, Reason as Ended};
use skilld_client::v1::signal_exec_request::Target;
use skilld_client::v1::{ExecSpec, SignalExecRequest, StreamOffsets};
use skilld_tests::exec::{WATCHED, attach, run, shell, start, workspace};
use skilld_tests::{Daemon, Options, processes, wait};

const PATIENCE: Duration = Duration::from_secs(20);

/// Waits until a number of commands run in a workspace.
async fn running(daemon: &Daemon, workspace: &str, count: usize) -> Result<()> {
    wait::until("they run", PATIENCE, async || {
        let commands = processes::list_commands(daemon, workspace)?;
        Ok((commands.len() >= count).then_some(()))
    })
    .await
}

async fn with_grace(grace: &str) -> Result<Daemon> {
    Daemon::start_with(Options::default().set("execs.kill_grace", grace)).await
}

#[tokio::test]
async fn sigterm_handler_spawns_child() -> Result<()> {
    // Its handler leaves others, in sessions of their own and deaf to TERM, and it goes on itself.
    const SCRIPT: &str = "spawn() { setsid bash -c 'trap \"\" TERM; sleep 1001; sleep 1002' & \
        (setsid bash -c 'trap \"\" TERM; sleep 1003; sleep 1004' &); echo spawned; }; \
        trap spawn TERM; echo up; while :; do sleep 0.02; done";
    let daemon = with_grace("400ms").await?;
    let client = &daemon.client;
    let name = workspace(client).await?.name;
    let spec = ExecSpec {
        timeout: Duration::from_millis(300).try_into().ok(),
        ..shell(SCRIPT)
    };
    let outcome = run(client, &name, spec).await?;
    assert_eq!(processes::list_commands(&daemon, &name)?, [""; 0]);
    assert_eq!(
        (outcome.reason(), outcome.signal()),
        (Ended::Timeout, Some(9))
    );
    assert_eq!(outcome.text(), "up\nspawned\n");

    let exec = start(client, &name, "killed", shell(SCRIPT)).await?;
    running(&daemon, &name, 2).await?;
    let begin = Instant::now();
    let killed = client.kill_exec(&exec.name).await?;
    let took = begin.elapsed();
    assert_eq!(processes::list_commands(&daemon, &name)?, [""; 0]);
    assert!(took < Duration::from_secs(10), "{took:?}");
    let result = killed.result.context("no result")?;
    assert_eq!(result.reason(), Ended::KilledByClient);
    daemon.stop().await
}

#[tokio::test]
async fn kill_minus_one() -> Result<()> {
    let (daemon, name) = Daemon::with_workspace().await?;
    let client = &daemon.client;
    for round in 0..3 {
        let mut victims = Vec::new();
        for number in 0..4 {
            let script = "echo up; setsid sleep 1001 & trap '' TERM; sleep 1002; exit 0";
            let id = format!("victim{round}-{number}");
            victims.push(start(client, &name, &id, shell(script)).await?);
        }
        running(&daemon, &name, 12).await?;
        // It is spared by its own signal, loses its supervisor, and its exit is still its own.
        let script = format!("{WATCHED}; kill -9 -1; echo after; exit 5");
        let killer = start(client, &name, &format!("killer{round}"), shell(&script)).await?;
        let begin = Instant::now();
        for exec in &victims {
            let outcome = attach(client, &exec.name, StreamOffsets::default()).await?;
            let result = &outcome.result;
            // Who was hit is told with the signal, or nobody knows any more; an exit is never made up.
            let hit = result.outcome == Some(Outcome::Signal(9));
            let known = hit && outcome.reason() == Ended::Signaled;
            let lost = result.outcome.is_none() && outcome.reason() == Ended::WorkspaceLost;
            assert!(known || lost, "{}: {result:?}", exec.name);
            assert_eq!(outcome.text(), "up\n");
        }
        let outcome = attach(client, &killer.name, StreamOffsets::default()).await?;
        let ended = (outcome.reason(), outcome.exit_code(), outcome.text());
        assert_eq!(ended, (Ended::Exited, Some(5), "after\n".to_owned()));
        let took = begin.elapsed();
        assert!(took < Duration::from_secs(5), "{took:?}");
        wait::until(
            "nothing of them is left",
            Duration::from_secs(2),
            async || {
                Ok(processes::list_commands(&daemon, &name)?
                    .is_empty()
                    .then_some(()))
            },
        )
        .await?;
        let outcome = run(client, &name, shell("echo served; exit 3")).await?;
        assert_eq!(
            (outcome.text().as_str(), outcome.exit_code()),
            ("served\n", Some(3))
        );
    }
    daemon.stop().await
}

#[tokio::test]
async fn no_output_timeout_counts_from_the_last_byte() -> Result<()> {
    let (daemon, name) = Daemon::with_workspace().await?;
    let client = &daemon.client;
    let spec = |script: &str| ExecSpec {
        no_output_timeout: Duration::from_secs(3).try_into().ok(),
        ..shell(script)
    };
    // Silent for longer than that in all, but never at once; stderr is output as well.
    let talk = "for i in 1 2 3 4; do sleep 0.45; echo $i; sleep 0.45; echo e >&2; done";
    let outcome = run(client, &name, spec(talk)).await?;
    assert_eq!(
        (outcome.reason(), outcome.text().as_str()),
        (Ended::Exited, "1\n2\n3\n4\n")
    );
    let outcome = run(client, &name, spec(&format!("{talk}; sleep 1001"))).await?;
    assert_eq!(
        (outcome.reason(), outcome.signal()),
        (Ended::NoOutputTimeout, Some(15))
    );
    assert_eq!(outcome.text(), "1\n2\n3\n4\n");
    let wall = outcome.wall_time();
    assert!(
        wall >= Duration::from_millis(6_600) && wall < Duration::from_secs(15),
        "{wall:?}"
    );
    assert_eq!(processes::list_commands(&daemon, &name)?, [""; 0]);
    daemon.stop().await
}

#[tokio::test]
async fn signals_reach_the_leader_its_group_or_the_tree() -> Result<()> {
    // One in the leader's group, one in a session of its own; each says its name when it is hit.
    const SCRIPT: &str = "hear() { trap \"echo $1\" USR1; echo up; while :; do sleep 0.02; done; }; \
        hear group & export -f hear; setsid bash -c 'hear tree' & hear leader";
    let (daemon, name) = Daemon::with_workspace().await?;
    let client = &daemon.client;
    for (target, heard) in [
        (Target::Unspecified, vec!["leader"]),
        (Target::Leader, vec!["leader"]),
        (Target::Group, vec!["group", "leader"]),
        (Target::Tree, vec!["group", "leader", "tree"]),
    ] {
        let exec = start(
            client,
            &name,
            &format!("t{}", i32::from(target)),
            shell(SCRIPT),
        )
        .await?;
        let said = async |lines: usize| {
            wait::until("they have spoken", PATIENCE, async || {
                let exec = client.get_exec(&exec.name).await?;
                let total = exec.total.context("no total")?.stdout;
                Ok((total >= u64::try_from(lines * 3)?).then_some(()))
            })
            .await
        };
        said(3).await?;
        client
            .signal_exec(SignalExecRequest {
                name: exec.name.clone(),
                signal: 10,
                target: target.into(),
            })
            .await?;
        // What else were to come would have come with it.
        said(3 + heard.iter().map(|name| name.len() + 1).sum::<usize>() / 3).await?;
        run(client, &name, shell("sleep 0.2")).await?;
        client.kill_exec(&exec.name).await?;
        let text = attach(client, &exec.name, StreamOffsets::default())
            .await?
            .text();
        let mut lines: Vec<&str> = text.lines().filter(|line| *line != "up").collect();
        lines.sort_unstable();
        assert_eq!(lines, heard, "{target:?}");
    }
    daemon.stop().await
}
