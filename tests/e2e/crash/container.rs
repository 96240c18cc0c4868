//! Containers that end or disappear without the daemon's doing.

use anyhow::{Context, Result};
use skilld_proto::v1::workspace_failure::Cause;
use skilld_proto::v1::{RunExecRequest, WorkspaceState};
use skilld_tests::{Daemon, Options, docker, exec, wait};

use crate::crash::{DEADLINE, containers, expect_status, read_bytes, read_until_broken, run_shell};

#[tokio::test]
async fn a_volume_that_docker_left_is_removed() -> Result<()> {
    // The reconciler removes such volumes as well.
    let options = Options::default().set("engine.reconcile_interval", "1h");
    let daemon = Daemon::start_with(options).await?;
    let workspace = exec::workspace(&daemon.client).await?.name;
    daemon.warm(1).await?;
    let instance = &daemon.info.instance;
    // Each container has two: its terminals and the environments of skills.
    assert_eq!(docker::volumes(instance).await?.len(), 4);
    docker::remove(&daemon.container(&workspace)?).await?;
    assert_eq!(docker::volumes(instance).await?.len(), 4);
    daemon.client.delete_workspace(&workspace).await?;
    // The proof at the end finds no volume of this instance.
    daemon.stop().await
}

#[tokio::test]
async fn a_removed_container_fails_its_workspace() -> Result<()> {
    let daemon = Daemon::start().await?;
    let client = &daemon.client;
    let workspace = exec::workspace(client).await?.name;
    let neighbour = exec::workspace(client).await?.name;
    daemon.warm(1).await?;
    let container = daemon.container(&workspace)?;
    let request = RunExecRequest {
        parent: workspace.clone(),
        spec: Some(exec::shell("echo started; sleep 1000")),
        ..RunExecRequest::default()
    };
    let mut events = client.run_exec(request).await?;
    read_bytes(&mut events, 8).await?;

    docker::remove(&container).await?;
    // The exec's own timeout of an hour is far away.
    assert_eq!(
        read_until_broken(&mut events).await?,
        ("Aborted".into(), "GUEST_LOST".into())
    );
    let failed = wait::until("the workspace has failed", DEADLINE, async || {
        let now = client.get_workspace(&workspace).await?;
        Ok(Some(now).filter(|now| now.state() == WorkspaceState::Failed))
    })
    .await?;
    let failure = failed.failure.context("failure")?;
    assert_eq!(failure.cause(), Cause::ContainerLost, "{failure:?}");
    assert!(failure.message.contains("container"), "{failure:?}");

    let error = exec::run(client, &workspace, exec::shell("true"))
        .await
        .err()
        .context("it ran")?
        .downcast()?;
    let refused = expect_status(Err::<(), skilld_client::Error>(error))?;
    assert_eq!(
        refused,
        ("FailedPrecondition".into(), "WORKSPACE_NOT_READY".into())
    );
    assert_eq!(run_shell(client, &neighbour, "echo fine").await?, "fine\n");
    client.delete_workspace(&workspace).await?;
    let gone = expect_status(client.get_workspace(&workspace).await)?;
    assert_eq!(gone.1, "WORKSPACE_NOT_FOUND");
    daemon.stop().await
}

#[tokio::test]
async fn a_removed_warm_container_is_replaced() -> Result<()> {
    let daemon = Daemon::start().await?;
    daemon.warm(1).await?;
    let before = containers(&daemon).await?;
    for container in &before {
        docker::remove(container).await?;
    }
    let replaced = wait::until(
        "the removed warm container is replaced",
        DEADLINE,
        async || {
            let now = containers(&daemon).await?;
            let pool = daemon.client.get_pool("default").await?;
            Ok((pool.warm == 1 && now.is_disjoint(&before) && now.len() == 1).then_some(()))
        },
    );
    replaced.await?;
    let workspace = exec::workspace(&daemon.client).await?.name;
    assert_eq!(
        run_shell(&daemon.client, &workspace, "echo new").await?,
        "new\n"
    );
    daemon.stop().await
}

/// A container that is claimed in the moment of its end is replaced, and the client does not notice.
#[tokio::test]
async fn a_claim_never_gets_a_dead_container() -> Result<()> {
    let daemon = Daemon::start().await?;
    for _ in 0..3 {
        daemon.warm(1).await?;
        let warm = containers(&daemon).await?;
        let kill = async {
            for container in &warm {
                // The ones that are workspaces already went with an earlier round.
                drop(docker::remove(container).await);
            }
            Ok::<_, anyhow::Error>(())
        };
        let (killed, claimed) = tokio::join!(kill, exec::workspace(&daemon.client));
        killed?;
        let workspace = claimed?.name;
        // Either it was claimed before its end, and is lost as any; or it works.
        match exec::run(&daemon.client, &workspace, exec::shell("echo here")).await {
            Ok(outcome) => assert_eq!(outcome.text(), "here\n"),
            Err(error) => {
                let refused = expect_status(Err::<(), skilld_client::Error>(error.downcast()?))?;
                assert!(
                    ["GUEST_LOST", "WORKSPACE_NOT_READY"].contains(&&*refused.1),
                    "{refused:?}"
                );
            }
        }
        daemon.client.delete_workspace(&workspace).await?;
    }
    daemon.stop().await
}
