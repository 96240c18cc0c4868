//! The task that runs one exec: starts it through a supervisor, moves its output into the windows, keeps
//! its deadlines, and ends its tree. It lives until nothing of the exec is left.

pub(crate) mod deadlines;
mod program;
mod spawn;
mod stream;
mod tree;

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use bytes::BytesMut;
use skilld_proto::v1;
use skilld_proto::v1::exec_result::Reason;
use tokio::sync::mpsc;

use super::pressure::Before;
use super::{Command, Exec, Phase};
use crate::guest::{Guest, Settings};
use crate::output::CHUNK_BYTES;
use crate::supervisor::wire::{Report, Target};
use crate::sys::Exit;
use deadlines::{Deadlines, after, sleep_until};
pub(crate) use spawn::Start;
use spawn::spawn;
use stream::{PIPE_BYTES, Source, readable, would_block};
use tree::Tree;

/// Bytes read from one pipe before others get their turn.
const TURN_BYTES: usize = 4 * CHUNK_BYTES;

struct Run {
    guest: Arc<Guest>,
    exec: Arc<Exec>,
    settings: Settings,
    tree: Tree,
    sources: [Option<Source>; 2],
    scratch: BytesMut,
    deadlines: Deadlines,
    started: Instant,
    /// What the workspace was like before the start.
    before: Before,
    /// What skilld did to the exec first, if anything.
    cause: Option<Reason>,
    /// Bytes of output until the limit.
    output_left: u64,
    block: bool,
    /// Pipes are read for what is in them, not for what the runtime has heard of.
    draining: bool,
}

/// Runs an exec from its start to its last process.
pub(crate) async fn run(
    guest: Arc<Guest>,
    exec: Arc<Exec>,
    settings: Settings,
    start: Start,
    mut commands: mpsc::Receiver<Command>,
) {
    let started = Instant::now();
    let before = guest.pressure.begin(guest.execs.living() > 1);
    match spawn(&guest, start, exec.spec.programs.as_ref()).await {
        Ok(spawned) => {
            let pid = spawned.pid;
            let leader = guest
                .reaper
                .leader(nix::unistd::Pid::from_raw(pid), started);
            exec.begin(pid, spawned.terminal);
            let spec = &exec.spec;
            let limit = spec.limits.unwrap_or_default().output_bytes;
            let mut run = Run {
                settings,
                tree: Tree::new(spawned.supervisor, leader),
                sources: spawned.sources,
                scratch: BytesMut::new(),
                deadlines: Deadlines::default(),
                started,
                before,
                cause: None,
                output_left: u64::try_from(limit)
                    .ok()
                    .filter(|l| *l > 0)
                    .unwrap_or(u64::MAX),
                block: spec.on_full() == v1::OnFull::Block,
                draining: false,
                guest: Arc::clone(&guest),
                exec: Arc::clone(&exec),
            };
            // From here on and not from the start: what the result says it took is then never less.
            let running = Instant::now();
            run.deadlines.timeout = super::positive(spec.timeout).map(|wait| after(running, wait));
            run.heard();
            run.watch(&mut commands).await;
            run.tree.release(&guest);
        }
        Err(result) => {
            let lost = result.reason() == Reason::WorkspaceLost;
            finish(&guest, &exec, result);
            close(&guest, &exec);
            if lost {
                tree::end_orphans(&guest).await;
            }
        }
    }
    exec.state().gone = true;
    exec.notify();
    guest.execs.exec_ended(&exec);
}

/// Records the result: the leader is gone, or never was.
fn finish(guest: &Guest, exec: &Exec, mut result: v1::ExecResult) {
    result.effective_limits = Some(exec.spec.limits.unwrap_or_default());
    let mut state = exec.state();
    state.phase = Phase::Exited;
    state.end_time = Some(SystemTime::now());
    let total = state.total();
    state.exit_offsets = [total.stdout, total.stderr];
    state.result = Some(result);
    // With it the terminal is the stragglers' alone.
    state.terminal = None;
    drop(state);
    if let Some(stdin) = &exec.stdin {
        stdin.close();
    }
    guest.execs.leader_ended();
    exec.notify();
}

