//! One exec: what is known of it, shared by the task that runs it (`run`), its readers (`reader`) and the
//! rpcs. Only `run` changes what happened; readers only move themselves.
//!
//! ```text
//! Starting ──Started──► Running ──leader gone──► Exited ──both streams at their end──► Closed
//!     └──────Failed (SPAWN_FAILED)──────────────────────────────────────────────────────┘
//! ```
//! Beside it `gone` says that no process of the exec is left; stragglers may outlive Closed.

pub(crate) mod abandoned;
pub(crate) mod piece;
pub(crate) mod poll;
pub(crate) mod pressure;
pub(crate) mod reader;
pub(crate) mod readers;
pub(crate) mod registry;
pub(crate) mod run;
pub(crate) mod stdin;
pub(crate) mod warm_up;

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use nix::errno::Errno;
use nix::pty::Winsize;
use nix::time::{ClockId, clock_gettime};
use prost_types::Timestamp;
use skilld_proto::v1;
use skilld_proto::v1::exec_result::{Outcome, Reason};
use skilld_proto::v1::spawn_failure;
use tokio::sync::{Notify, mpsc, watch};
use tonic::codegen::Bytes;

use crate::output::{Budget, CHUNK_BYTES, Window};
use crate::supervisor::wire::{Report, Target};
use crate::sys::{self, Exit, Stage};
use readers::ReaderPosition;
use stdin::Stdin;

/// Of each stream, where a spec says nothing.
const RETAIN_BYTES: u64 = 4 * 1024 * 1024;
/// Of each stream at least: a reader of text takes whole characters, and none would ever be whole in a
/// window smaller than it.
const RETAIN_BYTES_MIN: u64 = CHUNK_BYTES as u64;
/// After the end, where a spec says nothing.
const RETAIN_AFTER_EXIT: Duration = Duration::from_secs(30 * 60);
/// Commands that wait for the exec's task.
const COMMANDS_MAX: usize = 16;

/// Index of a stream.
pub(crate) const STREAMS: [v1::OutputStream; 2] =
    [v1::OutputStream::Stdout, v1::OutputStream::Stderr];

/// How far an exec has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    Starting,
    Running,
    Exited,
    Closed,
}

/// What an rpc asks of an exec's task.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Command {
    Signal {
        target: Target,
        signal: i32,
    },
    Kill {
        grace: Option<Duration>,
        reason: Reason,
    },
}

/// One exec.
#[derive(Debug)]
pub(crate) struct Exec {
    pub(crate) id: String,
    /// `workspaces/{workspace}/execs/{exec}`.
    pub(crate) name: String,
    pub(crate) digest: Bytes,
    /// Effective, without stdin's data.
    pub(crate) spec: v1::ExecSpec,
    pub(crate) start_time: SystemTime,
    /// By the clock that the kernel stamps files with, which runs behind the real one.
    pub(crate) start_of_files: Duration,
    /// Set if others write to it.
    pub(crate) stdin: Option<Stdin>,
    state: Mutex<State>,
    /// The daemon has heard of its end.
    told: AtomicBool,
    /// Something happened that a reader or an rpc may wait for.
    changed: watch::Sender<()>,
    /// A reader took something: a full window may have room.
    room: Notify,
    commands: mpsc::Sender<Command>,
}

/// What happened so far.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) phase: Phase,
    pub(crate) pid: i32,
    pub(crate) end_time: Option<SystemTime>,
    /// When it was closed, by a clock that no file of its own is ahead of.
    pub(crate) end_of_files: Option<Duration>,
    result: Option<v1::ExecResult>,
    /// Where the streams were when the leader was gone: Exited comes after these bytes.
    pub(crate) exit_offsets: [u64; 2],
    pub(crate) windows: [Window; 2],
    /// The guest's end of its terminal, while the leader runs.
    pub(crate) terminal: Option<OwnedFd>,
    /// Nothing is left of its tree.
    pub(crate) gone: bool,
    /// When output came last.
    pub(crate) last_output: Option<Instant>,
    /// Positions of those that read now.
    pub(crate) readers: HashMap<u64, ReaderPosition>,
    next_reader: u64,
    /// Since when a BLOCKing program waits for its readers.
    blocked_since: Option<Instant>,
    /// Streams on one with on_disconnect KILL: now, and since its start.
    streams: usize,
    streams_ever: u64,
    /// What the furthest poll has: it asked for what follows.
    acknowledged: [u64; 2],
    /// Time of the last poll.
    last_poll: Option<Instant>,
}

