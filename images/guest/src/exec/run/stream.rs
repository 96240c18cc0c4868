//! Where one stream of an exec comes from, as the task that runs it reads it: a pipe, or a terminal.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use bytes::{BufMut, BytesMut};
use nix::fcntl::{FcntlArg, fcntl};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::net::unix::pipe;

use crate::sys;

/// A pipe that was found full gets this size, where the kernel permits it.
pub(super) const PIPE_BYTES: i32 = 1024 * 1024;
/// More than the kernel holds of what was written to a terminal, which it does not tell exactly.
const TERMINAL_BYTES: u64 = 64 * 1024;

/// The guest's end of one of an exec's streams.
pub(super) struct Source {
    from: From,
    /// What is still read of it; unset, everything.
    pub(super) left: Option<u64>,
    enlarged: bool,
}

enum From {
    Pipe(pipe::Receiver),
    Terminal {
        master: AsyncFd<OwnedFd>,
        /// Held while the leader runs: it may close its terminal and open it again, which is no hangup.
        slave: Option<OwnedFd>,
    },
}

impl Source {
    fn new(from: From) -> Self {
        Self {
            from,
            left: None,
            enlarged: false,
        }
    }

    /// Takes the end that `output_pipe` made.
    pub(super) fn pipe(fd: OwnedFd) -> io::Result<Self> {
        // It is a pipe and does not block: `output_pipe` made it so.
        pipe::Receiver::from_owned_fd_unchecked(fd).map(|pipe| Self::new(From::Pipe(pipe)))
    }

    /// Takes the ends of a terminal.
    pub(super) fn terminal(master: OwnedFd, slave: OwnedFd) -> io::Result<Self> {
        let master = sys::watch(master, Interest::READABLE)?;
        let slave = Some(slave);
        Ok(Self::new(From::Terminal { master, slave }))
    }

    fn fd(&self) -> BorrowedFd<'_> {
        match &self.from {
            From::Pipe(pipe) => pipe.as_fd(),
            From::Terminal { master, .. } => master.get_ref().as_fd(),
        }
    }

    /// Waits until it holds something, or is at its end. Safe to cancel.
    async fn readable(&self) {
        // An error shows itself in the read that follows.
        match &self.from {
            From::Pipe(pipe) => drop(pipe.readable().await),
            From::Terminal { master, .. } => drop(master.readable().await),
        }
    }

    /// Reads at most `most` bytes behind what a buffer holds. With `all` also what the runtime may not have heard of
    /// yet. An error that is not [`would_block`] is the end: a terminal says EIO when nobody has it open any more, and
    /// only after its last byte.
    pub(super) fn read(
        &mut self,
        buffer: &mut BytesMut,
        most: usize,
        all: bool,
    ) -> io::Result<usize> {
        let read = match &self.from {
            From::Pipe(pipe) => pipe.try_read_buf(&mut (&mut *buffer).limit(most)),
            From::Terminal { master, .. } => master.try_io(Interest::READABLE, |master| {
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

    /// Makes the pipe larger, once: its program writes more than it holds.
    pub(super) fn enlarge(&mut self) {
        if !self.enlarged {
            self.enlarged = true;
            let _not_permitted = fcntl(self.fd(), FcntlArg::F_SETPIPE_SZ(PIPE_BYTES));
        }
    }

    /// Says that the leader is gone: whoever has the terminal now is the last to have it.
    pub(super) fn leader_ended(&mut self) {
        if let From::Terminal { slave, .. } = &mut self.from {
            *slave = None;
        }
    }

    /// From now on only what is in it is read.
    pub(super) fn limit(&mut self) {
        self.leader_ended();
        if self.left.is_none() {
            self.left = Some(match &self.from {
                From::Pipe(pipe) => sys::bytes_in_pipe(pipe.as_fd()),
                From::Terminal { .. } => TERMINAL_BYTES,
            });
        }
    }
}

/// There is nothing to be had now.
pub(super) fn would_block(read: &io::Result<usize>) -> bool {
    let error = read.as_ref().err();
    error.is_some_and(|error| error.kind() == io::ErrorKind::WouldBlock)
}

/// Waits until a stream holds something, or is at its end.
pub(super) async fn readable(source: Option<&Source>) {
    match source {
        Some(source) => source.readable().await,
        None => std::future::pending().await,
    }
}
