//! `skillctl artifact`.
//!
//! Docker: the installed `skillctl` and `skilld` agree on flags, scopes, tables and messages, and a file of a real
//! workspace is saved.

use std::process::{Output, Stdio};

use anyhow::{Context, Result};
use serde_json::Value;
use skilld_tests::files::sha256;
use skilld_tests::{Daemon, DefaultDaemon, Options, binaries};
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

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
    let words: Vec<&str> = ["artifact"]
        .iter()
        .chain(args)
        .chain(&ADA)
        .copied()
        .collect();
    let output = skillctl(daemon, &words, input).await?;
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{args:?}: {said}");
    Ok(output.stdout)
}

#[tokio::test]
async fn skillctl_saves_and_loads_bytes_as_they_are() -> Result<()> {
    let daemon = DefaultDaemon::share().await?;
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("data.bin");
    let data: Vec<u8> = (0..700_000_u32).map(|n| (n % 251) as u8).collect();
    std::fs::write(&path, &data)?;
    let file = path.display().to_string();
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
    let name = daemon.workspace().await?;
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
