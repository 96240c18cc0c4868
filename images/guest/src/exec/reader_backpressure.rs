//! Current readers of an exec, and which of them a BLOCKing program waits for.
//!
//! The program always waits for the stream of the RunExec that started it, and for the only reader. Another stream is
//! skipped after it took nothing for [`STALL_GRACE`], while the program waited for it and another reader made
//! progress. It gets a Gap when it reads again. A reader makes progress if it has all the output that it can take, or
//! took some. A poll makes progress by arriving.

use std::sync::Arc;
use std::time::{Duration, Instant};

use skilld_proto::v1::OutputFormat;

use super::{Exec, ExecState, output_piece};
use crate::output_window::OutputWindow;

/// Time that a program waits for an attached reader that takes nothing while another reader makes progress.
pub(crate) const STALL_GRACE: Duration = Duration::from_secs(5);

/// RPC through which a reader takes output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReaderRpc {
    /// Stream of a RunExec. Events that were sent may never arrive.
    Run,
    /// Stream of an AttachExec. Events that were sent may never arrive.
    Attach,
    /// Poll. It has everything before the offsets that it asked for.
    Poll,
}

/// Registered reader: its offsets, and whether the program still waits for it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RegisteredReader {
    pub(crate) kind: ReaderRpc,
    format: OutputFormat,
    pub(crate) at: [u64; 2],
    /// Time of the registration or of the last output taken.
    since: Instant,
    /// `true` while the program does not wait for this reader, until it takes output again.
    is_skipped: bool,
}

/// A registered reader. While the guard lives, a BLOCKing exec waits for the reader.
#[derive(Debug)]
pub(crate) struct ReaderGuard {
    exec: Arc<Exec>,
    pub(super) id: u64,
}

impl RegisteredReader {
    /// Returns the position of a reader that has just taken something.
    pub(super) fn new(kind: ReaderRpc, format: OutputFormat, at: [u64; 2]) -> Self {
        Self {
            kind,
            format,
            at,
            since: Instant::now(),
            is_skipped: false,
        }
    }

    /// Returns `true` if the reader can take nothing now. A reader of text leaves an incomplete character in the
    /// window.
    fn has_all(&self, windows: &[OutputWindow; 2]) -> bool {
        let waits = |(at, window): (&u64, &OutputWindow)| {
            *at >= window.end()
                || (self.format == OutputFormat::Text
                    && output_piece::is_rest_incomplete(window, *at))
        };
        self.at.iter().zip(windows).all(waits)
    }
}

impl ReaderGuard {
    /// Registers a reader.
    pub(crate) fn register(
        exec: Arc<Exec>,
        kind: ReaderRpc,
        format: OutputFormat,
        at: [u64; 2],
    ) -> Self {
        let mut state = exec.state();
        let id = state.next_reader;
        state.next_reader += 1;
        let position = RegisteredReader::new(kind, format, at);
        state.readers.insert(id, position);
        drop(state);
        // A BLOCKing exec without a reader keeps everything, so room may have appeared.
        exec.room.notify_one();
        Self { exec, id }
    }
}

impl Drop for ReaderGuard {
    fn drop(&mut self) {
        self.exec.state().readers.remove(&self.id);
        self.exec.room.notify_one();
    }
}

impl ExecState {
    /// Returns how many bytes of a stream a BLOCKing exec may read now without dropping bytes that a reader needs.
    pub(crate) fn room(&self, stream: usize) -> u64 {
        let Some(window) = self.windows.get(stream) else {
            return 0;
        };
        window.room(self.needed(stream))
    }

    /// Returns the first offset of a stream that a BLOCKing exec may not drop: what the slowest awaited reader needs,
    /// or without readers what no poll has acknowledged.
    pub(crate) fn needed(&self, stream: usize) -> u64 {
        let Some(window) = self.windows.get(stream) else {
            return 0;
        };
        let awaited = self.readers.values().filter(|reader| !reader.is_skipped);
        let needed = awaited.filter_map(|reader| {
            let at = *reader.at.get(stream)?;
            Some(match reader.kind {
                ReaderRpc::Run | ReaderRpc::Attach => window.kept_for(at),
                ReaderRpc::Poll => at,
            })
        });
        let acknowledged = self.acknowledged.get(stream).copied().unwrap_or(0);
        let unread = window.start().max(acknowledged);
        needed.min().unwrap_or(unread)
    }

    /// Returns the number of streams that read the exec now.
    pub(crate) fn stream_readers(&self) -> usize {
        let readers = self.readers.values();
        readers
            .filter(|reader| reader.kind != ReaderRpc::Poll)
            .count()
    }

    /// Records a poll, which has everything before `offsets`.
    pub(crate) fn acknowledge(&mut self, offsets: [u64; 2]) {
        self.last_poll = Some(Instant::now());
        for (known, offset) in self.acknowledged.iter_mut().zip(offsets) {
            *known = offset.max(*known);
        }
    }

    /// Records whether the program waits for its readers. Returns when the next of them is skipped.
    pub(super) fn next_stall(&mut self, is_blocked: bool) -> Option<Instant> {
        if !is_blocked {
            self.blocked_since = None;
            return None;
        }
        self.blocked_since.get_or_insert_with(Instant::now);
        self.stalls().map(|(_, at)| at).min()
    }

    /// Lets the program go on without the readers whose grace is over at `now`.
    pub(super) fn skip_stalled(&mut self, now: Instant) {
        let due: Vec<u64> = self
            .stalls()
            .filter(|(_, at)| *at <= now)
            .map(|(id, _)| id)
            .collect();
        for id in due {
            if let Some(reader) = self.readers.get_mut(&id) {
                reader.is_skipped = true;
            }
        }
    }

    /// Returns the readers that hold up the program while others make progress, with the time at which each is
    /// skipped.
    fn stalls(&self) -> impl Iterator<Item = (u64, Instant)> {
        let blocked = self.blocked_since;
        self.readers.iter().filter_map(move |(id, reader)| {
            let since = blocked?.max(reader.since);
            let may_lose = reader.kind == ReaderRpc::Attach && !reader.is_skipped;
            let goes_on = |(other, position): (&u64, &RegisteredReader)| {
                other != id
                    && !position.is_skipped
                    && (position.has_all(&self.windows) || position.since > since)
            };
            let is_polled = self.last_poll.is_some_and(|at| at > since);
            let is_stalled = may_lose
                && !reader.has_all(&self.windows)
                && (is_polled || self.readers.iter().any(goes_on));
            is_stalled.then(|| (*id, since + STALL_GRACE))
        })
    }
}

#[cfg(test)]
mod tests;
