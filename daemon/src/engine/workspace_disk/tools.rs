//! Programs of the host that make a workspace's file system: where they are, and one run of them.

use std::ffi::OsStr;
use std::io;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::process::Command;

use crate::error::{Error, Result};

/// Directories of the programs. The search path of a user other than root has no directory `sbin`.
const PROGRAM_DIRS: [&str; 4] = ["/usr/sbin", "/sbin", "/usr/bin", "/bin"];
/// Time limit of one program: each usually takes a few milliseconds, and a busy disk makes them slow.
const TOOL_TIMEOUT: Duration = Duration::from_secs(20);

/// Finds a program; `None` if the host does not have it. Blocks.
pub(super) fn find_tool(name: &str) -> Option<PathBuf> {
    let mut paths = PROGRAM_DIRS.iter().map(|dir| PathBuf::from(dir).join(name));
    paths.find(|path| path.is_file())
}

/// Runs a program with `input`, a few bytes, as its stdin, and returns its stdout.
///
/// # Errors
/// When the program is missing, fails or hangs. The error has the last line of its stderr.
pub(super) async fn run_tool(
    name: &'static str,
    args: impl IntoIterator<Item = &OsStr>,
    input: &[u8],
) -> Result<Vec<u8>> {
    let failed = |source| Error::io(format!("run {name} for the disk of a workspace"), source);
    let missing = || {
        failed(io::Error::new(
            io::ErrorKind::NotFound,
            "it is not installed",
        ))
    };
    let program = find_tool(name).ok_or_else(missing)?;
    let mut child = Command::new(program)
        .args(args)
        .env_clear()
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(failed)?;
    let run = async {
        if let Some(mut stdin) = child.stdin.take() {
            // A program that does not read its input decides by itself.
            drop(stdin.write_all(input).await);
        }
        child.wait_with_output().await
    };
    let output = tokio::time::timeout(TOOL_TIMEOUT, run)
        .await
        .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
        .map_err(failed)?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    let last = stderr.lines().last().unwrap_or_default();
    let why = format!("{}: {last}", output.status);
    Err(failed(io::Error::other(why)))
}
