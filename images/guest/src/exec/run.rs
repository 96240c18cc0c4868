//! The task that runs one exec: starts it through a supervisor, moves its output into the windows, keeps
//! its deadlines, and ends its tree. It lives until nothing of the exec is left.

mod deadlines;
mod stream;
mod tree;

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use bytes::{BufMut, BytesMut};
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use skilld_proto::v1;
use skilld_proto::v1::exec_result::Reason;
use tokio::sync::mpsc;

use super::{Command, Exec, Phase};
use crate::guest::{Guest, Settings};
use crate::output::CHUNK_BYTES;
use crate::supervisor::wire::{Launch, Report, Target};
use crate::supervisor::{Supervisor, output_pipe};
use crate::sys::{self, Exit, Stage};
use deadlines::{Deadlines, sleep_until};
use stream::{Pipe, open, readable, would_block};
use tree::Tree;

/// Bytes read from one pipe before others get their turn.
const TURN_BYTES: usize = 4 * CHUNK_BYTES;
/// A pipe that was found full gets this size, where the kernel permits it.
const PIPE_BYTES: i32 = 1024 * 1024;
/// A healthy supervisor has killed its tree long before; after it the guest does what only it can.
const KILL_PATIENCE: Duration = Duration::from_millis(150);

/// For a supervisor to say how a start went.
const SPAWN_PATIENCE: Duration = Duration::from_secs(10);

/// What is needed to start an exec, resolved.
#[derive(Debug)]
pub(crate) struct Start {
    pub(crate) launch: Launch,
    pub(crate) stdin: OwnedFd,
}

