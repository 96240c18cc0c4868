//! Waiting for what tells nobody across processes: looked at again and again, with a deadline.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

/// Between two looks.
const INTERVAL: Duration = Duration::from_millis(10);

/// Looks until there is an answer; `what` is for the message when there is none in time.
///
/// # Errors
/// When `limit` is over, or a look fails.
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
            bail!("waited {limit:?} in vain until {what}");
        }
    }
}
