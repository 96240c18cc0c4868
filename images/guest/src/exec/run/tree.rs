//! Process tree of a running exec. It hangs below its supervisor or, after a command has killed that, among the
//! guest's own children.

use std::collections::HashSet;
use std::time::Duration;

use nix::unistd::{Pid, getpid};

use crate::exec::host::ExecHost;
use crate::reaper::LeaderRegistration;
use crate::supervisor::protocol::{SignalTarget, SupervisorOrder, SupervisorReport};
use crate::supervisor::{Supervisor, descendants};
use crate::sys;

/// Maximum number of repeated kill orders before the supervisor itself is killed, and of sweeps before the guest kills
/// everything.
const KILL_ATTEMPTS_MAX: u32 = 6;
/// Time limit for a supervisor to kill its tree. A healthy one needs far less.
const KILL_PATIENCE: Duration = Duration::from_millis(150);
/// Pause between two sweeps of orphans, in which killed processes end and are reaped.
const SWEEP_PAUSE: Duration = Duration::from_millis(5);

/// Process tree with its watcher and its leader.
#[derive(Debug)]
pub(super) struct ProcessTree {
    watcher: TreeWatcher,
    leader: LeaderRegistration,
    leader_over: bool,
    kill_attempts: u32,
    /// `true` if no process of the tree is left.
    pub(super) is_empty: bool,
}

/// Process that watches the tree and reports its end.
#[derive(Debug)]
enum TreeWatcher {
    Supervisor(Supervisor),
    /// The guest itself, after the supervisor was killed and its processes became the guest's children.
    Guest,
}

impl ProcessTree {
    /// Returns the tree of a leader that is already registered in `ExecHost::leaders`.
    pub(super) fn new(supervisor: Supervisor, leader: LeaderRegistration) -> Self {
        Self {
            watcher: TreeWatcher::Supervisor(supervisor),
            leader,
            leader_over: false,
            kill_attempts: 0,
            is_empty: false,
        }
    }

    /// Returns `true` if processes are left after all steps of a kill: the kernel does not end them yet.
    pub(super) fn resists_kill(&self) -> bool {
        self.kill_attempts > KILL_ATTEMPTS_MAX
    }

    /// Returns the processes of the tree; none if its supervisor is gone, when they can't be told from those of others.
    pub(super) fn processes(&self) -> Vec<Pid> {
        match &self.watcher {
            TreeWatcher::Supervisor(supervisor) => {
                descendants::find_descendants(supervisor.pid(), &HashSet::new())
            }
            TreeWatcher::Guest => Vec::new(),
        }
    }

    /// Returns `true` if the supervisor is gone and the guest watches the tree itself.
    pub(super) fn has_lost_supervisor(&self) -> bool {
        matches!(self.watcher, TreeWatcher::Guest)
    }

    /// Returns `true` if the supervisor is gone and the leader's exit status is lost.
    pub(super) fn is_lost(&self) -> bool {
        self.has_lost_supervisor() && self.leader.is_lost()
    }

    /// Waits for the next report; `None` when the supervisor is gone. Safe to cancel.
    pub(super) async fn next_report(&self) -> Option<SupervisorReport> {
        if self.is_empty || self.has_lost_supervisor() && self.leader_over {
            return std::future::pending().await;
        }
        match &self.watcher {
            TreeWatcher::Supervisor(supervisor) => supervisor.report().await,
            TreeWatcher::Guest => {
                let exit = self.leader.wait_for_exit().await;
                // The caller measures the wall time itself.
                let wall = Duration::ZERO;
                Some(SupervisorReport::Exited { exit, wall })
            }
        }
    }

    /// Makes the guest the watcher of a tree whose supervisor is gone.
    pub(super) fn take_over(&mut self, host: &ExecHost) {
        if let TreeWatcher::Supervisor(supervisor) = &self.watcher {
            host.supervisors.abandon(supervisor);
        }
        self.watcher = TreeWatcher::Guest;
    }

    /// Records that the leader has exited or is lost. A tree without a supervisor has no further reports.
    pub(super) fn forget_leader(&mut self, host: &ExecHost) {
        self.leader_over = true;
        host.leaders.lock().remove(&self.leader.pid());
    }

