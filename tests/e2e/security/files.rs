//! Files and logs: what a hostile link reaches, and what the daemon says about its users.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use skilld_client::{Client, Error, SaveTarget, TransferProgress, v1::ErrorReason};
use skilld_proto::v1::{
    ArtifactScope, CollectOutputsRequest, CollectSpec, CreateWorkspaceRequest, ReadFileRequest,
    SkipReason,
};
use skilld_tests::{Daemon, DefaultDaemon, exec, expect_refusal, wait};

use crate::security::{DEADLINE, python, sh};

async fn read(client: &Client, workspace: &str, path: &str) -> Result<Vec<u8>, Error> {
    let request = ReadFileRequest {
        workspace: workspace.to_owned(),
        path: path.to_owned(),
        ..ReadFileRequest::default()
    };
    let mut file = client.read_file(request).await?;
    let mut bytes = Vec::new();
    while let Some(data) = file.next().await? {
        bytes.extend_from_slice(&data);
    }
    Ok(bytes)
}

#[tokio::test]
async fn a_link_reaches_only_the_container() -> Result<()> {
    let (daemon, workspace) = DefaultDaemon::with_workspace().await?;
    let client = &daemon.client;
    let dir = tempfile::tempdir()?;
    let secret = dir.path().join("secret");
    std::fs::write(&secret, "canary-of-the-host")?;
    let record = daemon.state_dir().join("slots/0/record.json");
    for (link, target) in [
        ("host", secret.as_path()),
        ("folder", dir.path()),
        ("record", record.as_path()),
        ("shadow", "/etc/shadow".as_ref()),
        ("environ", "/proc/1/environ".as_ref()),
        ("self", "/proc/self/root/etc/passwd".as_ref()),
        ("up", "../../../../../../etc/passwd".as_ref()),
    ] {
        let make = format!(
            "ln -s {} work/{link} && ln -s ../work/{link} out/{link}",
            target.display()
        );
        sh(client, &workspace, &make).await?;
        for path in [
            format!("work/{link}"),
            format!("out/{link}"),
            format!("work/{link}/secret"),
        ] {
            let refused = read(client, &workspace, &path).await;
            let reason = refused
                .err()
                .with_context(|| format!("{path} was read"))?
                .reason();
            assert_eq!(reason, Some(ErrorReason::PathEscapes), "{path}");
        }
        let written = client
            .upload_bytes(&workspace, &format!("work/{link}/x"), "x")
            .await;
        let reason = written.err().context("written")?.reason();
        assert_eq!(reason, Some(ErrorReason::PathEscapes), "beneath {link}");
    }
    // A file of that name takes the link's place and leaves what it points to alone.
    client.upload_bytes(&workspace, "work/host", "mine").await?;
    assert_eq!(read(client, &workspace, "work/host").await?, b"mine");
    assert_eq!(std::fs::read_to_string(&secret)?, "canary-of-the-host");

    let into = tempfile::tempdir()?;
    let request = CollectOutputsRequest {
        workspace,
        spec: Some(CollectSpec {
            globs: vec!["**".to_owned()],
            max_files: 1000,
            ..CollectSpec::default()
        }),
    };
    let collected = client
        .collect_to_dir(request, into.path(), TransferProgress::none())
        .await?;
    for path in &collected.files {
        let bytes = std::fs::read(path)?;
        let text = String::from_utf8_lossy(&bytes);
        assert!(
            !text.contains("canary") && !text.contains("root:"),
            "{}",
            path.display()
        );
    }
    assert!(
        collected.skipped.len() >= 6,
        "links that lead out: {:?}",
        collected.skipped
    );
    daemon.stop().await
}

