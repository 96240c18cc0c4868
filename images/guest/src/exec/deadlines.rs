//! Deadlines: those of a running exec, and waits for one.

use std::time::{Duration, Instant};

/// Longer than the life of any exec.
const FAR: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// Deadlines of an exec. `None` means that none is set.
#[derive(Default)]
pub(super) struct ExecDeadlines {
    pub(super) timeout: Option<Instant>,
    pub(super) silence: Option<Instant>,
    /// Time of SIGKILL after SIGTERM.
    pub(super) kill: Option<Instant>,
    /// Time at which the pipes are closed after the leader's exit.
    pub(super) leak: Option<Instant>,
    /// Time at which a killed tree must be gone.
    pub(super) patience: Option<Instant>,
}

impl ExecDeadlines {
    /// Returns the earliest deadline.
    pub(super) fn next(&self) -> Option<Instant> {
        let all = [
            self.timeout,
            self.silence,
            self.kill,
            self.leak,
            self.patience,
        ];
        all.into_iter().flatten().min()
    }
}

/// Returns `from` plus `wait`, or a time far in the future if the clock cannot represent that.
pub(crate) fn deadline_after(from: Instant, wait: Duration) -> Instant {
    from.checked_add(wait).unwrap_or(from + FAR)
}

/// Sleeps until a deadline; forever if it is `None`.
pub(crate) async fn sleep_until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline.into()).await,
        None => std::future::pending().await,
    }
}