impl Exec {
    /// One that has not been spawned yet, and where its task hears of commands.
    pub(crate) fn new(
        name: String,
        id: String,
        digest: Bytes,
        spec: v1::ExecSpec,
        stdin: Option<Stdin>,
        budget: &Arc<Budget>,
    ) -> (Arc<Self>, mpsc::Receiver<Command>) {
        let retain = spec.retain.unwrap_or_default();
        let capacity = |bytes: i64| match u64::try_from(bytes) {
            Ok(bytes) if bytes > 0 => bytes.max(RETAIN_BYTES_MIN),
            _ => RETAIN_BYTES,
        };
        let window = |bytes| Window::new(capacity(bytes), Arc::clone(budget));
        let windows = [window(retain.stdout_bytes), window(retain.stderr_bytes)];
        let (commands, receiver) = mpsc::channel(COMMANDS_MAX);
        let exec = Self {
            id,
            name,
            digest,
            spec,
            start_time: SystemTime::now(),
            start_of_files: coarse_now(),
            stdin,
            state: Mutex::new(State {
                phase: Phase::Starting,
                pid: 0,
                end_time: None,
                end_of_files: None,
                result: None,
                exit_offsets: [0; 2],
                windows,
                terminal: None,
                gone: false,
                last_output: None,
                readers: HashMap::new(),
                next_reader: 0,
                blocked_since: None,
                streams: 0,
                streams_ever: 0,
                acknowledged: [0; 2],
                last_poll: None,
            }),
            told: AtomicBool::new(false),
            changed: watch::Sender::new(()),
            room: Notify::new(),
            commands,
        };
        (Arc::new(exec), receiver)
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says that the leader runs.
    fn begin(&self, pid: i32, terminal: Option<OwnedFd>) {
        if let (Some(stdin), Some(terminal)) = (&self.stdin, &terminal) {
            // Without a descriptor to spare nobody can write to it, and is told that it is closed.
            drop(terminal.try_clone().and_then(|copy| stdin.lead_to(copy)));
        }
        let mut state = self.state();
        state.terminal = terminal;
        state.pid = pid;
        state.phase = Phase::Running;
        drop(state);
        self.notify();
    }

    /// Wakes readers and waiting rpcs.
    fn notify(&self) {
        self.changed.send_replace(());
    }

    /// Waits until `done` says so of the state.
    pub(crate) async fn until(&self, done: impl Fn(&State) -> bool) {
        let mut changed = self.changed.subscribe();
        while !done(&self.state()) {
            if changed.changed().await.is_err() {
                return;
            }
        }
    }

    /// Waits until the leader is gone, or could not be spawned.
    pub(crate) async fn ended(&self) {
        self.until(|state| state.phase >= Phase::Exited).await;
    }

    /// Kills it at once, if its task has time to hear of it.
    pub(crate) fn try_kill(&self, reason: Reason) {
        let grace = Some(Duration::ZERO);
        let _ended = self.commands.try_send(Command::Kill { grace, reason });
    }

    /// Asks the exec's task; false when it has ended, and nothing is left to ask it about.
    pub(crate) async fn command(&self, command: Command) -> bool {
        self.commands.send(command).await.is_ok()
    }

    /// Sets the size of its terminal; false when it has none, or has ended.
    pub(crate) fn resize(&self, size: Winsize) -> bool {
        let state = self.state();
        let terminal = state.terminal.as_ref();
        terminal.is_some_and(|terminal| sys::set_terminal_size(terminal.as_fd(), size).is_ok())
    }

    /// How long it is kept after its end.
    pub(crate) fn retain_after_exit(&self) -> Duration {
        let retain = self.spec.retain.as_ref();
        retain
            .and_then(|retain| retain.after_exit)
            .and_then(|after| Duration::try_from(after).ok())
            .unwrap_or(RETAIN_AFTER_EXIT)
    }

    /// The daemon waits for its end, to collect what it leaves, and may be away. It is kept until then.
    pub(crate) fn is_awaited(&self) -> bool {
        self.spec.collect.is_some() && !self.told.load(Ordering::Relaxed)
    }

    pub(crate) fn told(&self) {
        self.told.store(true, Ordering::Relaxed);
    }

    /// As the API shows it.
    pub(crate) fn describe(&self) -> v1::Exec {
        let state = self.state();
        v1::Exec {
            name: self.name.clone(),
            state: state.phase.api().into(),
            effective_spec: Some(self.spec.clone()),
            pid: state.pid,
            start_time: Some(Timestamp::from(self.start_time)),
            end_time: state.end_time.map(Timestamp::from),
            result: state.result(),
            total: Some(state.total()),
            oldest: Some(state.oldest()),
            // The daemon collects.
            collection: None,
        }
    }
}

impl Phase {
    /// As the API names it.
    pub(crate) fn api(self) -> v1::ExecState {
        match self {
            Self::Starting | Self::Running => v1::ExecState::Running,
            Self::Exited => v1::ExecState::Exited,
            Self::Closed => v1::ExecState::Closed,
        }
    }
}

impl State {
    /// Of the leader, once it is gone; what was dropped is as of now.
    pub(crate) fn result(&self) -> Option<v1::ExecResult> {
        let mut result = self.result.clone()?;
        result.dropped_bytes = Some(self.oldest());
        Some(result)
    }

