//! Spans of traces that are exported. They are made explicitly and have no other attributes than those that are set
//! here by name: nothing that a log line or a library writes reaches a collector.
//!
//! Outside of a call that is traced, all of this does nothing.

use std::time::{Duration, SystemTime};

use opentelemetry::trace::{FutureExt, Span as _, Status as SpanOutcome, TraceContextExt, Tracer};
use opentelemetry::{Context, KeyValue};
use opentelemetry_sdk::trace::{SdkTracer, Span};

/// Attribute of a call's span with the id of its principal.
pub const PRINCIPAL_ATTRIBUTE: &str = "skilld.principal";

/// Tracer of the current call, by which spans below its own are made.
#[derive(Debug, Clone)]
struct CurrentTracer(SdkTracer);

/// Span below that of the current call. It ends with [`Self::finish`], or as failed when it is dropped.
#[derive(Debug)]
pub struct ChildSpan(Option<Span>);

/// Makes the context in which a call is handled from its span.
pub fn call_context(tracer: &SdkTracer, span: Span) -> Context {
    let context = Context::new().with_span(span);
    context.with_value(CurrentTracer(tracer.clone()))
}

/// Sets an attribute of the current span. `value` is called only if there is one.
pub fn set_attribute(key: &'static str, value: impl FnOnce() -> String) {
    Context::map_current(|context| {
        if context.has_active_span() {
            context.span().set_attribute(KeyValue::new(key, value()));
        }
    });
}

/// Runs work in a span below the current one. An error makes the span failed; its text is not exported.
///
/// # Errors
/// The error of the work.
pub async fn in_child_span<T, E>(
    name: &'static str,
    work: impl Future<Output = Result<T, E>>,
) -> Result<T, E> {
    let parent = Context::current();
    let Some(span) = start_child(name, &parent, SystemTime::now()) else {
        return work.await;
    };
    let context = parent.with_span(span);
    let result = work.with_context(context.clone()).await;
    if result.is_err() {
        context.span().set_status(SpanOutcome::error(""));
    }
    context.span().end();
    result
}

/// Makes a spawned task part of the current call's trace.
pub fn with_current_trace<F: Future>(task: F) -> impl Future<Output = F::Output> {
    task.with_current_context()
}

// === impl ChildSpan ===

impl ChildSpan {
    /// Starts a span below the current one, which began `ago`.
    pub fn start(name: &'static str, ago: Duration) -> Self {
        let start = SystemTime::now() - ago;
        Self(Context::map_current(|context| {
            start_child(name, context, start)
        }))
    }

    /// Ends the span as successful.
    pub fn finish(mut self) {
        if let Some(mut span) = self.0.take() {
            span.end();
        }
    }
}

impl Drop for ChildSpan {
    fn drop(&mut self) {
        if let Some(mut span) = self.0.take() {
            span.set_status(SpanOutcome::error(""));
            span.end();
        }
    }
}

fn start_child(name: &'static str, context: &Context, start: SystemTime) -> Option<Span> {
    let CurrentTracer(tracer) = context.get()?;
    let span = tracer.span_builder(name).with_start_time(start);
    Some(span.start_with_context(tracer, context))
}
