//! What a running exec waits for beside its processes: the times at which something is due.

use std::time::{Duration, Instant};

/// Longer than any exec lives.
const FAR: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// Unset, it is not due.
#[derive(Default)]
pub(super) struct Deadlines {
    pub(super) timeout: Option<Instant>,
    pub(super) silence: Option<Instant>,
    /// TERM was sent; KILL follows.
    pub(super) kill: Option<Instant>,
    /// The leader is gone; its pipes are given up.
    pub(super) leak: Option<Instant>,
    /// KILL was sent; something is still there.
    pub(super) patience: Option<Instant>,
}

impl Deadlines {
    /// The first of all.
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

/// `wait` after `from`; what lies beyond what a clock can show is far away.
pub(crate) fn after(from: Instant, wait: Duration) -> Instant {
    from.checked_add(wait).unwrap_or(from + FAR)
}

/// Waits until then; without a time for ever.
pub(crate) async fn sleep_until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline.into()).await,
        None => std::future::pending().await,
    }
}
