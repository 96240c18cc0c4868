//! Processes of a workspace as the host sees them by their uid, so that none can hide.

use std::os::unix::fs::MetadataExt;

use anyhow::{Context, Result};

use crate::Daemon;

/// Returns the command lines of all processes with a workspace's uid, without zombies: the guest, its supervisors and the
/// commands.
///
/// # Errors
/// When the workspace has no record, or `/proc` can't be read.
pub fn list_processes(daemon: &Daemon, workspace: &str) -> Result<Vec<String>> {
    let record = daemon.record(workspace)?;
    let uid = record
        .get("uid")
        .and_then(serde_json::Value::as_u64)
        .context("no uid")?;
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc")? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        // A process that ends meanwhile does not count.
        let is_its = entry
            .metadata()
            .is_ok_and(|meta| u64::from(meta.uid()) == uid);
        if !is_its || !name.bytes().all(|byte| byte.is_ascii_digit()) {
            continue;
        }
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        // A zombie has no command line.
        if !line.is_empty() {
            found.push(String::from_utf8_lossy(&line).replace('\0', " "));
        }
    }
    Ok(found)
}

/// Returns the command lines of a workspace's commands, without the guest and its supervisors.
///
/// # Errors
/// As [`list_processes`].
pub fn list_commands(daemon: &Daemon, workspace: &str) -> Result<Vec<String>> {
    let mut all = list_processes(daemon, workspace)?;
    all.retain(|line| !line.contains("skilld-guest"));
    Ok(all)
}
