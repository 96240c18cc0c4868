//! Limits of workspaces: lower ones are enforced, higher ones and too many workspaces are refused.

use anyhow::Result;
use skilld_client::v1::{CreateWorkspaceRequest, Reason, WorkspaceLimits};
use skilld_tests::exec::{run, shell};
use skilld_tests::{Daemon, Options, expect_refusal};

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
    let commands = "stat -f -c '%b %S %c' /workspace";
    let sizes = run(client, &made.name, shell(commands)).await?;
    let text = sizes.text();
    let numbers = text.split_whitespace().map(str::parse);
    let numbers: Vec<u64> = numbers.collect::<Result<_, _>>()?;
    assert_eq!((numbers[0] * numbers[1], numbers[2]), (4 << 20, 300));
    let commands = "head -c 5M /dev/zero >$WORK_DIR/big";
    let full = run(client, &made.name, shell(commands)).await?;
    assert!(
        full.error_text().contains("No space left on device"),
        "{full:?}"
    );
    run(client, &made.name, shell("rm $WORK_DIR/big")).await?;
    let commands = "cd $WORK_DIR; for i in {1..400}; do : >f$i || exit 7; done";
    let many = run(client, &made.name, shell(commands)).await?;
    assert_eq!(many.exit_code(), Some(7), "{many:?}");
    // A full disk keeps nobody from making room on it.
    let room = run(client, &made.name, shell("rm -f $WORK_DIR/f*")).await?;
    assert_eq!(room.exit_code(), Some(0), "{room:?}");
    let commands = "for i in {1..80}; do sleep 5 & done; wait";
    let forks = run(client, &made.name, shell(commands)).await?;
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
    type RaiseLimit = fn(&mut WorkspaceLimits);
    let daemon = Daemon::start().await?;
    let client = &daemon.client;
    let cases: [(&str, RaiseLimit); 5] = [
        ("limits.memory_bytes", |it| it.memory_bytes = 1 << 40),
        ("limits.cpu_millis", |it| it.cpu_millis = 64_000),
        ("limits.pids", |it| it.pids = 1_000_000),
        ("limits.disk_bytes", |it| it.disk_bytes = 1 << 40),
        ("limits.inodes", |it| it.inodes = 1 << 40),
    ];
    for (field, raise) in cases {
        let mut limits = WorkspaceLimits::default();
        raise(&mut limits);
        let request = CreateWorkspaceRequest {
            limits: Some(limits),
            ..named("large")
        };
        let failure = expect_refusal(
            client.create_workspace(request).await,
            Reason::LimitUnsupported,
        )?;
        assert_eq!(failure.metadata["field"], field);
    }
    expect_refusal(
        client.get_workspace("large").await,
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
    expect_refusal(third, Reason::QuotaExceeded)?;
    let existing = CreateWorkspaceRequest {
        allow_existing: true,
        ..named("b")
    };
    client.create_workspace(existing).await?;
    client.delete_workspace("a").await?;
    client.create_workspace(named("c")).await?;
    daemon.stop().await
}
