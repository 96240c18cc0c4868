//! The stdin of an exec that others write to: where it leads, and how far it was written. What it leads to is any
//! descriptor: the write end of a pipe, or the guest's side of a terminal.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use skilld_proto::guest::v1 as wire;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::Semaphore;
use tonic::{Status, Streaming};

use super::run::deadlines::{after, sleep_until};
use super::{Exec, Phase};
use crate::error::Error;
use crate::guest::Guest;
use crate::sys;

/// A program that ends closes its stdin a moment before anybody knows that it has ended.
const END_PATIENCE: Duration = Duration::from_millis(50);
/// A program that has read all it wants ends before its writer has said that this was all.
const STREAM_PATIENCE: Duration = Duration::from_millis(500);
/// Writes to one exec that are under way or wait for their turn: each holds its data.
const WRITES_MAX: usize = 8;
/// Ends, and writes with an id, that are known when they are repeated; nobody has as many under way.
const KNOWN_MAX: usize = 64;
/// What `eof` becomes for a terminal.
const VEOF: u8 = 0x04;

/// One exec's.
#[derive(Debug)]
pub(crate) struct Stdin {
    state: Mutex<State>,
    /// Whose turn it is to write.
    turn: tokio::sync::Mutex<()>,
    /// For writes that are under way.
    places: Semaphore,
    end: End,
}

/// How its end is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// By closing it; nothing can follow.
    Close,
    /// By a character; what follows is the next that a terminal's program reads.
    Character(u8),
}

#[derive(Debug)]
struct State {
    /// Not there before a terminal is made, and gone once it is closed.
    target: Option<Arc<AsyncFd<OwnedFd>>>,
    /// Bytes that the target has taken.
    committed: u64,
    /// Where ends were written, the last ones: a pipe has one, a terminal any number.
    ends: VecDeque<u64>,
    /// Writes with an id, the last ones.
    writes: VecDeque<Write>,
}

/// What is known of a write, should it be repeated.
#[derive(Debug)]
struct Write {
    id: String,
    /// Bytes of it that the target has taken.
    taken: u64,
    /// Its end was written.
    ended: bool,
}

impl State {
    /// Where a write begins. What is left of one that has an id begins where all that was written ends.
    fn place(&self, input: &Input<'_>) -> u64 {
        let write = self.writes.iter().find(|write| write.id == input.id);
        let taken = write.map_or(0, |write| write.taken);
        input.offset.unwrap_or(self.committed - taken)
    }

    /// What is known of a write with an id from here on.
    fn write(&mut self, id: &str) -> Option<&mut Write> {
        if id.is_empty() {
            return None;
        }
        if let Some(at) = self.writes.iter().position(|write| write.id == id) {
            return self.writes.get_mut(at);
        }
        self.writes.truncate(KNOWN_MAX - 1);
        self.writes.push_front(Write {
            id: id.to_owned(),
            taken: 0,
            ended: false,
        });
        self.writes.front_mut()
    }

    /// How far a write has come that begins and ends there.
    fn written(&self, input: &Input<'_>, end: u64, by: End) -> Written {
        Written {
            committed: self.committed,
            left: end.saturating_sub(self.committed),
            eof_left: input.eof && !self.has_ended(input, end, by),
        }
    }

    /// Whether this end was written before. Only who says which write it is, or where it lies, can repeat one after
    /// which something can follow.
    fn has_ended(&self, input: &Input<'_>, end: u64, by: End) -> bool {
        let mut writes = self.writes.iter();
        let repeats = input.offset.is_some() || by == End::Close;
        writes.any(|write| write.id == input.id && write.ended)
            || (repeats && self.ends.contains(&end))
    }
}

impl Stdin {
    /// A pipe's write end.
    pub(crate) fn pipe(writer: OwnedFd) -> io::Result<Self> {
        let stdin = Self::new(End::Close);
        stdin.lead_to(writer)?;
        Ok(stdin)
    }

    /// A terminal, which is made when the exec is spawned.
    pub(crate) fn terminal() -> Self {
        Self::new(End::Character(VEOF))
    }

