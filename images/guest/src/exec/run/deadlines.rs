//! What a running exec waits for beside its processes: the times at which something is due.

use std::time::Instant;

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

/// Waits until then; without a time for ever.
pub(super) async fn sleep_until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline.into()).await,
        None => std::future::pending().await,
    }
}
