//! Export of spans to a collector by OTLP over gRPC.
//!
//! Calls put the spans that end into a bounded queue and never wait: what does not fit is dropped and counted. One task
//! empties the queue. What a collector refuses, or does not take in time, is lost and counted as well.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use opentelemetry::trace::{SpanKind, TracerProvider};
use opentelemetry::{Context, KeyValue};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_client::TraceServiceClient;
use opentelemetry_proto::transform::common::tonic::ResourceAttributesWithSchema;
use opentelemetry_proto::transform::trace::tonic::group_spans_by_resource_and_scope;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{
    Sampler, SdkTracer, SdkTracerProvider, Span, SpanData, SpanProcessor,
};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tonic::metadata::{Ascii, MetadataKey, MetadataMap, MetadataValue};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint};

use crate::access::{Secrecy, read_protected_file, read_protected_text};
use crate::config::{Config, TracesConfig};
use crate::error::{Error, Result};
use crate::metrics::{Metrics, SpanOutcome};
use crate::shutdown::Tasks;
use crate::telemetry::trace_span::PRINCIPAL_ATTRIBUTE;

/// Maximum number of spans in one export: about 512 KiB, an eighth of what collectors accept.
const BATCH_SPANS_MAX: usize = 512;
/// Time that a span waits for others to be exported with.
const EXPORT_DELAY: Duration = Duration::from_secs(1);
/// Time that the daemon waits at its end for the export of the last spans.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);
/// Interval between warnings while the collector takes nothing.
const WARNING_INTERVAL: Duration = Duration::from_secs(60);
/// Maximum number of headers in the file of headers.
const HEADERS_MAX: usize = 32;

/// Running export of spans. Dropping it ends the export without a flush.
#[derive(Debug)]
pub(super) struct TraceExport {
    pub(super) tracer: SdkTracer,
    flush: CancellationToken,
    task: JoinHandle<()>,
}

/// Sender of ended spans, which never waits.
#[derive(Debug)]
struct SpanQueue {
    queue: mpsc::Sender<SpanData>,
    metrics: Arc<Metrics>,
    /// `true` if calls without a principal are not exported, because anyone who reaches a listener can make them.
    needs_principal: bool,
}

/// Task that exports the spans of the queue.
struct SpanExporter {
    queue: mpsc::Receiver<SpanData>,
    flush: CancellationToken,
    client: TraceServiceClient<Channel>,
    headers: MetadataMap,
    resource: ResourceAttributesWithSchema,
    timeout: Duration,
    metrics: Arc<Metrics>,
    health: CollectorHealth,
}

/// Failures of exports in a row, and the warning about them.
#[derive(Debug, Default)]
struct CollectorHealth {
    /// Spans that were lost since the last success.
    lost: u64,
    warned: Option<Instant>,
}

// === impl TraceExport ===

impl TraceExport {
    /// Starts the export; `None` if the configuration names no collector. The collector need not be reachable.
    ///
    /// # Errors
    /// [`Error::Start`] if a file of the configuration can't be used.
    pub(super) fn start(
        config: &Config,
        instance: &str,
        metrics: &Arc<Metrics>,
    ) -> Result<Option<Self>> {
        let needs_principal = config.auth.is_some();
        let traces = &config.traces;
        let Some((channel, headers)) = open_collector(traces)? else {
            return Ok(None);
        };
        // The builder without defaults: those come from variables of the daemon's environment.
        let resource = Resource::builder_empty().with_attributes([
            KeyValue::new("service.name", "skilld"),
            KeyValue::new("service.version", env!("CARGO_PKG_VERSION")),
            KeyValue::new("service.instance.id", instance.to_owned()),
        ]);
        let (sender, receiver) = mpsc::channel(traces.queue_max);
        let flush = CancellationToken::new();
        let exporter = SpanExporter {
            queue: receiver,
            flush: flush.clone(),
            client: TraceServiceClient::new(channel),
            headers,
            resource: (&resource.build()).into(),
            timeout: traces.timeout,
            metrics: Arc::clone(metrics),
            health: CollectorHealth::default(),
        };
        let ratio = Sampler::TraceIdRatioBased(traces.sample_ratio);
        let provider = SdkTracerProvider::builder()
            .with_sampler(Sampler::ParentBased(Box::new(ratio)))
            .with_span_processor(SpanQueue {
                queue: sender,
                metrics: Arc::clone(metrics),
                needs_principal,
            })
            .build();
        Ok(Some(Self {
            tracer: provider.tracer("skilld"),
            flush,
            // The task has a tracker of its own: it outlives the tasks whose spans it exports.
            task: Tasks::default().spawn(exporter.run()),
        }))
    }

