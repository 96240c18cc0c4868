//! State of one exec. The task that runs it (`run`), its readers (`event_stream`, `poll`) and the RPCs share it. Only
//! `run` changes what happened; readers change only their own position.
//!
//! ```text
//! Starting ──Started──► Running ──leader gone──► Exited ──both streams at their end──► Closed
//!     └──────Failed (SPAWN_FAILED)──────────────────────────────────────────────────────┘
//! ```
//! Readers get Started of a failed exec, too, with the pid 0.
//!
//! Independent of the phase, `gone` says that no process of the exec is left. Stragglers that are kept outlive Closed.

pub(crate) mod deadlines;
pub(crate) mod disconnect;
pub(crate) mod event_stream;
pub(crate) mod exhaustion;
pub(crate) mod host;
pub(crate) mod output_piece;
pub(crate) mod poll;
pub(crate) mod reader_backpressure;
pub(crate) mod registry;
pub(crate) mod run;
pub(crate) mod stdin;
pub(crate) mod warm_up;
pub(crate) mod writable_disks;

use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use nix::pty::Winsize;
use nix::time::{ClockId, clock_gettime};
use prost_types::Timestamp;
use skilld_proto::v1::{self, ExitReason};
use tokio::sync::{Notify, mpsc, watch};
use tonic::codegen::Bytes;

use crate::error::Error;
use crate::output_window::{CHUNK_BYTES, OutputBudget, OutputWindow};
use crate::supervisor::protocol::SignalTarget;
use crate::sys;
use reader_backpressure::RegisteredReader;
use stdin::ExecStdin;

/// Default capacity of a stream's window, in bytes.
const RETAIN_BYTES: u64 = 4 * 1024 * 1024;
/// Minimum capacity of a stream's window, in bytes. A reader of text takes whole characters and would never get one
/// from a smaller window.
const RETAIN_BYTES_MIN: u64 = CHUNK_BYTES as u64;
/// Default time that an exec is kept after its end.
const RETAIN_AFTER_EXIT: Duration = Duration::from_secs(30 * 60);
/// Maximum number of control messages that wait for the exec's task.
const CONTROLS_MAX: usize = 16;

/// Output streams by their index.
pub(crate) const STREAMS: [v1::OutputStream; 2] =
    [v1::OutputStream::Stdout, v1::OutputStream::Stderr];

/// Phase of an exec's life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ExecPhase {
    Starting,
    Running,
    Exited,
    Closed,
}

/// Maximum number of remembered signals with a `request_id`, in case they are repeated.
const SIGNALS_MAX: usize = 64;

/// Message that signals or kills a running exec.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ExecControl {
    Signal {
        target: SignalTarget,
        signal: i32,
    },
    Kill {
        grace: Option<Duration>,
        reason: ExitReason,
    },
}

/// Exec: its immutable request and its shared state.
#[derive(Debug)]
pub(crate) struct Exec {
    pub(crate) id: String,
    /// Resource name, `workspaces/{workspace}/execs/{exec}`.
    pub(crate) name: String,
    pub(crate) digest: Bytes,
    /// Effective spec, without the stdin data.
    pub(crate) spec: v1::ExecSpec,
    pub(crate) start_time: SystemTime,
    /// Start time on the clock that the kernel stamps files with, which runs behind the real-time clock. Since 1970.
    pub(crate) start_file_time: Duration,
    /// Writer's end of stdin; `None` if clients may not write to it.
    pub(crate) stdin: Option<ExecStdin>,
    state: Mutex<ExecState>,
    /// Notified on every change that a reader or an RPC may wait for.
    changed: watch::Sender<()>,
    /// Notified when a reader took output, so that a full window may have room.
    room: Notify,
    controls: mpsc::Sender<ExecControl>,
}

