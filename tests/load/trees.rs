//! Trees that fill a workspace with processes: a kill ends all of them, and the guest answers meanwhile.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use skilld_client::Client;
use skilld_proto::v1::exec_result::Reason;
use skilld_proto::v1::{Exec, ExecState};
use skilld_tests::exec::{run, shell, start, workspace};
use skilld_tests::{Daemon, Options, processes, wait};

use crate::{KILL_MAX, KILL_MAX_ON_A_BUSY_HOST, alone};

/// Number of processes that a tree has when it is killed; the default pool allows 512, with the guest's own.
const TREE_MIN: usize = 400;
/// Number of trees that a test kills.
const ROUNDS: usize = 3;

async fn start_daemon() -> Result<Daemon> {
    Daemon::start_with(Options::default().set("execs.kill_grace", "100ms")).await
}

async fn wait_until_grown(daemon: &Daemon, workspace: &str) -> Result<()> {
    wait::until("the tree has grown", Duration::from_secs(60), async || {
        let commands = processes::list_commands(daemon, workspace)?;
        Ok((commands.len() >= TREE_MIN).then_some(()))
    })
    .await
}

/// Kills an exec and returns it with the time until KillExec answered.
async fn time_kill(client: &Client, exec: &Exec) -> Result<(Exec, Duration)> {
    let begin = Instant::now();
    let killed = client.kill_exec(&exec.name).await?;
    let took = begin.elapsed();
    assert!(took < KILL_MAX_ON_A_BUSY_HOST, "{took:?}");
    Ok((killed, took))
}

#[tokio::test]
async fn fork_bomb() -> Result<()> {
    const BOMB: &str = "trap '' TERM; bomb() { bomb | bomb & }; bomb; while :; do bomb; done";
    let _alone = alone().await;
    let daemon = start_daemon().await?;
    let client = &daemon.client;
    let name = workspace(client).await?.name;
    let mut best = Duration::MAX;
    for round in 0..ROUNDS {
        let exec = start(client, &name, &format!("bomb{round}"), shell(BOMB)).await?;
        wait_until_grown(&daemon, &name).await?;
        let begin = Instant::now();
        assert_eq!(
            client.get_exec(&exec.name).await?.state(),
            ExecState::Running
        );
        let asked = begin.elapsed();
        assert!(asked < KILL_MAX_ON_A_BUSY_HOST, "{asked:?}");
        let (killed, took) = time_kill(client, &exec).await?;
        best = best.min(took);
        assert_eq!(processes::list_commands(&daemon, &name)?, [""; 0]);
        let result = killed.result.context("no result")?;
        assert_eq!(result.reason(), Reason::KilledByClient, "{result:?}");
        let outcome = run(client, &name, shell("echo back")).await?;
        assert_eq!(outcome.text(), "back\n", "{outcome:?}");
    }
    assert!(best < KILL_MAX, "{best:?}");
    daemon.stop().await
}

#[tokio::test]
async fn a_400_process_hostile_tree_is_gone_within_a_second() -> Result<()> {
    // Every tenth leads a session of its own, all ignore TERM, half of them lost their parent.
    const SCRIPT: &str = "trap '' TERM HUP INT; for i in {1..200}; do \
        if [ $((i % 10)) = 0 ]; then setsid sleep 1001 & (setsid sleep 1002 &); \
        else sleep 1001 & (sleep 1002 &); fi; done; echo up; while :; do sleep 1; done";
    let _alone = alone().await;
    let daemon = start_daemon().await?;
    let client = &daemon.client;
    let name = workspace(client).await?.name;
    let mut best = Duration::MAX;
    for round in 0..ROUNDS {
        let exec = start(client, &name, &format!("hostile{round}"), shell(SCRIPT)).await?;
        wait_until_grown(&daemon, &name).await?;
        // With another exec beside it, nothing that ends everything at once can be used.
        let beat = "while :; do echo beat; sleep 0.02; done";
        let other = start(client, &name, &format!("other{round}"), shell(beat)).await?;
        let (_, took) = time_kill(client, &exec).await?;
        best = best.min(took);
        let mut left = processes::list_commands(&daemon, &name)?;
        left.retain(|line| line.contains("sleep 100"));
        assert_eq!(left, [""; 0]);
        assert_eq!(
            client.get_exec(&other.name).await?.state(),
            ExecState::Running
        );
        client.kill_exec(&other.name).await?;
    }
    assert!(best < KILL_MAX, "{best:?}");
    daemon.stop().await
}