struct Run {
    guest: Arc<Guest>,
    exec: Arc<Exec>,
    settings: Settings,
    tree: Tree,
    pipes: [Option<Pipe>; 2],
    scratch: BytesMut,
    deadlines: Deadlines,
    started: Instant,
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
    match spawn(&guest, &start).await {
        Ok((supervisor, pid, pipes)) => {
            drop(start);
            let leader = guest
                .reaper
                .leader(nix::unistd::Pid::from_raw(pid), started);
            exec.state().pid = pid;
            exec.state().phase = Phase::Running;
            exec.notify();
            let spec = &exec.spec;
            let limit = spec.limits.unwrap_or_default().output_bytes;
            let mut run = Run {
                settings,
                tree: Tree::new(supervisor, leader),
                pipes: pipes.map(Some),
                scratch: BytesMut::new(),
                deadlines: Deadlines::default(),
                started,
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
            run.deadlines.timeout = super::positive(spec.timeout).map(|after| started + after);
            run.heard();
            run.watch(&mut commands).await;
            run.tree.release(&guest);
        }
        Err(Some((stage, errno))) => {
            let about = match stage {
                Stage::Cwd => start.launch.cwd.as_str(),
                Stage::Exec => start.launch.argv.first().map_or("", String::as_str),
                Stage::Fork | Stage::Limits => "starting",
            };
            finish(&guest, &exec, super::not_spawned(stage, errno, about));
            close(&exec);
        }
        Err(None) => {
            finish(&guest, &exec, super::lost());
            close(&exec);
        }
    }
    exec.state().gone = true;
    exec.notify();
    guest.execs.exec_ended(&exec);
}

type Spawned = (Supervisor, i32, [Pipe; 2]);

/// Where it failed; `None` if the supervisor was killed before it could say anything.
async fn spawn(guest: &Guest, start: &Start) -> Result<Spawned, Option<(Stage, i32)>> {
    let failed = |errno: Errno| Some((Stage::Fork, errno as i32));
    let (out, out_writer) = output_pipe().map_err(failed)?;
    let (err, err_writer) = output_pipe().map_err(failed)?;
    let pipes = [open(out)?, open(err)?];
    let stdio = [start.stdin.as_fd(), out_writer.as_fd(), err_writer.as_fd()];
    let supervisor = guest.supervisors.take().map_err(failed)?;
    let supervisor = match supervisor.start(&start.launch, stdio) {
        Ok(()) => supervisor,
        // A tenant killed the one that waited; nothing was started.
        Err(Errno::EPIPE | Errno::ECONNRESET) => {
            let supervisor = guest.supervisors.fresh().map_err(failed)?;
            supervisor.start(&start.launch, stdio).map_err(failed)?;
            supervisor
        }
        Err(errno) => return Err(failed(errno)),
    };
    drop((out_writer, err_writer));
    let report = tokio::time::timeout(SPAWN_PATIENCE, supervisor.report()).await;
    match report.ok().flatten().and_then(super::spawned) {
        Some(Ok(pid)) => Ok((supervisor, pid, pipes)),
        Some(Err(failure)) => {
            guest.supervisors.give_back(supervisor);
            Err(Some(failure))
        }
        None => {
            supervisor.end();
            tree::sweep_orphans(guest);
            Err(None)
        }
    }
}

/// Records the result: the leader is gone, or never was.
fn finish(guest: &Guest, exec: &Exec, result: v1::ExecResult) {
    let mut state = exec.state();
    state.phase = Phase::Exited;
    state.end_time = Some(SystemTime::now());
    let total = state.total();
    state.exit_offsets = [total.stdout, total.stderr];
    state.result = Some(result);
    drop(state);
    guest.execs.leader_ended();
    exec.notify();
}

fn close(exec: &Exec) {
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
            let [out, err] = &self.pipes;
            tokio::select! {
                report = self.tree.event() => self.on_report(report),
                () = readable(out.as_ref()), if out_open => self.read(0).await,
                () = readable(err.as_ref()), if err_open => self.read(1).await,
                Some(command) = commands.recv() => self.on_command(command),
                () = self.exec.room.notified(), if blocked => {}
                () = sleep_until(deadline) => self.on_deadline(Instant::now()),
            }
            self.close_when_done();
        }
    }

    fn phase(&self) -> Phase {
        self.exec.state().phase
    }

    /// A stream is open and has room.
    fn may_read(&self, stream: usize) -> bool {
        let open = self.pipes.get(stream).is_some_and(Option::is_some);
        open && self.room(stream) > 0
    }

    /// A stream is open and nobody reads what was read of it: the program waits, or soon will.
    fn is_blocked(&self) -> bool {
        let open = |stream: &usize| self.pipes.get(*stream).is_some_and(Option::is_some);
        [0, 1]
            .iter()
            .any(|stream| open(stream) && self.room(*stream) == 0)
    }

    fn room(&self, stream: usize) -> u64 {
        // The rest of a pipe that ends here is bounded by the pipe: it comes without a reader, or the exec would wait for
        // one for ever. What goes beyond the output limit is thrown away, so it always fits.
        let ends = |pipe: &Pipe| pipe.left.is_some();
        let last = self
            .pipes
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
        let Some(slot) = self.pipes.get_mut(stream) else {
            return 0;
        };
        let Some(pipe) = slot else {
            return 0;
        };
        let most = room
            .min(pipe.left.unwrap_or(u64::MAX))
            .min(CHUNK_BYTES as u64);
        let most = usize::try_from(most).unwrap_or(CHUNK_BYTES);
        if most == 0 {
            if pipe.left == Some(0) {
                *slot = None;
            }
            return 0;
        }
        self.scratch.reserve(CHUNK_BYTES);
        let mut read = pipe
            .reader
            .try_read_buf(&mut (&mut self.scratch).limit(most));
        if (self.draining || pipe.left.is_some()) && would_block(&read) {
            // The runtime may not have heard yet of bytes that came before the end.
            read = sys::read_behind(pipe.reader.as_fd(), &mut self.scratch, most);
        }
        let count = match &read {
            Ok(count) if *count > 0 => *count,
            Err(_) if would_block(&read) && pipe.left.is_none() => return 0,
            Ok(_) | Err(_) => {
                *slot = None;
                return 0;
            }
        };
        if let Some(left) = &mut pipe.left {
            *left -= count as u64;
        }
        if count == CHUNK_BYTES && !pipe.enlarged {
            pipe.enlarged = true;
            let _not_permitted = fcntl(pipe.reader.as_fd(), FcntlArg::F_SETPIPE_SZ(PIPE_BYTES));
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
        self.deadlines.silence = silence.map(|silence| Instant::now() + silence);
    }

    fn on_report(&mut self, report: Option<Report>) {
        match report {
            Some(Report::Exited { exit, wall }) => self.leader_ended(exit, wall),
            Some(Report::Empty) => {
                self.tree.set_empty();
                self.deadlines.patience = None;
                if self.phase() < Phase::Exited {
                    // No supervisor of ours forgets the leader: whatever this was, its status is lost.
                    self.deadlines = Deadlines::default();
                    finish(&self.guest, &self.exec, super::lost());
                }
                self.limit_pipes();
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
        let wall = if wall.is_zero() {
            self.started.elapsed()
        } else {
            wall
        };
        let result = super::ended(exit, wall, self.cause);
        self.deadlines.timeout = None;
        self.deadlines.silence = None;
        self.deadlines.leak = Some(Instant::now() + self.settings.leak_grace);
        finish(&self.guest, &self.exec, result);
        if self.tree.is_orphaned() {
            self.nothing_left_to_hear();
        }
    }

    /// The supervisor is gone and so is the leader: what they left behind goes too.
    fn nothing_left_to_hear(&mut self) {
        self.tree.kill(&self.guest);
        self.on_report(Some(Report::Empty));
    }

    /// Reads of the pipes what is in them now, and no more.
    fn limit_pipes(&mut self) {
        for pipe in self.pipes.iter_mut().flatten() {
            if pipe.left.is_none() {
                pipe.left = Some(sys::bytes_in_pipe(pipe.reader.as_fd()));
            }
        }
        for stream in [0, 1] {
            // Closes those that hold nothing.
            while self.read_once(stream) > 0 {}
        }
    }

    fn close_when_done(&mut self) {
        if self.phase() == Phase::Exited && self.pipes.iter().all(Option::is_none) {
            self.scratch = BytesMut::new();
            close(&self.exec);
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
        let kill_at = Instant::now() + grace;
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
        self.deadlines.patience = Some(Instant::now() + KILL_PATIENCE);
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
                self.limit_pipes();
            } else if self.deadlines.patience.is_none() && !self.tree.is_empty() {
                self.kill();
            }
        }
        if due(self.deadlines.patience) {
            self.deadlines.patience = Some(now + KILL_PATIENCE);
            self.tree.insist(&self.guest);
            if self.phase() < Phase::Exited && self.tree.is_lost() {
                self.nothing_left_to_hear();
            }
        }
    }
}