    fn new(end: End) -> Self {
        Self {
            state: Mutex::new(State {
                target: None,
                committed: 0,
                ends: VecDeque::new(),
                writes: VecDeque::new(),
            }),
            turn: tokio::sync::Mutex::new(()),
            places: Semaphore::new(WRITES_MAX),
            end,
        }
    }

    /// Says what it leads to. From here on that does not block.
    pub(crate) fn lead_to(&self, target: OwnedFd) -> io::Result<()> {
        let flags = OFlag::from_bits_retain(fcntl(target.as_fd(), FcntlArg::F_GETFL)?);
        let flags = FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK);
        fcntl(target.as_fd(), flags)?;
        let target = sys::watch(target, Interest::WRITABLE)?;
        self.state().target = Some(Arc::new(target));
        Ok(())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Nobody writes to it any more.
    pub(crate) fn close(&self) {
        self.state().target = None;
    }

    /// Writes what of `data` is new, for as long as the input says. Safe to cancel: what was committed until then stays
    /// so.
    async fn write(&self, input: &Input<'_>) -> Result<Written, Failure> {
        let length = input.data.len() as u64;
        let _turn = tokio::select! {
            biased;
            turn = self.turn.lock() => turn,
            () = sleep_until(input.until) => {
                let state = self.state();
                let at = state.place(input);
                if at > state.committed {
                    return Err(Failure::Beyond);
                }
                return Ok(state.written(input, at.saturating_add(length), self.end));
            }
        };
        let (at, committed) = {
            let state = self.state();
            (state.place(input), state.committed)
        };
        let skip = committed.checked_sub(at).ok_or(Failure::Beyond)?;
        let skip = usize::try_from(skip).unwrap_or(usize::MAX);
        let new = input.data.get(skip..).unwrap_or_default();
        let end = at.saturating_add(length);
        let end_is_new = input.eof && !self.state().has_ended(input, end, self.end);
        if new.is_empty() && !end_is_new {
            return Ok(self.state().written(input, end, self.end));
        }
        let is_whole = self.put(new, input.until, Some(input.id)).await?;
        if end_is_new && is_whole {
            // Others wrote on: this cannot be the end any more.
            if end < committed {
                return Err(Failure::Beyond);
            }
            let has_ended = match self.end {
                End::Close => {
                    self.close();
                    true
                }
                End::Character(character) => self.put(&[character], input.until, None).await?,
            };
            if has_ended {
                let mut state = self.state();
                state.ends.truncate(KNOWN_MAX - 1);
                state.ends.push_front(end);
                if let Some(write) = state.write(input.id) {
                    write.ended = true;
                }
            }
            return Ok(Written {
                eof_left: !has_ended,
                ..self.state().written(input, end, self.end)
            });
        }
        Ok(self.state().written(input, end, self.end))
    }

    /// Puts bytes into the target: those of a write with this id, which are counted, or others. False if some had to be
    /// left when the time was over.
    async fn put(
        &self,
        mut data: &[u8],
        until: Option<Instant>,
        counted: Option<&str>,
    ) -> Result<bool, Failure> {
        let target = self.state().target.clone().ok_or(Failure::Closed)?;
        while !data.is_empty() {
            let write = |fd: &OwnedFd| Ok(nix::unistd::write(fd, data)?);
            let put = tokio::select! {
                biased;
                put = target.async_io(Interest::WRITABLE, write) => put,
                () = sleep_until(until) => return Ok(false),
            };
            match put {
                Ok(count) => {
                    if let Some(id) = counted {
                        let mut state = self.state();
                        state.committed += count as u64;
                        if let Some(write) = state.write(id) {
                            write.taken += count as u64;
                        }
                    }
                    data = data.get(count..).unwrap_or_default();
                }
                // Nobody has the other end open.
                Err(_) => {
                    self.close();
                    return Err(Failure::Closed);
                }
            }
        }
        Ok(true)
    }
}

