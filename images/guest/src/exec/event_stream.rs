//! Event stream of one reader of an exec. It turns output in the windows into events, from its own offsets and at its
//! own pace.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::Stream;
use prost_types::Timestamp;
use skilld_proto::int64_from_count;
use skilld_proto::v1::exec_event::Event;
use skilld_proto::v1::{self, ClosedEvent, ExitedEvent, HeartbeatEvent, StartedEvent};
use tokio::sync::watch;
use tonic::Status;

use super::output_piece::{self, OutputPiece, OutputReadOptions};
use super::reader_backpressure::{ReaderGuard, ReaderRpc, RegisteredReader};
use super::{Exec, ExecPhase, ExecState};
use crate::error::Error;
use crate::output_window::{CHUNK_BYTES, OutputWindow};

/// Time that Started waits for a second event. Most short commands are over by then, so daemon and client wake once
/// for all of their events, on cores that the command needs.
const STARTED_HOLD: Duration = Duration::from_millis(1);

/// Options of one event stream of an exec, for RunExec and AttachExec.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AttachOptions {
    pub(crate) kind: ReaderRpc,
    pub(crate) offsets: [u64; 2],
    pub(crate) style: OutputReadOptions,
    /// Interval between Heartbeats while nothing else is sent.
    pub(crate) heartbeat: Duration,
}

/// Reader of an exec's events.
#[derive(Debug)]
struct EventReader {
    exec: Arc<Exec>,
    guard: ReaderGuard,
    changed: watch::Receiver<()>,
    options: AttachOptions,
    next: [u64; 2],
    /// Index of the stream whose output is sent next, so that neither starves the other.
    turn: usize,
    sent: LastSentEvent,
    /// Time until which Started is held back.
    hold: Option<Instant>,
}

/// Last event that a reader was sent.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord, Clone, Copy)]
enum LastSentEvent {
    Nothing,
    Started,
    Exited,
    Closed,
    /// The stream has ended with an error.
    Failed,
}

/// Attaches to an exec and returns its events.
pub(crate) fn attach_reader(
    exec: Arc<Exec>,
    options: AttachOptions,
) -> Result<impl Stream<Item = Result<v1::ExecEvent, Status>> + Send, Error> {
    let changed = exec.changed.subscribe();
    output_piece::check_offsets(&exec.state(), options.offsets, options.style.gap_policy)?;
    let format = options.style.format;
    let guard = ReaderGuard::register(Arc::clone(&exec), options.kind, format, options.offsets);
    let reader = EventReader {
        guard,
        changed,
        next: options.offsets,
        options,
        turn: 0,
        sent: LastSentEvent::Nothing,
        hold: None,
        exec,
    };
    Ok(futures::stream::unfold(reader, |mut reader| async move {
        let event = reader.wait_for_event().await?;
        Some((event, reader))
    }))
}

impl EventReader {
    /// Waits for the next event, and sends a Heartbeat after a quiet interval. Returns `None` at the end.
    async fn wait_for_event(&mut self) -> Option<Result<v1::ExecEvent, Status>> {
        while self.sent < LastSentEvent::Closed {
            self.changed.mark_unchanged();
            if let Some(event) = self.next_event() {
                return Some(self.seal(event));
            }
            let held = self.hold.filter(|_| self.sent == LastSentEvent::Nothing);
            let patience = held.map_or(self.options.heartbeat, |until| {
                until.saturating_duration_since(Instant::now())
            });
            let wait = tokio::time::timeout(patience, self.changed.changed());
            if wait.await.is_err() && held.is_none() {
                return Some(self.seal(Ok(Event::Heartbeat(HeartbeatEvent {}))));
            }
        }
        None
    }

    /// Adds the sequence number to an event, or ends the stream with an error.
    fn seal(&mut self, event: Result<Event, Error>) -> Result<v1::ExecEvent, Status> {
        match event {
            Ok(event) => Ok(v1::ExecEvent {
                seq: int64_from_count(self.sequence_number()),
                event: Some(event),
            }),
            Err(error) => {
                self.sent = LastSentEvent::Failed;
                Err(error.into())
            }
        }
    }

    /// Returns the sequence number of the event that was just built. It grows with every event and depends only on the
    /// reader's position.
    fn sequence_number(&self) -> u64 {
        let ends = match self.sent {
            LastSentEvent::Closed => 2,
            LastSentEvent::Exited => 1,
            LastSentEvent::Nothing | LastSentEvent::Started | LastSentEvent::Failed => 0,
        };
        1 + self.next.iter().sum::<u64>() + ends
    }

    /// Returns the next event, if there is one.
    fn next_event(&mut self) -> Option<Result<Event, Error>> {
        let exec = Arc::clone(&self.exec);
        let mut state = exec.state();
        if state.phase == ExecPhase::Starting {
            return None;
        }
        if self.sent == LastSentEvent::Nothing {
            if self.is_started_held(&state) {
                return None;
            }
            // An exec that could not be spawned has it, too, with the pid 0: it carries the effective spec.
            self.sent = LastSentEvent::Started;
            return Some(Ok(self.started_event(&state)));
        }
        let exited = state.phase >= ExecPhase::Exited && self.sent == LastSentEvent::Started;
        let reached = self
            .next
            .iter()
            .zip(&state.exit_offsets)
            .all(|(at, end)| at >= end);
        if exited && reached {
            self.sent = LastSentEvent::Exited;
            let result = state.result();
            return Some(Ok(Event::Exited(ExitedEvent { result })));
        }
        for stream in [self.turn, 1 - self.turn] {
            if let Some(event) = self.output_event(&state, stream) {
                self.turn = 1 - stream;
                let (kind, format) = (self.options.kind, self.options.style.format);
                let position = RegisteredReader::new(kind, format, self.next);
                state.readers.insert(self.guard.id, position);
                exec.room.notify_one();
                return Some(event);
            }
        }
        if state.phase == ExecPhase::Closed && self.sent == LastSentEvent::Exited {
            self.sent = LastSentEvent::Closed;
            let closed = ClosedEvent {
                total: Some(state.total()),
                ended_processes: state.ended_processes.clone(),
            };
            return Some(Ok(Event::Closed(closed)));
        }
        None
    }

    /// Returns `true` while Started is held back: no other event is there, and the time is not over.
    fn is_started_held(&mut self, state: &ExecState) -> bool {
        let mut ends = state.windows.iter().map(OutputWindow::end).zip(self.next);
        let silent = state.phase == ExecPhase::Running && ends.all(|(end, next)| end <= next);
        let now = Instant::now();
        silent && now < *self.hold.get_or_insert(now + STARTED_HOLD)
    }

    /// Builds the Started event.
    fn started_event(&self, state: &ExecState) -> Event {
        Event::Started(StartedEvent {
            name: self.exec.name.clone(),
            pid: state.pid,
            effective_spec: Some(self.exec.spec.clone()),
            start_time: Some(Timestamp::from(self.exec.start_time)),
        })
    }

    /// Takes the next piece of a stream as an event; `None` if there is none yet.
    fn output_event(&mut self, state: &ExecState, stream: usize) -> Option<Result<Event, Error>> {
        let next = self.next.get_mut(stream)?;
        let piece = output_piece::take_piece(state, stream, *next, self.options.style, CHUNK_BYTES);
        let (piece, after) = match piece.transpose()? {
            Ok(taken) => taken,
            Err(error) => return Some(Err(error)),
        };
        *next = after;
        Some(Ok(match piece {
            OutputPiece::Output(output) => Event::Output(output),
            OutputPiece::Gap(gap) => Event::Gap(gap),
        }))
    }
}
