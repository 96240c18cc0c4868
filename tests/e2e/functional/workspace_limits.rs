//! Limits of workspaces: lower ones are enforced, higher ones are refused, and a full disk fails only what writes.
//!
//! Docker: the kernel enforces the limits of memory, processes, disk and inodes on a container's cgroup and tmpfs.

use anyhow::{Result, ensure};
use skilld_client::v1::{CreateWorkspaceRequest, ErrorReason, WorkspaceLimits};
use skilld_client::{Client, UploadTarget};
use skilld_tests::exec::{argv, run, shell};
use skilld_tests::files::{put, read, stage, tar};
use skilld_tests::{DefaultDaemon, expect_refusal};

use crate::functional::results::FORKS;
use crate::functional::workspaces::named;

#[tokio::test]
async fn lower_limits_are_enforced() -> Result<()> {
    let daemon = DefaultDaemon::share().await?;
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
    let numbers: Vec<u64> = text
        .split_whitespace()
        .map(str::parse)
        .collect::<Result<_, _>>()?;
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
    // A command can make room on the full disk.
    let room = run(client, &made.name, shell("rm -f $WORK_DIR/f*")).await?;
    assert_eq!(room.exit_code(), Some(0), "{room:?}");
    let forks = run(client, &made.name, argv(["python3", "-c", FORKS])).await?;
    assert!(
        forks
            .error_text()
            .contains("Resource temporarily unavailable"),
        "{forks:?}"
    );
    let greedy = "python3 -c 'b = bytearray(200 << 20); print(len(b))'";
    let oom = run(client, &made.name, shell(&format!("{greedy}; echo $?"))).await?;
    assert!(!oom.text().contains("209715200"), "{oom:?}");
    client.delete_workspace(&made.name).await?;
    daemon.stop().await
}

#[tokio::test]
async fn higher_limits_than_the_pools_are_refused() -> Result<()> {
    type RaiseLimit = fn(&mut WorkspaceLimits);
    let daemon = DefaultDaemon::share().await?;
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
            ErrorReason::LimitUnsupported,
        )?;
        assert_eq!(failure.metadata["field"], field);
    }
    expect_refusal(
        client.get_workspace("large").await,
        ErrorReason::WorkspaceNotFound,
    )?;
    daemon.stop().await
}

/// Returns every path in the writable area and where a misplaced file might be, one path per line.
async fn contents(client: &Client, workspace: &str) -> Result<String> {
    let list = "find $WORK_DIR $OUTPUT_DIR /tmp -mindepth 1 | sort; ls -A /workspace";
    let outcome = run(client, workspace, shell(list)).await?;
    ensure!(outcome.exit_code() == Some(0), "{outcome:?}");
    Ok(outcome.text())
}

#[tokio::test]
async fn a_full_disk_refuses_what_is_staged_and_keeps_what_was_there() -> Result<()> {
    let daemon = DefaultDaemon::share().await?;
    let client = &daemon.client;
    let limits = WorkspaceLimits {
        disk_bytes: 8 << 20,
        inodes: 512,
        ..WorkspaceLimits::default()
    };
    let name = daemon.sized(limits).await?;
    put(client, &name, "work/kept", "kept").await?;
    let before = contents(client, &name).await?;
    let large = vec![1; 9 << 20];
    let full = ErrorReason::DiskFull;
    expect_refusal(put(client, &name, "work/large", large.clone()).await, full)?;
    expect_refusal(put(client, &name, "work/kept", large.clone()).await, full)?;
    let archive = tar(&[
        ("a", b"a", 0o644),
        ("large", &large, 0o644),
        ("z", b"z", 0o644),
    ])?;
    expect_refusal(
        stage(client, UploadTarget::tar(&name, "work/t"), archive).await,
        full,
    )?;
    let names: Vec<String> = (0..600).map(|number| format!("f{number}")).collect();
    let many: Vec<(&str, &[u8], u32)> = names
        .iter()
        .map(|name| (name.as_str(), &b""[..], 0o644))
        .collect();
    expect_refusal(
        stage(client, UploadTarget::tar(&name, "work/many"), tar(&many)?).await,
        full,
    )?;
    assert_eq!(contents(client, &name).await?, before);
    assert_eq!(read(client, &name, "work/kept").await?, b"kept");
    // What fits still fits: nothing of the failed ones takes room.
    put(client, &name, "work/fits", vec![2; 6 << 20]).await?;
    let outcome = run(client, &name, shell("echo well")).await?;
    assert_eq!(outcome.text(), "well\n");
    daemon.stop().await
}
