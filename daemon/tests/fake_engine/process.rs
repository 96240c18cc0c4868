//! Guest as a plain child process of the test; kills it together with its descendants.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::Pid;
use tokio::process::{Child, Command};

use crate::engine::ContainerSpec;
use crate::error::{Error, Result};

/// Exit code that Docker reports for a process killed by SIGKILL: 128 + 9.
pub(super) const EXIT_KILLED: i64 = 137;
/// Time within which a process that another thread forked has executed its program, on a busy machine.
const BUSY_FILE_MAX: Duration = Duration::from_secs(60);

/// Child process of a guest. Dropping it before it was reaped kills it and its descendants; a runtime that ends does that.
#[derive(Debug)]
pub(super) struct GuestProcess(Child);

impl GuestProcess {
    /// Returns the guest's pid, or `None` once it was reaped.
    pub(super) fn pid(&self) -> Option<i32> {
        self.0.id().and_then(|pid| i32::try_from(pid).ok())
    }

    /// Waits until the guest ends and reaps it. Returns the exit code, or 128 + signal, as Docker does.
    pub(super) async fn wait_for_end(&mut self) -> i64 {
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

impl Drop for GuestProcess {
    fn drop(&mut self) {
        if let Some(pid) = self.pid() {
            kill_tree(pid);
        }
    }
}

/// Starts the slot's guest, which writes its log to `fake-guest.log` in the slot's directory.
pub(super) async fn spawn_guest(spec: &ContainerSpec) -> Result<GuestProcess> {
    let slot = &spec.slot_dir;
    let io = |operation: String| move |source| Error::Io { operation, source };
    let workspace = slot.join("fake-workspace");
    prepare_workspace(&workspace).map_err(io(format!("create {}", workspace.display())))?;
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
    let deadline = Instant::now() + BUSY_FILE_MAX;
    loop {
        match command.spawn() {
            // Another thread forked while the binary was being copied. Its child holds the copy open for writing until
            // it executes a program. No event reports that, so retry.
            Err(error)
                if error.raw_os_error() == Some(Errno::ETXTBSY as i32)
                    && Instant::now() < deadline =>
            {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            other => {
                return other.map(GuestProcess).map_err(|error| Error::Engine {
                    operation: "start container",
                    message: format!("{}: {error}", program.display()),
                });
            }
        }
    }
}

/// Creates what a container's mounts provide: a workspace with the slot's skills.
fn prepare_workspace(workspace: &Path) -> std::io::Result<()> {
    fs::create_dir_all(workspace)?;
    match std::os::unix::fs::symlink("../skills", workspace.join("skills")) {
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
        other => other,
    }
}

/// Kills a process and its descendants, as the end of a PID namespace does. It cannot find descendants that were
/// reparented before.
pub(super) fn kill_tree(pid: i32) {
    // A stopped process starts no children and reaps none, so no pid is reused in the meantime.
    send_signal(pid, Signal::SIGSTOP);
    loop {
        let living = living_descendants(pid);
        if living.is_empty() {
            break;
        }
        for descendant in living {
            send_signal(descendant, Signal::SIGKILL);
        }
    }
    send_signal(pid, Signal::SIGKILL);
}

/// Waits until a killed child process is dead, without reaping it.
pub(super) fn wait_until_dead(pid: i32) {
    let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT;
    while waitid(Id::Pid(Pid::from_raw(pid)), flags) == Err(Errno::EINTR) {}
}

/// Sends a signal to a process, which may have ended already.
fn send_signal(pid: i32, signal: Signal) {
    if let Err(error) = kill(Pid::from_raw(pid), signal) {
        tracing::debug!(pid, %signal, %error, "process had already ended");
    }
}

/// Returns the pids of living descendants of a process, in no order.
fn living_descendants(root: i32) -> Vec<i32> {
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

/// Returns the parent's pid of a process, or `None` if the process is a zombie or does not exist.
fn living_parent(pid: i32) -> Option<i32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, rest) = stat.rsplit_once(") ")?;
    let mut fields = rest.split(' ');
    let state = fields.next()?;
    let parent = fields.next()?.parse().ok()?;
    (!matches!(state, "Z" | "X")).then_some(parent)
}
