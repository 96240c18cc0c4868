//! Limits of workspaces: lower ones are enforced, higher ones and too many workspaces are refused.

use anyhow::Result;
use skilld_client::v1::{CreateWorkspaceRequest, Reason, WorkspaceLimits};
use skilld_tests::exec::{run, shell};
use skilld_tests::{Daemon, Options, expect_refusal};
use tonic::Code;

use crate::workspaces::named;

#[tokio::test]
async fn lower_limits_are_enforced() -> Result<()> {
    let daemon = Daemon::start().await?;
    let client = &daemon.client;
    let limits = WorkspaceLimits {
        memory_bytes: 96 << 20,
        cpu_millis: 500,
        pids: 64,
        disk_bytes: 4 << 20,
        inodes: 300,
    };
    let made = client
        .create_workspace(CreateWorkspaceRequest {
            limits: Some(limits),
            ..named("small")
        })
        .await?;
    assert_eq!(made.limits, Some(limits));
    let sizes = run(
        client,
        &made.name,
        shell("stat -f -c '%b %S %c' /workspace"),
    )
    .await?;
    let text = sizes.text();
    let numbers = text.split_whitespace().map(str::parse);
    let numbers: Vec<u64> = numbers.collect::<Result<_, _>>()?;
    assert_eq!((numbers[0] * numbers[1], numbers[2]), (4 << 20, 300));
    let full = run(
        client,
        &made.name,
        shell("head -c 5M /dev/zero >$WORK_DIR/big"),
    )
    .await?;
    assert!(
        full.error_text().contains("No space left on device"),
        "{full:?}"
    );
    run(client, &made.name, shell("rm $WORK_DIR/big")).await?;
    let many = run(
        client,
        &made.name,
        shell("cd $WORK_DIR; for i in {1..400}; do : >f$i || exit 7; done"),
    )
    .await?;
    assert_eq!(many.exit_code(), Some(7), "{many:?}");
    // A full disk keeps nobody from making room on it.
    let room = run(client, &made.name, shell("rm -f $WORK_DIR/f*")).await?;
    assert_eq!(room.exit_code(), Some(0), "{room:?}");
    let forks = run(
        client,
        &made.name,
        shell("for i in {1..80}; do sleep 5 & done; wait"),
    )
    .await?;
    assert!(
        forks
            .error_text()
            .contains("Resource temporarily unavailable"),
        "{forks:?}"
    );
    let greedy = "python3 -c 'b = bytearray(200 << 20); print(len(b))'";
    let oom = run(client, &made.name, shell(&format!("{greedy}; echo $?"))).await?;
    assert!(!oom.text().contains("209715200"), "{oom:?}");
    daemon.stop().await
}

#[tokio::test]
async fn higher_limits_than_the_pools_are_refused() -> Result<()> {
    let daemon = Daemon::start().await?;
    let client = &daemon.client;
    let none = WorkspaceLimits::default();
    for (field, limits) in [
        (
            "limits.memory_bytes",
            WorkspaceLimits {
                memory_bytes: 1 << 40,
                ..none
            },
        ),
        (
            "limits.cpu_millis",
            WorkspaceLimits {
                cpu_millis: 64_000,
                ..none
            },
        ),
        (
            "limits.pids",
            WorkspaceLimits {
                pids: 1_000_000,
                ..none
            },
        ),
        (
            "limits.disk_bytes",
            WorkspaceLimits {
                disk_bytes: 1 << 40,
                ..none
            },
        ),
        (
            "limits.inodes",
            WorkspaceLimits {
                inodes: 1 << 40,
                ..none
            },
        ),
    ] {
        let request = CreateWorkspaceRequest {
            limits: Some(limits),
            ..named("large")
        };
        let failure = expect_refusal(
            client.create_workspace(request).await,
            Code::FailedPrecondition,
            Reason::LimitUnsupported,
        )?;
        assert_eq!(
            failure.metadata.get("field").map(String::as_str),
            Some(field)
        );
    }
    expect_refusal(
        client.get_workspace("large").await,
        Code::NotFound,
        Reason::WorkspaceNotFound,
    )?;
    daemon.stop().await
}

#[tokio::test]
async fn workspaces_over_the_count_are_refused() -> Result<()> {
    let daemon = Daemon::start_with(Options::default().set("workspaces.count_max", "2")).await?;
    let client = &daemon.client;
    client.create_workspace(named("a")).await?;
    client.create_workspace(named("b")).await?;
    let third = client.create_workspace(named("c")).await;
    expect_refusal(third, Code::ResourceExhausted, Reason::QuotaExceeded)?;
    let existing = CreateWorkspaceRequest {
        allow_existing: true,
        ..named("b")
    };
    client.create_workspace(existing).await?;
    client.delete_workspace("a").await?;
    client.create_workspace(named("c")).await?;
    daemon.stop().await
}
