//! Task that runs one exec and handles all of its events in one loop. It spawns the exec through a supervisor, moves
//! its output into the windows, enforces its deadlines, and kills its process tree. It lives until no process of the
//! exec is left.

mod exec_end;
mod output_pump;
mod output_source;
mod program_check;
mod spawn;
mod stragglers;
mod tree;

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use skilld_proto::v1::{self, ExitReason};
use tokio::sync::mpsc;

use super::deadlines::{ExecDeadlines, deadline_after, sleep_until};
use super::exhaustion::StartSnapshot;
use super::host::{ExecHost, GuestSettings};
use super::{Exec, ExecControl, ExecPhase};
use crate::supervisor::protocol::{SignalTarget, SupervisorReport};
use crate::sys::ExitStatus;
use exec_end::{exited_result, lost_leader_result, record_exit, record_output_end};
use output_source::{OutputSource, PIPE_BYTES, wait_readable};
pub(crate) use spawn::SpawnRequest;
use spawn::spawn_exec;
use tree::ProcessTree;

/// Exec whose leader was spawned, as its task sees it.
struct RunningExec {
    host: Arc<ExecHost>,
    exec: Arc<Exec>,
    settings: GuestSettings,
    tree: ProcessTree,
    sources: [Option<OutputSource>; 2],
    scratch: BytesMut,
    deadlines: ExecDeadlines,
    started: Instant,
    /// Resource counters before the start.
    before: StartSnapshot,
    /// First reason for which skilld ended the exec; `None` if it did not.
    cause: Option<ExitReason>,
    /// Disks that had no room when the command reported that.
    full_disks: Vec<v1::FullDisk>,
    /// Output bytes left until the limit.
    output_left: u64,
    block: bool,
    /// Reads go to the pipes directly, without waiting for the runtime's readiness.
    draining: bool,
}

/// Runs an exec from its start to the end of its last process.
pub(crate) async fn run_exec(
    host: Arc<ExecHost>,
    exec: Arc<Exec>,
    settings: GuestSettings,
    request: SpawnRequest,
    mut controls: mpsc::Receiver<ExecControl>,
) {
    let started = Instant::now();
    let before = host.exhaustion.snapshot(host.execs.living() > 1);
    match spawn_exec(&host, request, exec.spec.programs.as_ref()).await {
        Ok(spawned) => {
            let pid = spawned.pid;
            let leader = host
                .reaper
                .register_leader(nix::unistd::Pid::from_raw(pid), started);
            exec.set_running(pid, spawned.terminal);
            let spec = &exec.spec;
            let limit = spec.limits.unwrap_or_default().output_bytes;
            let mut run = RunningExec {
                settings,
                tree: ProcessTree::new(spawned.supervisor, leader),
                sources: spawned.sources,
                scratch: BytesMut::new(),
                deadlines: ExecDeadlines::default(),
                started,
                before,
                cause: None,
                full_disks: Vec::new(),
                output_left: u64::try_from(limit)
                    .ok()
                    .filter(|l| *l > 0)
                    .unwrap_or(u64::MAX),
                block: spec.on_full() == v1::OutputFullPolicy::Block,
                draining: false,
                host: Arc::clone(&host),
                exec: Arc::clone(&exec),
            };
            // The timeout starts only here, so the reported wall time is never shorter than it.
            let running = Instant::now();
            run.deadlines.timeout =
                super::positive_duration(spec.timeout).map(|wait| deadline_after(running, wait));
            run.reset_silence_deadline();
            run.run_event_loop(&mut controls).await;
            run.tree.release(&host);
        }
        Err(result) => {
            let lost = result.reason() == ExitReason::WorkspaceLost;
            record_exit(&host, &exec, result);
            record_output_end(&host, &exec);
            if lost {
                tree::end_orphans(&host).await;
            }
        }
    }
    exec.state().gone = true;
    exec.notify_changed();
    host.execs.exec_ended(&exec);
}

