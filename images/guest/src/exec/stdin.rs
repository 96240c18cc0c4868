//! Stdin of an exec that clients write to, and how far it was written. Its target is the write end of a pipe or the
//! guest's side of a terminal.

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

use super::deadlines::{deadline_after, sleep_until};
use super::host::ExecHost;
use super::{Exec, ExecPhase};
use crate::error::Error;
use crate::sys;

/// Wait for an exec's end after its stdin broke. A program that exits closes its stdin a moment before the guest
/// notices the exit.
const END_PATIENCE: Duration = Duration::from_millis(50);
/// Wait for the rest of a stdin stream after the exec's end. A program may exit before its writer closes the stream.
const STREAM_PATIENCE: Duration = Duration::from_millis(500);
/// Maximum number of writes to one exec that run or wait. Each holds its data.
const WRITES_MAX: usize = 8;
/// Maximum number of remembered ends, and of remembered writes with an id, in case they are repeated.
const KNOWN_MAX: usize = 64;
/// Character that stands for end of file on a terminal.
const VEOF: u8 = 0x04;

/// Stdin of one exec.
#[derive(Debug)]
pub(crate) struct ExecStdin {
    state: Mutex<StdinState>,
    /// Lock of the write that runs.
    turn: tokio::sync::Mutex<()>,
    /// Permits for writes that run or wait.
    write_permits: Semaphore,
    end: EofMethod,
}

/// Way to signal end of file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum EofMethod {
    /// Closes the target. No write can follow.
    Close,
    /// Writes this character. Later writes are the next input that the terminal's program reads.
    Character(u8),
}

/// Mutable state of an exec's stdin.
#[derive(Debug)]
struct StdinState {
    /// Target of writes; `None` before a terminal is opened, and after the target is closed.
    target: Option<Arc<AsyncFd<OwnedFd>>>,
    /// Number of bytes that the target has taken.
    committed: u64,
    /// Offsets of the most recent ends. A pipe has one end, a terminal any number.
    ends: VecDeque<u64>,
    /// The most recent writes with an id.
    writes: VecDeque<IdempotentWrite>,
}

/// Progress of a write with an id, for its repetition.
#[derive(Debug)]
struct IdempotentWrite {
    id: String,
    /// Number of its bytes that the target has taken.
    taken: u64,
    /// `true` once its end was written.
    ended: bool,
}

impl StdinState {
    /// Returns the offset at which a write begins. The rest of a write with an id is appended.
    fn start_offset(&self, input: &StdinWrite<'_>) -> u64 {
        let write = self.writes.iter().find(|write| write.id == input.id);
        let taken = write.map_or(0, |write| write.taken);
        input.offset.unwrap_or(self.committed - taken)
    }

    /// Returns the progress of the write with this id and creates its entry if there is none; `None` for an empty id.
    fn known_write(&mut self, id: &str) -> Option<&mut IdempotentWrite> {
        if id.is_empty() {
            return None;
        }
        if let Some(at) = self.writes.iter().position(|write| write.id == id) {
            return self.writes.get_mut(at);
        }
        self.writes.truncate(KNOWN_MAX - 1);
        self.writes.push_front(IdempotentWrite {
            id: id.to_owned(),
            taken: 0,
            ended: false,
        });
        self.writes.front_mut()
    }

    /// Returns the progress of a write whose data ends at offset `end`.
    fn written(&self, input: &StdinWrite<'_>, end: u64, by: EofMethod) -> WriteProgress {
        WriteProgress {
            committed: self.committed,
            left: end.saturating_sub(self.committed),
            eof_left: input.eof && !self.has_ended(input, end, by),
        }
    }

    /// Returns `true` if this end was written before. After an end that more input may follow, only a write with an id
    /// or an offset can be recognised as a repetition.
    fn has_ended(&self, input: &StdinWrite<'_>, end: u64, by: EofMethod) -> bool {
        let mut writes = self.writes.iter();
        let repeats = input.offset.is_some() || by == EofMethod::Close;
        writes.any(|write| write.id == input.id && write.ended)
            || (repeats && self.ends.contains(&end))
    }
}

impl ExecStdin {
    /// Returns the stdin of a program that reads from a pipe, given its write end.
    pub(crate) fn pipe(writer: OwnedFd) -> io::Result<Self> {
        let stdin = Self::new(EofMethod::Close);
        stdin.connect(writer)?;
        Ok(stdin)
    }

