//! A reader of an exec: turns what is in the windows into events, from its own offsets, at its own pace.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::Stream;
use prost_types::Timestamp;
use skilld_proto::v1;
use skilld_proto::v1::exec_event::{Closed, Event, Exited, Heartbeat, Started};
use tokio::sync::watch;
use tonic::Status;

use super::piece::{self, Piece, Style};
use super::readers::{ReaderGuard, ReaderKind, ReaderPosition};
use super::{Exec, Phase, State};
use crate::error::Error;
use crate::output::{CHUNK_BYTES, Window};

/// Started waits this long for something to go with. Most short commands are over by then: daemon and client are then
/// woken once for all of their events, on the cores that the command itself needs.
const STARTED_HOLD: Duration = Duration::from_millis(1);

/// What a reader asked for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wish {
    pub(crate) kind: ReaderKind,
    pub(crate) offsets: [u64; 2],
    pub(crate) style: Style,
    /// Between Heartbeats.
    pub(crate) heartbeat: Duration,
}

/// One reader of an exec's events.
#[derive(Debug)]
struct Reader {
    exec: Arc<Exec>,
    guard: ReaderGuard,
    changed: watch::Receiver<()>,
    wish: Wish,
    next: [u64; 2],
    /// The stream that is looked at first, so that neither starves the other.
    turn: usize,
    sent: Sent,
    /// Until when Started waits for company.
    hold: Option<Instant>,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord, Clone, Copy)]
enum Sent {
    Nothing,
    Started,
    Exited,
    Closed,
    /// The stream broke off with an error.
    Failed,
}

/// Attaches to an exec.
pub(crate) fn attach(
    exec: Arc<Exec>,
    wish: Wish,
) -> Result<impl Stream<Item = Result<v1::ExecEvent, Status>> + Send, Error> {
    let changed = exec.changed.subscribe();
    piece::check(&exec.state(), wish.offsets, wish.style.gaps)?;
    let format = wish.style.format;
    let guard = ReaderGuard::register(Arc::clone(&exec), wish.kind, format, wish.offsets);
    let reader = Reader {
        guard,
        changed,
        next: wish.offsets,
        wish,
        turn: 0,
        sent: Sent::Nothing,
        hold: None,
        exec,
    };
    Ok(futures::stream::unfold(reader, |mut reader| async move {
        let event = reader.next().await?;
        Some((event, reader))
    }))
}

impl Reader {
    async fn next(&mut self) -> Option<Result<v1::ExecEvent, Status>> {
        while self.sent < Sent::Closed {
            self.changed.mark_unchanged();
            if let Some(event) = self.ready() {
                return Some(self.seal(event));
            }
            let held = self.hold.filter(|_| self.sent == Sent::Nothing);
            let patience = held.map_or(self.wish.heartbeat, |until| {
                until.saturating_duration_since(Instant::now())
            });
            let wait = tokio::time::timeout(patience, self.changed.changed());
            if wait.await.is_err() && held.is_none() {
                return Some(self.seal(Ok(Event::Heartbeat(Heartbeat {}))));
            }
        }
        None
    }

    fn seal(&mut self, event: Result<Event, Error>) -> Result<v1::ExecEvent, Status> {
        match event {
            Ok(event) => Ok(v1::ExecEvent {
                seq: self.seq(),
                event: Some(event),
            }),
            Err(error) => {
                self.sent = Sent::Failed;
                Err(error.into())
            }
        }
    }

    /// Grows with every event, and is the same for every reader that has come as far.
    fn seq(&self) -> u64 {
        let ends = match self.sent {
            Sent::Closed => 2,
            Sent::Exited => 1,
            Sent::Nothing | Sent::Started | Sent::Failed => 0,
        };
        1 + self.next.iter().sum::<u64>() + ends
    }

    /// The next event, if there is one.
    fn ready(&mut self) -> Option<Result<Event, Error>> {
        let exec = Arc::clone(&self.exec);
        let mut state = exec.state();
        if state.phase == Phase::Starting {
            return None;
        }
        if self.sent == Sent::Nothing {
            if self.is_held(&state) {
                return None;
            }
            self.sent = Sent::Started;
            return Some(Ok(self.started(&state)));
        }
        let exited = state.phase >= Phase::Exited && self.sent == Sent::Started;
        let reached = self
            .next
            .iter()
            .zip(&state.exit_offsets)
            .all(|(at, end)| at >= end);
        if exited && reached {
            self.sent = Sent::Exited;
            let result = state.result();
            return Some(Ok(Event::Exited(Exited { result })));
        }
        for stream in [self.turn, 1 - self.turn] {
            if let Some(event) = self.output(&state, stream) {
                self.turn = 1 - stream;
                let (kind, format) = (self.wish.kind, self.wish.style.format);
                let position = ReaderPosition::new(kind, format, self.next);
                state.readers.insert(self.guard.id, position);
                exec.room.notify_one();
                return Some(event);
            }
        }
        if state.phase == Phase::Closed && self.sent == Sent::Exited {
            self.sent = Sent::Closed;
            let total = Some(state.total());
            return Some(Ok(Event::Closed(Closed { total })));
        }
        None
    }

    /// Nothing but Started could be said yet, and its time is not over.
    fn is_held(&mut self, state: &State) -> bool {
        let mut ends = state.windows.iter().map(Window::end).zip(self.next);
        let silent = state.phase == Phase::Running && ends.all(|(end, next)| end <= next);
        let now = Instant::now();
        silent && now < *self.hold.get_or_insert(now + STARTED_HOLD)
    }

    fn started(&self, state: &State) -> Event {
        Event::Started(Started {
            name: self.exec.name.clone(),
            pid: state.pid,
            effective_spec: Some(self.exec.spec.clone()),
            start_time: Some(Timestamp::from(self.exec.start_time)),
        })
    }

    fn output(&mut self, state: &State, stream: usize) -> Option<Result<Event, Error>> {
        let next = self.next.get_mut(stream)?;
        let piece = piece::take(state, stream, *next, self.wish.style, CHUNK_BYTES);
        let (piece, after) = match piece.transpose()? {
            Ok(taken) => taken,
            Err(error) => return Some(Err(error)),
        };
        *next = after;
        Some(Ok(match piece {
            Piece::Output(output) => Event::Output(output),
            Piece::Gap(gap) => Event::Gap(gap),
        }))
    }
}