impl RunningExec {
    /// Handles everything that can happen to a running exec.
    async fn run_event_loop(&mut self, controls: &mut mpsc::Receiver<ExecControl>) {
        while !(self.tree.is_empty && self.phase() == ExecPhase::Closed) {
            let [out_open, err_open] = [0, 1].map(|stream| self.may_read(stream));
            let blocked = self.is_blocked();
            let deadline = self.deadlines.next();
            let stall = self.exec.state().next_stall(blocked);
            let [out, err] = &self.sources;
            tokio::select! {
                report = self.tree.next_report() => self.on_report(report),
                () = wait_readable(out.as_ref()), if out_open => self.read(0).await,
                () = wait_readable(err.as_ref()), if err_open => self.read(1).await,
                Some(control) = controls.recv() => self.on_control(control),
                () = self.exec.room.notified(), if blocked => {}
                () = self.host.execs.budget.relieved(), if blocked => {}
                () = sleep_until(deadline) => self.on_deadline(Instant::now()),
                () = sleep_until(stall), if blocked => {
                    self.exec.state().skip_stalled(Instant::now());
                }
            }
            self.close_when_done();
        }
    }

    fn phase(&self) -> ExecPhase {
        self.exec.state().phase
    }

    /// Restarts the deadline for silence.
    fn reset_silence_deadline(&mut self) {
        let silence = super::positive_duration(self.exec.spec.no_output_timeout);
        self.deadlines.silence = silence.map(|silence| deadline_after(Instant::now(), silence));
    }

    /// Handles a report of the supervisor; `None` means that the supervisor is gone.
    fn on_report(&mut self, report: Option<SupervisorReport>) {
        match report {
            Some(SupervisorReport::Exited { exit, wall }) => self.leader_ended(exit, wall),
            Some(SupervisorReport::Empty) => {
                self.tree.is_empty = true;
                self.deadlines.patience = None;
                // A healthy supervisor reports the leader's exit before this. Otherwise the exit status is lost.
                self.lose_leader();
                self.limit_sources();
                self.exec.state().gone = true;
                self.exec.notify_changed();
            }
            // Valid only at the start; the supervisor is not healthy.
            Some(SupervisorReport::Started { .. } | SupervisorReport::Failed { .. }) => {}
            None => {
                self.tree.take_over(&self.host);
                if self.phase() >= ExecPhase::Exited || self.tree.is_lost() {
                    self.end_orphaned_tree();
                }
            }
        }
    }

    /// Drains the pipes and records the leader's exit.
    fn leader_ended(&mut self, exit: ExitStatus, wall: Duration) {
        if self.phase() >= ExecPhase::Exited {
            return;
        }
        // Output that the leader wrote before its exit precedes Exited, as far as there is room.
        self.draining = true;
        for stream in [0, 1] {
            // A process that outlives the leader may write without end, so no more is read than a pipe holds.
            let mut left = PIPE_BYTES.unsigned_abs() as usize;
            while left > 0 {
                match self.read_once(stream) {
                    0 => break,
                    read => left = left.saturating_sub(read),
                }
            }
        }
        self.draining = false;
        for source in self.sources.iter_mut().flatten() {
            source.release_terminal();
        }
        let wall = if wall.is_zero() {
            self.started.elapsed()
        } else {
            wall
        };
        self.host.disks.add_full(&mut self.full_disks);
        let is_disk_full = !self.full_disks.is_empty();
        // A reason that skilld caused takes precedence.
        let ran_out = || self.host.exhaustion.reason(exit, self.before, is_disk_full);
        let cause = self.cause.or_else(ran_out);
        let result = v1::ExecResult {
            full_disks: std::mem::take(&mut self.full_disks),
            ..exited_result(exit, wall, cause)
        };
        let counted = self.host.exhaustion.add_counts(result, self.before);
        self.deadlines.timeout = None;
        self.deadlines.silence = None;
        self.deadlines.leak = Some(deadline_after(Instant::now(), self.settings.leak_grace));
        self.tree.forget_leader(&self.host);
        record_exit(&self.host, &self.exec, counted);
        if self.tree.has_lost_supervisor() {
            self.end_orphaned_tree();
        }
    }

    /// Records an unknown exit status, unless the leader's exit is known.
    fn lose_leader(&mut self) {
        if self.phase() < ExecPhase::Exited {
            self.deadlines = ExecDeadlines::default();
            self.tree.forget_leader(&self.host);
            let result = lost_leader_result(self.cause, self.started.elapsed());
            let counted = self.host.exhaustion.add_counts(result, self.before);
            record_exit(&self.host, &self.exec, counted);
        }
    }

    /// Kills the rest of the tree after supervisor and leader are gone. The guest itself checks that nothing is left.
    fn end_orphaned_tree(&mut self) {
        self.lose_leader();
        self.kill();
    }

