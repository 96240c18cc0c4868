//! Hostile process trees: all of them end, and the guest goes on serving. Trees that fill a workspace are in the suite
//! `load`, whose tests have the machine to themselves.
//!
//! Docker: signals reach whole trees in the container's pid namespace, whose init is the guest.

use std::time::Duration;

use anyhow::{Context, Result};
use skilld_client::Outcome;
use skilld_client::v1::signal_exec_request::Target;
use skilld_client::v1::{ExitReason as Ended, SignalExecRequest, StreamOffsets};
use skilld_tests::exec::{WATCHED, attach, run, shell, start};
use skilld_tests::{Daemon, DefaultDaemon, processes, wait};

const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until a number of commands run in a workspace.
async fn running(daemon: &Daemon, workspace: &str, count: usize) -> Result<()> {
    wait::until("they run", PATIENCE, async || {
        let commands = processes::list_commands(daemon, workspace)?;
        Ok((commands.len() >= count).then_some(()))
    })
    .await
}

#[tokio::test]
async fn kill_minus_one_invents_no_exit_of_another_exec() -> Result<()> {
    let (daemon, name) = DefaultDaemon::with_workspace().await?;
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
        for exec in &victims {
            let outcome = attach(client, &exec.name, StreamOffsets::default()).await?;
            let result = &outcome.result;
            // Who was hit is told with the signal, or nobody knows any more; an exit is never made up.
            let hit = result.outcome() == Some(Outcome::Signal(9));
            let known = hit && outcome.reason() == Ended::Signaled;
            let lost = result.outcome().is_none() && outcome.reason() == Ended::WorkspaceLost;
            assert!(known || lost, "{}: {result:?}", exec.name);
            assert_eq!(outcome.text(), "up\n");
        }
        let outcome = attach(client, &killer.name, StreamOffsets::default()).await?;
        let ended = (outcome.reason(), outcome.exit_code(), outcome.text());
        assert_eq!(ended, (Ended::Exited, Some(5), "after\n".to_owned()));
        wait::until("nothing of them is left", PATIENCE, async || {
            let commands = processes::list_commands(&daemon, &name)?;
            Ok(commands.is_empty().then_some(()))
        })
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
async fn signals_reach_the_leader_its_group_or_the_tree() -> Result<()> {
    // One in the leader's group, one in a session of its own; each says its name when it is hit.
    const SCRIPT: &str = "hear() { trap \"echo $1\" USR1; echo up; while :; do sleep 0.02; done; }; \
        hear group & export -f hear; setsid bash -c 'hear tree' & hear leader";
    let (daemon, name) = DefaultDaemon::with_workspace().await?;
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
                let total = exec.total.context("no total")?.stdout_bytes;
                Ok((total >= i64::try_from(lines * 3)?).then_some(()))
            })
            .await
        };
        said(3).await?;
        client
            .signal_exec(SignalExecRequest {
                name: exec.name.clone(),
                signal: 10,
                target: target.into(),
                ..SignalExecRequest::default()
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
