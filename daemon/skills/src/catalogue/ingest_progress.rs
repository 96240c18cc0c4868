//! Reports in the log how far a scan is that takes long: the first one reads every file of every skill.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Time between two lines of one scan.
const INTERVAL: Duration = Duration::from_secs(2);

/// Progress of the scan of one root.
#[derive(Debug)]
pub(super) struct IngestProgress {
    total: usize,
    done: AtomicUsize,
    started: Instant,
    /// Number of intervals that passed when the latest line was written.
    reported: AtomicU64,
}

impl IngestProgress {
    /// Begins a scan of `total` folders.
    pub(super) fn new(total: usize) -> Self {
        Self {
            total,
            done: AtomicUsize::new(0),
            started: Instant::now(),
            reported: AtomicU64::new(0),
        }
    }

    /// Counts a folder that was read, and writes a line if one is due, or if it was the last of a long scan.
    pub(super) fn count_folder(&self) {
        let done = self.done.fetch_add(1, Ordering::Relaxed) + 1;
        let is_end = || done == self.total && self.reported.load(Ordering::Relaxed) > 0;
        if self.is_due(self.started.elapsed()) || is_end() {
            tracing::info!(done, total = self.total, "reading skills");
        }
    }

    /// Returns `true` once in each interval after the first one.
    fn is_due(&self, elapsed: Duration) -> bool {
        let passed = elapsed.as_secs() / INTERVAL.as_secs();
        self.reported.fetch_max(passed, Ordering::Relaxed) < passed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_scan_reports_once_in_each_interval() {
        let progress = IngestProgress::new(10_000);
        let due = [0, 1, 2, 3, 4, 5, 5, 9, 9].map(|second| {
            let elapsed = Duration::from_secs(second);
            progress.is_due(elapsed)
        });
        let expected = [false, false, true, false, true, false, false, true, false];
        assert_eq!(due, expected);
    }
}
