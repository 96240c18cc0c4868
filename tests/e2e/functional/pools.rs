//! Pools: resized, asked for by name, and claimed by more requests at once than they have warm containers.
//!
//! Docker: it creates, starts and removes the containers of a pool, several at once.

use std::time::Duration;

use anyhow::Result;
use futures::future::join_all;
use skilld_client::v1::{CreateWorkspaceRequest, ErrorReason};
use skilld_tests::exec::{run, shell, workspace};
use skilld_tests::{Daemon, Options, expect_refusal, wait};

#[tokio::test]
async fn a_pool_is_resized_within_its_maximum() -> Result<()> {
    let daemon = Daemon::start_with(Options::default().set("pools.default.max", "3")).await?;
    let client = &daemon.client;
    let pool = client.resize_pool("default", 3).await?;
    assert_eq!(pool.warm_target, 3);
    daemon.warm(3).await?;
    assert_eq!(daemon.containers().await?.len(), 3);
    client.resize_pool("default", 1).await?;
    wait::until(
        "the pool has shrunk",
        Duration::from_secs(120),
        async || Ok((daemon.containers().await?.len() <= 1).then_some(())),
    )
    .await?;
    assert_eq!(client.get_pool("default").await?.warm, 1);
    for wrong in [-1, 4] {
        expect_refusal(
            client.resize_pool("default", wrong).await,
            ErrorReason::InvalidRequest,
        )?;
    }
    let failure = expect_refusal(
        client.resize_pool("none", 1).await,
        ErrorReason::PoolNotFound,
    )?;
    assert_eq!(failure.metadata["pools"], "pools/default");
    daemon.stop().await
}

#[tokio::test]
async fn an_unknown_pool_is_answered_with_those_that_exist() -> Result<()> {
    let options = Options::default()
        .set("pools.other.warm", "0")
        .set("pools.other.max", "1")
        // A pool beside the default one has the daemon's own default, in which a busy machine boots nothing.
        .set("pools.other.claim_timeout", "4m");
    let daemon = Daemon::start_with(options).await?;
    let client = &daemon.client;
    let request = |pool: &str| CreateWorkspaceRequest {
        pool: pool.to_owned(),
        ..CreateWorkspaceRequest::default()
    };
    let failure = expect_refusal(
        client.create_workspace(request("nope")).await,
        ErrorReason::PoolNotFound,
    )?;
    assert_eq!(failure.metadata["pools"], "pools/default,pools/other");
    // A pool without warm containers makes one for who asks.
    let made = client.create_workspace(request("other")).await?;
    assert_eq!(made.pool, "pools/other");
    daemon.stop().await
}

#[tokio::test]
async fn sixteen_claims_at_once_get_a_container_each() -> Result<()> {
    let options = Options::default()
        .set("pools.default.max", "6")
        .set("pools.default.queue_max", "32");
    let daemon = Daemon::start_with(options).await?;
    let client = &daemon.client;
    let jobs = (0..16).map(|number| async move {
        let made = workspace(client).await?;
        let text = format!("ls $WORK_DIR; echo {number} >$WORK_DIR/mine; cat $WORK_DIR/mine");
        let outcome = run(client, &made.name, shell(&text)).await?;
        client.delete_workspace(&made.name).await?;
        anyhow::Ok((number, outcome.text()))
    });
    for job in join_all(jobs).await {
        let (number, text) = job?;
        // No workspace has the files of another one.
        assert_eq!(text, format!("inputs\n{number}\n"));
    }
    daemon.stop().await
}
