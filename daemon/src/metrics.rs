//! Metrics of the daemon, which Prometheus reads; docs/metrics.md lists them.
//!
//! [`Metrics`] owns what is counted and measured while the daemon works; everything that can be read when Prometheus asks
//! is passed to [`Metrics::encode`] then. Labels have few values: names of pools, tenants and methods that the
//! configuration or the program defines, never those of workspaces or principals, and never a text of a client.

use std::fmt;
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{prometheus_text, text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use skilld_proto::code_name;
use tonic::Code;

mod queue_wait;
mod sample_filter;

pub use queue_wait::QueueWaitTimer;
pub use sample_filter::SampleFilter;
use sample_filter::retain_visible;

/// Upper bounds of the buckets of all durations, in seconds: from a call that the daemon answers by itself to a stream
/// that a command keeps open.
const DURATION_BUCKETS: [f64; 16] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 600.0,
];

/// Families of metrics that the daemon changes while it works. All methods may be called from any task.
#[derive(Debug)]
pub struct Metrics {
    calls: Family<Labels<2>, Histogram>,
    claims: Family<Labels<2>, Histogram>,
    queue_waits: Family<Labels<1>, Histogram>,
    execs: Family<Labels<2>, Counter>,
    exec_starts: Histogram,
    authentications: Family<Labels<2>, Counter>,
    quota_refusals: Family<Labels<2>, Counter>,
    spans: Family<Labels<1>, Counter>,
}

/// Text format of a scrape.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetricsFormat {
    /// OpenMetrics 1.0.
    OpenMetrics,
    /// Text format 0.0.4 of Prometheus, for clients that do not ask for OpenMetrics.
    Prometheus,
}

/// Origin of the container that a claim took.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClaimSource {
    /// Warm container of the pool.
    Warm,
    /// Container that the request waited for in the queue.
    Queued,
    /// Container that was booted for the request, because of its limits.
    Booted,
}

/// Fate of a span of a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpanOutcome {
    /// Taken by the collector.
    Exported,
    /// Lost, because the queue was full.
    Dropped,
    /// Lost, because the collector did not take it.
    Failed,
}