/// What is to be written.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Input<'a> {
    /// Of the first byte of data; unset appends.
    pub(crate) offset: Option<u64>,
    /// Which write it is, where no offset tells; empty for none.
    pub(crate) id: &'a str,
    pub(crate) data: &'a [u8],
    pub(crate) eof: bool,
    /// How long the target is waited for to take data; unset means as long as it takes.
    pub(crate) until: Option<Instant>,
}

impl<'a> Input<'a> {
    pub(crate) fn of(message: &'a wire::WriteStdinRequest) -> Self {
        let wait = message.wait.and_then(|wait| Duration::try_from(wait).ok());
        Self {
            offset: message.offset,
            id: &message.write_id,
            data: &message.data,
            eof: message.eof,
            until: wait.map(|wait| after(Instant::now(), wait)),
        }
    }
}

/// How far a write has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Written {
    /// All that the target has taken, of whomever.
    pub(crate) committed: u64,
    /// The last bytes of this write, which it has not.
    pub(crate) left: u64,
    /// Its end is to be written and is not.
    pub(crate) eof_left: bool,
}

enum Failure {
    /// The offset lies beyond what is committed, or the end before it.
    Beyond,
    Closed,
}

/// Writes to an exec's stdin; how far it has come then. Fails as soon as the exec ends. What is not new is not
/// written again, and is no failure even then.
pub(crate) async fn write(exec: &Exec, input: Input<'_>) -> Result<Written, Error> {
    let id = exec.id.clone();
    let Some(stdin) = &exec.stdin else {
        return Err(if exec.state().phase < Phase::Exited {
            Error::NoStdin { id }
        } else {
            Error::ExecNotRunning { id }
        });
    };
    let max = WRITES_MAX;
    let place = stdin.places.try_acquire();
    let _place = place.map_err(|_| Error::TooManyWrites { max })?;
    exec.until(|state| state.phase != Phase::Starting).await;
    let written = tokio::select! {
        biased;
        written = stdin.write(&input) => written,
        () = exec.ended() => Err(Failure::Closed),
    };
    let failure = match written {
        Ok(written) => return Ok(written),
        Err(failure) => failure,
    };
    let (committed, closed) = {
        let state = stdin.state();
        (
            state.committed,
            stdin.end == End::Close && !state.ends.is_empty(),
        )
    };
    if let Failure::Beyond = failure {
        return Err(Error::StdinOffset { committed });
    }
    let patience = if closed { Duration::ZERO } else { END_PATIENCE };
    match tokio::time::timeout(patience, exec.ended()).await {
        Ok(()) => Err(Error::ExecNotRunning { id }),
        Err(_) => Err(Error::StdinClosed { id, committed }),
    }
}

/// Writes one message after the other. Where the first says its offset, the next ones follow it, so that a stream
/// that is sent again writes nothing twice.
pub(crate) async fn stream(
    guest: &Guest,
    mut messages: Streaming<wire::WriteStdinRequest>,
) -> Result<u64, Status> {
    let first = messages.message().await?;
    let Some(mut message) = first else {
        let (field, problem) = ("exec_id", "is missing: the stream is empty");
        return Err(Error::Invalid { field, problem }.into());
    };
    let exec = guest.exec(&message.exec_id)?;
    let mut follows = None;
    loop {
        let input = Input {
            offset: message.offset.or(follows),
            id: "",
            until: None,
            ..Input::of(&message)
        };
        let committed = write(&exec, input).await?.committed;
        let length = message.data.len() as u64;
        follows = input.offset.map(|offset| offset.saturating_add(length));
        message = tokio::select! {
            biased;
            next = messages.message() => match next? {
                Some(next) => next,
                None => return Ok(committed),
            },
            () = outlived(&exec) => {
                let id = exec.id.clone();
                return Err(Error::ExecNotRunning { id }.into());
            }
        };
    }
}

/// The exec has ended, and the end of a stream that was its last would have come.
async fn outlived(exec: &Exec) {
    exec.ended().await;
    tokio::time::sleep(STREAM_PATIENCE).await;
}