    /// Returns the stdin of a program that reads from a terminal, which is opened when the exec is spawned.
    pub(crate) fn terminal() -> Self {
        Self::new(EofMethod::Character(VEOF))
    }

    fn new(end: EofMethod) -> Self {
        Self {
            state: Mutex::new(StdinState {
                target: None,
                committed: 0,
                ends: VecDeque::new(),
                writes: VecDeque::new(),
            }),
            turn: tokio::sync::Mutex::new(()),
            write_permits: Semaphore::new(WRITES_MAX),
            end,
        }
    }

    /// Sets the target of writes and makes it non-blocking.
    pub(crate) fn connect(&self, target: OwnedFd) -> io::Result<()> {
        let flags = OFlag::from_bits_retain(fcntl(target.as_fd(), FcntlArg::F_GETFL)?);
        let flags = FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK);
        fcntl(target.as_fd(), flags)?;
        let target = sys::register_fd(target, Interest::WRITABLE)?;
        self.state().target = Some(Arc::new(target));
        Ok(())
    }

    fn state(&self) -> MutexGuard<'_, StdinState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Closes the target for writing.
    pub(crate) fn close(&self) {
        self.state().target = None;
    }

    /// Writes the part of the data that was not written before, until the input's deadline. Safe to cancel: committed
    /// bytes stay committed.
    async fn write(&self, input: &StdinWrite<'_>) -> Result<WriteProgress, WriteFailure> {
        let length = input.data.len() as u64;
        let _turn = tokio::select! {
            // A write that may not wait still gets a turn that is free.
            biased;
            turn = self.turn.lock() => turn,
            () = sleep_until(input.until) => {
                let state = self.state();
                let at = state.start_offset(input);
                if at > state.committed {
                    return Err(WriteFailure::Beyond);
                }
                return Ok(state.written(input, at.saturating_add(length), self.end));
            }
        };
        let (at, committed) = {
            let state = self.state();
            (state.start_offset(input), state.committed)
        };
        let skip = committed.checked_sub(at).ok_or(WriteFailure::Beyond)?;
        let skip = usize::try_from(skip).unwrap_or(usize::MAX);
        let new = input.data.get(skip..).unwrap_or_default();
        let end = at.saturating_add(length);
        let end_is_new = input.eof && !self.state().has_ended(input, end, self.end);
        if new.is_empty() && !end_is_new {
            return Ok(self.state().written(input, end, self.end));
        }
        let is_whole = self.write_target(new, input.until, Some(input.id)).await?;
        if end_is_new && is_whole {
            // Other writes have gone beyond this offset, so it can no longer be the end.
            if end < committed {
                return Err(WriteFailure::Beyond);
            }
            let has_ended = match self.end {
                EofMethod::Close => {
                    self.close();
                    true
                }
                EofMethod::Character(character) => {
                    self.write_target(&[character], input.until, None).await?
                }
            };
            if has_ended {
                let mut state = self.state();
                state.ends.truncate(KNOWN_MAX - 1);
                state.ends.push_front(end);
                if let Some(write) = state.known_write(input.id) {
                    write.ended = true;
                }
            }
            return Ok(WriteProgress {
                eof_left: !has_ended,
                ..self.state().written(input, end, self.end)
            });
        }
        Ok(self.state().written(input, end, self.end))
    }

    /// Writes bytes to the target, and counts them for the write with the id `counted`. Returns `false` if the time
    /// was over before all were written.
    async fn write_target(
        &self,
        mut data: &[u8],
        until: Option<Instant>,
        counted: Option<&str>,
    ) -> Result<bool, WriteFailure> {
        let target = self.state().target.clone().ok_or(WriteFailure::Closed)?;
        while !data.is_empty() {
            let write = |fd: &OwnedFd| Ok(nix::unistd::write(fd, data)?);
            let put = tokio::select! {
                // The write comes before the time: one that may not wait puts in what the target takes at once.
                biased;
                put = target.async_io(Interest::WRITABLE, write) => put,
                () = sleep_until(until) => return Ok(false),
            };
            match put {
                Ok(count) => {
                    if let Some(id) = counted {
                        let mut state = self.state();
                        state.committed += count as u64;
                        if let Some(write) = state.known_write(id) {
                            write.taken += count as u64;
                        }
                    }
                    data = data.get(count..).unwrap_or_default();
                }
                // No process has the reading end open.
                Err(_) => {
                    self.close();
                    return Err(WriteFailure::Closed);
                }
            }
        }
        Ok(true)
    }
}

