//! The stdin of an exec that others write to: where it leads, and how far it was written. What it leads to is any
//! descriptor: the write end of a pipe, or the guest's side of a terminal.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use skilld_proto::guest::v1 as wire;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::Semaphore;
use tonic::{Status, Streaming};

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
/// Ends that are known when they are repeated; nobody has as many under way.
const ENDS_MAX: usize = 64;
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

    /// Writes what of `data` is new. Safe to cancel: what was committed until then stays so.
    async fn write(&self, input: &Input<'_>) -> Result<u64, Failure> {
        let _turn = self.turn.lock().await;
        let committed = self.state().committed;
        let at = input.offset.unwrap_or(committed);
        let skip = committed.checked_sub(at).ok_or(Failure::Beyond)?;
        let skip = usize::try_from(skip).unwrap_or(usize::MAX);
        let new = input.data.get(skip..).unwrap_or_default();
        let end = at.saturating_add(input.data.len() as u64);
        // Only who says where it lies can repeat it, unless nothing can follow.
        let repeats = input.offset.is_some() || self.end == End::Close;
        let end_is_new = input.eof && !(repeats && self.state().ends.contains(&end));
        if new.is_empty() && !end_is_new {
            return Ok(committed);
        }
        self.put(new, true).await?;
        if end_is_new {
            // Others wrote on: this cannot be the end any more.
            if end < committed {
                return Err(Failure::Beyond);
            }
            match self.end {
                End::Close => self.close(),
                End::Character(character) => self.put(&[character], false).await?,
            }
            let ends = &mut self.state().ends;
            ends.truncate(ENDS_MAX - 1);
            ends.push_front(end);
        }
        Ok(self.state().committed)
    }

    async fn put(&self, mut data: &[u8], counts: bool) -> Result<(), Failure> {
        let target = self.state().target.clone().ok_or(Failure::Closed)?;
        while !data.is_empty() {
            let write = |fd: &OwnedFd| Ok(nix::unistd::write(fd, data)?);
            match target.async_io(Interest::WRITABLE, write).await {
                Ok(count) => {
                    if counts {
                        self.state().committed += count as u64;
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
        Ok(())
    }
}

/// What is to be written.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Input<'a> {
    /// Of the first byte of data; unset appends.
    pub(crate) offset: Option<u64>,
    pub(crate) data: &'a [u8],
    pub(crate) eof: bool,
}

enum Failure {
    /// The offset lies beyond what is committed, or the end before it.
    Beyond,
    Closed,
}

/// Writes to an exec's stdin; what is committed then. Fails as soon as the exec ends. What is not new is not
/// written again, and is no failure even then.
pub(crate) async fn write(exec: &Exec, input: Input<'_>) -> Result<u64, Error> {
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
        Ok(committed) => return Ok(committed),
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
            data: &message.data,
            eof: message.eof,
        };
        let committed = write(&exec, input).await?;
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