    /// Checks that [`Self::start`] would succeed, and connects to nothing. Blocks.
    ///
    /// # Errors
    /// Those of [`Self::start`].
    pub(super) fn check(config: &TracesConfig) -> Result<()> {
        open_collector(config).map(drop)
    }

    /// Exports the spans that wait, and ends the export. Gives up after a while.
    pub(super) async fn close(self) {
        self.flush.cancel();
        let abort = self.task.abort_handle();
        if tokio::time::timeout(FLUSH_TIMEOUT, self.task)
            .await
            .is_err()
        {
            abort.abort();
            tracing::warn!("the last traces were not exported in time");
        }
    }
}

// === impl SpanQueue ===

impl SpanProcessor for SpanQueue {
    fn on_start(&self, _span: &mut Span, _context: &Context) {}

    fn on_end(&self, span: SpanData) {
        if self.needs_principal && is_call_without_principal(&span) {
            return;
        }
        if self.queue.try_send(span).is_err() {
            self.metrics.count_spans(SpanOutcome::Dropped, 1);
        }
    }

    fn force_flush(&self) -> OTelSdkResult {
        Ok(())
    }

    fn shutdown_with_timeout(&self, _timeout: Duration) -> OTelSdkResult {
        Ok(())
    }
}

/// Returns `true` for the span of a call that no authenticator accepted.
fn is_call_without_principal(span: &SpanData) -> bool {
    let is_principal = |attribute: &KeyValue| attribute.key.as_str() == PRINCIPAL_ATTRIBUTE;
    span.span_kind == SpanKind::Server && !span.attributes.iter().any(is_principal)
}

// === impl SpanExporter ===

impl SpanExporter {
    /// Exports spans until the flush, and then those that are left.
    async fn run(mut self) {
        let mut batch = Vec::new();
        let mut due = Instant::now();
        loop {
            let room = BATCH_SPANS_MAX - batch.len();
            let was_empty = batch.is_empty();
            let is_over = tokio::select! {
                () = self.flush.cancelled(), if !self.queue.is_closed() => {
                    self.queue.close();
                    false
                }
                count = self.queue.recv_many(&mut batch, room) => count == 0,
                () = tokio::time::sleep_until(due), if !was_empty => false,
            };
            if was_empty {
                due = Instant::now() + EXPORT_DELAY;
            }
            let is_due = batch.len() == BATCH_SPANS_MAX || is_over || due <= Instant::now();
            if is_due && !batch.is_empty() {
                self.export(std::mem::take(&mut batch)).await;
            }
            if is_over {
                return;
            }
        }
    }

    async fn export(&mut self, batch: Vec<SpanData>) {
        let count = u64::try_from(batch.len()).unwrap_or(u64::MAX);
        let resource_spans = group_spans_by_resource_and_scope(batch, &self.resource);
        let mut request = tonic::Request::new(ExportTraceServiceRequest { resource_spans });
        *request.metadata_mut() = self.headers.clone();
        request.set_timeout(self.timeout);
        let sent = tokio::time::timeout(self.timeout, self.client.export(request)).await;
        let (rejected, why) = match sent {
            Ok(Ok(answer)) => {
                let partial = answer.into_inner().partial_success;
                let rejected = partial.map_or(0, |partial| partial.rejected_spans);
                let rejected = u64::try_from(rejected).unwrap_or_default().min(count);
                (rejected, "the collector rejected spans".to_owned())
            }
            // A collector's message may repeat a header, so the log has the code and the local cause only.
            Ok(Err(status)) => (count, describe_status(&status)),
            Err(_) => (count, "the collector did not answer in time".to_owned()),
        };
        self.metrics
            .count_spans(SpanOutcome::Exported, count - rejected);
        self.metrics.count_spans(SpanOutcome::Failed, rejected);
        self.health.observe(rejected, &why, Instant::now());
    }
}

