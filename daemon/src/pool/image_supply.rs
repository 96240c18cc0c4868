//! Supply of the image of a pool that was started without it. A task for each such pool looks for the image until
//! an operator has made it, or pulls it, and ends when the pool has it.
//!
//! | problem of the pool | severity | meaning |
//! |---|---|---|
//! | `pool.image_missing` | warning | the operator has to make or pull the image |
//! | `pool.image_pulling` | warning | the daemon pulls it; the message has the progress |
//! | `pool.image_pull_failed` | error | the registry or the engine refused; the daemon tries again |
//! | `pool.image_unusable` | error | containers can't be made from it |

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytesize::ByteSize;
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior};

use super::Pool;
use super::backoff::next_wait;
use crate::config::PullPolicy;
use crate::engine::image_reference::ImageReference;
use crate::engine::{Engine, ImageInfo, PullProgress};
use crate::error::{Chain, DaemonProblem, Error, Result};

/// Pause between two looks for an image that an operator has to make. A look is one request to the engine.
const LOOK_INTERVAL: Duration = Duration::from_secs(10);
/// Wait after the first failed pull.
const PULL_WAIT_MIN: Duration = Duration::from_secs(5);
/// Longest wait between two pulls.
const PULL_WAIT_MAX: Duration = Duration::from_secs(300);
/// Interval between updates of a pull's problem.
const REPORT_INTERVAL: Duration = Duration::from_secs(1);
/// Number of updates of a pull's problem for each line of the log.
const REPORTS_PER_LOG_LINE: u32 = 10;

/// Supply of one pool's image.
#[derive(Debug)]
struct ImageSupply {
    engine: Arc<dyn Engine>,
    pool: Arc<Pool>,
    /// Problem that was reported last.
    reported: Option<DaemonProblem>,
    /// Wait after the last failed pull; `None` before the first.
    pull_wait: Option<Duration>,
}

/// Looks for the image of a pool, or pulls it, until the pool has it.
pub async fn supply_image(engine: Arc<dyn Engine>, pool: Arc<Pool>) {
    let mut supply = ImageSupply {
        engine,
        pool,
        reported: None,
        pull_wait: None,
    };
    loop {
        let wait = match supply.look_or_pull().await {
            Ok(image) => {
                supply.provide(image).await;
                return;
            }
            Err(wait) => wait,
        };
        tokio::time::sleep(wait).await;
    }
}

impl ImageSupply {
    /// Returns the image, or the wait before the next attempt.
    async fn look_or_pull(&mut self) -> Result<ImageInfo, Duration> {
        let (name, pull) = (self.pool.config.image.clone(), self.pool.config.pull);
        let error = match self.engine.check_image(&name).await {
            Ok(image) => return Ok(image),
            Err(error) => error,
        };
        let is_missing = matches!(error, Error::ImageMissing { .. });
        if is_missing && pull == PullPolicy::Missing {
            return match self.pull(&name).await {
                Ok(image) => Ok(image),
                Err(error) => Err(self.on_pull_failed(&name, &error).await),
            };
        }
        if is_missing {
            self.report("pool.image_missing", false, error.to_string())
                .await;
        } else if matches!(error, Error::Image { .. }) {
            self.report("pool.image_unusable", true, error.to_string())
                .await;
        } else {
            // The engine is away: what is known about the image stays.
            tracing::debug!(image = name, error = %Chain(&error), "image was not looked for");
        }
        Err(LOOK_INTERVAL)
    }

    async fn pull(&mut self, name: &str) -> Result<ImageInfo> {
        let reference =
            ImageReference::parse(name).map_err(|why| Error::image(name, format!("it {why}")))?;
        let (pool, started) = (self.pool.config.name.clone(), Instant::now());
        tracing::info!(pool, image = name, "pulling an image");
        let (progress, watched) = watch::channel(PullProgress::default());
        let engine = Arc::clone(&self.engine);
        let mut pulling = std::pin::pin!(engine.pull_image(&reference, &progress));
        let mut tick = tokio::time::interval(REPORT_INTERVAL);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut reports: u32 = 0;
        loop {
            tokio::select! {
                pulled = &mut pulling => break pulled?,
                _ = tick.tick() => {
                    let text = describe_progress(*watched.borrow());
                    if reports > 0 && reports.is_multiple_of(REPORTS_PER_LOG_LINE) {
                        tracing::info!(pool, image = name, progress = text, "pulling an image");
                    }
                    reports += 1;
                    let message = format!("image {name} is being pulled ({text}); the pool serves once it is there");
                    self.report("pool.image_pulling", false, message).await;
                }
            }
        }
        let image = self.engine.check_image(name).await?;
        let digest = image.digests().next().unwrap_or(&image.id);
        tracing::info!(
            pool,
            image = name,
            digest,
            bytes = watched.borrow().bytes,
            seconds = started.elapsed().as_secs(),
            "pulled an image"
        );
        Ok(image)
    }

    /// Reports a failed pull. Returns the wait before the next one.
    async fn on_pull_failed(&mut self, name: &str, error: &Error) -> Duration {
        let wait = next_wait(self.pull_wait, PULL_WAIT_MIN, PULL_WAIT_MAX);
        self.pull_wait = Some(wait);
        let why = Chain(error).to_string();
        tracing::warn!(
            pool = self.pool.config.name, image = name, error = why, retry_in = ?wait,
            "image was not pulled"
        );
        let message = format!(
            "image {name} was not pulled: {why}; check its name and `docker login`, or run `docker pull {name}` \
             yourself (`podman login` and `podman pull` with Podman); skilld tries again after {wait:?}"
        );
        self.report("pool.image_pull_failed", true, message).await;
        wait
    }

    /// Reports why the image is absent, and logs a problem of another kind than the one before.
    async fn report(&mut self, code: &'static str, is_error: bool, message: String) {
        let known = self.reported.as_ref().filter(|known| known.code == code);
        let time = known.map_or_else(SystemTime::now, |known| known.time);
        if known.is_none() && code != "pool.image_pulling" && code != "pool.image_pull_failed" {
            tracing::warn!(pool = self.pool.config.name, code, "{message}");
        }
        let problem = DaemonProblem {
            code,
            is_error,
            subject: format!("pools/{}", self.pool.config.name),
            message,
            time,
        };
        self.reported = Some(problem.clone());
        self.pool.report_absent_image(problem).await;
    }

    async fn provide(&self, image: ImageInfo) {
        tracing::info!(
            pool = self.pool.config.name,
            image = image.reference,
            image_id = image.id,
            "the pool has its image"
        );
        self.pool.provide_image(image).await;
    }
}

/// Returns the progress of a pull for people.
fn describe_progress(progress: PullProgress) -> String {
    let PullProgress { bytes, bytes_total } = progress;
    let percent = bytes.saturating_mul(100).checked_div(bytes_total);
    match percent {
        None => "nothing downloaded yet".to_owned(),
        Some(percent) => format!(
            "{percent} %, {} of {}",
            ByteSize::b(bytes),
            ByteSize::b(bytes_total)
        ),
    }
}

#[cfg(test)]
mod tests;
