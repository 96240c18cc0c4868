//! Back-off after a failed boot, and after a failed pull of an image.

use std::time::{Duration, SystemTime};

use tokio::time::Instant;

use crate::error::{Chain, DaemonProblem, Error};

/// Wait after the first failed boot.
const BACKOFF_MIN: Duration = Duration::from_millis(200);
/// Longest wait between two boots of a pool whose boots fail.
const BACKOFF_MAX: Duration = Duration::from_secs(30);

/// Failure of a pool's last boot, and the time of its next one.
#[derive(Debug, Clone)]
pub(super) struct BootFailure {
    /// Message for operators.
    pub(super) message: String,
    /// The boot failed because the engine does not answer.
    pub(super) is_engine_away: bool,
    /// Time of the failure.
    pub(super) time: SystemTime,
    /// Earliest time of the next boot.
    pub(super) retry_at: Instant,
    wait: Duration,
}

impl BootFailure {
    /// Returns the failure that follows `last`. The wait doubles; boots that fail during a wait do not double it again.
    pub(super) fn after(last: Option<&Self>, error: &Error) -> Self {
        let now = Instant::now();
        let wait = match last {
            Some(last) if last.retry_at > now => last.wait,
            last => next_wait(last.map(|last| last.wait), BACKOFF_MIN, BACKOFF_MAX),
        };
        Self {
            message: Chain(error).to_string(),
            is_engine_away: matches!(error, Error::EngineUnavailable { .. }),
            time: SystemTime::now(),
            retry_at: now + wait,
            wait,
        }
    }

    /// Returns the problem of a pool for operators.
    pub(super) fn problem(&self, pool: &str) -> DaemonProblem {
        DaemonProblem {
            code: "pool.boot_failed",
            is_error: true,
            subject: format!("pools/{pool}"),
            message: self.message.clone(),
            time: self.time,
        }
    }
}

/// Returns the wait after `last`: twice as long, from `min` up to `max`.
pub(super) fn next_wait(last: Option<Duration>, min: Duration, max: Duration) -> Duration {
    last.map_or(min, |last| last.saturating_mul(2)).min(max)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn wait_after_failed_boots_doubles_up_to_its_maximum() {
        let error = Error::Draining;
        let mut failure = BootFailure::after(None, &error);
        let mut waits = vec![];
        for _ in 0..10 {
            waits.push(failure.wait.as_millis());
            tokio::time::advance(failure.wait).await;
            failure = BootFailure::after(Some(&failure), &error);
        }
        assert_eq!(
            waits,
            [200, 400, 800, 1600, 3200, 6400, 12800, 25600, 30000, 30000]
        );
    }

    #[tokio::test(start_paused = true)]
    async fn boots_that_fail_together_count_as_one_failure() {
        let error = Error::Draining;
        let first = BootFailure::after(None, &error);
        tokio::time::advance(Duration::from_millis(199)).await;
        assert_eq!(BootFailure::after(Some(&first), &error).wait, first.wait);
    }
}
