//! Reaps all children of the guest: supervisors, and processes that the guest inherits from a killed supervisor. One
//! loop reads SIGCHLD from a descriptor; there is no signal handler.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use nix::errno::Errno;
use nix::sys::signal::{SigSet, Signal, kill};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::Pid;
use tokio::io::Interest;
use tokio::sync::watch;

use crate::supervisor::SupervisorPool;
use crate::sys::{self, ExitStatus};

/// Maximum number of remembered exit statuses of unknown processes. The guest may reap a leader before the exec's task
/// has read that it was started.
const RECENT_MAX: usize = 64;

/// Reaps children and keeps the exit statuses of leaders that the guest itself reaped.
#[derive(Debug)]
pub(crate) struct ChildReaper {
    state: Mutex<ReaperState>,
    changed: watch::Sender<()>,
}

/// Exit statuses of leaders, and recent ones of unknown processes.
#[derive(Debug, Default)]
struct ReaperState {
    leaders: HashMap<Pid, Option<ExitStatus>>,
    recent: VecDeque<(Pid, ExitStatus, Instant)>,
}

/// Registration of a leader with the reaper. It ends when the guard is dropped.
#[derive(Debug)]
pub(crate) struct LeaderRegistration {
    reaper: Arc<ChildReaper>,
    pid: Pid,
}

impl ChildReaper {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::default(),
            changed: watch::Sender::new(()),
        })
    }

    fn state(&self) -> MutexGuard<'_, ReaperState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a leader that was spawned after `since`.
    pub(crate) fn register_leader(
        self: &Arc<Self>,
        pid: Pid,
        since: Instant,
    ) -> LeaderRegistration {
        let mut state = self.state();
        // An earlier process may have had the same pid.
        let ended = state.recent.iter();
        let early = ended
            .filter(|(ended, _, at)| *ended == pid && *at >= since)
            .map(|(_, exit, _)| *exit)
            .next();
        state.leaders.insert(pid, early);
        drop(state);
        let reaper = Arc::clone(self);
        LeaderRegistration { reaper, pid }
    }

    /// Reaps children until the descriptor for signals fails.
    pub(crate) async fn run(self: Arc<Self>, supervisors: Arc<SupervisorPool>) -> io::Result<()> {
        let mut children = SigSet::empty();
        children.add(Signal::SIGCHLD);
        let flags = SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC;
        let signals =
            sys::register_fd(SignalFd::with_flags(&children, flags)?, Interest::READABLE)?;
        loop {
            self.reap(&supervisors);
            let mut ready = signals.readable().await?;
            while let Ok(Some(_)) = signals.get_ref().read_signal() {}
            ready.clear_ready();
            while let Some(pid) = sys::next_stopped() {
                supervisors.wake(pid);
            }
        }
    }

    /// Reaps all children that have ended.
    fn reap(&self, supervisors: &SupervisorPool) {
        let mut any = false;
        loop {
            match sys::peek_exit() {
                Ok(Some((pid, exit))) => {
                    sys::reap_child(pid);
                    if !supervisors.ended(pid) {
                        self.record(pid, exit);
                        any = true;
                    }
                }
                Err(Errno::EINTR) => {}
                Ok(None) | Err(_) => break,
            }
        }
        if any {
            self.changed.send_replace(());
        }
    }

    /// Records the exit status of a child that is no supervisor.
    fn record(&self, pid: Pid, exit: ExitStatus) {
        let mut state = self.state();
        if let Some(status) = state.leaders.get_mut(&pid) {
            *status = Some(exit);
            return;
        }
        if state.recent.len() == RECENT_MAX {
            state.recent.pop_front();
        }
        state.recent.push_back((pid, exit, Instant::now()));
    }
}

impl LeaderRegistration {
    pub(crate) fn pid(&self) -> Pid {
        self.pid
    }

    /// Returns `true` if the leader is gone and its exit status is unknown: the guest reaped it before it was
    /// registered, and has forgotten the status.
    pub(crate) fn is_lost(&self) -> bool {
        !self.has_ended() && kill(self.pid, None) == Err(Errno::ESRCH)
    }

    /// Returns `true` if the guest has reaped the leader.
    pub(crate) fn has_ended(&self) -> bool {
        self.exit().is_some()
    }

    fn exit(&self) -> Option<ExitStatus> {
        let state = self.reaper.state();
        state.leaders.get(&self.pid).copied().flatten()
    }

    /// Waits until the guest has reaped the leader, which happens only after its supervisor is gone. Safe to cancel.
    pub(crate) async fn wait_for_exit(&self) -> ExitStatus {
        let mut changed = self.reaper.changed.subscribe();
        loop {
            if let Some(exit) = self.exit() {
                return exit;
            }
            if changed.changed().await.is_err() {
                return std::future::pending().await;
            }
        }
    }
}

impl Drop for LeaderRegistration {
    fn drop(&mut self) {
        self.reaper.state().leaders.remove(&self.pid);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the pid of a process that was reaped. A test assumes that the kernel does not reuse it at once.
    fn gone() -> Pid {
        let mut child = std::process::Command::new("true")
            .spawn()
            .expect("a process");
        child.wait().expect("reaped");
        Pid::from_raw(i32::try_from(child.id()).expect("a pid"))
    }

    #[test]
    fn a_leader_whose_end_was_forgotten_is_lost() {
        let reaper = ChildReaper::new();
        let (leader, since) = (gone(), Instant::now());
        reaper.record(leader, ExitStatus::default());
        for number in 0..i32::try_from(RECENT_MAX).expect("small") {
            assert!(
                !reaper.register_leader(leader, since).is_lost(),
                "{number} others"
            );
            reaper.record(Pid::from_raw(i32::MAX - number), ExitStatus::default());
        }
        let leader = reaper.register_leader(leader, since);
        assert!(leader.is_lost() && !leader.has_ended());
        reaper.record(leader.pid(), ExitStatus::default());
        assert!(!leader.is_lost(), "its end is known");
        assert!(leader.has_ended());
        assert!(
            !reaper
                .register_leader(nix::unistd::getpid(), since)
                .is_lost()
        );
    }
}
