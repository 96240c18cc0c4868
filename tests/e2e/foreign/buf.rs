//! `buf curl` with both versions of reflection. `buf lint` and `buf breaking` over the protos.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use skilld_tests::{Daemon, binaries};
use tokio::process::Command;

use crate::foreign::{LIMIT, output, venv};

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
    output(&mut breaking_command(&buf, &protos)).await?;
    Ok(())
}

/// Returns the command that compares protos with those of the last release.
fn breaking_command(buf: &Path, protos: &Path) -> Command {
    let released = binaries::repository().join("proto/tests/golden/released.binpb");
    let mut command = Command::new(buf);
    command.arg("breaking").arg(protos);
    command.arg("--against").arg(released);
    command
}

/// Change of a .proto file.
struct ProtoChange {
    file: &'static str,
    /// Texts of the file, each with its replacement.
    replacements: &'static [(&'static str, &'static str)],
    /// Part of what buf says about the change; empty if it accepts the change.
    complaint: &'static str,
}

const PROTO_CHANGES: &[ProtoChange] = &[
    ProtoChange {
        file: "skilld/v1/exec.proto",
        replacements: &[(
            "  rpc ResizeTerminal(ResizeTerminalRequest) returns (ResizeTerminalResponse);\n",
            "",
        )],
        complaint: "RPC \"ResizeTerminal\" on service \"ExecService\" was deleted",
    },
    ProtoChange {
        file: "skilld/v1/exec.proto",
        replacements: &[("string cwd = 4;", "string working_dir = 4;")],
        complaint: "on message \"ExecSpec\" changed name from \"cwd\" to \"working_dir\"",
    },
    // The field that had the message is reserved, as for a message that nothing needs any more.
    ProtoChange {
        file: "skilld/v1/exec.proto",
        replacements: &[
            ("message FullDisk {", "message FilledDisk {"),
            ("repeated FullDisk full_disks = 13;", "reserved 13;"),
        ],
        complaint: "message \"FullDisk\" was deleted",
    },
    // Generated code of Go has another import path then.
    ProtoChange {
        file: "skilld/v1/exec.proto",
        replacements: &[(";skilldv1", ";skilld")],
        complaint: "option \"go_package\" changed",
    },
    ProtoChange {
        file: "skilld/v1/exec.proto",
        replacements: &[("string cwd = 4;", "string cwd = 4;\n  string added = 99;")],
        complaint: "",
    },
    // Daemon and guest know the fields of their messages by number.
    ProtoChange {
        file: "skilld/guest/v1/guest.proto",
        replacements: &[("string daemon_version = 2;", "string version = 2;")],
        complaint: "",
    },
];

/// Copies the protos and the configuration of buf to a directory.
fn copy_protos(destination: &Path) -> Result<()> {
    let protos = binaries::repository().join("proto");
    let mut pending = vec![PathBuf::from("skilld")];
    while let Some(directory) = pending.pop() {
        fs::create_dir_all(destination.join(&directory))?;
        for entry in fs::read_dir(protos.join(&directory))? {
            let entry = entry?;
            let path = directory.join(entry.file_name());
            if entry.file_type()?.is_dir() {
                pending.push(path);
            } else {
                fs::copy(entry.path(), destination.join(path))?;
            }
        }
    }
    fs::copy(protos.join("buf.yaml"), destination.join("buf.yaml"))?;
    Ok(())
}

fn apply_change(protos: &Path, change: &ProtoChange) -> Result<()> {
    let path = protos.join(change.file);
    let mut text = fs::read_to_string(&path)?;
    for (before, after) in change.replacements {
        ensure!(text.contains(before), "{} lacks {before:?}", change.file);
        text = text.replace(before, after);
    }
    Ok(fs::write(path, text)?)
}

#[tokio::test]
async fn buf_refuses_a_change_that_breaks_generated_code() -> Result<()> {
    let buf = venv::program("buf").await?;
    for change in PROTO_CHANGES {
        let protos = tempfile::tempdir()?;
        copy_protos(protos.path())?;
        apply_change(protos.path(), change)?;
        let mut command = breaking_command(&buf, protos.path());
        if change.complaint.is_empty() {
            output(&mut command).await?;
            continue;
        }
        let ended = tokio::time::timeout(LIMIT, command.kill_on_drop(true).output()).await;
        let refused = ended.with_context(|| format!("{command:?} did not end"))??;
        let complaints = String::from_utf8_lossy(&refused.stdout);
        ensure!(
            !refused.status.success() && complaints.contains(change.complaint),
            "{:?} is not refused for {:?}: {complaints}{}",
            change.replacements,
            change.complaint,
            String::from_utf8_lossy(&refused.stderr)
        );
    }
    Ok(())
}
