//! The processes of a workspace as the host sees them, whatever they did to hide.

use std::os::unix::fs::MetadataExt;

use anyhow::{Context, Result};

use crate::Daemon;

/// Command lines of everything that has a workspace's uid and is no zombie: its guest, the guest's supervisors, and its
/// commands.
///
/// # Errors
/// When the workspace has no record, or `/proc` can't be read.
pub fn of(daemon: &Daemon, workspace: &str) -> Result<Vec<String>> {
    let record = daemon.record(workspace)?;
    let uid = record.get("uid").and_then(serde_json::Value::as_u64);
    let uid = uid.context("no uid")?;
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc")? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        // What ends in between counts no more.
        let is_its = entry
            .metadata()
            .is_ok_and(|meta| u64::from(meta.uid()) == uid);
        if !is_its || !name.bytes().all(|byte| byte.is_ascii_digit()) {
            continue;
        }
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        // A zombie has none.
        if !line.is_empty() {
            found.push(String::from_utf8_lossy(&line).replace('\0', " "));
        }
    }
    Ok(found)
}

/// Those of commands only.
///
/// # Errors
/// As [`of`].
pub fn commands(daemon: &Daemon, workspace: &str) -> Result<Vec<String>> {
    let mut all = of(daemon, workspace)?;
    all.retain(|line| !line.contains("skilld-guest"));
    Ok(all)
}
