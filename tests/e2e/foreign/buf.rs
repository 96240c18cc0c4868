//! `buf curl` with both versions of reflection. `buf lint` and `buf breaking` over the protos.

use anyhow::Result;
use serde_json::Value;
use skilld_tests::{Daemon, binaries};
use tokio::process::Command;

use crate::foreign::{output, venv};

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
async fn the_protos_pass_buf_lint_and_break_no_released_client() -> Result<()> {
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
