//! Tests of the export of spans with a client, a whole server and a collector: what a span has, what it never has, and
//! calls that do not notice a collector that is away.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use skilld_proto::v1 as pb;
use tokio::net::TcpListener;
use tonic::metadata::MetadataValue;
use tonic::{Code, Request};

use crate::collector::{Collector, attributes};
use crate::server::{TestServer, within};

/// Ids of the client's trace and span.
const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "00f067aa0ba902b7";
/// Text that no span may have.
const CANARY: &str = "canary-7b1f";
/// Methods of the calls below.
const CREATE: &str = "skilld.v1.WorkspaceService/CreateWorkspace";
const GET: &str = "skilld.v1.WorkspaceService/GetWorkspace";
const RUN: &str = "skilld.v1.ExecService/RunExec";

/// Returns a configuration that exports traces.
fn traces(endpoint: &str, rest: &str) -> String {
    format!("traces.endpoint = {endpoint:?}\n{rest}")
}

/// Returns a request in the client's trace; `flags` is 01 if the client samples it.
fn in_trace<T>(message: T, flags: &str) -> Request<T> {
    let mut request = Request::new(message);
    let context: MetadataValue<_> = format!("00-{TRACE}-{PARENT}-{flags}")
        .parse()
        .expect("ASCII");
    request.metadata_mut().insert("traceparent", context);
    let state = MetadataValue::from_static("vendor=value");
    request.metadata_mut().insert("tracestate", state);
    request
}

fn get(name: &str, flags: &str) -> Request<pb::GetWorkspaceRequest> {
    let request = pb::GetWorkspaceRequest {
        name: name.to_owned(),
    };
    in_trace(request, flags)
}

fn hex(id: &[u8]) -> String {
    data_encoding::HEXLOWER.encode(id)
}

fn is_child(span: &Span, parent: &Span) -> bool {
    span.trace_id == parent.trace_id && span.parent_span_id == parent.span_id
}