    pub(crate) fn total(&self) -> v1::StreamOffsets {
        let [stdout, stderr] = self.windows.each_ref().map(Window::end);
        v1::StreamOffsets { stdout, stderr }
    }

    fn oldest(&self) -> v1::StreamOffsets {
        let [stdout, stderr] = self.windows.each_ref().map(Window::start);
        v1::StreamOffsets { stdout, stderr }
    }
}

/// The kernel's clock for file times.
fn coarse_now() -> Duration {
    clock_gettime(ClockId::CLOCK_REALTIME_COARSE).map_or(Duration::ZERO, Duration::from)
}

/// The clock that is never behind the one of files.
fn now() -> Duration {
    clock_gettime(ClockId::CLOCK_REALTIME).map_or(Duration::MAX, Duration::from)
}

/// A terminal's size from a message; 0 means what terminals have always had.
pub(crate) fn size(rows: u32, cols: u32) -> Winsize {
    let or = |given: u32, default| match u16::try_from(given) {
        Ok(0) => default,
        Ok(given) => given,
        Err(_) => u16::MAX,
    };
    Winsize {
        ws_row: or(rows, 24),
        ws_col: or(cols, 80),
        ws_xpixel: 0,
        ws_ypixel: 0,
    }
}

/// A whole, non-negative Duration from a message; `None` when unset, zero or out of range.
pub(crate) fn positive(duration: Option<prost_types::Duration>) -> Option<Duration> {
    let duration = Duration::try_from(duration?).ok()?;
    (!duration.is_zero()).then_some(duration)
}

/// The result of an exec whose leader ended. What was done to it comes before how it looked.
pub(crate) fn ended(exit: Exit, wall: Duration, cause: Option<Reason>) -> v1::ExecResult {
    let by_itself = if exit.signaled {
        Reason::Signaled
    } else {
        Reason::Exited
    };
    let outcome = if exit.signaled {
        Outcome::Signal(exit.code)
    } else {
        Outcome::ExitCode(exit.code)
    };
    v1::ExecResult {
        reason: cause.unwrap_or(by_itself).into(),
        wall_time: duration(wall),
        user_time: duration(Duration::from_micros(exit.user_us)),
        sys_time: duration(Duration::from_micros(exit.sys_us)),
        peak_memory_bytes: i64::try_from(exit.peak_bytes).unwrap_or(i64::MAX),
        outcome: Some(outcome),
        ..Default::default()
    }
}

/// The result of an exec that could not be spawned.
pub(crate) fn not_spawned(stage: Stage, errno: i32, about: &str) -> v1::ExecResult {
    let api_stage = match stage {
        Stage::Fork => spawn_failure::Stage::Fork,
        Stage::Cwd => spawn_failure::Stage::Cwd,
        Stage::Limits => spawn_failure::Stage::Limits,
        Stage::Exec => spawn_failure::Stage::Exec,
        Stage::Terminal => spawn_failure::Stage::Terminal,
    };
    let known = Errno::from_raw(errno);
    v1::ExecResult {
        reason: Reason::SpawnFailed.into(),
        spawn_failure: Some(v1::SpawnFailure {
            stage: api_stage.into(),
            errno,
            message: format!("{known:?} ({}): {about}", known.desc()),
        }),
        ..Default::default()
    }
}

/// The result of an exec whose status nobody can know: its supervisor was killed before it reported it.
pub(crate) fn lost() -> v1::ExecResult {
    v1::ExecResult {
        reason: Reason::WorkspaceLost.into(),
        ..Default::default()
    }
}

fn duration(duration: Duration) -> Option<prost_types::Duration> {
    prost_types::Duration::try_from(duration).ok()
}

/// A report that says how the start went; `None` for one that comes later.
pub(crate) fn spawned(report: Report) -> Option<Result<i32, (Stage, i32)>> {
    match report {
        Report::Started { pid } => Some(Ok(pid)),
        Report::Failed { stage, errno } => Some(Err((stage, errno))),
        Report::Exited { .. } | Report::Empty => None,
    }
}

#[cfg(test)]
mod tests;
