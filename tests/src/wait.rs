//! Polling with a deadline, for changes of which no event across processes exists.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

/// Time between two polls.
const INTERVAL: Duration = Duration::from_millis(10);

/// Polls until there is a value; `what` names it in the error if there is none in time.
///
/// # Errors
/// When `limit` is over, or a poll fails.
pub async fn until<T>(
    what: &str,
    limit: Duration,
    mut look: impl AsyncFnMut() -> Result<Option<T>>,
) -> Result<T> {
    let started = Instant::now();
    let mut tick = tokio::time::interval(INTERVAL);
    loop {
        tick.tick().await;
        if let Some(found) = look().await? {
            return Ok(found);
        }
        if started.elapsed() > limit {
            bail!("gave up after {limit:?}: waited until {what}");
        }
    }
}
