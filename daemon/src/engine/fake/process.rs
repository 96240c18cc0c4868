//! A guest as a plain process of the test, and the end of all that it started.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::Pid;
use tokio::process::{Child, Command};

use crate::engine::ContainerSpec;
use crate::error::{Error, Result};

/// What 128 + SIGKILL looks like in Docker.
pub(super) const EXIT_KILLED: i64 = 137;

/// A guest's process. Dropping it unreaped, as the end of a runtime does, kills it and all that descends from it.
#[derive(Debug)]
pub(super) struct Guest(Child);

impl Guest {
    /// While it is not reaped.
    pub(super) fn pid(&self) -> Option<i32> {
        self.0.id().and_then(|pid| i32::try_from(pid).ok())
    }

    /// Waits for its end and reaps it. Answers as Docker does: the exit code, or 128 + signal.
    pub(super) async fn ended(&mut self) -> i64 {
        match self.0.wait().await {
            Ok(status) => status
                .code()
                .or_else(|| status.signal().map(|signal| 128 + signal))
                .map_or(EXIT_KILLED, i64::from),
            Err(error) => {
                tracing::debug!(%error, "cannot wait for a guest's process");
                EXIT_KILLED
            }
        }
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        if let Some(pid) = self.pid() {
            kill_tree(pid);
        }
    }
}

/// Starts the slot's guest, which writes its log to `fake-guest.log` in the slot's directory.
pub(super) async fn spawn(spec: &ContainerSpec) -> Result<Guest> {
    let slot = &spec.slot_dir;
    let io = |operation: String| move |source| Error::Io { operation, source };
    let workspace = slot.join("fake-workspace");
    prepare(&workspace).map_err(io(format!("make {}", workspace.display())))?;
    let log_path = slot.join("fake-guest.log");
    let log = fs::File::create(&log_path).map_err(io(format!("create {}", log_path.display())))?;
    let program = slot.join("run/skilld-guest");
    let mut command = Command::new(&program);
    command
        .arg("--socket")
        .arg(slot.join("run/guest.sock"))
        .arg("--workspace")
        .arg(&workspace)
        .env_clear()
        .envs(spec.env.iter().filter_map(|pair| pair.split_once('=')))
        .current_dir(slot)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .process_group(0);
    let mut attempts = 0;
    loop {
        match command.spawn() {
            // Another thread forked while the binary was being copied, and its child holds the copy open until it
            // executes something. Nothing tells when that is.
            Err(error) if error.raw_os_error() == Some(Errno::ETXTBSY as i32) && attempts < 100 => {
                attempts += 1;
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            other => {
                return other.map(Guest).map_err(|error| Error::Engine {
                    operation: "start container",
                    message: format!("{}: {error}", program.display()),
                });
            }
        }
    }
}

/// What a container's mounts would give: a workspace with the slot's skills in it.
fn prepare(workspace: &Path) -> std::io::Result<()> {
    fs::create_dir_all(workspace)?;
    match std::os::unix::fs::symlink("../skills", workspace.join("skills")) {
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
        other => other,
    }
}

/// Kills a process and all that descends from it, as the end of a PID namespace would. What was reparented away
/// before cannot be found.
pub(super) fn kill_tree(pid: i32) {
    // Stopped, it starts nothing more and reaps nothing, so that no pid is reused meanwhile.
    signal(pid, Signal::SIGSTOP);
    loop {
        let living = descendants(pid);
        if living.is_empty() {
            break;
        }
        for descendant in living {
            signal(descendant, Signal::SIGKILL);
        }
    }
    signal(pid, Signal::SIGKILL);
}

/// Waits until a killed child is dead. It is left for its owner to reap.
pub(super) fn wait_dead(pid: i32) {
    let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT;
    while waitid(Id::Pid(Pid::from_raw(pid)), flags) == Err(Errno::EINTR) {}
}

fn signal(pid: i32, signal: Signal) {
    if let Err(error) = kill(Pid::from_raw(pid), signal) {
        tracing::debug!(pid, %signal, %error, "process was gone already");
    }
}

/// Living processes below one, in no order.
fn descendants(root: i32) -> Vec<i32> {
    let all: Vec<(i32, i32)> = fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let pid = entry.file_name().to_str()?.parse().ok()?;
            Some((pid, living_parent(pid)?))
        })
        .collect();
    let mut found = vec![root];
    let mut next = 0;
    while let Some(parent) = found.get(next).copied() {
        next += 1;
        found.extend(
            all.iter()
                .filter(|(_, of)| *of == parent)
                .map(|(pid, _)| *pid),
        );
    }
    found.split_off(1)
}

/// Parent of a process that is not a zombie.
fn living_parent(pid: i32) -> Option<i32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, rest) = stat.rsplit_once(") ")?;
    let mut fields = rest.split(' ');
    let state = fields.next()?;
    let parent = fields.next()?.parse().ok()?;
    (!matches!(state, "Z" | "X")).then_some(parent)
}
