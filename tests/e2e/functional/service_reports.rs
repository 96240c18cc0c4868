//! Reports of a real daemon to those who run it: its states to systemd, and its log as JSON.
//!
//! Docker: the installed daemon tells a real service manager's socket and a real log what it does with real containers.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;
use serde_json::{Map, Value};
use skilld_tests::exec::{run, shell, workspace};
use skilld_tests::{Daemon, Options, binaries};
use tokio::net::UnixDatagram;

/// Maximum time that a test waits for one report.
const REPORTED_WITHIN: Duration = Duration::from_secs(60);

/// Returns the next report of a daemon to its service manager.
async fn next_report(socket: &UnixDatagram) -> Result<String> {
    let mut bytes = [0; 256];
    let length = tokio::time::timeout(REPORTED_WITHIN, socket.recv(&mut bytes)).await??;
    Ok(String::from_utf8(bytes[..length].to_vec())?)
}

#[tokio::test]
async fn systemd_learns_when_the_daemon_serves_reloads_and_drains() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("notify");
    let socket = UnixDatagram::bind(&path)?;
    let mut options = Options::default();
    let variable = ("NOTIFY_SOCKET".to_owned(), path.display().to_string());
    options.env.push(variable);
    let mut daemon = Daemon::start_with(options).await?;
    assert_eq!(next_report(&socket).await?, "READY=1\nSTATUS=serving");
    daemon.signal(Signal::SIGHUP)?;
    let reloading = next_report(&socket).await?;
    ensure!(
        reloading.starts_with("RELOADING=1\nMONOTONIC_USEC="),
        "{reloading}"
    );
    assert_eq!(next_report(&socket).await?, "READY=1\nSTATUS=serving");
    daemon.signal(Signal::SIGTERM)?;
    assert_eq!(next_report(&socket).await?, "STOPPING=1\nSTATUS=draining");
    assert_eq!(daemon.wait().await?, Some(0));
    daemon.stop().await
}

/// Returns the lines of a log as objects, each of which must be flat, with the keys of every line.
fn flat_objects(log: &str) -> Result<Vec<Map<String, Value>>> {
    let objects = log.lines().map(|line| {
        let object: Map<String, Value> = serde_json::from_str(line).context(line.to_owned())?;
        let keys: BTreeSet<&str> = object.keys().map(String::as_str).collect();
        for key in ["time", "level", "target", "message"] {
            ensure!(keys.contains(key), "{line}");
        }
        let is_flat = |value: &Value| !value.is_object() && !value.is_array();
        ensure!(object.values().all(is_flat), "{line}");
        Ok(object)
    });
    objects.collect()
}

#[tokio::test]
async fn every_line_of_a_json_log_is_a_flat_object() -> Result<()> {
    let options = Options::default().set("log_format", "json");
    let mut daemon = Daemon::start_with(options).await?;
    let workspace = workspace(&daemon.client).await?.name;
    run(&daemon.client, &workspace, shell("echo hello")).await?;
    daemon.signal(Signal::SIGTERM)?;
    assert_eq!(daemon.wait().await?, Some(0));
    let objects = flat_objects(&daemon.log())?;
    let started = objects
        .iter()
        .find(|object| object["message"] == "exec started")
        .context("no line of the exec")?;
    assert_eq!(started["workspace"], workspace.as_str());
    assert_eq!(started["method"], "/skilld.v1.ExecService/RunExec");
    ensure!(started["request_id"].is_string(), "{started:?}");
    daemon.stop().await
}

#[tokio::test]
async fn a_port_in_use_is_a_json_line_that_names_it() -> Result<()> {
    let taken = std::net::TcpListener::bind("127.0.0.1:0")?;
    let address = taken.local_addr()?;
    let dir = tempfile::tempdir()?;
    let config = dir.path().join("skilld.toml");
    let text = format!(
        "log_format = \"json\"\nstate_dir = {:?}\nengine.guest_path = {:?}\n\
         [[listeners]]\nkind = \"metrics\"\naddress = \"{address}\"\n",
        dir.path().join("s"),
        binaries::guest()?,
    );
    std::fs::write(&config, text)?;
    let mut command = tokio::process::Command::from(binaries::skilld()?);
    let output = command.arg("--config").arg(&config).output().await?;
    assert_eq!(output.status.code(), Some(1));
    let objects = flat_objects(&String::from_utf8(output.stderr)?)?;
    let last = objects.last().context("no line")?;
    assert_eq!(last["level"], "ERROR");
    let message = last["message"].as_str().context("no text")?;
    ensure!(message.contains(&address.to_string()), "{message}");
    Ok(())
}
