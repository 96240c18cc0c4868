//! Limits how many lines each place in the code may log, and counts those that are left out. A client, or a command in a
//! workspace, can repeat what causes a line as often as it likes.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tracing::callsite::Identifier;
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

use crate::error::INTERNAL_TARGET;

/// Time over which lines are counted, and after which the number of those that were left out is logged.
pub const LOG_INTERVAL: Duration = Duration::from_secs(10);
/// Factor of `log_lines_max` for INTERNAL errors. All of them have one place in the code, and a caller is told to look its
/// own one up: with the default a thousand a second are logged.
const INTERNAL_FACTOR: u64 = 50;
/// Target of the lines that say how many were left out; these are not limited.
const REPORT_TARGET: &str = "skilld::telemetry::left_out";

/// Layer that limits lines. Clones share their counts.
#[derive(Debug, Clone)]
pub struct LineLimit {
    lines_max: u64,
    places: Arc<Mutex<HashMap<Identifier, LineCount>>>,
}

/// Lines of one place in the code.
#[derive(Debug)]
struct LineCount {
    metadata: &'static Metadata<'static>,
    interval_start: Instant,
    /// In this interval.
    lines: u64,
    /// Since the last report.
    left_out: u64,
}

impl LineLimit {
    pub(super) fn new(lines_max: u64) -> Self {
        Self {
            lines_max,
            places: Arc::default(),
        }
    }

    /// Logs every [`LOG_INTERVAL`] how many lines were left out. Never returns.
    pub async fn report_for_ever(self) {
        loop {
            tokio::time::sleep(LOG_INTERVAL).await;
            self.report();
        }
    }

    /// Logs how many lines were left out since the last report, for each place in the code.
    pub fn report(&self) {
        // Logged only after the lock is free: each line asks this limit.
        for (metadata, left_out) in self.take_left_out() {
            tracing::warn!(
                target: REPORT_TARGET,
                left_out,
                place = %format_args!("{}:{}", metadata.file().unwrap_or_default(), metadata.line().unwrap_or_default()),
                of = metadata.target(),
                "more lines of one kind than log_lines_max"
            );
        }
    }

    fn take_left_out(&self) -> Vec<(&'static Metadata<'static>, u64)> {
        let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        let counts = places.values_mut().filter(|count| count.left_out > 0);
        counts
            .map(|count| (count.metadata, std::mem::take(&mut count.left_out)))
            .collect()
    }

    /// Returns how many lines this place in the code may log in an interval.
    fn lines_max_of(&self, metadata: &Metadata<'_>) -> u64 {
        if metadata.target() == INTERNAL_TARGET {
            self.lines_max.saturating_mul(INTERNAL_FACTOR)
        } else {
            self.lines_max
        }
    }

    /// Counts a line, and returns `true` if it may be written.
    fn admit(&self, metadata: &'static Metadata<'static>, now: Instant) -> bool {
        // An operator who asks for these wants them all.
        let is_asked_for =
            *metadata.level() > Level::INFO && metadata.target().starts_with("skilld");
        if is_asked_for || metadata.target() == REPORT_TARGET {
            return true;
        }
        let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        let count = match places.entry(metadata.callsite()) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => entry.insert(LineCount {
                metadata,
                interval_start: now,
                lines: 0,
                left_out: 0,
            }),
        };
        if now.duration_since(count.interval_start) >= LOG_INTERVAL {
            count.interval_start = now;
            count.lines = 0;
        }
        count.lines += 1;
        let is_admitted = count.lines <= self.lines_max_of(metadata);
        count.left_out += u64::from(!is_admitted);
        is_admitted
    }
}

impl<S: Subscriber> Layer<S> for LineLimit {
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
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn each_place_logs_as_much_as_it_may_and_the_rest_is_counted() {
        let lines = Lines::default();
        let written = lines.clone();
        let limit = LineLimit::new(20);
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(Level::DEBUG)
            .with_ansi(false)
            .with_writer(move || written.clone())
            .finish()
            .with(limit.clone());
        tracing::subscriber::with_default(subscriber, || {
            for number in 0..1000 {
                tracing::warn!(number, "repeated");
                tracing::debug!(number, "asked for");
                tracing::debug!(target: "h2::server", number, "of a library");
            }
            tracing::info!("another place");
            limit.report();
            limit.report();
        });
        let text = String::from_utf8(lines.0.lock().expect("lock").clone()).expect("UTF-8");
        let count = |part: &str| text.lines().filter(|line| line.contains(part)).count();
        assert_eq!(count(": repeated number="), 20);
        assert_eq!(count("of a library"), 20);
        assert_eq!(count("asked for"), 1000);
        assert_eq!(count("another place"), 1);
        // Two places left lines out, and each says so once.
        assert_eq!(count("left_out=980"), 2, "{text}");
        assert_eq!(count("limit.rs:"), 2);
    }

    #[test]
    fn every_request_id_that_a_caller_is_told_is_in_the_log() {
        let lines = Lines::default();
        let written = lines.clone();
        let limit = LineLimit::new(20);
        let subscriber = tracing_subscriber::fmt()
            .with_ansi(false)
            .with_writer(move || written.clone())
            .finish()
            .with(limit.clone());
        let fail = || {
            let status = tonic::Status::from(Error::Internal("a defect".into()));
            let details = status.get_error_details();
            let info = details.error_info().expect("ErrorInfo");
            info.metadata.get("request_id").expect("an id").clone()
        };
        let ids: Vec<String> = tracing::subscriber::with_default(subscriber, || {
            let ids = (0..1000).map(|_| fail()).collect();
            fail();
            limit.report();
            ids
        });
        let text = String::from_utf8(lines.0.lock().expect("lock").clone()).expect("UTF-8");
        for id in ids {
            assert!(text.contains(&id), "{id}");
        }
        assert!(text.contains("left_out=1 "), "it has a limit all the same");
    }

    #[test]
    fn a_place_may_log_again_in_the_next_interval() {
        let limit = LineLimit::new(2);
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
            limit.take_left_out().first().map(|(_, left_out)| *left_out),
            Some(2)
        );
        assert!(limit.take_left_out().is_empty());
    }
}
