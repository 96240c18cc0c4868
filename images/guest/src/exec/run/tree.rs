//! The process tree of a running exec: below its supervisor, or, when a tenant has killed that, the
//! guest's own orphans.

use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::getpid;

use crate::guest::Guest;
use crate::reaper::Leader;
use crate::supervisor::wire::{Order, Report, Target};
use crate::supervisor::{Supervisor, walk};
use crate::sys;

/// Times that a supervisor is asked again before it is killed for not answering.
const INSIST_MAX: u32 = 6;

/// A tree and who watches it.
#[derive(Debug)]
pub(super) struct Tree {
    watcher: Watcher,
    leader: Leader,
    insisted: u32,
    empty: bool,
}

#[derive(Debug)]
enum Watcher {
    Supervisor(Supervisor),
    /// The supervisor was killed: what it had is below the guest now.
    Guest,
}

impl Tree {
    pub(super) fn new(supervisor: Supervisor, leader: Leader) -> Self {
        Self {
            watcher: Watcher::Supervisor(supervisor),
            leader,
            insisted: 0,
            empty: false,
        }
    }

    /// Nothing is left of it.
    pub(super) fn is_empty(&self) -> bool {
        self.empty
    }

    pub(super) fn set_empty(&mut self) {
        self.empty = true;
    }

    pub(super) fn is_orphaned(&self) -> bool {
        matches!(self.watcher, Watcher::Guest)
    }

    /// Its supervisor is gone, and how the leader ended will never be known.
    pub(super) fn is_lost(&self) -> bool {
        self.is_orphaned() && self.leader.is_lost()
    }

    /// What happens next; `None` when the supervisor is gone. Safe to cancel.
    pub(super) async fn event(&self) -> Option<Report> {
        if self.empty {
            return std::future::pending().await;
        }
        match &self.watcher {
            Watcher::Supervisor(supervisor) => supervisor.report().await,
            Watcher::Guest => {
                let exit = self.leader.ended().await;
                // The run knows how long it took.
                let wall = std::time::Duration::ZERO;
                Some(Report::Exited { exit, wall })
            }
        }
    }

    /// Takes the place of a supervisor that is gone.
    pub(super) fn take_over(&mut self, guest: &Guest) {
        self.watcher = Watcher::Guest;
        guest.orphaned.lock().insert(self.leader.pid());
    }

    pub(super) fn signal(&self, guest: &Guest, target: Target, signal: i32) {
        match &self.watcher {
            Watcher::Supervisor(supervisor) => supervisor.order(Order::Signal { target, signal }),
            Watcher::Guest => {
                let Ok(signal) = Signal::try_from(signal) else {
                    return;
                };
                // Not reaped, or the exec would have ended: the pid is still the leader's.
                let _gone = match target {
                    Target::Leader => kill(self.leader.pid(), signal),
                    Target::Group => killpg(self.leader.pid(), signal),
                    Target::Tree => {
                        walk::signal_tree(self.leader.pid(), &guest.supervisors.pids(), signal);
                        kill(self.leader.pid(), signal)
                    }
                };
            }
        }
    }

    pub(super) fn kill(&self, guest: &Guest) {
        match &self.watcher {
            Watcher::Supervisor(supervisor) => supervisor.order(Order::Kill),
            Watcher::Guest => {
                guest.orphaned.lock().remove(&self.leader.pid());
                sweep_orphans(guest);
            }
        }
    }

    /// The tree is still there long after it was killed: it forks faster than it is found, or its
    /// supervisor was stopped. `kill(-1)` by PID 1 outruns anything, if nothing else is running.
    pub(super) fn insist(&mut self, guest: &Guest) {
        self.insisted += 1;
        if guest.execs.living() == 1 && sys::kill_everything() {
            return;
        }
        match &self.watcher {
            Watcher::Supervisor(supervisor) if self.insisted > INSIST_MAX => supervisor.end(),
            Watcher::Supervisor(_) | Watcher::Guest => self.kill(guest),
        }
    }

    /// The exec is over: its supervisor is free for the next one.
    pub(super) fn release(self, guest: &Guest) {
        guest.orphaned.lock().remove(&self.leader.pid());
        if let Watcher::Supervisor(supervisor) = self.watcher {
            guest.supervisors.give_back(supervisor);
        }
        guest.supervisors.fill();
    }
}

/// Kills what fell to the guest from supervisors that are gone, without the leaders that still run and
/// what is below them.
pub(super) fn sweep_orphans(guest: &Guest) {
    let mut skip = guest.supervisors.pids();
    skip.extend(guest.orphaned.lock().iter().copied());
    walk::kill_tree(getpid(), &skip);
}