/// The result of a leader that ran, and of whose end nothing is known but what skilld did to it.
fn lost(cause: Option<Reason>, wall: Duration) -> v1::ExecResult {
    let lost = super::lost();
    v1::ExecResult {
        reason: cause.map_or(lost.reason, i32::from),
        wall_time: wall.try_into().ok(),
        ..lost
    }
}

fn close(guest: &Guest, exec: &Arc<Exec>) {
    guest.execs.output_ended(exec);
    exec.state().phase = Phase::Closed;
    exec.notify();
}

impl Run {
    /// The loop. Everything that can happen to a running exec is on this screen.
    async fn watch(&mut self, commands: &mut mpsc::Receiver<Command>) {
        while !(self.tree.is_empty() && self.phase() == Phase::Closed) {
            let [out_open, err_open] = [0, 1].map(|stream| self.may_read(stream));
            let blocked = self.is_blocked();
            let deadline = self.deadlines.next();
            let stall = self.exec.state().next_stall(blocked);
            let [out, err] = &self.sources;
            tokio::select! {
                report = self.tree.event() => self.on_report(report),
                () = readable(out.as_ref()), if out_open => self.read(0).await,
                () = readable(err.as_ref()), if err_open => self.read(1).await,
                Some(command) = commands.recv() => self.on_command(command),
                () = self.exec.room.notified(), if blocked => {}
                () = self.guest.execs.budget.relieved(), if blocked => {}
                () = sleep_until(deadline) => self.on_deadline(Instant::now()),
                () = sleep_until(stall), if blocked => {
                    self.exec.state().skip_stalled(Instant::now());
                }
            }
            self.close_when_done();
        }
    }

    fn phase(&self) -> Phase {
        self.exec.state().phase
    }

    /// A stream is open and has room.
    fn may_read(&self, stream: usize) -> bool {
        let open = self.sources.get(stream).is_some_and(Option::is_some);
        open && self.room(stream) > 0
    }

    /// A stream is open and nobody reads what was read of it: the program waits, or soon will.
    fn is_blocked(&self) -> bool {
        let open = |stream: &usize| self.sources.get(*stream).is_some_and(Option::is_some);
        [0, 1]
            .iter()
            .any(|stream| open(stream) && self.room(*stream) == 0)
    }

    fn room(&self, stream: usize) -> u64 {
        // The rest of a pipe that ends here is bounded by the pipe: it comes without a reader, or the exec would wait for
        // one for ever. What goes beyond the output limit is thrown away, so it always fits.
        let ends = |source: &Source| source.left.is_some();
        let last = self
            .sources
            .get(stream)
            .and_then(Option::as_ref)
            .is_some_and(ends);
        if self.block && !last && self.output_left > 0 {
            self.exec.state().room(stream)
        } else {
            u64::MAX
        }
    }

    /// Moves what a pipe holds into its window, for one turn.
    async fn read(&mut self, stream: usize) {
        let mut moved = 0;
        let mut more = true;
        while more && moved < TURN_BYTES {
            let read = self.read_once(stream);
            more = read > 0;
            moved += read;
        }
        if moved > 0 {
            self.heard();
            self.exec.notify();
            if self.guest.execs.budget.is_over() {
                self.guest.execs.make_room();
            }
            tokio::task::yield_now().await;
        }
    }

