//! The daemon dies while an artifact is saved or deleted: between every two steps, and in the middle of its bytes.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use skilld_client::v1::{
    ArtifactScope, DeleteArtifactRequest, ListArtifactVersionsRequest, ListArtifactsRequest,
    LoadArtifactRequest,
};
use skilld_client::{Client, Error, RetryPolicy, SaveTarget};
use skilld_tests::{Daemon, Options, wait};
use tokio::io::AsyncWriteExt;

use crate::crash::DEADLINE;
use crate::crash::fault_points::points;

const NAME: &str = "dir/a";
/// Bytes of each version, in the order of their numbers.
const BYTES: [&[u8]; 3] = [b"the first", b"the second", b"the third"];

async fn save(client: &Client, data: &'static [u8]) -> Result<i64, Error> {
    let target = SaveTarget::new(NAME, ArtifactScope::default());
    Ok(client.save_artifact(target, data).await?.version)
}

/// Returns all versions with their bytes.
async fn versions(client: &Client) -> Result<Vec<(i64, Vec<u8>)>> {
    let request = ListArtifactVersionsRequest {
        parent: NAME.to_owned(),
        ..Default::default()
    };
    let listed = client.list_artifact_versions(request).await;
    if listed
        .as_ref()
        .is_err_and(|error| error.code() == Some(tonic::Code::NotFound))
    {
        return Ok(Vec::new());
    }
    let mut found = Vec::new();
    for artifact in listed?.artifacts {
        let request = LoadArtifactRequest {
            name: NAME.to_owned(),
            version: Some(artifact.version),
            ..Default::default()
        };
        let mut reader = client.load_artifact(request).await?;
        let mut data = Vec::new();
        while let Some(piece) = reader.next().await? {
            data.extend_from_slice(&piece);
        }
        found.push((artifact.version, data));
    }
    Ok(found)
}

/// Returns the number of files beneath a directory of the store, and their total bytes.
fn files(daemon: &Daemon, beneath: &str) -> Result<(usize, u64)> {
    fn sum(dir: &Path, found: &mut (usize, u64)) -> Result<()> {
        for entry in fs::read_dir(dir).into_iter().flatten() {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                sum(&entry.path(), found)?;
            } else if let Ok(metadata) = entry.metadata() {
                // Others were removed since the directory was read.
                found.0 += 1;
                found.1 += metadata.len();
            }
        }
        Ok(())
    }
    let mut found = (0, 0);
    sum(
        &daemon.state_dir().join("artifacts").join(beneath),
        &mut found,
    )?;
    Ok(found)
}

/// Number of bytes that a version with a short name counts beside its contents.
const VERSION_BYTES: usize = 4 * 4096;

/// Waits until the daemon has counted the bytes of so many versions with these contents.
async fn wait_for_usage(daemon: &Daemon, versions: usize, contents: usize) -> Result<()> {
    let expected = contents + versions * VERSION_BYTES;
    wait::until("the bytes are right", DEADLINE, async || {
        let resources = daemon.client.get_tenant_usage().await?.resources;
        let usage = resources.iter().find(|it| it.resource == "artifact_bytes");
        let used = usage.context("artifact_bytes")?.used;
        Ok((usize::try_from(used)? == expected).then_some(()))
    })
    .await
}

/// Settings of a daemon without containers, which these tests do not need.
fn options() -> Options {
    Options::default().set("pools.default.warm", "0")
}

/// Waits until no marker is left and exactly the expected versions have bytes.
async fn cleaned(daemon: &Daemon, versions: usize) -> Result<()> {
    wait::until("interrupted saves are cleaned up", DEADLINE, async || {
        let (pending, data) = (files(daemon, "pending")?.0, files(daemon, "data")?.0);
        Ok((pending == 0 && data == versions).then_some(()))
    })
    .await?;
    assert_eq!(records(daemon)?, versions);
    Ok(())
}

/// Returns the number of records. Marks of removed numbers have longer names.
fn records(daemon: &Daemon) -> Result<usize> {
    let mut found = Vec::new();
    let mut open = vec![daemon.state_dir().join("artifacts/index")];
    while let Some(dir) = open.pop() {
        for entry in fs::read_dir(dir).into_iter().flatten() {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if path.is_dir() {
                open.push(path);
            } else if name.len() == 19 {
                found.push(path);
            }
        }
    }
    Ok(found.len())
}

#[tokio::test]
async fn saving_an_artifact_survives_a_crash_at_every_step() -> Result<()> {
    for point in points("save.") {
        crash_at(point).await.context(point)?;
    }
    Ok(())
}

#[tokio::test]
async fn deleting_an_artifact_survives_a_crash_at_every_step() -> Result<()> {
    for point in points("discard.") {
        crash_at(point).await.context(point)?;
    }
    Ok(())
}

