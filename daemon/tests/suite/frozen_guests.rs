//! Guest processes that a test stops and continues, so that they answer nothing meanwhile.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Stopped guest processes of a server. Dropping it continues them.
pub(crate) struct FrozenGuests(Vec<Pid>);

impl FrozenGuests {
    /// Stops all guests of the server with this state directory.
    pub(crate) fn stop(state_dir: &Path) -> Self {
        let prefix = state_dir.as_os_str().as_bytes();
        let processes = std::fs::read_dir("/proc").expect("processes");
        let pids: Vec<Pid> = processes
            .filter_map(|process| {
                let process = process.ok()?;
                let pid: i32 = process.file_name().to_str()?.parse().ok()?;
                let command = std::fs::read(process.path().join("cmdline")).ok()?;
                let mut words = command.split(|byte| *byte == 0);
                let ours = words.next()?.starts_with(prefix);
                ours.then_some(Pid::from_raw(pid))
            })
            .collect();
        assert!(!pids.is_empty());
        for pid in &pids {
            kill(*pid, Signal::SIGSTOP).expect("stopped");
        }
        Self(pids)
    }
}

impl Drop for FrozenGuests {
    fn drop(&mut self) {
        for pid in &self.0 {
            // The process may have ended.
            let _gone = kill(*pid, Signal::SIGCONT);
        }
    }
}
