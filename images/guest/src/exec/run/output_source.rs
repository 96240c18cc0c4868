//! Source of one output stream of an exec: a pipe or a terminal.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use bytes::{BufMut, BytesMut};
use nix::fcntl::{FcntlArg, fcntl};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::net::unix::pipe;

use crate::sys;

/// Capacity that a full pipe is enlarged to, in bytes, where the kernel permits it.
pub(super) const PIPE_BYTES: i32 = 1024 * 1024;
/// Upper bound of the bytes that the kernel buffers for a terminal. The kernel does not tell the exact number.
const TERMINAL_BYTES: u64 = 64 * 1024;

/// Guest's end of one output stream.
pub(super) struct OutputSource {
    kind: PipeOrTerminal,
    /// Bytes that are still read; `None` for all.
    pub(super) left: Option<u64>,
    enlarged: bool,
}

/// Kind of an output source with its descriptors.
enum PipeOrTerminal {
    Pipe(pipe::Receiver),
    Terminal {
        master: AsyncFd<OwnedFd>,
        /// Held while the leader runs, so that a leader that closes and reopens its terminal causes no hangup.
        slave: Option<OwnedFd>,
    },
}

impl OutputSource {
    fn new(kind: PipeOrTerminal) -> Self {
        Self {
            kind,
            left: None,
            enlarged: false,
        }
    }

    /// Takes the reading end that `output_pipe` made.
    pub(super) fn pipe(fd: OwnedFd) -> io::Result<Self> {
        // `output_pipe` returns a pipe that does not block, so the check is not needed.
        pipe::Receiver::from_owned_fd_unchecked(fd)
            .map(|pipe| Self::new(PipeOrTerminal::Pipe(pipe)))
    }

    /// Takes both ends of a terminal.
    pub(super) fn terminal(master: OwnedFd, slave: OwnedFd) -> io::Result<Self> {
        let master = sys::register_fd(master, Interest::READABLE)?;
        let slave = Some(slave);
        Ok(Self::new(PipeOrTerminal::Terminal { master, slave }))
    }

    fn fd(&self) -> BorrowedFd<'_> {
        match &self.kind {
            PipeOrTerminal::Pipe(pipe) => pipe.as_fd(),
            PipeOrTerminal::Terminal { master, .. } => master.get_ref().as_fd(),
        }
    }

    /// Waits until the stream holds bytes or is at its end. Safe to cancel.
    async fn wait_readable(&self) {
        // The following read reports the error.
        match &self.kind {
            PipeOrTerminal::Pipe(pipe) => drop(pipe.readable().await),
            PipeOrTerminal::Terminal { master, .. } => drop(master.readable().await),
        }
    }

    /// Reads at most `most` bytes and appends them to `buffer`. With `all` it also reads bytes that the runtime has
    /// not noticed. An error other than [`would_block`] is the end: a terminal returns EIO after its last byte, when
    /// no process has it open.
    pub(super) fn read(
        &mut self,
        buffer: &mut BytesMut,
        most: usize,
        all: bool,
    ) -> io::Result<usize> {
        let read = match &self.kind {
            PipeOrTerminal::Pipe(pipe) => pipe.try_read_buf(&mut (&mut *buffer).limit(most)),
            PipeOrTerminal::Terminal { master, .. } => master
                .try_io(Interest::READABLE, |master| {
                    sys::read_behind(master.as_fd(), buffer, most)
                }),
        };
        let read = if all && would_block(&read) {
            sys::read_behind(self.fd(), buffer, most)
        } else {
            read
        };
        if let (Ok(count), Some(left)) = (&read, &mut self.left) {
            *left = left.saturating_sub(*count as u64);
        }
        read
    }

    /// Enlarges the pipe, once, after a read that found it full.
    pub(super) fn enlarge(&mut self) {
        if !self.enlarged {
            self.enlarged = true;
            let _not_permitted = fcntl(self.fd(), FcntlArg::F_SETPIPE_SZ(PIPE_BYTES));
        }
    }

    /// Drops the guest's copy of the program's end. The terminal then ends when the last straggler closes it.
    pub(super) fn release_terminal(&mut self) {
        if let PipeOrTerminal::Terminal { slave, .. } = &mut self.kind {
            *slave = None;
        }
    }

    /// Limits further reads to the bytes that the stream holds now.
    pub(super) fn limit(&mut self) {
        self.release_terminal();
        if self.left.is_none() {
            self.left = Some(match &self.kind {
                PipeOrTerminal::Pipe(pipe) => sys::bytes_in_pipe(pipe.as_fd()),
                PipeOrTerminal::Terminal { .. } => TERMINAL_BYTES,
            });
        }
    }
}

/// Returns `true` if a read found no bytes yet.
pub(super) fn would_block(read: &io::Result<usize>) -> bool {
    let error = read.as_ref().err();
    error.is_some_and(|error| error.kind() == io::ErrorKind::WouldBlock)
}

/// Waits until the stream holds bytes or is at its end; forever without a stream.
pub(super) async fn wait_readable(source: Option<&OutputSource>) {
    match source {
        Some(source) => source.wait_readable().await,
        None => std::future::pending().await,
    }
}
