//! Tests of the queue, of the counts and of the files of the export.

use std::os::unix::fs::PermissionsExt;

use opentelemetry::trace::Tracer;

use super::*;
use crate::config::Config;
use crate::metrics::tests::page_of;

/// Text that no message may have.
const CANARY: &str = "canary-7b1f";

fn config(text: &str) -> Config {
    Config::from_toml(text).expect("configuration").config
}

/// Returns the samples of spans.
fn samples(metrics: &Metrics) -> Vec<String> {
    let page = page_of(metrics);
    let samples = page.lines().filter(|line| line.starts_with("skilld_trace"));
    samples.map(str::to_owned).collect()
}

#[tokio::test]
async fn no_exporter_starts_without_an_endpoint() {
    let metrics = Arc::default();
    let started = TraceExport::start(&config(""), "i", &metrics).expect("started");
    assert!(started.is_none());
}

#[tokio::test]
async fn spans_that_do_not_fit_into_the_queue_are_dropped_and_counted() {
    let metrics = Arc::<Metrics>::default();
    let (sender, mut receiver) = mpsc::channel(2);
    let provider = SdkTracerProvider::builder()
        .with_span_processor(SpanQueue {
            queue: sender,
            metrics: Arc::clone(&metrics),
            needs_principal: false,
        })
        .build();
    let tracer = provider.tracer("test");
    for _ in 0..5 {
        drop(tracer.start("span"));
    }
    assert_eq!(
        samples(&metrics),
        ["skilld_trace_spans_total{result=\"dropped\"} 3"]
    );
    assert!(receiver.recv().await.is_some());
    drop(tracer.start("span"));
    assert_eq!(receiver.len(), 2, "the queue takes spans again");
}

#[test]
fn a_stranger_causes_no_export_while_authentication_is_on() {
    let exported = |needs_principal| {
        let (sender, receiver) = mpsc::channel(8);
        let provider = SdkTracerProvider::builder()
            .with_span_processor(SpanQueue {
                queue: sender,
                metrics: Arc::default(),
                needs_principal,
            })
            .build();
        let tracer = provider.tracer("test");
        let call = |attributes: Vec<KeyValue>| {
            let span = tracer.span_builder("call").with_kind(SpanKind::Server);
            drop(span.with_attributes(attributes).start(&tracer));
        };
        call(vec![KeyValue::new("skilld.request_id", "r")]);
        call(vec![KeyValue::new(PRINCIPAL_ATTRIBUTE, "p")]);
        // A span below that of a call has no principal of its own.
        drop(tracer.start("claim"));
        receiver.len()
    };
    assert_eq!((exported(true), exported(false)), (2, 3));
}

#[tokio::test]
async fn spans_that_no_collector_takes_are_counted_as_failed() {
    let metrics = Arc::<Metrics>::default();
    // Port 1 of loopback: only the kernel answers, by a refusal.
    let config = config("traces.endpoint = \"http://127.0.0.1:1\"");
    let export = TraceExport::start(&config, "i", &metrics)
        .expect("started")
        .expect("an endpoint");
    let tracer = export.tracer.clone();
    for _ in 0..600 {
        drop(tracer.start("span"));
    }
    drop(tracer);
    // A close does the same, but does not wait long for the spans that are left.
    export.flush.cancel();
    export.task.await.expect("no panic");
    assert_eq!(
        samples(&metrics),
        ["skilld_trace_spans_total{result=\"failed\"} 600"]
    );
}

#[test]
fn a_lasting_failure_is_a_warning_at_once_and_then_every_minute() {
    let (mut health, start) = (CollectorHealth::default(), Instant::now());
    let mut warned_at = |seconds: u64, lost: u64| {
        health.observe(lost, "refused", start + Duration::from_secs(seconds));
        let after = health.warned.map(|warned| (warned - start).as_secs());
        (after, health.lost)
    };
    assert_eq!(warned_at(0, 0), (None, 0));
    assert_eq!(warned_at(1, 5), (Some(1), 5));
    assert_eq!(warned_at(60, 5), (Some(1), 10));
    assert_eq!(warned_at(61, 5), (Some(61), 15));
    assert_eq!(warned_at(62, 0), (None, 0));
    assert_eq!(warned_at(63, 1), (Some(63), 1));
}

#[test]
fn headers_are_read_from_a_file_that_only_the_daemon_may_read() {
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().join("headers");
    let read = |text: &str, mode| {
        std::fs::write(&path, text).expect("write");
        std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).expect("chmod");
        read_headers(&path)
    };
    let headers = read(
        &format!("# token\n\nAuthorization: Bearer {CANARY}\nx-scope-orgid: a:b\n"),
        0o600,
    )
    .expect("headers");
    assert_eq!(headers.len(), 2);
    let token = headers.get("authorization").expect("a token");
    assert_eq!(token, &format!("Bearer {CANARY}"));
    assert!(!format!("{headers:?}").contains(CANARY));
    assert_eq!(headers.get("x-scope-orgid").expect("a header"), "a:b");
    for bad in [
        format!("authorization {CANARY}"),
        format!("a b: {CANARY}"),
        format!("x-bin: {CANARY}"),
        format!("x: {CANARY}\u{7f}"),
    ] {
        let fault = read(&format!("ok: 1\n{bad}\n"), 0o600).expect_err(&bad);
        assert!(fault.contains("line 2 of"), "{fault}");
        assert!(!fault.contains(CANARY), "{fault}");
    }
    let many: String = (0..=HEADERS_MAX).map(|n| format!("x-{n}: 1\n")).collect();
    read(&many, 0o600).expect_err("too many");
    let fault = read("ok: 1\n", 0o644).expect_err("readable by all");
    assert!(fault.contains("chmod 0600"), "{fault}");
}