fn describe_status(status: &tonic::Status) -> String {
    let mut text = format!("{:?}", status.code());
    let mut cause = std::error::Error::source(status);
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}

// === impl CollectorHealth ===

impl CollectorHealth {
    /// Records an export that lost a number of spans, and logs a change, or a lasting failure once in a while.
    fn observe(&mut self, lost: u64, why: &str, now: Instant) {
        if lost == 0 {
            if self.warned.take().is_some() {
                tracing::info!(lost = self.lost, "traces are exported again");
            }
            self.lost = 0;
            return;
        }
        self.lost += lost;
        let is_new = self
            .warned
            .is_none_or(|warned| now.duration_since(warned) >= WARNING_INTERVAL);
        if is_new {
            tracing::warn!(lost = self.lost, why, "traces can't be exported");
            self.warned = Some(now);
        }
    }
}

/// Returns the channel to the collector and the headers of exports; `None` if the configuration names no collector.
fn open_collector(config: &TracesConfig) -> Result<Option<(Channel, MetadataMap)>> {
    let Some(endpoint) = &config.endpoint else {
        return Ok(None);
    };
    let faulty = |why: String| Error::start("the export of traces", why);
    let channel = connect_lazily(config, endpoint.as_str()).map_err(faulty)?;
    let headers = match &config.headers_file {
        Some(path) => read_headers(path).map_err(faulty)?,
        None => MetadataMap::new(),
    };
    Ok(Some((channel, headers)))
}

/// Makes a channel that connects when it is used, and again after each failure.
fn connect_lazily(config: &TracesConfig, endpoint: &str) -> std::result::Result<Channel, String> {
    let fault = |error: tonic::transport::Error| format!("traces.endpoint: {error}");
    let mut channel = Endpoint::from_shared(endpoint.to_owned())
        .map_err(fault)?
        .connect_timeout(config.timeout)
        .user_agent(concat!("skilld/", env!("CARGO_PKG_VERSION")))
        .map_err(fault)?;
    if config.uses_tls() {
        let tls = ClientTlsConfig::new();
        let tls = match &config.ca_file {
            Some(path) => {
                let pem = read_protected_file(path, Secrecy::Public)
                    .map_err(|why| format!("traces.ca_file: {why}"))?;
                tls.ca_certificate(Certificate::from_pem(pem))
            }
            None => tls.with_native_roots(),
        };
        channel = channel.tls_config(tls).map_err(fault)?;
    }
    Ok(channel.connect_lazy())
}

/// Reads the headers of exports. A message names lines by their number and never shows one.
fn read_headers(path: &Path) -> std::result::Result<MetadataMap, String> {
    let text = read_protected_text(path, Secrecy::Secret)
        .map_err(|why| format!("traces.headers_file: {why}"))?;
    let mut headers = MetadataMap::new();
    for (index, line) in text.lines().map(str::trim).enumerate() {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let parsed = line.split_once(':').and_then(|(name, value)| {
            let name: MetadataKey<Ascii> = name.trim().to_ascii_lowercase().parse().ok()?;
            let mut value: MetadataValue<Ascii> = value.trim().parse().ok()?;
            value.set_sensitive(true);
            Some((name, value))
        });
        let Some((name, value)) = parsed.filter(|_| headers.len() < HEADERS_MAX) else {
            return Err(format!(
                "traces.headers_file: line {} of {} is not \"NAME: VALUE\", or is over the {HEADERS_MAX} that are permitted",
                index + 1,
                path.display()
            ));
        };
        headers.insert(name, value);
    }
    Ok(headers)
}

#[cfg(test)]
mod tests;
