//! Ctrl-C and SIGTERM, noticed wherever the program waits.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Code of a program that Ctrl-C ended.
pub(crate) const EXIT_CODE: u8 = 130;

/// From its making on these signals no longer end the program by themselves.
#[derive(Debug)]
pub(crate) struct Interrupt {
    int: Signal,
    term: Signal,
}

/// Somebody wants the program to stop.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("interrupted")]
pub(crate) struct Interrupted;

impl Interrupt {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            int: signal(SignalKind::interrupt())?,
            term: signal(SignalKind::terminate())?,
        })
    }

    /// Waits for the next one. Cancel safe.
    pub(crate) async fn wait(&mut self) {
        tokio::select! {
            _ = self.int.recv() => {}
            _ = self.term.recv() => {}
        }
    }

    /// Waits for `work`, or gives it up when the program is to stop.
    pub(crate) async fn race<T>(
        &mut self,
        work: impl Future<Output = T>,
    ) -> Result<T, Interrupted> {
        tokio::select! {
            biased;
            () = self.wait() => Err(Interrupted),
            done = work => Ok(done),
        }
    }
}