/// Names and values of the labels of a sample.
type Labels<const N: usize> = [(&'static str, String); N];

// === impl Metrics ===

impl Default for Metrics {
    fn default() -> Self {
        Self {
            calls: Family::new_with_constructor(duration_histogram),
            claims: Family::new_with_constructor(duration_histogram),
            queue_waits: Family::new_with_constructor(duration_histogram),
            execs: Family::default(),
            exec_starts: duration_histogram(),
            authentications: Family::default(),
            quota_refusals: Family::default(),
            spans: Family::default(),
        }
    }
}

impl Metrics {
    /// Records a call that ended: the duration up to the last byte of its answer. `method` is the full name without a
    /// leading slash, which the daemon defines.
    pub fn observe_call(&self, method: &str, code: Code, duration: Duration) {
        let labels = [
            ("rpc_method", method.to_owned()),
            ("rpc_response_status_code", code_name(code)),
        ];
        let calls = self.calls.get_or_create(&labels);
        calls.observe(duration.as_secs_f64());
    }

    /// Records a claim that succeeded: the duration from the request to the workspace.
    pub fn observe_claim(&self, pool: &str, source: ClaimSource, duration: Duration) {
        let labels = [
            ("pool", pool.to_owned()),
            ("source", source.as_str().to_owned()),
        ];
        let claims = self.claims.get_or_create(&labels);
        claims.observe(duration.as_secs_f64());
    }

    /// Starts to measure how long a request is in the queue of a pool. The wait ends when the timer is dropped.
    pub fn start_queue_wait(&self, pool: &str) -> QueueWaitTimer {
        let labels = [("pool", pool.to_owned())];
        QueueWaitTimer::start(self.queue_waits.get_or_create_owned(&labels))
    }

    /// Counts an exec by the reason of its end.
    pub fn count_exec(&self, pool: &str, reason: &str) {
        let labels = [("pool", pool.to_owned()), ("reason", reason.to_owned())];
        self.execs.get_or_create(&labels).inc();
    }

    /// Records the start of an exec: the duration from the request to the guest's report.
    pub fn observe_exec_start(&self, duration: Duration) {
        self.exec_starts.observe(duration.as_secs_f64());
    }

    /// Counts the decision about the credentials of a call.
    pub fn count_authentication(&self, via: &'static str, result: &'static str) {
        let labels = [("via", via.to_owned()), ("result", result.to_owned())];
        self.authentications.get_or_create(&labels).inc();
    }

    /// Counts a call that a quota of its tenant refused.
    pub fn count_quota_refusal(&self, tenant: &str, resource: &str) {
        let labels = [
            ("tenant", tenant.to_owned()),
            ("resource", resource.to_owned()),
        ];
        self.quota_refusals.get_or_create(&labels).inc();
    }

    /// Counts spans of traces by what became of them.
    pub fn count_spans(&self, outcome: SpanOutcome, count: u64) {
        if count > 0 {
            let labels = [("result", outcome.as_str().to_owned())];
            self.spans.get_or_create(&labels).inc_by(count);
        }
    }

    /// Returns the text of all metrics, together with those of `collector`. Samples that are not visible are left out.
    ///
    /// # Errors
    /// [`fmt::Error`] of the encoder, which a `String` does not cause.
    pub fn encode(
        &self,
        format: MetricsFormat,
        collector: Box<dyn Collector>,
        is_visible: Option<&SampleFilter<'_>>,
    ) -> Result<String, fmt::Error> {
        let registry = self.registry(collector);
        let mut page = String::new();
        match format {
            MetricsFormat::OpenMetrics => text::encode(&mut page, &registry)?,
            MetricsFormat::Prometheus => prometheus_text::encode(&mut page, &registry)?,
        }
        Ok(match is_visible {
            Some(is_visible) => retain_visible(&page, is_visible),
            None => page,
        })
    }

    /// Makes a registry of all families, which share their values with `self`.
    fn registry(&self, collector: Box<dyn Collector>) -> Registry {
        let mut registry = Registry::default();
        registry.register(
            "rpc_server_call_duration_seconds",
            "Duration of calls, up to the last byte of the answer",
            self.calls.clone(),
        );
        registry.register(
            "skilld_claim_duration_seconds",
            "Time from a request for a workspace to the workspace",
            self.claims.clone(),
        );
        registry.register(
            "skilld_queue_wait_seconds",
            "Time that requests were in the queue of a pool, whatever ended it",
            self.queue_waits.clone(),
        );
        registry.register(
            "skilld_execs",
            "Execs by the reason of their end, as far as the daemon sees it",
            self.execs.clone(),
        );
        registry.register(
            "skilld_exec_start_seconds",
            "Time from a request for an exec to its start",
            self.exec_starts.clone(),
        );
        registry.register(
            "skilld_authentications",
            "Decisions about the credentials of calls",
            self.authentications.clone(),
        );
        registry.register(
            "skilld_quota_refused",
            "Calls that a quota of their tenant refused",
            self.quota_refusals.clone(),
        );
        registry.register(
            "skilld_trace_spans",
            "Spans of traces by what became of them",
            self.spans.clone(),
        );
        registry.register_collector(collector);
        registry
    }
}

impl MetricsFormat {
    /// Returns the format for the value of an `Accept` header.
    pub fn for_accept_header(accept: &str) -> Self {
        if accept.contains("application/openmetrics-text") {
            Self::OpenMetrics
        } else {
            Self::Prometheus
        }
    }

    /// Returns the value of the `Content-Type` header.
    pub fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

impl SpanOutcome {
    fn as_str(self) -> &'static str {
        match self {
            Self::Exported => "exported",
            Self::Dropped => "dropped",
            Self::Failed => "failed",
        }
    }
}

impl ClaimSource {
    fn as_str(self) -> &'static str {
        match self {
            Self::Warm => "warm",
            Self::Queued => "queued",
            Self::Booted => "booted",
        }
    }
}

fn duration_histogram() -> Histogram {
    Histogram::new(DURATION_BUCKETS)
}

#[cfg(test)]
pub(crate) mod tests;