/// Runs a command whose argv, environment and stdin have the canary.
async fn run_with_canaries(server: &TestServer, workspace: &str) {
    let text = |name: &str| format!("{name}-{CANARY}");
    let spec = pb::ExecSpec {
        argv: vec!["/bin/echo".to_owned(), text("argv")],
        env: BTreeMap::from([("SECRET".to_owned(), text("env"))]),
        stdin_data: text("stdin").into_bytes().into(),
        ..pb::ExecSpec::default()
    };
    let request = pb::RunExecRequest {
        parent: workspace.to_owned(),
        spec: Some(spec),
        ..pb::RunExecRequest::default()
    };
    let mut stream = server
        .client
        .execs()
        .run_exec(in_trace(request, "01"))
        .await
        .expect("running")
        .into_inner();
    while stream.message().await.expect("events").is_some() {}
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_adds_a_span_with_method_and_status_to_its_trace() {
    let mut collector = Collector::start().await;
    let endpoint = format!("http://{}", collector.address);
    let server = TestServer::start(&traces(&endpoint, ""), &[]).await;
    let mut workspaces = server.client.workspaces();
    let create = pb::CreateWorkspaceRequest {
        workspace_id: "w".to_owned(),
        ..pb::CreateWorkspaceRequest::default()
    };
    let create = in_trace(create, "01");
    workspaces.create_workspace(create).await.expect("claimed");
    let unknown = workspaces.get_workspace(get("workspaces/none", "01")).await;
    assert_eq!(unknown.expect_err("unknown").code(), Code::NotFound);

    let created = collector.wait_for(CREATE).await;
    assert_eq!(hex(&created.trace_id), TRACE);
    assert_eq!(hex(&created.parent_span_id), PARENT);
    assert_eq!(created.trace_state, "vendor=value");
    assert_eq!(created.kind(), SpanKind::Server);
    let mut found = attributes(&created);
    let id = found
        .iter()
        .position(|text| text.starts_with("skilld.request_id="));
    found.remove(id.expect("a request id"));
    let principal = found
        .iter()
        .position(|text| text.starts_with("skilld.principal="));
    found.remove(principal.expect("a principal"));
    assert_eq!(
        found,
        [
            "rpc.grpc.status_code=0",
            "rpc.method=CreateWorkspace",
            "rpc.service=skilld.v1.WorkspaceService",
            "rpc.system=grpc",
            "skilld.tenant=default",
            "skilld.workspace=workspaces/w",
        ]
    );
    let claim = collector.wait_for("claim").await;
    let wait = collector.wait_for("wait for container").await;
    assert!(is_child(&claim, &created) && is_child(&wait, &claim));
    let refused = collector.wait_for(GET).await;
    let code = "rpc.grpc.status_code=5".to_owned();
    assert!(attributes(&refused).contains(&code), "{refused:?}");
    // The client asked for something that does not exist, which is no fault of the server.
    let status = refused.status.clone().unwrap_or_default();
    assert_eq!(status.code(), StatusCode::Unset);
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn no_span_has_a_secret_of_its_call() {
    let mut collector = Collector::start().await;
    let endpoint = format!("http://{}", collector.address);
    let server = TestServer::start(&traces(&endpoint, ""), &[]).await;
    let workspace = server.workspace().await;
    run_with_canaries(&server, &workspace).await;
    // The message of this refusal has the client's text.
    let absent = format!("workspaces/{CANARY}");
    let refused = server.client.get_workspace(&absent).await;
    refused.expect_err("absent");
    let run = collector.wait_for(RUN).await;
    let start = collector.wait_for("start exec").await;
    assert!(is_child(&start, &run));
    collector.wait_for(GET).await;
    assert!(server.stop().await);
    collector.look();
    assert!(collector.spans.len() >= 5, "{:?}", collector.names());
    let text = String::from_utf8_lossy(&collector.bytes).into_owned();
    assert!(text.contains(RUN) && text.contains("skilld.workspace"));
    assert!(!text.contains(CANARY), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_client_decides_on_sampling_before_the_configuration() {
    let mut collector = Collector::start().await;
    let endpoint = format!("http://{}", collector.address);
    let none = traces(&endpoint, "traces.sample_ratio = 0.0\n");
    let server = TestServer::start(&none, &[]).await;
    let name = server.workspace().await;
    let mut workspaces = server.client.workspaces();
    workspaces
        .get_workspace(get(&name, "00"))
        .await
        .expect("not sampled");
    workspaces
        .get_workspace(get(&name, "01"))
        .await
        .expect("sampled");
    // Health is asked for by probes, and is never traced.
    assert!(server.client.is_serving("").await.expect("health"));
    collector.wait_for(GET).await;
    assert!(server.stop().await);
    collector.look();
    assert_eq!(collector.names(), [GET]);
}

/// Makes 600 calls, stops the daemon, and returns the number of their spans that were exported.
async fn count_spans_at_stop() -> usize {
    let mut collector = Collector::start().await;
    let endpoint = format!("http://{}", collector.address);
    let server = TestServer::start(&traces(&endpoint, ""), &[]).await;
    let name = server.workspace().await;
    for _ in 0..600 {
        server.client.get_workspace(&name).await.expect("exists");
    }
    assert!(server.stop().await);
    collector.look();
    let names = collector.names();
    names.iter().filter(|name| **name == GET).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn spans_that_wait_are_exported_before_the_daemon_ends() {
    let mut counts = Vec::new();
    // The daemon exports them for two seconds at most, which a pause of the machine may take.
    for _ in 0..5 {
        counts.push(count_spans_at_stop().await);
        if counts.ends_with(&[600]) {
            return;
        }
    }
    panic!("spans are lost at each stop: {counts:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn headers_of_the_file_go_to_the_collector() {
    let mut collector = Collector::start().await;
    let dir = tempfile::tempdir().expect("directory");
    let file = dir.path().join("headers");
    std::fs::write(
        &file,
        format!("# comment\nAuthorization: Bearer {CANARY}\n"),
    )
    .expect("write");
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o600)).expect("chmod");
    let rest = format!("traces.headers_file = {file:?}\n");
    let endpoint = format!("http://{}", collector.address);
    let server = TestServer::start(&traces(&endpoint, &rest), &[]).await;
    server
        .client
        .get_workspace("workspaces/none")
        .await
        .expect_err("absent");
    collector.wait_for(GET).await;
    let sent = collector.headers.get("authorization").expect("sent");
    assert_eq!(sent, &format!("Bearer {CANARY}"));
    assert!(server.stop().await);
}

/// Makes more calls than spans may wait, and stops the daemon. Both must end long before an export times out.
async fn call_and_stop(endpoint: &str) {
    let server = TestServer::start_after(&traces(endpoint, ""), &[], |config| {
        config.traces.timeout = Duration::from_secs(3600);
        config.traces.queue_max = 8;
    })
    .await;
    let name = server.workspace().await;
    within(async {
        for _ in 0..300 {
            server.client.get_workspace(&name).await.expect("exists");
        }
    })
    .await;
    assert!(within(server.stop()).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_that_is_away_delays_neither_calls_nor_the_end() {
    // This collector accepts connections and never answers: an export takes its whole timeout of an hour.
    let silent = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let silent_address = silent.local_addr().expect("bound");
    // Nothing listens at the port of a listener that is gone.
    let gone = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let gone_address = gone.local_addr().expect("bound");
    drop(gone);
    for address in [silent_address, gone_address] {
        call_and_stop(&format!("http://{address}")).await;
    }
    drop(silent);
}
