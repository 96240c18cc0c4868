//! Why a pool cannot fill, and when it tries again.

use std::time::{Duration, SystemTime};

use tokio::time::Instant;

use crate::error::{Chain, Error};

/// Wait after a failed boot: the first and the longest.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(30));

/// The last boot failed.
#[derive(Debug, Clone)]
pub(super) struct Problem {
    /// For people.
    pub(super) message: String,
    /// It failed because the engine does not answer.
    pub(super) engine_away: bool,
    /// When that was noticed.
    pub(super) time: SystemTime,
    /// When to try again.
    pub(super) retry_at: Instant,
    wait: Duration,
}

impl Problem {
    /// The problem after another failure: the wait doubles, but boots that failed together are one failure.
    pub(super) fn after(last: Option<&Self>, error: &Error) -> Self {
        let now = Instant::now();
        let wait = match last {
            Some(last) if last.retry_at > now => last.wait,
            Some(last) => (last.wait * 2).min(BACKOFF.1),
            None => BACKOFF.0,
        };
        Self {
            message: Chain(error).to_string(),
            engine_away: matches!(error, Error::EngineUnavailable { .. }),
            time: SystemTime::now(),
            retry_at: now + wait,
            wait,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_wait_doubles_up_to_its_maximum() {
        let error = Error::Draining;
        let mut problem = Problem::after(None, &error);
        let mut waits = vec![];
        for _ in 0..10 {
            waits.push(problem.wait.as_millis());
            tokio::time::advance(problem.wait).await;
            problem = Problem::after(Some(&problem), &error);
        }
        assert_eq!(
            waits,
            [200, 400, 800, 1600, 3200, 6400, 12800, 25600, 30000, 30000]
        );
    }

    #[tokio::test(start_paused = true)]
    async fn boots_that_fail_together_are_one_failure() {
        let error = Error::Draining;
        let first = Problem::after(None, &error);
        tokio::time::advance(Duration::from_millis(199)).await;
        assert_eq!(Problem::after(Some(&first), &error).wait, first.wait);
    }
}
