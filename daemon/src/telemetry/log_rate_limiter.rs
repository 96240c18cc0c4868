//! Limits the number of lines that each log statement may write, and counts the suppressed lines. Without a limit, a
//! client or a command in a workspace could fill the log by repeating an action.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tracing::callsite::Identifier;
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

use crate::error::INTERNAL_TARGET;

/// Interval over which lines are counted, and after which the number of suppressed lines is logged.
pub const LOG_INTERVAL: Duration = Duration::from_secs(10);
/// Maximum number of lines that one log statement writes within an interval, so that neither a client nor a command can
/// fill the log.
pub(super) const LINES_MAX: u64 = 200;
/// Factor of [`LINES_MAX`] for INTERNAL errors. One log statement writes all of them, and operators look them up by
/// request id. So 1,000 lines per second are logged.
const INTERNAL_ERROR_FACTOR: u64 = 50;
/// Log target of the lines that report suppressed lines. These lines are not limited.
const REPORT_TARGET: &str = "skilld::telemetry::left_out";

/// Tracing layer that limits the lines of each log statement. Clones share their counts.
#[derive(Debug, Clone)]
pub struct LogRateLimiter {
    /// Maximum number of lines per log statement and interval.
    lines_max: u64,
    counts_by_callsite: Arc<Mutex<HashMap<Identifier, LineCount>>>,
}

/// Count of logged and suppressed lines of one log statement.
#[derive(Debug)]
struct LineCount {
    metadata: &'static Metadata<'static>,
    interval_start: Instant,
    /// Number of logged lines in the current interval.
    lines: u64,
    /// Number of suppressed lines since the last report.
    suppressed: u64,
}

impl LogRateLimiter {
    pub(super) fn new(lines_max: u64) -> Self {
        Self {
            lines_max,
            counts_by_callsite: Arc::default(),
        }
    }

    /// Logs the number of suppressed lines every [`LOG_INTERVAL`]. Never returns.
    pub async fn report_periodically(self) {
        loop {
            tokio::time::sleep(LOG_INTERVAL).await;
            self.report();
        }
    }

    /// Logs the number of suppressed lines since the last report, for each log statement.
    pub fn report(&self) {
        // Release the lock first: each logged line enters this layer.
        for (metadata, suppressed) in self.take_suppressed() {
            tracing::warn!(
                target: REPORT_TARGET,
                left_out = suppressed,
                place = %format_args!("{}:{}", metadata.file().unwrap_or_default(), metadata.line().unwrap_or_default()),
                of = metadata.target(),
                "more lines of one kind than are logged"
            );
        }
    }

    fn take_suppressed(&self) -> Vec<(&'static Metadata<'static>, u64)> {
        let mut counts_by_callsite = self.counts_by_callsite.lock();
        let counts = counts_by_callsite
            .values_mut()
            .filter(|count| count.suppressed > 0);
        counts
            .map(|count| (count.metadata, std::mem::take(&mut count.suppressed)))
            .collect()
    }

    /// Returns the number of lines that a log statement may write in one interval.
    fn lines_max_for(&self, metadata: &Metadata<'_>) -> u64 {
        if metadata.target() == INTERNAL_TARGET {
            self.lines_max.saturating_mul(INTERNAL_ERROR_FACTOR)
        } else {
            self.lines_max
        }
    }

    /// Counts a log line and returns `true` if it may be written.
    fn admit(&self, metadata: &'static Metadata<'static>, now: Instant) -> bool {
        // An operator who enables debug lines of skilld needs all of them.
        let is_requested_debug =
            *metadata.level() > Level::INFO && metadata.target().starts_with("skilld");
        if is_requested_debug || metadata.target() == REPORT_TARGET {
            return true;
        }
        let mut counts_by_callsite = self.counts_by_callsite.lock();
        let count = match counts_by_callsite.entry(metadata.callsite()) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => entry.insert(LineCount {
                metadata,
                interval_start: now,
                lines: 0,
                suppressed: 0,
            }),
        };
        if now.duration_since(count.interval_start) >= LOG_INTERVAL {
            count.interval_start = now;
            count.lines = 0;
        }
        count.lines += 1;
        let is_admitted = count.lines <= self.lines_max_for(metadata);
        count.suppressed += u64::from(!is_admitted);
        is_admitted
    }
}

