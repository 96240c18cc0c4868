//! Docker stops while the daemon serves, and comes back. It does so for the daemon only, through a proxy that the test
//! closes.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use skilld_client::{Client, RetryPolicy};
use skilld_proto::v1::{CreateWorkspaceRequest, DeleteWorkspaceRequest, WorkspaceState};
use skilld_tests::docker::{self, Sleeper};
use skilld_tests::proxy::Proxy;
use skilld_tests::{Daemon, Options, exec, wait};

use crate::{containers, refusal, sh};

const MOMENT: Duration = Duration::from_secs(10);

async fn health(daemon: &Daemon, serving: bool) -> Result<()> {
    let what = if serving {
        "it is SERVING"
    } else {
        "it is NOT_SERVING"
    };
    wait::until(what, MOMENT, async || {
        Ok((daemon.client.is_serving("").await? == serving).then_some(()))
    })
    .await
}

#[tokio::test]
async fn docker_stops_while_serving() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let mut proxy = Proxy::open(&dir.path().join("docker.sock"))?;
    let options = Options::default().set("engine.docker_host", &proxy.host());
    let daemon = Daemon::start_with(options).await?;
    let client = daemon.client.clone().with_retry(RetryPolicy::none());
    let workspace = exec::workspace(&client).await?.name;
    let doomed = exec::workspace(&client).await?.name;
    daemon.warm(1).await?;
    let container = daemon.container(&doomed)?;
    sh(&client, &workspace, "echo before > file").await?;

    proxy.close().await?;
    let away = Instant::now();
    health(&daemon, false).await?;
    println!("Docker gone to NOT_SERVING: {:?}", away.elapsed());
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
        sh(&client, &workspace, "cat file; echo after >> file").await?,
        "before\n"
    );
    let claimed = exec::workspace(&client).await?.name;
    assert_eq!(sh(&client, &claimed, "echo warm").await?, "warm\n");

    nothing_is_made(&client).await?;
    let delete = || client.delete_workspace(&doomed);
    let refused = ("Unavailable".into(), "REASON_ENGINE_UNAVAILABLE".into());
    assert_eq!(refusal(delete().await)?, refused);
    assert_eq!(
        client.get_workspace(&doomed).await?.state(),
        WorkspaceState::Closing
    );
    assert_eq!(refusal(delete().await)?, refused);
    assert!(containers(&daemon).await?.contains(&container));

    proxy.reopen()?;
    println!("Docker back: {}", comes_back(&daemon, &container).await?);
    let request = DeleteWorkspaceRequest {
        name: doomed,
        allow_missing: true,
    };
    client.workspaces().delete_workspace(request).await?;
    assert_eq!(
        sh(&client, &workspace, "cat file").await?,
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
async fn a_labelled_container_that_no_slot_knows_is_removed_while_it_serves() -> Result<()> {
    let options = Options::default().set("engine.reconcile_interval", "1s");
    let daemon = Daemon::start_with(options).await?;
    let workspace = exec::workspace(&daemon.client).await?.name;
    daemon.warm(1).await?;
    let known = containers(&daemon).await?;
    let orphan = Sleeper::start(&[(docker::LABEL_INSTANCE, &daemon.info.instance)]).await?;
    let foreign = Sleeper::start(&[(docker::LABEL_INSTANCE, "another")]).await?;
    let started = Instant::now();
    wait::until("it is removed", Duration::from_secs(30), async || {
        Ok((containers(&daemon).await? == known).then_some(()))
    })
    .await?;
    println!("orphan removed after {:?}", started.elapsed());
    assert!(!orphan.runs().await?);
    assert!(foreign.runs().await?, "it is not ours");
    assert_eq!(sh(&daemon.client, &workspace, "echo on").await?, "on\n");
    daemon.stop().await
}

/// Checks that a claim that needs a new container fails at once instead of after the queue's wait.
async fn nothing_is_made(client: &Client) -> Result<()> {
    for _ in 0..3 {
        let asked = Instant::now();
        let error = client
            .create_workspace(CreateWorkspaceRequest::default())
            .await;
        let error = error.err().context("made without an engine")?;
        let failure = error.failure().context("a status")?;
        assert!(failure.retry_after.is_some(), "no RetryInfo: {failure:?}");
        let refused = refusal(Err::<(), _>(error))?;
        assert_eq!(
            refused,
            ("Unavailable".into(), "REASON_ENGINE_UNAVAILABLE".into())
        );
        assert!(
            asked.elapsed() < Duration::from_secs(5),
            "{:?}",
            asked.elapsed()
        );
    }
    Ok(())
}

/// Waits until health, pool and the pending delete have recovered, and prints when each did.
async fn comes_back(daemon: &Daemon, container: &str) -> Result<String> {
    let back = Instant::now();
    health(daemon, true).await?;
    let serving = back.elapsed();
    daemon.warm(1).await?;
    let warm = back.elapsed();
    wait::until(
        "the container is gone",
        Duration::from_secs(20),
        async || Ok((!containers(daemon).await?.contains(container)).then_some(())),
    )
    .await?;
    let gone = back.elapsed();
    Ok(format!(
        "SERVING after {serving:?}, pool warm after {warm:?}, delete finished after {gone:?}"
    ))
}
