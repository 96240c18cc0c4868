//! One stream's pipe, as the task that runs the exec reads it.

use std::os::fd::OwnedFd;

use tokio::net::unix::pipe;

use crate::sys::Stage;

/// The guest's end of one of an exec's streams.
pub(super) struct Pipe {
    pub(super) reader: pipe::Receiver,
    /// What is still read of it; unset, everything.
    pub(super) left: Option<u64>,
    pub(super) enlarged: bool,
}

/// Takes the end that `output_pipe` made.
pub(super) fn open(fd: OwnedFd) -> Result<Pipe, Option<(Stage, i32)>> {
    // It is a pipe and does not block: `output_pipe` made it so.
    let reader = pipe::Receiver::from_owned_fd_unchecked(fd);
    let reader = reader.map_err(|error| Some((Stage::Fork, error.raw_os_error().unwrap_or(0))))?;
    Ok(Pipe {
        reader,
        left: None,
        enlarged: false,
    })
}

/// There is nothing to be had now.
pub(super) fn would_block(read: &std::io::Result<usize>) -> bool {
    let error = read.as_ref().err();
    error.is_some_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
}

/// Waits until a pipe holds something, or is at its end.
pub(super) async fn readable(pipe: Option<&Pipe>) {
    match pipe {
        // An error shows itself in the read that follows.
        Some(pipe) => drop(pipe.reader.readable().await),
        None => std::future::pending().await,
    }
}