/// Data, end of file, or both, to be written to an exec's stdin.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StdinWrite<'a> {
    /// Offset of the first byte of `data`; `None` appends.
    pub(crate) offset: Option<u64>,
    /// Client-chosen id that identifies a repeated write without an offset; empty for none.
    pub(crate) id: &'a str,
    pub(crate) data: &'a [u8],
    pub(crate) eof: bool,
    /// Deadline for the target to take the data; `None` waits without limit.
    pub(crate) until: Option<Instant>,
}

impl<'a> StdinWrite<'a> {
    /// Converts a WriteStdin message.
    pub(crate) fn from_message(message: &'a wire::WriteStdinRequest) -> Self {
        let wait = message.wait.and_then(|wait| Duration::try_from(wait).ok());
        Self {
            offset: message.offset,
            id: &message.request_id,
            data: &message.data,
            eof: message.eof,
            until: wait.map(|wait| deadline_after(Instant::now(), wait)),
        }
    }
}

/// Progress of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WriteProgress {
    /// Number of bytes that the target has taken from all writes.
    pub(crate) committed: u64,
    /// Number of bytes at the end of this write that the target has not taken.
    pub(crate) left: u64,
    /// `true` if the end of file was requested and not written.
    pub(crate) eof_left: bool,
}

/// Reason for which a write failed.
enum WriteFailure {
    /// The offset lies beyond the committed bytes, or the end before them.
    Beyond,
    Closed,
}

/// Writes to an exec's stdin and returns the progress. Fails as soon as the exec ends, except for a repetition, which
/// writes nothing.
pub(crate) async fn write_stdin(
    exec: &Exec,
    input: StdinWrite<'_>,
) -> Result<WriteProgress, Error> {
    let id = exec.id.clone();
    let Some(stdin) = &exec.stdin else {
        return Err(if exec.state().phase < ExecPhase::Exited {
            Error::NoStdin { id }
        } else {
            Error::ExecNotRunning { id }
        });
    };
    let max = WRITES_MAX;
    let permit = stdin.write_permits.try_acquire();
    let _permit = permit.map_err(|_| Error::TooManyWrites { max })?;
    exec.wait_until(|state| state.phase != ExecPhase::Starting)
        .await;
    let written = tokio::select! {
        biased;
        written = stdin.write(&input) => written,
        () = exec.wait_for_exit() => Err(WriteFailure::Closed),
    };
    let failure = match written {
        Ok(written) => return Ok(written),
        Err(failure) => failure,
    };
    let (committed, closed) = {
        let state = stdin.state();
        (
            state.committed,
            stdin.end == EofMethod::Close && !state.ends.is_empty(),
        )
    };
    if let WriteFailure::Beyond = failure {
        return Err(Error::StdinOffset { committed });
    }
    let patience = if closed { Duration::ZERO } else { END_PATIENCE };
    match tokio::time::timeout(patience, exec.wait_for_exit()).await {
        Ok(()) => Err(Error::ExecNotRunning { id }),
        Err(_) => Err(Error::StdinClosed { id, committed }),
    }
}

/// Writes a client's stream of messages to the stdin of an exec, in order. If the first has an offset the others follow
/// it, so a repeated stream writes nothing twice.
pub(crate) async fn stream_stdin(
    host: &ExecHost,
    mut messages: Streaming<wire::WriteStdinRequest>,
) -> Result<u64, Status> {
    let first = messages.message().await?;
    let Some(mut message) = first else {
        return Err(Error::invalid("exec_id", "is missing: the stream is empty").into());
    };
    let exec = host.find_exec(&message.exec_id)?;
    let mut follows = None;
    loop {
        let input = StdinWrite {
            offset: message.offset.or(follows),
            id: "",
            until: None,
            ..StdinWrite::from_message(&message)
        };
        let committed = write_stdin(&exec, input).await?.committed;
        let length = message.data.len() as u64;
        follows = input.offset.map(|offset| offset.saturating_add(length));
        message = tokio::select! {
            // A stream whose end has arrived succeeds, although its program has exited by then.
            biased;
            next = messages.message() => match next? {
                Some(next) => next,
                None => return Ok(committed),
            },
            () = wait_past_end(&exec) => {
                let id = exec.id.clone();
                return Err(Error::ExecNotRunning { id }.into());
            }
        };
    }
}

/// Waits until the exec has ended and the end of its stdin stream is overdue.
async fn wait_past_end(exec: &Exec) {
    exec.wait_for_exit().await;
    tokio::time::sleep(STREAM_PATIENCE).await;
}