    /// Returns how long to wait after a kill before the next step.
    pub(super) fn patience(&self) -> Duration {
        match self.watcher {
            TreeWatcher::Supervisor(_) => KILL_PATIENCE,
            TreeWatcher::Guest => SWEEP_PAUSE,
        }
    }

    /// Returns `true` if the guest itself finds no process of the tree.
    pub(super) fn is_swept(&self, host: &ExecHost) -> bool {
        self.has_lost_supervisor() && self.leader_over && no_orphans(host)
    }

    /// Sends a signal to the leader, its group or the whole tree.
    pub(super) fn signal(&self, host: &ExecHost, target: SignalTarget, signal: i32) {
        match &self.watcher {
            TreeWatcher::Supervisor(supervisor) => {
                supervisor.order(SupervisorOrder::Signal { target, signal });
            }
            TreeWatcher::Guest => {
                // The guest may have reaped the leader before the exec's task noticed. The kernel may have reused its
                // pid.
                if self.leader_over || self.leader.has_ended() {
                    return;
                }
                let leader = self.leader.pid();
                match target {
                    SignalTarget::Leader => sys::send_signal(leader, signal),
                    SignalTarget::Group => sys::send_signal_to_group(leader, signal),
                    SignalTarget::Tree => {
                        descendants::signal_tree(leader, &host.supervisors.pids(), signal);
                        sys::send_signal(leader, signal);
                    }
                }
            }
        }
    }

    /// Kills the whole tree.
    pub(super) fn kill(&self, host: &ExecHost) {
        match &self.watcher {
            TreeWatcher::Supervisor(supervisor) => supervisor.order(SupervisorOrder::Kill),
            TreeWatcher::Guest => {
                // After its exit the leader's pid may belong to the leader of another exec.
                if !self.leader_over {
                    host.leaders.lock().remove(&self.leader.pid());
                }
                sweep_orphans(host);
            }
        }
    }

    /// Repeats or escalates a kill. The tree forks faster than it is found, or its supervisor was stopped. `kill(-1)`
    /// by PID 1 outruns any tree, but only if no other exec runs.
    pub(super) fn escalate_kill(&mut self, host: &ExecHost) {
        self.kill_attempts += 1;
        let last = self.kill_attempts > KILL_ATTEMPTS_MAX;
        if (last || !self.has_lost_supervisor())
            && host.execs.living() == 1
            && sys::kill_everything()
        {
            return;
        }
        match &self.watcher {
            TreeWatcher::Supervisor(supervisor) if last => supervisor.kill(),
            TreeWatcher::Supervisor(_) | TreeWatcher::Guest => self.kill(host),
        }
    }

    /// Returns the supervisor to the pool.
    pub(super) fn release(self, host: &ExecHost) {
        if let TreeWatcher::Supervisor(supervisor) = self.watcher {
            host.supervisors.give_back(supervisor);
        }
        host.supervisors.fill();
    }
}

/// Kills processes that the guest inherited from dead supervisors, except running leaders and their trees. Kills
/// nothing while a leader may still look like an orphan; the caller tries again.
fn sweep_orphans(host: &ExecHost) {
    let sure = || host.supervisors.every_leader_is_known();
    descendants::kill_tree_if(getpid(), &non_orphans(host), sure);
}

/// Kills orphans until none is left.
pub(super) async fn end_orphans(host: &ExecHost) {
    let mut passes = 0;
    while !no_orphans(host) {
        passes += 1;
        if passes <= KILL_ATTEMPTS_MAX || host.execs.living() != 1 || !sys::kill_everything() {
            sweep_orphans(host);
        }
        // The reaper's task runs while this task sleeps.
        tokio::time::sleep(SWEEP_PAUSE).await;
    }
}

/// Returns `true` if two looks find no orphan. One look can miss a process that forks and exits at once.
fn no_orphans(host: &ExecHost) -> bool {
    let skip = non_orphans(host);
    [(), ()]
        .iter()
        .all(|()| descendants::find_descendants(getpid(), &skip).is_empty())
}

fn non_orphans(host: &ExecHost) -> HashSet<Pid> {
    let mut skip = host.supervisors.pids();
    skip.extend(host.leaders.lock().iter().copied());
    skip
}