    /// Limits both streams to the bytes that they hold now.
    fn limit_sources(&mut self) {
        for source in self.sources.iter_mut().flatten() {
            source.limit();
        }
        for stream in [0, 1] {
            // A read of an empty stream closes it.
            while self.read_once(stream) > 0 {}
        }
    }

    /// Closes the exec once the leader has exited, both streams have ended and no process is left that Closed would
    /// have to name. Processes that are kept, or that are killed for another reason, do not delay it.
    fn close_when_done(&mut self) {
        let has_output_ended = self.sources.iter().all(Option::is_none);
        let waits_for_tree = self.cause.is_none() && !self.keeps_stragglers();
        let is_settled = !waits_for_tree || self.tree.is_empty || self.tree.resists_kill();
        if self.phase() == ExecPhase::Exited && has_output_ended && is_settled {
            self.scratch = BytesMut::new();
            // Unset for an exec that could not start, since it has no files of its own.
            self.exec.state().end_file_time = Some(super::wall_clock_now());
            record_output_end(&self.host, &self.exec);
        }
    }

    /// Handles a signal or kill request of an RPC.
    fn on_control(&mut self, control: ExecControl) {
        match control {
            ExecControl::Signal { target, signal } => self.tree.signal(&self.host, target, signal),
            ExecControl::Kill { grace, reason } => {
                self.terminate(reason, grace.unwrap_or(self.settings.kill_grace));
            }
        }
    }

    /// Sends SIGTERM to the whole tree, and SIGKILL after the grace.
    fn terminate(&mut self, reason: ExitReason, grace: Duration) {
        if self.tree.is_empty {
            return;
        }
        self.cause = self.cause.or(Some(reason));
        self.deadlines.timeout = None;
        self.deadlines.silence = None;
        let kill_at = deadline_after(Instant::now(), grace);
        if self.deadlines.patience.is_some() {
            return;
        }
        let first = self.deadlines.kill.is_none();
        self.deadlines.kill = Some(self.deadlines.kill.map_or(kill_at, |at| at.min(kill_at)));
        if grace.is_zero() {
            self.kill();
        } else if first {
            self.tree
                .signal(&self.host, SignalTarget::Tree, nix::libc::SIGTERM);
            // A stopped process acts on SIGTERM only once it is continued.
            self.tree
                .signal(&self.host, SignalTarget::Tree, nix::libc::SIGCONT);
        }
    }

    /// Kills the whole tree and sets a deadline for its end.
    fn kill(&mut self) {
        self.deadlines.kill = None;
        self.deadlines.patience = Some(Instant::now() + self.tree.patience());
        self.tree.kill(&self.host);
    }

    /// Handles all deadlines that are due at `now`.
    fn on_deadline(&mut self, now: Instant) {
        let due = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        if due(self.deadlines.timeout) {
            self.terminate(ExitReason::Timeout, self.settings.kill_grace);
        }
        if due(self.deadlines.silence) {
            if self.is_blocked() {
                // The program is not silent; it waits for a reader.
                self.reset_silence_deadline();
            } else {
                self.terminate(ExitReason::NoOutputTimeout, self.settings.kill_grace);
            }
        }
        if due(self.deadlines.kill) {
            self.kill();
        }
        if due(self.deadlines.leak) {
            self.deadlines.leak = None;
            self.end_stragglers();
        }
        if due(self.deadlines.patience) {
            self.on_patience_over();
        }
    }

    fn keeps_stragglers(&self) -> bool {
        self.exec.spec.stragglers() == v1::StragglerPolicy::Keep
    }

    /// Releases the processes that outlived the leader, or records and kills them.
    fn end_stragglers(&mut self) {
        if self.cause.is_none() && self.keeps_stragglers() {
            self.limit_sources();
        } else if self.deadlines.patience.is_none() && !self.tree.is_empty {
            if self.cause.is_none() {
                let ended = stragglers::describe_stragglers(self.tree.processes());
                self.exec.state().ended_processes = ended;
            }
            self.kill();
        }
    }

    /// Escalates after a kill that the supervisor did not confirm in time.
    fn on_patience_over(&mut self) {
        if self.tree.is_lost() {
            self.lose_leader();
        }
        if self.tree.is_swept(&self.host) {
            self.on_report(Some(SupervisorReport::Empty));
            return;
        }
        self.tree.escalate_kill(&self.host);
        // The wait starts here, because the kill itself may have taken long.
        self.deadlines.patience = Some(Instant::now() + self.tree.patience());
    }
}
