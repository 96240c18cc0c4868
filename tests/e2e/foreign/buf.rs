//! `buf curl`: what README.md shows, as it stands there, and both versions of reflection. `buf lint` and `buf breaking` over the
//! protos.

use std::path::Path;

use anyhow::{Context, Result};
use serde_json::Value;
use skilld_tests::{Daemon, binaries};
use tokio::process::Command;

use crate::foreign::recipes::blocks;
use crate::foreign::{output, venv};

/// The socket in README.md.
const SOCKET: &str = ".demo/skilld.sock";

/// The block of README.md that calls the API.
fn block() -> Result<String> {
    let mut blocks = blocks("README.md", "From any language")?.into_iter();
    let block = blocks.find(|(_, code)| code.contains("call() {"));
    Ok(block
        .context("README.md shows no calls with buf any more")?
        .1)
}

fn path_with(program: &Path) -> Result<String> {
    let bin = program.parent().context("bin")?.display().to_string();
    Ok(format!("{bin}:/usr/local/bin:/usr/bin:/bin"))
}

#[tokio::test]
async fn buf_does_what_the_readme_shows() -> Result<()> {
    let buf = venv::program("buf").await?;
    let daemon = Daemon::start().await?;
    let home = tempfile::tempdir()?;
    let block = block()?;
    assert_eq!(block.matches(SOCKET).count(), 1);
    let socket = daemon.state_dir().join("skilld.sock");
    let script = format!(
        "set -euo pipefail\n{}\n",
        block.replace(SOCKET, &socket.display().to_string())
    );
    let mut command = Command::new("bash");
    command
        .args(["-c", &script])
        .env("PATH", path_with(&buf)?)
        .env("HOME", home.path());
    let printed = output(&mut command).await?;
    let answers: Vec<Value> = serde_json::Deserializer::from_str(&printed)
        .into_iter::<Value>()
        .collect::<Result<_, _>>()?;
    let has = |pointer: &str, value: &str| {
        answers
            .iter()
            .any(|answer| answer.pointer(pointer).is_some_and(|found| found == value))
    };
    assert!(has("/name", "workspaces/my-session"), "{printed}");
    assert!(has("/skills/0/name", "python-math"), "{printed}");
    let text: String = answers
        .iter()
        .filter_map(|answer| answer.pointer("/output/text").and_then(Value::as_str))
        .collect();
    assert!(text.contains("354224848179261915075"), "{printed}");
    assert!(
        answers
            .iter()
            .any(|answer| answer.pointer("/closed").is_some()),
        "{printed}"
    );
    let left = daemon.client.get_workspace("my-session").await;
    assert!(left.is_err(), "the workspace is left");
    daemon.stop().await
}

#[tokio::test]
async fn both_versions_of_reflection_answer() -> Result<()> {
    let buf = venv::program("buf").await?;
    let daemon = Daemon::start().await?;
    let home = tempfile::tempdir()?;
    for version in ["grpc-v1", "grpc-v1alpha"] {
        let mut command = Command::new(&buf);
        command
            .args(["curl", "--protocol", "grpc", "--http2-prior-knowledge"])
            .args(["--reflect-protocol", version, "--unix-socket"])
            .arg(daemon.state_dir().join("skilld.sock"))
            .arg("http://localhost/skilld.v1.ServerService/GetServerInfo")
            .env("HOME", home.path());
        let info: Value = serde_json::from_str(&output(&mut command).await?)?;
        assert_eq!(
            info["instance"],
            Value::from(daemon.info.instance.clone()),
            "{version}"
        );
    }
    daemon.stop().await
}

#[tokio::test]
async fn the_protos_pass_buf_lint_and_break_no_client_of_the_last_release() -> Result<()> {
    let buf = venv::program("buf").await?;
    let protos = binaries::repository().join("proto");
    output(Command::new(&buf).arg("lint").arg(&protos)).await?;
    let released = protos.join("tests/golden/released.binpb");
    let mut breaking = Command::new(&buf);
    breaking
        .arg("breaking")
        .arg(&protos)
        .arg("--against")
        .arg(released);
    output(&mut breaking).await?;
    Ok(())
}
