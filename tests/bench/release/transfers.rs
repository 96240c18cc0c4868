//! Memory of daemon and guest while large artifacts and input that no program reads pass through them.

use anyhow::{Context, Result, bail};
use skilld_client::SaveTarget;
use skilld_client::v1::{
    ArtifactScope, ExecSpec, LoadArtifactRequest, StartExecRequest, StreamStdinHeader,
    StreamStdinRequest,
};
use skilld_tests::exec::{shell, workspace};
use skilld_tests::{Daemon, usage};
use tokio::io::AsyncReadExt;

use crate::{MIB, alone, options};

/// Size of the artifact, in bytes.
const ARTIFACT_BYTES: u64 = 256 * MIB;
/// Maximum growth of the daemon: the pieces of one transfer that are under way.
const DAEMON_GROWTH_MAX: u64 = 32 * MIB;
/// Maximum growth of the guest by input that its program does not read.
const GUEST_GROWTH_MAX: u64 = 8 * MIB;
/// Bytes of one message of input.
const CHUNK: usize = 256 << 10;

#[tokio::test]
async fn a_large_artifact_is_streamed_with_constant_memory() -> Result<()> {
    let _alone = alone().await;
    let daemon = Daemon::start_with(options()?.set("pools.default.warm", "0")).await?;
    let client = &daemon.client;
    let pid = daemon.pid().context("it runs")?;
    let target = |name: &str| SaveTarget::new(name, ArtifactScope::default());
    // The first call makes the daemon allocate what it keeps for good.
    client
        .save_artifact(target("small"), &[7; 4 << 20][..])
        .await?;
    let before = usage::forget_peak(pid)?;
    let bytes = tokio::io::repeat(7).take(ARTIFACT_BYTES);
    let saved = client.save_artifact(target("large"), bytes).await?;
    assert_eq!(u64::try_from(saved.size_bytes)?, ARTIFACT_BYTES);
    let grown = usage::peak(pid)?.saturating_sub(before);
    assert!(grown < DAEMON_GROWTH_MAX, "saving took {grown} bytes");

    let before = usage::forget_peak(pid)?;
    let request = LoadArtifactRequest {
        name: "large".to_owned(),
        ..Default::default()
    };
    let mut reader = client.load_artifact(request).await?;
    let mut loaded = 0;
    while let Some(piece) = reader.next().await? {
        loaded += u64::try_from(piece.len())?;
    }
    assert_eq!(loaded, ARTIFACT_BYTES);
    let grown = usage::peak(pid)?.saturating_sub(before);
    assert!(grown < DAEMON_GROWTH_MAX, "loading took {grown} bytes");
    daemon.stop().await
}

#[tokio::test]
async fn unread_stdin_of_1_gib_costs_no_memory() -> Result<()> {
    let _alone = alone().await;
    let daemon = Daemon::start_with(options()?).await?;
    let workspace = workspace(&daemon.client).await?.name;
    let request = StartExecRequest {
        parent: workspace.clone(),
        spec: Some(ExecSpec {
            open_stdin: true,
            ..shell("sleep 1000")
        }),
        ..StartExecRequest::default()
    };
    let name = daemon.client.start_exec(request).await?.name;
    let processes = [
        (usage::guest(&daemon, &workspace).await?, GUEST_GROWTH_MAX),
        (daemon.pid().context("it runs")?, DAEMON_GROWTH_MAX),
    ];
    let mut before = Vec::new();
    for (pid, _) in processes {
        before.push(usage::forget_peak(pid)?);
    }
    let chunks = (1 << 30) / CHUNK;
    let mut messages = vec![
        StreamStdinRequest {
            data: vec![b'x'; CHUNK].into(),
            ..StreamStdinRequest::default()
        };
        chunks
    ];
    messages[0].header = Some(StreamStdinHeader {
        name: name.clone(),
        offset: None,
    });
    let messages = futures::stream::iter(messages);
    let mut stub = daemon.client.execs();
    // The call ends only when the program does.
    tokio::select! {
        answer = stub.stream_stdin(messages) => bail!("answered {answer:?}"),
        () = tokio::time::sleep(std::time::Duration::from_secs(5)) => {}
    }
    for ((pid, most), before) in processes.into_iter().zip(before) {
        let grown = usage::peak(pid)?.saturating_sub(before);
        assert!(grown < most, "process {pid} took {grown} bytes more");
    }
    daemon.client.kill_exec(&name).await?;
    daemon.stop().await
}
