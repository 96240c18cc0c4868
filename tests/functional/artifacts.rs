//! Artifacts of real workspaces, large ones, and `skillctl artifact`.

use std::process::{Output, Stdio};

use anyhow::{Context, Result};
use serde_json::Value;
use skilld_client::v1::{ArtifactScope, LoadArtifactRequest, Reason};
use skilld_client::{Client, SaveTarget};
use skilld_tests::exec::{run, shell, workspace};
use skilld_tests::files::sha256;
use skilld_tests::{Daemon, Options, binaries, expect_refusal, usage};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::Command;

fn target(name: &str) -> SaveTarget {
    SaveTarget::new(name, ArtifactScope::default())
}

async fn load(client: &Client, name: &str) -> Result<Vec<u8>> {
    let request = LoadArtifactRequest {
        name: name.to_owned(),
        ..Default::default()
    };
    let mut reader = client.load_artifact(request).await?;
    let mut data = Vec::new();
    while let Some(piece) = reader.next().await? {
        data.extend_from_slice(&piece);
    }
    Ok(data)
}

#[tokio::test]
async fn what_a_command_wrote_is_saved_whole_and_nothing_else_is() -> Result<()> {
    let (daemon, name) = Daemon::with_workspace().await?;
    let client = &daemon.client;
    let script = "cd /workspace/out && head -c 6000000 /dev/urandom > big.bin && sha256sum big.bin | cut -c1-64
        printf 'a,b\\n1,2\\n' > table; mkfifo fifo; ln -s /etc/passwd leak; ln -s ../../../../etc/hostname deep
        ln -s big.bin within; mkdir dir; echo secret > none; chmod 000 none; ln -s loop loop";
    let ran = run(client, &name, shell(script)).await?;
    assert_eq!(ran.exit_code(), Some(0), "{}", ran.error_text());
    let saved = client
        .save_artifact_from(target("big.bin"), &name, "out/big.bin")
        .await?;
    assert_eq!((saved.version, saved.size), (0, 6_000_000));
    assert_eq!(saved.sha256, ran.text().trim());
    let table = client
        .save_artifact_from(target("table.csv"), &name, "$OUTPUT_DIR/table")
        .await?;
    assert_eq!(table.mime_type, "text/csv");
    let within = client
        .save_artifact_from(target("big.bin"), &name, "out/within")
        .await?;
    assert_eq!((within.version, &within.sha256), (1, &saved.sha256));
    for (path, reason) in [
        ("out/fifo", Reason::WrongFileType),
        ("out/dir", Reason::WrongFileType),
        ("out/leak", Reason::PathEscapes),
        ("out/deep", Reason::PathEscapes),
        ("out/none", Reason::FilePermission),
        ("out/gone", Reason::FileNotFound),
        ("/etc/passwd", Reason::PathEscapes),
    ] {
        let answer = client
            .save_artifact_from(target("big.bin"), &name, path)
            .await;
        expect_refusal(answer, reason).context(path)?;
    }
    // The artifacts outlive the workspace.
    client.delete_workspace(&name).await?;
    assert_eq!(sha256(&load(client, "big.bin").await?), saved.sha256);
    daemon.stop().await
}

#[tokio::test]
async fn a_large_artifact_is_streamed_with_constant_memory() -> Result<()> {
    const BYTES: u64 = 256 << 20;
    const MOST: u64 = 32 << 20;
    let options = Options::default().set("pools.default.warm", "0");
    let daemon = Daemon::start_with(options).await?;
    let client = &daemon.client;
    let pid = daemon.pid().context("running")?;
    // The first call makes the daemon allocate what it keeps for good.
    client
        .save_artifact(target("small"), &[7; 4 << 20][..])
        .await?;
    load(client, "small").await?;
    let before = usage::forget_peak(pid)?;
    let saved = client
        .save_artifact(target("large"), tokio::io::repeat(7).take(BYTES))
        .await?;
    assert_eq!(u64::try_from(saved.size)?, BYTES);
    let peak = usage::peak(pid)?;
    assert!(
        peak < before + MOST,
        "saving took {} MiB",
        (peak - before) >> 20
    );
    let before = usage::forget_peak(pid)?;
    let request = LoadArtifactRequest {
        name: "large".to_owned(),
        ..Default::default()
    };
    let mut reader = client.load_artifact(request).await?;
    let mut loaded = 0;
    while let Some(piece) = reader.next().await? {
        assert!(piece.iter().all(|byte| *byte == 7));
        loaded += piece.len() as u64;
    }
    assert_eq!(loaded, BYTES);
    let peak = usage::peak(pid)?;
    assert!(
        peak < before + MOST,
        "loading took {} MiB",
        (peak - before) >> 20
    );
    daemon.stop().await
}

/// Runs skillctl with bytes on its stdin.
async fn skillctl(daemon: &Daemon, args: &[&str], input: &[u8]) -> Result<Output> {
    let mut command = Command::new(binaries::binary("skillctl")?);
    command
        .args(args)
        .env("SKILLD_ENDPOINT", daemon.endpoint())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    let mut child = command.spawn()?;
    let mut stdin = child.stdin.take().context("stdin")?;
    // A command that does not read its stdin may have ended.
    drop(stdin.write_all(input).await);
    drop(stdin);
    Ok(child.wait_with_output().await?)
}

