//! A reader of an exec: turns what is in the windows into events, from its own offsets, at its own pace.

use std::sync::Arc;
use std::time::Duration;

use futures::Stream;
use prost_types::Timestamp;
use skilld_proto::v1;
use skilld_proto::v1::exec_event::output::Content;
use skilld_proto::v1::exec_event::{Closed, Event, Exited, Gap, Heartbeat, Output, Started};
use tokio::sync::watch;
use tonic::Status;

use super::{Exec, Phase, STREAMS, State};
use crate::error::Error;
use crate::output::CHUNK_BYTES;

/// Bytes that become one TEXT event: each may grow to three when it is replaced.
const TEXT_BYTES: usize = CHUNK_BYTES / 4;

/// What a reader asked for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wish {
    pub(crate) offsets: [u64; 2],
    pub(crate) format: v1::OutputFormat,
    pub(crate) gaps: v1::Gaps,
    /// Between Heartbeats.
    pub(crate) heartbeat: Duration,
}

/// One attached reader. While it lives, a BLOCKing exec waits for it.
#[derive(Debug)]
struct Reader {
    exec: Arc<Exec>,
    id: u64,
    changed: watch::Receiver<()>,
    wish: Wish,
    next: [u64; 2],
    /// The stream that is looked at first, so that neither starves the other.
    turn: usize,
    sent: Sent,
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
    let mut state = exec.state();
    for ((window, offset), stream) in state
        .windows
        .iter()
        .zip(wish.offsets)
        .zip(["stdout", "stderr"])
    {
        if offset > window.end() {
            return Err(Error::Invalid {
                field: "offsets",
                problem: "lies beyond the end of the output",
            });
        }
        if offset < window.start() && wish.gaps == v1::Gaps::Refuse {
            let oldest = window.start();
            return Err(Error::OutputDropped { stream, oldest });
        }
    }
    let id = state.next_reader;
    state.next_reader += 1;
    state.readers.insert(id, wish.offsets);
    drop(state);
    let reader = Reader {
        id,
        changed,
        next: wish.offsets,
        wish,
        turn: 0,
        sent: Sent::Nothing,
        exec,
    };
    // Room may have appeared: without a reader a BLOCKing exec keeps everything.
    reader.exec.room.notify_one();
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
            let wait = tokio::time::timeout(self.wish.heartbeat, self.changed.changed());
            if wait.await.is_err() {
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
                let position = self.next;
                state.readers.insert(self.id, position);
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

    fn started(&self, state: &State) -> Event {
        Event::Started(Started {
            name: self.exec.name.clone(),
            pid: state.pid,
            effective_spec: Some(self.exec.spec.clone()),
            start_time: Some(Timestamp::from(self.exec.start_time)),
        })
    }

    fn output(&mut self, state: &State, stream: usize) -> Option<Result<Event, Error>> {
        let window = state.windows.get(stream)?;
        let api_stream: i32 = (*STREAMS.get(stream)?).into();
        let next = self.next.get_mut(stream)?;
        let from = *next;
        if from >= window.end() {
            return None;
        }
        if from < window.start() {
            *next = window.start();
            if self.wish.gaps == v1::Gaps::Refuse {
                return Some(Err(Error::OutputDropped {
                    stream: if stream == 0 { "stdout" } else { "stderr" },
                    oldest: window.start(),
                }));
            }
            return Some(Ok(Event::Gap(Gap {
                stream: api_stream,
                from,
                to: window.start(),
            })));
        }
        let (content, length, replaced) = if self.wish.format == v1::OutputFormat::Text {
            let bytes = window.read_joined(from, TEXT_BYTES);
            let whole = from + bytes.len() as u64 == window.end();
            let last = whole && state.phase == Phase::Closed;
            let (text, length, replaced) = decode(&bytes, last);
            (Content::Text(text), length, replaced)
        } else {
            let data = window.read(from, CHUNK_BYTES);
            let length = data.len();
            (Content::Data(data), length, false)
        };
        if length == 0 {
            return None;
        }
        *next = from + length as u64;
        let text = self.wish.format == v1::OutputFormat::Text;
        Some(Ok(Event::Output(Output {
            stream: api_stream,
            offset: from,
            content: Some(content),
            next_offset: if text { *next } else { 0 },
            replaced,
        })))
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.exec.state().readers.remove(&self.id);
        self.exec.room.notify_one();
    }
}

/// Bytes as text, how many of them it stands for, and whether some were replaced. A character that is cut
/// off at the end is left for later, unless these are the last bytes.
fn decode(bytes: &[u8], last: bool) -> (String, usize, bool) {
    let mut text = String::with_capacity(bytes.len());
    let mut length = 0;
    let mut replaced = false;
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        length += chunk.valid().len();
        let invalid = chunk.invalid();
        if invalid.is_empty() {
            continue;
        }
        let at_end = length + invalid.len() == bytes.len();
        if at_end && !last && is_cut_off(invalid) {
            break;
        }
        text.push(char::REPLACEMENT_CHARACTER);
        length += invalid.len();
        replaced = true;
    }
    (text, length, replaced)
}

/// These bytes could still become a character.
fn is_cut_off(bytes: &[u8]) -> bool {
    str::from_utf8(bytes).is_err_and(|error| error.error_len().is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_cut_between_characters_and_says_what_it_replaced() {
        let check = |bytes: &[u8], last, text: &str, length, replaced| {
            assert_eq!(decode(bytes, last), (text.to_owned(), length, replaced));
        };
        check("aé".as_bytes(), false, "aé", 3, false);
        check(b"a\xc3", false, "a", 1, false);
        check(b"a\xc3", true, "a\u{fffd}", 2, true);
        check(b"\xe2\x82", false, "", 0, false);
        check(b"a\xffb", false, "a\u{fffd}b", 3, true);
        check(b"\xff", false, "\u{fffd}", 1, true);
        check(b"", true, "", 0, false);
    }
}
