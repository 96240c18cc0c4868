//! How commands are ended: the whole tree, with what it said and the true time.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use skilld_client::Client;
use skilld_client::v1::exec_result::Reason as Ended;
use skilld_client::v1::{ExecSpec, ExecState, StartExecRequest, StreamOffsets};
use skilld_tests::Daemon;
use skilld_tests::exec::{attach, run, shell, workspace};

/// Leaves a child in its own session, a double fork that ignores TERM, and stays itself, ignoring TERM.
const STUBBORN: &str = "echo before; echo trouble >&2
setsid sleep 1001 &
(setsid bash -c 'trap \"\" TERM HUP; sleep 1002 & sleep 1003; sleep 1004' &)
trap '' TERM
touch $WORK_DIR/up
sleep 1005; sleep 1006";

/// What runs in the workspace of the programs above.
async fn sleepers(client: &Client, workspace: &str) -> Result<String> {
    let list = "for p in /proc/[0-9]*; do tr '\\0' ' ' <$p/cmdline 2>/dev/null; echo; done | grep 'sleep 10' | grep -v grep";
    Ok(run(client, workspace, shell(list)).await?.text())
}

#[tokio::test]
async fn a_timeout_ends_the_whole_tree_and_keeps_the_output() -> Result<()> {
    let daemon = Daemon::start().await?;
    let client = &daemon.client;
    let name = workspace(client).await?.name;
    let spec = ExecSpec {
        timeout: Duration::from_millis(1200).try_into().ok(),
        ..shell(STUBBORN)
    };
    let outcome = run(client, &name, spec).await?;
    assert_eq!(outcome.reason(), Ended::Timeout);
    assert_eq!(outcome.exit_code(), None);
    assert_eq!(
        (outcome.text().as_str(), outcome.error_text().as_str()),
        ("before\n", "trouble\n")
    );
    let wall = outcome.wall_time();
    assert!(wall >= Duration::from_millis(1200), "{wall:?}");
    // It ignores TERM, so it may have had the grace of 2 s.
    assert!(wall < Duration::from_millis(4500), "{wall:?}");
    assert!(
        outcome.closed < Duration::from_secs(5),
        "{:?}",
        outcome.closed
    );
    assert_eq!(sleepers(client, &name).await?, "");
    daemon.stop().await
}

#[tokio::test]
async fn a_kill_ends_the_whole_tree_before_it_answers() -> Result<()> {
    let daemon = Daemon::start().await?;
    let client = &daemon.client;
    let name = workspace(client).await?.name;
    let exec = client
        .start_exec(StartExecRequest {
            workspace: name.clone(),
            exec_id: "stubborn".to_owned(),
            spec: Some(shell(STUBBORN)),
        })
        .await?;
    run(
        client,
        &name,
        shell("until [ -e $WORK_DIR/up ]; do sleep 0.02; done; sleep 0.2"),
    )
    .await?;
    assert!(sleepers(client, &name).await?.lines().count() >= 4);
    let started = Instant::now();
    let killed = client.kill_exec(&exec.name).await?;
    let took = started.elapsed();
    assert!(took < Duration::from_secs(4), "{took:?}");
    let result = killed.result.context("no result")?;
    assert_eq!(result.reason(), Ended::KilledByClient);
    assert_eq!(sleepers(client, &name).await?, "");
    let outcome = attach(client, &exec.name, StreamOffsets::default()).await?;
    assert_eq!(outcome.text(), "before\n");
    // Killing what has ended is fine and changes nothing.
    let again = client.kill_exec(&exec.name).await?;
    assert_eq!(again.state(), ExecState::Closed);
    assert_eq!(
        again.result.context("no result")?.reason(),
        Ended::KilledByClient
    );
    daemon.stop().await
}

#[tokio::test]
async fn a_background_child_that_holds_the_pipe_does_not_delay_the_end() -> Result<()> {
    let daemon = Daemon::start().await?;
    let client = &daemon.client;
    let name = workspace(client).await?.name;
    let outcome = run(
        client,
        &name,
        shell("sleep 1001 & setsid sleep 1002 & echo started; exit 3"),
    )
    .await?;
    assert_eq!(
        (outcome.text().as_str(), outcome.exit_code()),
        ("started\n", Some(3))
    );
    assert!(
        outcome.exited < Duration::from_millis(900),
        "{:?}",
        outcome.exited
    );
    // The leak grace is 500 ms.
    assert!(
        outcome.closed < Duration::from_secs(3),
        "{:?}",
        outcome.closed
    );
    assert_eq!(sleepers(client, &name).await?, "");
    daemon.stop().await
}

#[tokio::test]
async fn a_timeout_over_the_maximum_is_cut_visibly() -> Result<()> {
    let options = skilld_tests::Options::default()
        .set("execs.timeout_default", "1s")
        .set("execs.timeout_max", "2s");
    let daemon = Daemon::start_with(options).await?;
    let client = &daemon.client;
    let name = workspace(client).await?.name;
    let spec = ExecSpec {
        timeout: Duration::from_secs(3600).try_into().ok(),
        ..shell("echo hi")
    };
    let outcome = run(client, &name, spec).await?;
    let seconds = outcome.spec.timeout.map(|timeout| timeout.seconds);
    assert_eq!(seconds, Some(2), "{:?}", outcome.spec);
    let outcome = run(client, &name, shell("sleep 100")).await?;
    assert_eq!(outcome.reason(), Ended::Timeout);
    assert!(outcome.wall_time() < Duration::from_secs(2), "{outcome:?}");
    daemon.stop().await
}