/// Mutable state of an exec. `reader_backpressure` has the functions about its readers.
#[derive(Debug)]
pub(crate) struct ExecState {
    pub(crate) phase: ExecPhase,
    pub(crate) pid: i32,
    pub(crate) end_time: Option<SystemTime>,
    /// Time of Closed on the real-time clock, which is never behind the file times of this exec. Since 1970.
    pub(crate) end_file_time: Option<Duration>,
    result: Option<v1::ExecResult>,
    /// Processes that outlived the leader and were killed; `None` if there were none.
    pub(crate) ended_processes: Option<v1::EndedProcesses>,
    /// Window ends when the leader exited. Exited follows these bytes.
    pub(crate) exit_offsets: [u64; 2],
    pub(crate) windows: [OutputWindow; 2],
    /// Guest's end of the terminal, while the leader runs.
    pub(crate) terminal: Option<OwnedFd>,
    /// `true` once no process of the exec is left.
    pub(crate) gone: bool,
    /// Time of the most recent output.
    pub(crate) last_output: Option<Instant>,
    /// Most recent signals with a `request_id`, newest first.
    signals: VecDeque<(String, ExecControl)>,
    /// Positions of the current readers, by reader id.
    pub(crate) readers: HashMap<u64, RegisteredReader>,
    next_reader: u64,
    /// Time since which a BLOCKing program waits for its readers; `None` while it does not wait.
    blocked_since: Option<Instant>,
    /// Event streams of an exec with on_disconnect KILL: open now, and opened since its start.
    streams: usize,
    streams_ever: u64,
    /// Offsets that the furthest poll asked for. It has everything before them.
    acknowledged: [u64; 2],
    /// Time of the most recent poll.
    last_poll: Option<Instant>,
    /// `true` once a poll returned the result.
    is_exit_polled: bool,
}

impl Exec {
    /// Returns an exec that has not been spawned yet, and the receiver of its control messages.
    pub(crate) fn new(
        name: String,
        id: String,
        digest: Bytes,
        spec: v1::ExecSpec,
        stdin: Option<ExecStdin>,
        budget: &Arc<OutputBudget>,
    ) -> (Arc<Self>, mpsc::Receiver<ExecControl>) {
        let retain = spec.retention.unwrap_or_default();
        let capacity = |bytes: i64| match u64::try_from(bytes) {
            Ok(bytes) if bytes > 0 => bytes.max(RETAIN_BYTES_MIN),
            _ => RETAIN_BYTES,
        };
        let window = |bytes| OutputWindow::new(capacity(bytes), Arc::clone(budget));
        let windows = [window(retain.stdout_bytes), window(retain.stderr_bytes)];
        let (controls, receiver) = mpsc::channel(CONTROLS_MAX);
        let exec = Self {
            id,
            name,
            digest,
            spec,
            start_time: SystemTime::now(),
            start_file_time: file_clock_now(),
            stdin,
            state: Mutex::new(ExecState {
                phase: ExecPhase::Starting,
                pid: 0,
                end_time: None,
                end_file_time: None,
                result: None,
                ended_processes: None,
                exit_offsets: [0; 2],
                windows,
                terminal: None,
                gone: false,
                last_output: None,
                signals: VecDeque::new(),
                readers: HashMap::new(),
                next_reader: 0,
                blocked_since: None,
                streams: 0,
                streams_ever: 0,
                acknowledged: [0; 2],
                last_poll: None,
                is_exit_polled: false,
            }),
            changed: watch::Sender::new(()),
            room: Notify::new(),
            controls,
        };
        (Arc::new(exec), receiver)
    }

    /// Locks the state.
    pub(crate) fn state(&self) -> MutexGuard<'_, ExecState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that the leader runs, and connects stdin to its terminal.
    fn set_running(&self, pid: i32, terminal: Option<OwnedFd>) {
        if let (Some(stdin), Some(terminal)) = (&self.stdin, &terminal) {
            // Without a free descriptor stdin stays closed, and writers get that error.
            drop(terminal.try_clone().and_then(|copy| stdin.connect(copy)));
        }
        let mut state = self.state();
        state.terminal = terminal;
        state.pid = pid;
        state.phase = ExecPhase::Running;
        drop(state);
        self.notify_changed();
    }

    /// Wakes readers and waiting RPCs.
    fn notify_changed(&self) {
        self.changed.send_replace(());
    }

    /// Waits until `done` returns `true` for the state.
    pub(crate) async fn wait_until(&self, done: impl Fn(&ExecState) -> bool) {
        let mut changed = self.changed.subscribe();
        while !done(&self.state()) {
            if changed.changed().await.is_err() {
                return;
            }
        }
    }

    /// Waits until the leader has exited or could not be spawned.
    pub(crate) async fn wait_for_exit(&self) {
        self.wait_until(|state| state.phase >= ExecPhase::Exited)
            .await;
    }

    /// Asks the exec's task for a kill without waiting. Does nothing if its queue is full or the task has ended.
    pub(crate) fn try_kill(&self, reason: ExitReason) {
        let grace = Some(Duration::ZERO);
        let _ended = self.controls.try_send(ExecControl::Kill { grace, reason });
    }

