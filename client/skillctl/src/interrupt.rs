//! Ctrl-C and SIGTERM, and the end of our terminal, noticed wherever the program waits.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Exit code of this program when Ctrl-C ends it.
pub(crate) const EXIT_CODE: u8 = 130;

/// Signals that end the program. While this value exists they no longer do so by themselves.
#[derive(Debug)]
pub(crate) struct InterruptSignals {
    int: Signal,
    term: Signal,
    /// SIGHUP; `None` without a terminal, where `nohup` may have had it ignored.
    hangup: Option<Signal>,
}

/// Error of work that Ctrl-C or SIGTERM interrupted.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("interrupted")]
pub(crate) struct InterruptedError;

impl InterruptSignals {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            int: signal(SignalKind::interrupt())?,
            term: signal(SignalKind::terminate())?,
            hangup: None,
        })
    }

    /// Creates the signals of a program in raw mode, which must restore the terminal in any case.
    pub(crate) fn with_hangup() -> io::Result<Self> {
        Ok(Self {
            hangup: Some(signal(SignalKind::hangup())?),
            ..Self::new()?
        })
    }

    /// Waits for the next signal that ends the program. Cancel safe.
    pub(crate) async fn wait(&mut self) {
        tokio::select! {
            _ = self.int.recv() => {}
            _ = self.term.recv() => {}
            Some(()) = async { self.hangup.as_mut()?.recv().await } => {}
        }
    }

    /// Runs `work` to its end, or drops it when a signal ends the program.
    pub(crate) async fn race<T>(
        &mut self,
        work: impl Future<Output = T>,
    ) -> Result<T, InterruptedError> {
        tokio::select! {
            biased;
            () = self.wait() => Err(InterruptedError),
            done = work => Ok(done),
        }
    }
}