impl<S: Subscriber> Layer<S> for LogRateLimiter {
    fn event_enabled(&self, event: &Event<'_>, _context: Context<'_, S>) -> bool {
        self.admit(event.metadata(), Instant::now())
    }
}

#[cfg(test)]
mod tests {
    use std::io::{self, Write};

    use tonic_types::StatusExt;
    use tracing_subscriber::layer::SubscriberExt;

    use super::*;
    use crate::error::Error;

    #[derive(Debug, Clone, Default)]
    struct SharedBuffer(Arc<Mutex<Vec<u8>>>);

    impl Write for SharedBuffer {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Returns the result of `work`, and what it logs with 20 lines per interval. Work that took too long is done again
    /// with another limiter, since a limit starts anew in the next interval.
    fn log_in_one_interval<T>(work: impl Fn(&LogRateLimiter) -> T) -> (T, String) {
        for _ in 0..5 {
            let lines = SharedBuffer::default();
            let written = lines.clone();
            let limit = LogRateLimiter::new(20);
            let subscriber = tracing_subscriber::fmt()
                .with_max_level(Level::DEBUG)
                .with_ansi(false)
                .with_writer(move || written.clone())
                .finish()
                .with(limit.clone());
            let start = Instant::now();
            let result = tracing::subscriber::with_default(subscriber, || work(&limit));
            if start.elapsed() < LOG_INTERVAL {
                let text = lines.0.lock().clone();
                return (result, String::from_utf8(text).expect("UTF-8"));
            }
        }
        panic!("the work took longer than {LOG_INTERVAL:?} each time");
    }

    #[test]
    fn log_statements_have_own_limits_and_count_suppressed_lines() {
        let ((), text) = log_in_one_interval(|limit| {
            for number in 0..1000 {
                tracing::warn!(number, "repeated");
                tracing::debug!(number, "asked for");
                tracing::debug!(target: "h2::server", number, "of a library");
            }
            tracing::info!("another place");
            limit.report();
            limit.report();
        });
        let count = |part: &str| text.lines().filter(|line| line.contains(part)).count();
        assert_eq!(count(": repeated number="), 20);
        assert_eq!(count("of a library"), 20);
        assert_eq!(count("asked for"), 1000);
        assert_eq!(count("another place"), 1);
        // Two log statements suppressed lines, and each is reported once.
        assert_eq!(count("left_out=980"), 2, "{text}");
        assert_eq!(count("log_rate_limiter.rs:"), 2);
    }

    #[test]
    fn every_request_id_of_an_internal_error_is_logged() {
        let fail = || {
            let status = tonic::Status::from(Error::Internal("a defect".into()));
            let details = status.get_error_details();
            let info = details.error_info().expect("ErrorInfo");
            info.metadata.get("request_id").expect("an id").clone()
        };
        let (ids, text) = log_in_one_interval(|limit| {
            let ids: Vec<String> = (0..1000).map(|_| fail()).collect();
            fail();
            limit.report();
            ids
        });
        for id in ids {
            assert!(text.contains(&id), "{id}");
        }
        assert!(
            text.contains("left_out=1 "),
            "INTERNAL errors have a limit, too"
        );
    }

    #[test]
    fn limit_starts_anew_in_the_next_interval() {
        let limit = LogRateLimiter::new(2);
        let place = tracing::callsite!(name: "place", kind: tracing::metadata::Kind::EVENT, target: "t", level: Level::WARN, fields:);
        let metadata = tracing::Callsite::metadata(place);
        let start = Instant::now();
        let admitted = |after| limit.admit(metadata, start + after);
        let late = LOG_INTERVAL - Duration::from_millis(1);
        assert_eq!(
            [admitted(Duration::ZERO), admitted(late), admitted(late)],
            [true, true, false]
        );
        assert_eq!([0; 3].map(|_| admitted(LOG_INTERVAL)), [true, true, false]);
        assert_eq!(
            limit
                .take_suppressed()
                .first()
                .map(|(_, suppressed)| *suppressed),
            Some(2)
        );
        assert!(limit.take_suppressed().is_empty());
    }
}