    /// Sends a signal to the exec's task, unless it was sent with the same `request_id` before. An empty id is none.
    ///
    /// # Errors
    /// `ExecNotRunning`; `Invalid` if another signal was sent with this `request_id`.
    pub(crate) async fn send_signal(
        &self,
        request_id: &str,
        signal: ExecControl,
    ) -> Result<(), Error> {
        // A caller that goes away while it waits for the permit leaves no id of a signal that was not sent.
        let permit = self.controls.reserve().await;
        let mut state = self.state();
        let mut known = state.signals.iter();
        if let Some((_, sent)) = known.find(|(known, _)| known == request_id) {
            let message = "another signal was sent with it: use a new one for each signal";
            return (*sent == signal)
                .then_some(())
                .ok_or_else(|| Error::invalid("request_id", message));
        }
        let (Ok(permit), true) = (permit, state.phase < ExecPhase::Exited) else {
            let id = self.id.clone();
            return Err(Error::ExecNotRunning { id });
        };
        if !request_id.is_empty() {
            state.signals.truncate(SIGNALS_MAX - 1);
            state.signals.push_front((request_id.to_owned(), signal));
        }
        permit.send(signal);
        Ok(())
    }

    /// Sends a control message to the exec's task. Returns `false` if the task has ended.
    pub(crate) async fn send_control(&self, control: ExecControl) -> bool {
        self.controls.send(control).await.is_ok()
    }

    /// Sets the size of the terminal. Returns `false` if the exec has none or its leader has exited.
    pub(crate) fn resize(&self, size: Winsize) -> bool {
        let state = self.state();
        let terminal = state.terminal.as_ref();
        terminal.is_some_and(|terminal| sys::set_terminal_size(terminal.as_fd(), size).is_ok())
    }

    /// Returns how long the exec is kept after its end.
    pub(crate) fn retain_after_exit(&self) -> Duration {
        let retain = self.spec.retention.as_ref();
        retain
            .and_then(|retain| retain.after_exit)
            .and_then(|after| Duration::try_from(after).ok())
            .unwrap_or(RETAIN_AFTER_EXIT)
    }

    /// Returns the exec as the API describes it.
    pub(crate) fn describe(&self) -> v1::Exec {
        let state = self.state();
        v1::Exec {
            name: self.name.clone(),
            state: state.phase.to_api_state().into(),
            effective_spec: Some(self.spec.clone()),
            pid: state.pid,
            start_time: Some(Timestamp::from(self.start_time)),
            end_time: state.end_time.map(Timestamp::from),
            result: state.result(),
            total: Some(state.total()),
            oldest: Some(state.oldest()),
        }
    }
}

impl ExecPhase {
    /// Converts the phase to that of the API.
    pub(crate) fn to_api_state(self) -> v1::ExecState {
        match self {
            Self::Starting | Self::Running => v1::ExecState::Running,
            Self::Exited => v1::ExecState::Exited,
            Self::Closed => v1::ExecState::Closed,
        }
    }
}

impl ExecState {
    /// Returns the result of the leader, once it has exited. The dropped bytes are counted at this moment.
    pub(crate) fn result(&self) -> Option<v1::ExecResult> {
        let mut result = self.result.clone()?;
        result.dropped_bytes = Some(self.oldest());
        result.ended_processes.clone_from(&self.ended_processes);
        Some(result)
    }

    /// Returns the number of bytes that each stream has produced.
    pub(crate) fn total(&self) -> v1::StreamOffsets {
        v1::StreamOffsets::from_counts(self.windows.each_ref().map(OutputWindow::end))
    }

    /// Returns the offset of the first retained byte of each stream.
    fn oldest(&self) -> v1::StreamOffsets {
        v1::StreamOffsets::from_counts(self.windows.each_ref().map(OutputWindow::start))
    }
}

/// Returns the time on the kernel's clock for file times.
fn file_clock_now() -> Duration {
    clock_gettime(ClockId::CLOCK_REALTIME_COARSE).map_or(Duration::ZERO, Duration::from)
}

/// Returns the time on the real-time clock, which is never behind the clock for file times.
fn wall_clock_now() -> Duration {
    clock_gettime(ClockId::CLOCK_REALTIME).map_or(Duration::MAX, Duration::from)
}

/// Converts a terminal's size from a message. 0 becomes the traditional 24 rows and 80 columns.
pub(crate) fn terminal_size(rows: u32, cols: u32) -> Winsize {
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

/// Converts a Duration from a message; `None` if it is unset, zero, negative or out of range.
pub(crate) fn positive_duration(duration: Option<prost_types::Duration>) -> Option<Duration> {
    let duration = Duration::try_from(duration?).ok()?;
    (!duration.is_zero()).then_some(duration)
}

#[cfg(test)]
mod tests;