    /// One read; 0 when there is nothing to be had now, or ever.
    fn read_once(&mut self, stream: usize) -> usize {
        let room = self.room(stream);
        let Some(slot) = self.sources.get_mut(stream) else {
            return 0;
        };
        let Some(source) = slot else {
            return 0;
        };
        let most = room
            .min(source.left.unwrap_or(u64::MAX))
            .min(CHUNK_BYTES as u64);
        let most = usize::try_from(most).unwrap_or(CHUNK_BYTES);
        if most == 0 {
            if source.left == Some(0) {
                *slot = None;
            }
            return 0;
        }
        self.scratch.reserve(CHUNK_BYTES);
        // The runtime may not have heard yet of bytes that came before the end.
        let all = self.draining || source.left.is_some();
        let read = source.read(&mut self.scratch, most, all);
        let count = match &read {
            Ok(count) if *count > 0 => *count,
            Err(_) if would_block(&read) && source.left.is_none() => return 0,
            Ok(_) | Err(_) => {
                *slot = None;
                return 0;
            }
        };
        if count == CHUNK_BYTES {
            source.enlarge();
        }
        self.keep(stream, count as u64);
        count
    }

    /// Puts what was read into the window; what is beyond the output limit ends the exec.
    fn keep(&mut self, stream: usize, count: u64) {
        if count > self.output_left {
            let keep = usize::try_from(self.output_left).unwrap_or(usize::MAX);
            self.scratch.truncate(keep);
            if self.cause != Some(Reason::OutputLimit) {
                self.end(Reason::OutputLimit, self.settings.kill_grace);
            }
        }
        self.output_left -= count.min(self.output_left);
        let mut state = self.exec.state();
        state.last_output = Some(Instant::now());
        let needed = if self.block {
            state.needed(stream)
        } else {
            u64::MAX
        };
        if let Some(window) = state.windows.get_mut(stream) {
            window.push(&mut self.scratch, needed);
        }
    }

    /// The program gave a sign of life.
    fn heard(&mut self) {
        let silence = super::positive(self.exec.spec.no_output_timeout);
        self.deadlines.silence = silence.map(|silence| after(Instant::now(), silence));
    }

    fn on_report(&mut self, report: Option<Report>) {
        match report {
            Some(Report::Exited { exit, wall }) => self.leader_ended(exit, wall),
            Some(Report::Empty) => {
                self.tree.set_empty();
                self.deadlines.patience = None;
                // No supervisor of ours forgets the leader: if it did not end, its status is lost.
                self.lose_leader();
                self.limit_sources();
                self.exec.state().gone = true;
                self.exec.notify();
            }
            // Said once, at the start; anything else is nonsense.
            Some(Report::Started { .. } | Report::Failed { .. }) => {}
            None => {
                self.tree.take_over(&self.guest);
                if self.phase() >= Phase::Exited || self.tree.is_lost() {
                    self.nothing_left_to_hear();
                }
            }
        }
    }

    fn leader_ended(&mut self, exit: Exit, wall: Duration) {
        if self.phase() >= Phase::Exited {
            return;
        }
        // What it wrote before its end comes before Exited, as far as there is room.
        self.draining = true;
        for stream in [0, 1] {
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
            source.leader_ended();
        }
        let wall = if wall.is_zero() {
            self.started.elapsed()
        } else {
            wall
        };
        // What skilld did to it comes first.
        let ran_out = || {
            let workspace = self.guest.root.as_fd();
            self.guest.pressure.reason(exit, self.before, workspace)
        };
        let cause = self.cause.or_else(ran_out);
        let result = super::ended(exit, wall, cause);
        self.deadlines.timeout = None;
        self.deadlines.silence = None;
        self.deadlines.leak = Some(after(Instant::now(), self.settings.leak_grace));
        self.tree.leader_ended(&self.guest);
        finish(&self.guest, &self.exec, result);
        if self.tree.is_orphaned() {
            self.nothing_left_to_hear();
        }
    }

    /// How the leader ended will never be known, if it is not known by now.
    fn lose_leader(&mut self) {
        if self.phase() < Phase::Exited {
            self.deadlines = Deadlines::default();
            self.tree.leader_ended(&self.guest);
            let result = lost(self.cause, self.started.elapsed());
            finish(&self.guest, &self.exec, result);
        }
    }

    /// The supervisor is gone and so is the leader: what they left behind goes too, and is gone when the guest sees so.
    fn nothing_left_to_hear(&mut self) {
        self.lose_leader();
        self.kill();
    }

