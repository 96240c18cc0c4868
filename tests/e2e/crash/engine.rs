//! Docker stops while the daemon serves, and comes back. It does so for the daemon only, through a proxy that the test
//! closes.

use anyhow::{Context, Result};
use nix::sys::signal::Signal;
use skilld_client::{Client, RetryPolicy};
use skilld_proto::v1::{CreateWorkspaceRequest, DeleteWorkspaceRequest, WorkspaceState};
use skilld_tests::docker::{self, Sleeper};
use skilld_tests::proxy::Proxy;
use skilld_tests::{Daemon, Options, exec, wait};

use crate::crash::{DEADLINE, containers, expect_status, run_shell, with_deadline};

async fn health(daemon: &Daemon, serving: bool) -> Result<()> {
    let what = if serving {
        "it is SERVING"
    } else {
        "it is NOT_SERVING"
    };
    wait::until(what, DEADLINE, async || {
        Ok((daemon.client.is_serving("").await? == serving).then_some(()))
    })
    .await
}

#[tokio::test]
async fn workspaces_keep_working_while_docker_is_stopped() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let mut proxy = Proxy::open(&dir.path().join("docker.sock"))?;
    // A claim that waits in the queue does not end before the test gives up.
    let options = Options::default()
        .set("engine.docker_host", &proxy.host())
        .set("server.unary_timeout", "2h")
        .set("pools.default.claim_timeout", "1h");
    let daemon = Daemon::start_with(options).await?;
    let client = daemon.client.clone().with_retry(RetryPolicy::none());
    let workspace = exec::workspace(&client).await?.name;
    let doomed = exec::workspace(&client).await?.name;
    daemon.warm(1).await?;
    let container = daemon.container(&doomed)?;
    run_shell(&client, &workspace, "echo before > file").await?;

    proxy.close().await?;
    health(&daemon, false).await?;
    assert!(
        !client
            .server_info()
            .await?
            .engine
            .context("engine")?
            .available
    );
    // What is there goes on: commands, files, and the container that is warm.
    assert_eq!(
        run_shell(&client, &workspace, "cat file; echo after >> file").await?,
        "before\n"
    );
    let claimed = exec::workspace(&client).await?.name;
    assert_eq!(run_shell(&client, &claimed, "echo warm").await?, "warm\n");

    nothing_is_made(&client).await?;
    let delete = || client.delete_workspace(&doomed);
    let refused = ("Unavailable".into(), "ENGINE_UNAVAILABLE".into());
    assert_eq!(expect_status(delete().await)?, refused);
    assert_eq!(
        client.get_workspace(&doomed).await?.state(),
        WorkspaceState::Closing
    );
    assert_eq!(expect_status(delete().await)?, refused);
    assert!(containers(&daemon).await?.contains(&container));

    proxy.reopen()?;
    comes_back(&daemon, &container).await?;
    let request = DeleteWorkspaceRequest {
        name: doomed,
        allow_missing: true,
    };
    client.workspaces().delete_workspace(request).await?;
    assert_eq!(
        run_shell(&client, &workspace, "cat file").await?,
        "before\nafter\n"
    );
    assert!(
        client
            .server_info()
            .await?
            .engine
            .context("engine")?
            .available
    );
    assert_eq!(containers(&daemon).await?.len(), 3);
    daemon.stop().await
}

#[tokio::test]
async fn a_labelled_container_without_a_slot_is_removed_at_runtime() -> Result<()> {
    let options = Options::default().set("engine.reconcile_interval", "1s");
    let daemon = Daemon::start_with(options).await?;
    let workspace = exec::workspace(&daemon.client).await?.name;
    daemon.warm(1).await?;
    let known = containers(&daemon).await?;
    // A daemon that runs on could remove the container between Docker's creation and its start.
    daemon.signal(Signal::SIGSTOP)?;
    let started = Sleeper::start(&[(docker::LABEL_INSTANCE, &daemon.info.instance)]).await;
    daemon.signal(Signal::SIGCONT)?;
    let orphan = started?;
    let foreign = Sleeper::start(&[(docker::LABEL_INSTANCE, "another")]).await?;
    wait::until("the orphaned container is removed", DEADLINE, async || {
        Ok((containers(&daemon).await? == known).then_some(()))
    })
    .await?;
    assert!(!orphan.runs().await?);
    assert!(
        foreign.runs().await?,
        "a container of another daemon was removed"
    );
    assert_eq!(
        run_shell(&daemon.client, &workspace, "echo on").await?,
        "on\n"
    );
    daemon.stop().await
}

/// Checks that a claim that needs a new container fails, instead of waiting in the queue.
async fn nothing_is_made(client: &Client) -> Result<()> {
    for _ in 0..3 {
        let claimed = async {
            let request = CreateWorkspaceRequest::default();
            Ok(client.create_workspace(request).await)
        };
        let claimed = with_deadline("the claim is refused", claimed).await?;
        let error = claimed.err().context("made without an engine")?;
        let failure = error.failure().context("a status")?;
        assert!(failure.retry_after.is_some(), "no RetryInfo: {failure:?}");
        let refused = expect_status(Err::<(), _>(error))?;
        assert_eq!(refused, ("Unavailable".into(), "ENGINE_UNAVAILABLE".into()));
    }
    Ok(())
}

/// Waits until health, pool and the pending delete have recovered.
async fn comes_back(daemon: &Daemon, container: &str) -> Result<()> {
    health(daemon, true).await?;
    daemon.warm(1).await?;
    wait::until("the container is gone", DEADLINE, async || {
        Ok((!containers(daemon).await?.contains(container)).then_some(()))
    })
    .await
}
