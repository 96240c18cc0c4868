//! The process tree of a running exec: below its supervisor, or, when a tenant has killed that, the
//! guest's own orphans.

use std::collections::HashSet;
use std::time::Duration;

use nix::unistd::{Pid, getpid};

use crate::guest::Guest;
use crate::reaper::Leader;
use crate::supervisor::wire::{Order, Report, Target};
use crate::supervisor::{Supervisor, walk};
use crate::sys;

/// Times that a supervisor is asked again before it is killed for not answering, and that the guest sweeps before it
/// kills everything.
const INSIST_MAX: u32 = 6;
/// A healthy supervisor has killed its tree long before; after it the guest does what only it can.
const KILL_PATIENCE: Duration = Duration::from_millis(150);
/// Between two sweeps of what has no supervisor: what was killed needs a moment to end and be reaped.
const SWEEP_PAUSE: Duration = Duration::from_millis(5);

/// A tree and who watches it.
#[derive(Debug)]
pub(super) struct Tree {
    watcher: Watcher,
    leader: Leader,
    leader_over: bool,
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
    /// Begins with a leader that is among those that others spare.
    pub(super) fn new(supervisor: Supervisor, leader: Leader) -> Self {
        Self {
            watcher: Watcher::Supervisor(supervisor),
            leader,
            leader_over: false,
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
        if self.empty || self.is_orphaned() && self.leader_over {
            return std::future::pending().await;
        }
        match &self.watcher {
            Watcher::Supervisor(supervisor) => supervisor.report().await,
            Watcher::Guest => {
                let exit = self.leader.ended().await;
                // The run knows how long it took.
                let wall = Duration::ZERO;
                Some(Report::Exited { exit, wall })
            }
        }
    }

    /// Takes the place of a supervisor that is gone.
    pub(super) fn take_over(&mut self, guest: &Guest) {
        if let Watcher::Supervisor(supervisor) = &self.watcher {
            guest.supervisors.abandon(supervisor);
        }
        self.watcher = Watcher::Guest;
    }

    /// The leader is gone, or nobody will ever know: a tree without its supervisor has nothing more to say.
    pub(super) fn leader_ended(&mut self, guest: &Guest) {
        self.leader_over = true;
        guest.leaders.lock().remove(&self.leader.pid());
    }

    /// How long it may take until more is to be done about a tree that was killed.
    pub(super) fn patience(&self) -> Duration {
        match self.watcher {
            Watcher::Supervisor(_) => KILL_PATIENCE,
            Watcher::Guest => SWEEP_PAUSE,
        }
    }

    /// The guest itself sees that nothing is left of it.
    pub(super) fn is_swept(&self, guest: &Guest) -> bool {
        self.is_orphaned() && self.leader_over && no_orphans(guest)
    }

    pub(super) fn signal(&self, guest: &Guest, target: Target, signal: i32) {
        match &self.watcher {
            Watcher::Supervisor(supervisor) => supervisor.order(Order::Signal { target, signal }),
            Watcher::Guest => {
                // It may be reaped though the exec has not heard of it yet: its pid is anybody's then.
                if self.leader_over || self.leader.has_ended() {
                    return;
                }
                let leader = self.leader.pid();
                match target {
                    Target::Leader => sys::send_signal(leader, signal),
                    Target::Group => sys::send_signal_to_group(leader, signal),
                    Target::Tree => {
                        walk::signal_tree(leader, &guest.supervisors.pids(), signal);
                        sys::send_signal(leader, signal);
                    }
                }
            }
        }
    }

    pub(super) fn kill(&self, guest: &Guest) {
        match &self.watcher {
            Watcher::Supervisor(supervisor) => supervisor.order(Order::Kill),
            Watcher::Guest => {
                // Once it is over its pid may be that of another's leader.
                if !self.leader_over {
                    guest.leaders.lock().remove(&self.leader.pid());
                }
                sweep_orphans(guest);
            }
        }
    }

    /// The tree is still there long after it was killed: it forks faster than it is found, or its
    /// supervisor was stopped. `kill(-1)` by PID 1 outruns anything, if nothing else is running.
    pub(super) fn insist(&mut self, guest: &Guest) {
        self.insisted += 1;
        let last = self.insisted > INSIST_MAX;
        if (last || !self.is_orphaned()) && guest.execs.living() == 1 && sys::kill_everything() {
            return;
        }
        match &self.watcher {
            Watcher::Supervisor(supervisor) if last => supervisor.end(),
            Watcher::Supervisor(_) | Watcher::Guest => self.kill(guest),
        }
    }

    /// The exec is over: its supervisor is free for the next one.
    pub(super) fn release(self, guest: &Guest) {
        if let Watcher::Supervisor(supervisor) = self.watcher {
            guest.supervisors.give_back(supervisor);
        }
        guest.supervisors.fill();
    }
}

/// Kills what fell to the guest from supervisors that are gone, without the leaders that still run and
/// what is below them. None of it while one of those may look like an orphan: its turn comes again.
fn sweep_orphans(guest: &Guest) {
    let sure = || guest.supervisors.every_leader_is_known();
    walk::kill_tree_if(getpid(), &not_orphans(guest), sure);
}

/// Kills it until nothing is left of it.
pub(super) async fn end_orphans(guest: &Guest) {
    let mut passes = 0;
    while !no_orphans(guest) {
        passes += 1;
        if passes <= INSIST_MAX || guest.execs.living() != 1 || !sys::kill_everything() {
            sweep_orphans(guest);
        }
        // Reaping is the reaper's; its turn comes when this waits.
        tokio::time::sleep(SWEEP_PAUSE).await;
    }
}

/// Looks twice: what forks and ends at once can be missed by one look.
fn no_orphans(guest: &Guest) -> bool {
    let skip = not_orphans(guest);
    [(), ()]
        .iter()
        .all(|()| walk::descendants(getpid(), &skip).is_empty())
}

fn not_orphans(guest: &Guest) -> HashSet<Pid> {
    let mut skip = guest.supervisors.pids();
    skip.extend(guest.leaders.lock().iter().copied());
    skip
}
