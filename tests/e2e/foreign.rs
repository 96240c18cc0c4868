//! Foreign clients, which know the API by reflection only, and a foreign object store.

mod access;
mod buf;
mod documents;
mod frameworks;
mod help;
mod integrations;
mod languages;
mod mcp;
mod model;
mod operations;
mod prometheus;
mod python;
mod python_package;
mod recipes;
mod s3;
mod tools;
mod venv;

use std::io::Write as _;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tokio::process::Command;

/// Time limit of every command and every wait of these tests, more than ten times what is usual on a busy machine.
const LIMIT: Duration = Duration::from_secs(900);

/// Prints a line with the name of the test, past the capture of its output.
fn note(line: &str) {
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("a test");
    // A closed stderr has no reader.
    let _unread = writeln!(std::io::stderr(), "{test}: {line}");
}

/// Runs a command that must succeed, and returns what it wrote to stdout.
async fn output(command: &mut Command) -> Result<String> {
    let ended = tokio::time::timeout(LIMIT, command.kill_on_drop(true).output()).await;
    let output = ended.with_context(|| format!("{command:?} did not end"))??;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "{command:?} ended with {}:\n{}{said}",
        output.status,
        String::from_utf8_lossy(&output.stdout)
    );
    Ok(String::from_utf8(output.stdout)?)
}
