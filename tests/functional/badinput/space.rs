//! A full disk fails the call that writes, and no other.

use anyhow::Result;
use skilld_client::v1::exec_result::Reason as Ended;
use skilld_client::v1::{Reason, WorkspaceLimits};
use skilld_client::{Client, UploadTarget};
use skilld_tests::exec::{run, shell, sized};
use skilld_tests::files::{put, read, stage, tar};
use skilld_tests::{Daemon, expect_refusal};

use super::{contents, still_well};

/// Creates a workspace of 8 MiB and 512 inodes.
async fn small(client: &Client) -> Result<String> {
    let limits = WorkspaceLimits {
        disk_bytes: 8 << 20,
        inodes: 512,
        ..WorkspaceLimits::default()
    };
    sized(client, limits).await
}

#[tokio::test]
async fn a_full_disk_refuses_what_is_staged_and_keeps_what_was_there() -> Result<()> {
    let daemon = Daemon::start().await?;
    let client = &daemon.client;
    let name = small(client).await?;
    put(client, &name, "work/kept", "kept").await?;
    let before = contents(client, &name).await?;
    let large = vec![1; 9 << 20];
    let full = Reason::DiskFull;
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
    still_well(client, &name).await?;
    daemon.stop().await
}

#[tokio::test]
async fn a_program_on_a_full_disk_gets_enospc() -> Result<()> {
    let daemon = Daemon::start().await?;
    let client = &daemon.client;
    let name = small(client).await?;
    let other = small(client).await?;
    let fill = "head -c 20M /dev/zero >$OUTPUT_DIR/fill; echo $?; stat -c %s $OUTPUT_DIR/fill";
    let outcome = run(client, &name, shell(fill)).await?;
    assert!(
        outcome.error_text().contains("No space left on device"),
        "{outcome:?}"
    );
    let numbers: Vec<u64> = outcome
        .text()
        .lines()
        .map(str::parse)
        .collect::<Result<_, _>>()?;
    assert_eq!(numbers[0], 1);
    assert!((7 << 20..=8 << 20).contains(&numbers[1]), "{numbers:?}");
    assert!(
        matches!(outcome.reason(), Ended::Exited | Ended::DiskFull),
        "{outcome:?}"
    );
    // The workspace can be looked at and cleaned up; its neighbour never noticed.
    still_well(client, &name).await?;
    expect_refusal(
        put(client, &name, "work/x", vec![1; 1 << 20]).await,
        Reason::DiskFull,
    )?;
    put(client, &other, "work/x", vec![1; 6 << 20]).await?;
    run(client, &name, shell("rm $OUTPUT_DIR/fill")).await?;
    put(client, &name, "work/x", vec![1; 6 << 20]).await?;
    still_well(client, &name).await?;
    daemon.stop().await
}