async fn crash_at(point: &str) -> Result<()> {
    let saving = point.starts_with("save.");
    // The first save goes well.
    let times = if saving { 2 } else { 1 };
    let options = options().dies_at(&format!("{point}:{times}"));
    let mut daemon = Daemon::start_with(options).await?;
    let client = daemon.client.clone().with_retry(RetryPolicy::none());
    assert_eq!(save(&client, BYTES[0]).await?, 0);
    let answer = if saving {
        save(&client, BYTES[1]).await.map(|_| ())
    } else {
        let request = DeleteArtifactRequest {
            name: NAME.to_owned(),
            version: Some(0),
            ..Default::default()
        };
        client.delete_artifact(request).await
    };
    assert!(answer.is_err(), "it was answered before it was killed");
    assert_eq!(daemon.wait().await?, None, "it was not killed");
    daemon.heal("log", "info");
    daemon.restart().await?;

    let left = if point == "save.published" {
        2
    } else {
        usize::from(point != "discard.unpublished")
    };
    let whole = |count: usize| -> Vec<(i64, Vec<u8>)> {
        (0..)
            .zip(BYTES.iter().map(|bytes| bytes.to_vec()))
            .take(count)
            .collect()
    };
    assert_eq!(
        versions(&daemon.client).await?,
        whole(left),
        "whole versions or none"
    );
    cleaned(&daemon, left).await?;
    assert_eq!(versions(&daemon.client).await?, whole(left));
    let bytes = BYTES.get(left).context("there are more bytes")?;
    let next = save(&daemon.client, bytes).await?;
    assert_eq!(usize::try_from(next)?, left);
    assert_eq!(versions(&daemon.client).await?, whole(left + 1));
    let sizes = BYTES.iter().take(left + 1).map(|bytes| bytes.len());
    wait_for_usage(&daemon, left + 1, sizes.sum()).await?;
    daemon.stop().await
}

#[tokio::test]
async fn a_daemon_killed_in_the_middle_of_a_save_leaves_nothing_of_it() -> Result<()> {
    let mut daemon = Daemon::start_with(options()).await?;
    let client = daemon.client.clone().with_retry(RetryPolicy::none());
    let (mut sender, receiver) = tokio::io::duplex(1 << 20);
    let saving = client.save_artifact(SaveTarget::new(NAME, ArtifactScope::default()), receiver);
    let killing = async {
        sender.write_all(&vec![7; 20 << 20]).await?;
        wait::until("bytes are there", DEADLINE, async || {
            Ok((files(&daemon, "data")?.1 >= 10 << 20).then_some(()))
        })
        .await?;
        daemon.crash().await
    };
    let (saved, killed) = futures::future::join(saving, killing).await;
    killed?;
    saved
        .err()
        .context("it was answered before it was killed")?;
    assert!(
        files(&daemon, "data")?.1 >= 10 << 20,
        "there is nothing to clean up"
    );
    daemon.restart().await?;
    let request = ListArtifactsRequest::default();
    assert_eq!(daemon.client.list_artifacts(request).await?.artifacts, []);
    assert!(versions(&daemon.client).await?.is_empty());
    cleaned(&daemon, 0).await?;
    assert_eq!(save(&daemon.client, BYTES[0]).await?, 0);
    daemon.stop().await
}

#[tokio::test]
async fn sweep_interrupted_by_a_kill_leaves_a_consistent_store() -> Result<()> {
    for point in points("discard.") {
        sweep_killed_at(point).await.context(point)?;
    }
    Ok(())
}

async fn sweep_killed_at(point: &str) -> Result<()> {
    const VERSIONS: i64 = 40;
    let mut daemon = Daemon::start_with(options()).await?;
    for _ in 0..VERSIONS {
        save(&daemon.client, BYTES[0]).await?;
    }
    daemon.crash().await?;
    // The sweep of the next start dies in the middle.
    daemon.heal("artifacts.retention_versions", "3");
    daemon.dies_at(&format!("{point}:10"));
    if daemon.restart().await.is_ok() {
        assert_eq!(daemon.wait().await?, None, "it was not killed");
    }
    // Without retention: what is left is whole, and nothing else is there.
    daemon.heal("artifacts.retention_versions", "0");
    daemon.restart().await?;
    let left = versions(&daemon.client).await?;
    let count = left.len();
    assert!(
        (3..=VERSIONS).contains(&i64::try_from(count)?),
        "{count} are left"
    );
    assert!(
        left.iter().all(|(_, data)| data == BYTES[0]),
        "all are whole"
    );
    assert_eq!(left.last().context("the newest")?.0, VERSIONS - 1);
    cleaned(&daemon, count).await?;
    wait_for_usage(&daemon, count, count * BYTES[0].len()).await?;
    // The next sweep completes it.
    daemon.crash().await?;
    daemon.heal("artifacts.retention_versions", "3");
    daemon.restart().await?;
    cleaned(&daemon, 3).await?;
    wait_for_usage(&daemon, 3, 3 * BYTES[0].len()).await?;
    assert_eq!(save(&daemon.client, BYTES[1]).await?, VERSIONS);
    daemon.stop().await
}