    /// Reads of the streams what is in them now, and no more.
    fn limit_sources(&mut self) {
        for source in self.sources.iter_mut().flatten() {
            source.limit();
        }
        for stream in [0, 1] {
            // Closes those that hold nothing.
            while self.read_once(stream) > 0 {}
        }
    }

    fn close_when_done(&mut self) {
        if self.phase() == Phase::Exited && self.sources.iter().all(Option::is_none) {
            self.scratch = BytesMut::new();
            // One that could not start has none: it has no files of its own that could be told from others'.
            self.exec.state().end_of_files = Some(super::now());
            close(&self.guest, &self.exec);
        }
    }

    fn on_command(&mut self, command: Command) {
        match command {
            Command::Signal { target, signal } => self.tree.signal(&self.guest, target, signal),
            Command::Kill { grace, reason } => {
                self.end(reason, grace.unwrap_or(self.settings.kill_grace));
            }
        }
    }

    /// TERM to the whole tree, and KILL after the grace.
    fn end(&mut self, reason: Reason, grace: Duration) {
        if self.tree.is_empty() {
            return;
        }
        self.cause = self.cause.or(Some(reason));
        self.deadlines.timeout = None;
        self.deadlines.silence = None;
        let kill_at = after(Instant::now(), grace);
        if self.deadlines.patience.is_some() {
            return;
        }
        let first = self.deadlines.kill.is_none();
        self.deadlines.kill = Some(self.deadlines.kill.map_or(kill_at, |at| at.min(kill_at)));
        if grace.is_zero() {
            self.kill();
        } else if first {
            self.tree
                .signal(&self.guest, Target::Tree, nix::libc::SIGTERM);
            self.tree
                .signal(&self.guest, Target::Tree, nix::libc::SIGCONT);
        }
    }

    fn kill(&mut self) {
        self.deadlines.kill = None;
        self.deadlines.patience = Some(Instant::now() + self.tree.patience());
        self.tree.kill(&self.guest);
    }

    fn on_deadline(&mut self, now: Instant) {
        let due = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        if due(self.deadlines.timeout) {
            self.end(Reason::Timeout, self.settings.kill_grace);
        }
        if due(self.deadlines.silence) {
            if self.is_blocked() {
                // It is not silent: nobody reads what it says.
                self.heard();
            } else {
                self.end(Reason::NoOutputTimeout, self.settings.kill_grace);
            }
        }
        if due(self.deadlines.kill) {
            self.kill();
        }
        if due(self.deadlines.leak) {
            self.deadlines.leak = None;
            if self.exec.spec.stragglers() == v1::Stragglers::Keep && self.cause.is_none() {
                self.limit_sources();
            } else if self.deadlines.patience.is_none() && !self.tree.is_empty() {
                self.kill();
            }
        }
        if due(self.deadlines.patience) {
            self.on_patience_over();
        }
    }

    /// The tree was killed, and its supervisor has not said that nothing is left.
    fn on_patience_over(&mut self) {
        if self.tree.is_lost() {
            self.lose_leader();
        }
        if self.tree.is_swept(&self.guest) {
            self.on_report(Some(Report::Empty));
            return;
        }
        self.tree.insist(&self.guest);
        // Counted from the end of what may have taken long.
        self.deadlines.patience = Some(Instant::now() + self.tree.patience());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_status_hides_neither_what_was_done_nor_how_long_it_took() {
        let wall = Duration::from_millis(1500);
        let timed_out = lost(Some(Reason::Timeout), wall);
        assert_eq!(timed_out.reason(), Reason::Timeout);
        assert_eq!(timed_out.wall_time, wall.try_into().ok());
        assert_eq!(timed_out.outcome, None);
        let result = lost(None, wall);
        assert_eq!(result.reason(), Reason::WorkspaceLost);
        assert_eq!(result.wall_time, wall.try_into().ok());
    }
}