/// Flags that select the scope of the artifacts.
const ADA: [&str; 6] = ["--app", "shop", "--user", "ada", "--session", "1"];

/// Runs `skillctl artifact` in that scope, which must succeed, and returns what it printed.
async fn artifact(daemon: &Daemon, args: &[&str], input: &[u8]) -> Result<Vec<u8>> {
    let words = ["artifact"].iter().chain(args).chain(&ADA);
    let words: Vec<&str> = words.copied().collect();
    let output = skillctl(daemon, &words, input).await?;
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{args:?}: {said}");
    Ok(output.stdout)
}

#[tokio::test]
async fn skillctl_saves_and_loads_bytes_as_they_are() -> Result<()> {
    let daemon = Daemon::start().await?;
    let dir = tempfile::tempdir()?;
    let file = dir.path().join("data.bin");
    let data: Vec<u8> = (0..700_000_u32).map(|n| (n % 251) as u8).collect();
    std::fs::write(&file, &data)?;
    let file = file.display().to_string();
    let call = async |words: &[&str], input: &[u8]| artifact(&daemon, words, input).await;
    assert_eq!(
        call(&["save", "dir/a.bin", &file], b"").await?,
        b"dir/a.bin@0\n"
    );
    assert_eq!(
        call(&["save", "dir/a.bin", "-"], b"\0second").await?,
        b"dir/a.bin@1\n"
    );
    assert!(call(&["load", "dir/a.bin@0"], b"").await? == data);
    assert_eq!(call(&["load", "dir/a.bin"], b"").await?, b"\0second");
    let copy = dir.path().join("copy").display().to_string();
    let said = call(&["load", "dir/a.bin@0", &copy], b"").await?;
    assert_eq!(String::from_utf8(said)?, format!("dir/a.bin@0 → {copy}\n"));
    assert!(std::fs::read(&copy)? == data);
    // The daemon saves from the workspace; the bytes do not come to the client.
    let name = workspace(&daemon.client).await?.name;
    daemon
        .client
        .upload_bytes(&name, "out/r.txt", "result")
        .await?;
    let saved = call(&["save", "r", "out/r.txt", "--workspace", &name], b"").await?;
    assert_eq!(saved, b"r@0\n");
    assert_eq!(call(&["load", "artifact://r@0"], b"").await?, b"result");
    daemon.stop().await
}

#[tokio::test]
async fn skillctl_lists_and_deletes_artifacts() -> Result<()> {
    let daemon = Daemon::start_with(Options::default().set("pools.default.warm", "0")).await?;
    let call = async |words: &[&str]| artifact(&daemon, words, b"bytes").await;
    for name in ["dir/a.bin", "dir/a.bin", "user:note"] {
        call(&["save", name, "-"]).await?;
    }
    let table = String::from_utf8(call(&["list"]).await?)?;
    let rows: Vec<Vec<&str>> = table
        .lines()
        .map(|line| line.split_whitespace().collect())
        .collect();
    assert_eq!(rows[0], ["NAME", "VERSION", "SIZE", "TYPE", "CREATED"]);
    assert_eq!((rows[1][0], rows[1][1]), ("dir/a.bin", "1"));
    assert_eq!((rows[2][0], rows[2][1]), ("user:note", "0"));
    let json: Value =
        serde_json::from_slice(&call(&["versions", "dir/a.bin", "-o", "json"]).await?)?;
    let artifacts = json["artifacts"].as_array().context("artifacts")?;
    assert_eq!(artifacts.len(), 2);
    assert_eq!(artifacts[0]["sha256"], sha256(b"bytes"));
    assert_eq!(artifacts[1]["version"], "1");
    // Errors name what can be done instead.
    for (words, code, part) in [
        (vec!["load", "dir/a.bin@7"], 1, "skillctl artifact list"),
        (vec!["delete", "dir/a.bin"], 1, "--all"),
        (vec!["save", "../x", "-"], 1, "relative path"),
        (vec!["save", "x", "/"], 1, "is a directory"),
        (vec!["save", "x", "/nowhere"], 1, "cannot read /nowhere"),
        (vec!["save", "x", "-", "--sha256", "00"], 1, "64 hex digits"),
        (vec!["load", "x@99999999999999999999"], 2, "too large"),
    ] {
        let words = [vec!["artifact"], words, ADA.to_vec()].concat();
        let output = skillctl(&daemon, &words, b"").await?;
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{words:?}: {said}");
        assert!(said.contains(part), "{words:?}: {said}");
        assert!(output.stdout.is_empty());
    }
    call(&["delete", "dir/a.bin@0"]).await?;
    call(&["delete", "dir/a.bin", "--all"]).await?;
    call(&["delete", "user:note", "--all"]).await?;
    assert_eq!(
        call(&["list", "-o", "json"]).await?,
        b"{\"artifacts\":[]}\n"
    );
    daemon.stop().await
}
