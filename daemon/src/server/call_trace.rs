//! Span of each call: its name, its parent from the W3C context of the client, and its end.

use http::HeaderMap;
use opentelemetry::propagation::{Extractor, TextMapPropagator};
use opentelemetry::trace::{Span as _, SpanKind, Status as SpanOutcome, TraceContextExt, Tracer};
use opentelemetry::{Context, KeyValue};
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::SdkTracer;
use tonic::Code;

use crate::telemetry::trace_span;

/// Maximum length of `tracestate` in bytes; a longer one is ignored. W3C asks for at least this much.
const TRACE_STATE_BYTES_MAX: usize = 512;

/// Maker of the spans of calls.
#[derive(Debug, Clone)]
pub(super) struct CallTracer {
    tracer: SdkTracer,
}

/// Span of a call in progress, which is exported when it ends.
#[derive(Debug)]
pub(super) struct CallSpan(Context);

/// Headers of a call with its W3C context.
struct ContextHeaders<'a>(&'a HeaderMap);

impl CallTracer {
    pub(super) fn new(tracer: SdkTracer) -> Self {
        Self { tracer }
    }

    /// Starts the span of a call of a method, by its full name without a leading slash. Returns `None` if the call is
    /// not sampled.
    pub(super) fn start(&self, method: &str, headers: &HeaderMap) -> Option<CallSpan> {
        let (service, name) = method.split_once('/')?;
        let propagator = TraceContextPropagator::new();
        let parent = propagator.extract_with_context(&Context::new(), &ContextHeaders(headers));
        let span = self
            .tracer
            .span_builder(method.to_owned())
            .with_kind(SpanKind::Server)
            .with_attributes([
                KeyValue::new("rpc.system", "grpc"),
                KeyValue::new("rpc.service", service.to_owned()),
                KeyValue::new("rpc.method", name.to_owned()),
            ])
            .start_with_context(&self.tracer, &parent);
        span.is_recording()
            .then(|| CallSpan(trace_span::call_context(&self.tracer, span)))
    }
}

impl CallSpan {
    /// Returns the context in which the call is handled.
    pub(super) fn context(&self) -> Context {
        self.0.clone()
    }

    /// Ends the span with the status of the call. Its message is not exported.
    pub(super) fn end(&self, code: Code) {
        let span = self.0.span();
        let number = i64::from(i32::from(code));
        span.set_attribute(KeyValue::new("rpc.grpc.status_code", number));
        if is_server_fault(code) {
            span.set_status(SpanOutcome::error(""));
        }
        span.end();
    }
}

/// Returns `true` for the codes that make a server's span failed, by OpenTelemetry's conventions for gRPC. The other
/// codes report a mistake of the client, or an expected result.
fn is_server_fault(code: Code) -> bool {
    matches!(
        code,
        Code::Unknown
            | Code::DeadlineExceeded
            | Code::Unimplemented
            | Code::Internal
            | Code::Unavailable
            | Code::DataLoss
    )
}

impl Extractor for ContextHeaders<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        let text = self.0.get(key)?.to_str().ok()?;
        (key != "tracestate" || text.len() <= TRACE_STATE_BYTES_MAX).then_some(text)
    }

    fn keys(&self) -> Vec<&str> {
        self.0.keys().map(http::HeaderName::as_str).collect()
    }
}
