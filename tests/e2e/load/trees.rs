//! Trees that fill a workspace with processes: a kill ends all of them, and the guest answers meanwhile.

use anyhow::{Context, Result};
use skilld_client::Client;
use skilld_proto::v1::{Exec, ExecState, ExitReason};
use skilld_tests::exec::{run, shell, start, workspace};
use skilld_tests::{Daemon, Options, processes, wait};

use crate::load::{DEADLINE, alone, with_deadline};

/// Number of processes that a tree has when it is killed; the default pool allows 512, with the guest's own.
const TREE_MIN: usize = 400;
/// Number of trees that a test kills.
const ROUNDS: usize = 3;

async fn start_daemon() -> Result<Daemon> {
    Daemon::start_with(Options::default().set("execs.kill_grace", "100ms")).await
}

async fn wait_until_grown(daemon: &Daemon, workspace: &str) -> Result<()> {
    wait::until("the tree has grown", DEADLINE, async || {
        let commands = processes::list_commands(daemon, workspace)?;
        Ok((commands.len() >= TREE_MIN).then_some(()))
    })
    .await
}

/// Asks the guest, which must answer, for the state of an exec.
async fn state(client: &Client, exec: &Exec) -> Result<ExecState> {
    let asked = async { Ok(client.get_exec(&exec.name).await?) };
    Ok(with_deadline("the guest answers", asked).await?.state())
}

/// Kills an exec and returns it. KillExec answers when nothing is left of it.
async fn kill(client: &Client, exec: &Exec) -> Result<Exec> {
    let killed = async { Ok(client.kill_exec(&exec.name).await?) };
    with_deadline("the tree is gone", killed).await
}

#[tokio::test]
async fn a_fork_bomb_is_gone_when_its_kill_is_answered() -> Result<()> {
    const BOMB: &str = "trap '' TERM; bomb() { bomb | bomb & }; bomb; while :; do bomb; done";
    let _alone = alone().await;
    let daemon = start_daemon().await?;
    let client = &daemon.client;
    let name = workspace(client).await?.name;
    for round in 0..ROUNDS {
        let exec = start(client, &name, &format!("bomb{round}"), shell(BOMB)).await?;
        wait_until_grown(&daemon, &name).await?;
        assert_eq!(state(client, &exec).await?, ExecState::Running);
        let killed = kill(client, &exec).await?;
        assert_eq!(processes::list_commands(&daemon, &name)?, [""; 0]);
        let result = killed.result.context("no result")?;
        assert_eq!(result.reason(), ExitReason::KilledByClient, "{result:?}");
        let outcome = run(client, &name, shell("echo back")).await?;
        assert_eq!(outcome.text(), "back\n", "{outcome:?}");
    }
    daemon.stop().await
}

#[tokio::test]
async fn a_400_process_hostile_tree_is_gone_when_its_kill_is_answered() -> Result<()> {
    // Every tenth leads a session of its own, all ignore TERM, half of them lost their parent.
    const SCRIPT: &str = "trap '' TERM HUP INT; for i in {1..200}; do \
        if [ $((i % 10)) = 0 ]; then setsid sleep 1001 & (setsid sleep 1002 &); \
        else sleep 1001 & (sleep 1002 &); fi; done; echo up; while :; do sleep 1; done";
    let _alone = alone().await;
    let daemon = start_daemon().await?;
    let client = &daemon.client;
    let name = workspace(client).await?.name;
    for round in 0..ROUNDS {
        let exec = start(client, &name, &format!("hostile{round}"), shell(SCRIPT)).await?;
        wait_until_grown(&daemon, &name).await?;
        // With another exec beside it, nothing that ends everything at once can be used.
        let beat = "while :; do echo beat; sleep 0.02; done";
        let other = start(client, &name, &format!("other{round}"), shell(beat)).await?;
        kill(client, &exec).await?;
        let mut left = processes::list_commands(&daemon, &name)?;
        left.retain(|line| line.contains("sleep 100"));
        assert_eq!(left, [""; 0]);
        assert_eq!(state(client, &other).await?, ExecState::Running);
        kill(client, &other).await?;
    }
    daemon.stop().await
}
