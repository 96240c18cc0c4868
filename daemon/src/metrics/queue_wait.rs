//! Time that one request is in the queue of a pool.

use prometheus_client::metrics::histogram::Histogram;
use tokio::time::Instant;

/// Timer of one wait, which it records when it is dropped: a request may leave the queue with a container, with a
/// refusal, or because its caller went away.
#[derive(Debug)]
pub struct QueueWaitTimer {
    waits: Histogram,
    start: Instant,
}

impl QueueWaitTimer {
    pub(super) fn start(waits: Histogram) -> Self {
        Self {
            waits,
            start: Instant::now(),
        }
    }
}

impl Drop for QueueWaitTimer {
    fn drop(&mut self) {
        self.waits.observe(self.start.elapsed().as_secs_f64());
    }
}