#[tokio::test]
async fn logs_hold_no_user_data() -> Result<()> {
    let daemon = Daemon::start().await?;
    let client = &daemon.client;
    let request = CreateWorkspaceRequest {
        env: BTreeMap::from([("TOKEN".to_owned(), "canary-workspace-env".to_owned())]),
        ..CreateWorkspaceRequest::default()
    };
    let workspace = client.create_workspace(request).await?.name;
    client
        .upload_bytes(&workspace, "inputs/data", "canary-file")
        .await?;
    let mut spec = python(
        "import os, sys; print(sys.argv, sys.stdin.read(), os.environ['TOKEN'], file=sys.stderr); print('canary-output')",
        &["canary-argument"],
        "canary-stdin",
    );
    spec.env = BTreeMap::from([("SECRET".to_owned(), "canary-exec-env".to_owned())]);
    let outcome = exec::run(client, &workspace, spec).await?;
    assert_eq!(outcome.text(), "canary-output\n");
    assert!(
        outcome
            .error_text()
            .contains("canary-stdin canary-workspace-env")
    );
    // Nor do failures repeat what they were about.
    let bad = exec::argv(["/nonexistent/canary-program", "canary-argument"]);
    exec::run(client, &workspace, bad).await?;
    let mut lost = exec::shell("echo canary-shell");
    lost.env = BTreeMap::from([("BAD=NAME".to_owned(), "canary-refused".to_owned())]);
    assert!(exec::run(client, &workspace, lost).await.is_err());
    assert_eq!(
        read(client, &workspace, "inputs/data").await?,
        b"canary-file"
    );
    let log = wait::until("the log is detailed", DEADLINE, async || {
        let log = daemon.log();
        Ok((log.contains("DEBUG") && log.contains("RunExec")).then_some(log))
    })
    .await?;
    let told: Vec<&str> = log.lines().filter(|line| line.contains("canary")).collect();
    assert!(told.is_empty(), "{told:#?}");
    daemon.stop().await
}

#[tokio::test]
async fn collect_skips_what_is_not_a_file() -> Result<()> {
    let (daemon, workspace) = DefaultDaemon::with_workspace().await?;
    let client = &daemon.client;
    let make = "cd out && mkfifo fifo && echo fine > file && echo no > closed && chmod 0 closed && truncate -s 100M sparse \
                && python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"socket\")'";
    sh(client, &workspace, make).await?;
    let request = CollectOutputsRequest {
        workspace: workspace.clone(),
        spec: Some(CollectSpec {
            globs: vec!["out/**".to_owned()],
            max_file_bytes: 1 << 20,
            ..CollectSpec::default()
        }),
    };
    let into = tempfile::tempdir()?;
    let collected = client.collect_to_dir(request, into.path(), TransferProgress::none());
    // A FIFO without a writer would keep a reader for ever.
    let collected = tokio::time::timeout(DEADLINE, collected).await??;
    let summary = &collected.summary;
    let skipped: BTreeMap<&str, SkipReason> = summary
        .skipped_files
        .iter()
        .map(|file| (file.path.as_str(), file.reason()))
        .collect();
    let expected = BTreeMap::from([
        ("out/closed", SkipReason::Permission),
        ("out/fifo", SkipReason::FileType),
        ("out/socket", SkipReason::FileType),
    ]);
    assert_eq!(skipped, expected);
    assert_eq!(summary.truncated_paths, ["out/sparse"]);
    assert!(summary.limits_hit);
    assert_eq!(collected.bytes, 5 + (1 << 20));
    for (path, reason) in [
        ("out/fifo", ErrorReason::WrongFileType),
        ("out/socket", ErrorReason::WrongFileType),
        ("out/closed", ErrorReason::FilePermission),
    ] {
        let refused = read(client, &workspace, path).await.err().context(path)?;
        assert_eq!(refused.reason(), Some(reason), "{path}: {refused}");
        // SaveArtifact reads the file on the client's behalf.
        let target = SaveTarget::new("saved", ArtifactScope::default());
        let saved = client.save_artifact_from(target, &workspace, path).await;
        expect_refusal(saved, reason).with_context(|| format!("{path} as an artifact"))?;
    }
    daemon.stop().await
}
