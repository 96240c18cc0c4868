//! Owns every exit that reaches the guest: its supervisors', and those of processes whose supervisor was
//! killed. One loop, driven by SIGCHLD through a descriptor; there is no signal handler.

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

use crate::supervisor::Supervisors;
use crate::sys::{self, Exit};

/// Exits of unknown processes that are remembered: a leader may be reaped here before the exec has read
/// that it was started.
const RECENT_MAX: usize = 64;

/// Statuses of leaders that the guest itself reaped.
#[derive(Debug)]
pub(crate) struct Reaper {
    state: Mutex<State>,
    changed: watch::Sender<()>,
}

#[derive(Debug, Default)]
struct State {
    leaders: HashMap<Pid, Option<Exit>>,
    recent: VecDeque<(Pid, Exit, Instant)>,
}

/// A leader that is known to the reaper for as long as this lives.
#[derive(Debug)]
pub(crate) struct Leader {
    reaper: Arc<Reaper>,
    pid: Pid,
}

impl Reaper {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::default(),
            changed: watch::Sender::new(()),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Remembers a leader that was spawned after `since`.
    pub(crate) fn leader(self: &Arc<Self>, pid: Pid, since: Instant) -> Leader {
        let mut state = self.state();
        let ended = state.recent.iter();
        let early = ended
            .filter(|(ended, _, at)| *ended == pid && *at >= since)
            .map(|(_, exit, _)| *exit)
            .next();
        state.leaders.insert(pid, early);
        drop(state);
        let reaper = Arc::clone(self);
        Leader { reaper, pid }
    }

    /// Reaps for ever.
    pub(crate) async fn run(self: Arc<Self>, supervisors: Arc<Supervisors>) -> io::Result<()> {
        let mut children = SigSet::empty();
        children.add(Signal::SIGCHLD);
        let flags = SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC;
        let signals = sys::watch(SignalFd::with_flags(&children, flags)?, Interest::READABLE)?;
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

    fn reap(&self, supervisors: &Supervisors) {
        let mut any = false;
        loop {
            match sys::peek_exit() {
                Ok(Some((pid, exit))) => {
                    sys::reap(pid);
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

    fn record(&self, pid: Pid, exit: Exit) {
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

impl Leader {
    pub(crate) fn pid(&self) -> Pid {
        self.pid
    }

    /// It does not exist any more and nobody knows how it ended: it was reaped before it was known to be a leader,
    /// and forgotten among others.
    pub(crate) fn is_lost(&self) -> bool {
        !self.has_ended() && kill(self.pid, None) == Err(Errno::ESRCH)
    }

    /// The guest has reaped it.
    pub(crate) fn has_ended(&self) -> bool {
        self.exit().is_some()
    }

    fn exit(&self) -> Option<Exit> {
        let state = self.reaper.state();
        state.leaders.get(&self.pid).copied().flatten()
    }

    /// Waits until the guest has reaped it, which is only ever so when its supervisor is gone. Safe to
    /// cancel.
    pub(crate) async fn ended(&self) -> Exit {
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

impl Drop for Leader {
    fn drop(&mut self) {
        self.reaper.state().leaders.remove(&self.pid);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ended and reaped: its pid is nobody's, as far as a test can tell.
    fn gone() -> Pid {
        let child = std::process::Command::new("true").spawn();
        let mut child = child.expect("a process");
        child.wait().expect("reaped");
        Pid::from_raw(i32::try_from(child.id()).expect("a pid"))
    }

    #[test]
    fn a_leader_whose_end_was_forgotten_is_lost() {
        let reaper = Reaper::new();
        let (leader, since) = (gone(), Instant::now());
        reaper.record(leader, Exit::default());
        for number in 0..i32::try_from(RECENT_MAX).expect("small") {
            assert!(!reaper.leader(leader, since).is_lost(), "{number} others");
            reaper.record(Pid::from_raw(i32::MAX - number), Exit::default());
        }
        let leader = reaper.leader(leader, since);
        assert!(leader.is_lost() && !leader.has_ended());
        reaper.record(leader.pid(), Exit::default());
        assert!(!leader.is_lost(), "its end is known");
        assert!(leader.has_ended());
        assert!(!reaper.leader(nix::unistd::getpid(), since).is_lost());
    }
}
