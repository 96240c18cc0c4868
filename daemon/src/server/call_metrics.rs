//! Tower layer that measures every gRPC call, also those that the call layer refuses. It measures the duration up to
//! the last byte of the answer, the status, and which quota refused the call. It also starts and ends the span of a
//! call that is traced. It changes nothing.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures::future::BoxFuture;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body::{Frame, SizeHint};
use opentelemetry::trace::FutureExt as _;
use tokio::time::Instant;
use tonic::body::Body;
use tonic::{Code, Status};
use tonic_types::StatusExt as _;
use tower::{Layer, Service};

use super::call_trace::{CallSpan, CallTracer};
use super::methods::MethodTable;
use super::trace_export::TraceExport;
use crate::metrics::Metrics;

/// Label of methods that the daemon does not have, as OpenTelemetry's conventions say.
const OTHER_METHOD: &str = "_OTHER";

/// Layer that measures calls.
#[derive(Debug, Clone)]
pub(super) struct CallMetricsLayer {
    methods: Arc<MethodTable>,
    metrics: Arc<Metrics>,
    /// `None` if no spans are exported.
    tracer: Option<CallTracer>,
}

/// Service that the layer has wrapped.
#[derive(Debug, Clone)]
pub(super) struct CallMetricsService<S> {
    inner: S,
    layer: CallMetricsLayer,
}

/// Call in progress, which is recorded when it is dropped.
#[derive(Debug)]
struct CallMeasurement {
    metrics: Arc<Metrics>,
    method: String,
    start: Instant,
    /// Status of the call; `None` if the client went away before it.
    code: Option<Code>,
    /// `true` for an answer that is not gRPC, which has no status.
    is_foreign: bool,
    /// Span of the call; `None` if it is not traced.
    span: Option<CallSpan>,
}

/// Response body that ends its call's measurement. All fields are `Unpin`, so no pin projection is needed.
#[derive(Debug)]
struct MeasuredBody {
    inner: Body,
    call: CallMeasurement,
}

// === impl CallMetricsLayer ===

impl CallMetricsLayer {
    /// Makes the layer, which also traces calls if spans are exported.
    pub(super) fn new(
        methods: &Arc<MethodTable>,
        metrics: &Arc<Metrics>,
        traces: Option<&TraceExport>,
    ) -> Self {
        Self {
            methods: Arc::clone(methods),
            metrics: Arc::clone(metrics),
            tracer: traces.map(|traces| CallTracer::new(traces.tracer.clone())),
        }
    }

    fn start_measurement(&self, path: &str, headers: &HeaderMap) -> CallMeasurement {
        let known = self.methods.get(path);
        // The label is the table's own text: a client's text could have any number of values.
        let method = known
            .map_or(OTHER_METHOD, |(known, _)| known)
            .trim_start_matches('/');
        // Probes of orchestrators would be most of the traces.
        let is_traced = known.is_some_and(|(_, method)| method.is_skilld);
        let tracer = self.tracer.as_ref().filter(|_| is_traced);
        CallMeasurement {
            metrics: Arc::clone(&self.metrics),
            method: method.to_owned(),
            start: Instant::now(),
            code: None,
            is_foreign: false,
            span: tracer.and_then(|tracer| tracer.start(method, headers)),
        }
    }
}

impl<S> Layer<S> for CallMetricsLayer {
    type Service = CallMetricsService<S>;

    fn layer(&self, inner: S) -> CallMetricsService<S> {
        CallMetricsService {
            inner,
            layer: self.clone(),
        }
    }
}

impl<S> Service<Request<Body>> for CallMetricsService<S>
where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible>,
    S::Future: Send + 'static,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let path = request.uri().path();
        let mut call = self.layer.start_measurement(path, request.headers());
        let context = call.span.as_ref().map(CallSpan::context);
        let entered = context.clone().map(opentelemetry::Context::attach);
        let response = self.inner.call(request);
        drop(entered);
        Box::pin(async move {
            let response = match context {
                Some(context) => response.with_context(context).await?,
                None => response.await?,
            };
            call.is_foreign = response.status() != StatusCode::OK;
            // A call that fails at once has its status in the headers.
            call.read_status(response.headers());
            Ok(response.map(|inner| Body::new(MeasuredBody { inner, call })))
        })
    }
}

// === impl CallMeasurement ===

impl CallMeasurement {
    /// Reads the status of headers or trailers that have one.
    fn read_status(&mut self, headers: &HeaderMap) {
        let Some(status) = Status::from_header_map(headers) else {
            return;
        };
        self.code = Some(status.code());
        if status.code() == Code::ResourceExhausted {
            self.count_quota_refusal(&status);
        }
    }

    fn count_quota_refusal(&self, status: &Status) {
        let details = status.get_error_details();
        let failure = details.quota_failure();
        let violations = failure.map_or(&[][..], |failure| &failure.violations);
        for violation in violations {
            let subject = violation.subject.strip_prefix("tenants/");
            if let Some((tenant, resource)) = subject.and_then(|subject| subject.split_once('/')) {
                self.metrics.count_quota_refusal(tenant, resource);
            }
        }
    }
}

impl Drop for CallMeasurement {
    fn drop(&mut self) {
        if self.is_foreign {
            return;
        }
        let code = self.code.unwrap_or(Code::Cancelled);
        if let Some(span) = &self.span {
            span.end(code);
        }
        let duration = self.start.elapsed();
        self.metrics.observe_call(&self.method, code, duration);
    }
}

// === impl MeasuredBody ===

impl http_body::Body for MeasuredBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let polled = Pin::new(&mut self.inner).poll_frame(context);
        if let Poll::Ready(Some(Ok(frame))) = &polled
            && let Some(trailers) = frame.trailers_ref()
        {
            self.call.read_status(trailers);
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

#[cfg(test)]
mod tests;
