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
        // Read before the look, so that a process that stood still past its limit looks once more.
        let is_over = started.elapsed() > limit;
        if let Some(found) = look().await? {
            return Ok(found);
        }
        if is_over {
            bail!("gave up after {limit:?}: waited until {what}");
        }
    }
}
