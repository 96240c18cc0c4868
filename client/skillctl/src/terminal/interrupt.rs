//! Ctrl-C, SIGTERM and SIGHUP, noticed wherever the program waits.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Exit code of this program when one of the signals ends it: that of a shell for SIGINT.
pub(crate) const EXIT_CODE: u8 = 130;

/// Signals that end the program. While this value exists they no longer do so by themselves.
#[derive(Debug)]
pub(crate) struct InterruptSignals {
    int: Signal,
    term: Signal,
    /// SIGHUP, which comes when a terminal or a session ends; `None` if it has its default effect, if the program
    /// ignores it, as under `nohup`, or after a signal.
    hangup: Option<Signal>,
    /// Number of signals that came.
    count: u32,
}

/// Error of work that one of the signals interrupted.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("interrupted")]
pub(crate) struct InterruptedError;

/// Returns `true` if the program was started with SIGHUP ignored.
fn is_hangup_ignored() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status
        .lines()
        .find_map(|line| line.strip_prefix("SigIgn:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    // SIGHUP is signal 1, the lowest bit.
    mask.is_some_and(|mask| mask & 1 == 1)
}

impl InterruptSignals {
    pub(crate) fn new() -> io::Result<Self> {
        match is_hangup_ignored() {
            true => Self::without_hangup(),
            false => Self::with_hangup(),
        }
    }

    /// Creates the signals of a program in raw mode, which must restore the terminal in any case.
    pub(crate) fn with_hangup() -> io::Result<Self> {
        Self::with(Some(signal(SignalKind::hangup())?))
    }

    /// Creates the signals of a program that SIGHUP ends by itself, without further work.
    pub(crate) fn without_hangup() -> io::Result<Self> {
        Self::with(None)
    }

    fn with(hangup: Option<Signal>) -> io::Result<Self> {
        Ok(Self {
            int: signal(SignalKind::interrupt())?,
            term: signal(SignalKind::terminate())?,
            hangup,
            count: 0,
        })
    }

    /// Waits for the next signal that ends the program. SIGHUP counts only as the first one: the kernel, the shell and
    /// systemd all send it when a session ends, and a second signal means that the user does not want to wait. Cancel
    /// safe.
    pub(crate) async fn wait(&mut self) {
        tokio::select! {
            _ = self.int.recv() => {}
            _ = self.term.recv() => {}
            Some(()) = async { self.hangup.as_mut()?.recv().await } => {}
        }
        self.hangup = None;
        self.count += 1;
    }

    /// Returns the number of signals that `wait` and `race` have taken.
    pub(crate) fn count(&self) -> u32 {
        self.count
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

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;
    use rustix::process::{Signal, getpid, kill_process};

    use super::*;

    #[tokio::test]
    async fn only_the_first_hangup_counts() {
        let mut signals = InterruptSignals::with_hangup().expect("signals");
        let mut witness = signal(SignalKind::hangup()).expect("a signal");
        kill_process(getpid(), Signal::HUP).expect("sends");
        signals.wait().await;
        witness.recv().await;
        kill_process(getpid(), Signal::HUP).expect("sends");
        witness.recv().await;
        assert!(signals.wait().now_or_never().is_none());
    }
}
