//! Tests of the server over a real socket with the fake engine: health, reflection, limits, errors, start and stop.

mod lifecycle;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::server::{connect, wait_until, within};
use prost::Message;
use skilld::config::Config;
use skilld::engine::fake::FakeEngine;
use skilld::server::Server;
use skilld::shutdown::Tasks;
use skilld_client::{Client, ConnectOptions, Transport};
use skilld_proto::v1 as pb;
use skilld_tests::task_dir::TaskDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tonic::{Code, Status};
use tonic_health::ServingStatus;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;
use tonic_reflection::pb::v1::{
    ExtensionRequest, ServerReflectionRequest, ServerReflectionResponse,
};
use tonic_types::StatusExt;

/// Daemon in this process.
struct TestDaemon {
    dir: TaskDir,
    engine: Arc<FakeEngine>,
    signals: mpsc::Sender<()>,
    running: JoinHandle<bool>,
}

impl TestDaemon {
    async fn start(text: &str, change: impl FnOnce(&mut Config)) -> Self {
        let tasks = Tasks::default();
        let dir = TaskDir::new(&tasks.for_skills().tracker);
        let engine = Arc::new(FakeEngine::new());
        let config = config(dir.path(), text, change);
        let server = Server::start(config, Arc::<FakeEngine>::clone(&engine))
            .await
            .expect("start");
        let (signals, received) = mpsc::channel(2);
        let running = tasks.spawn(server.run(received));
        Self {
            dir,
            engine,
            signals,
            running,
        }
    }

    fn endpoint(&self) -> String {
        format!("unix:{}", self.dir.path().join("skilld.sock").display())
    }

    async fn client(&self) -> Client {
        connect(&ConnectOptions::new(self.endpoint())).await
    }

    async fn channel(&self) -> Transport {
        self.client().await.channel()
    }

    async fn signal(&self) {
        self.signals
            .send(())
            .await
            .expect("the server listens for signals");
    }

    /// Waits until the daemon has stopped. Returns `true` if all tasks ended in time.
    async fn wait_for_end(self) -> bool {
        drop(self.signals);
        within(self.running)
            .await
            .expect("the server does not panic")
    }
}

fn config(dir: &Path, text: &str, change: impl FnOnce(&mut Config)) -> Config {
    let text = format!(
        "state_dir = {:?}\n{text}\n[pools.default]\nwarm = 0\nclaim_timeout = \"1m\"\n\
         [pools.office]\nwarm = 0\nmax = 0\n",
        dir.display().to_string()
    );
    let mut config = Config::from_toml(&text).expect("configuration").config;
    // A pause of the machine must not end a connection, an upload or a stop.
    config.server.handshake_timeout = Duration::from_secs(600);
    config.server.keepalive_timeout = Duration::from_secs(600);
    config.server.upload_timeout = Duration::from_secs(600);
    config.server.stop_timeout = Duration::from_secs(60);
    change(&mut config);
    config
}

fn reason(status: &Status) -> String {
    let details = status.get_error_details();
    details
        .error_info()
        .map(|info| info.reason.clone())
        .unwrap_or_default()
}

async fn health(channel: Transport, service: &str) -> ServingStatus {
    let request = HealthCheckRequest {
        service: service.to_owned(),
    };
    let response = HealthClient::new(channel)
        .check(request)
        .await
        .expect("health");
    match response.into_inner().status {
        1 => ServingStatus::Serving,
        2 => ServingStatus::NotServing,
        _ => ServingStatus::Unknown,
    }
}

/// Watches the health of the server.
async fn watch_health(
    channel: Transport,
) -> tonic::Streaming<tonic_health::pb::HealthCheckResponse> {
    let request = HealthCheckRequest {
        service: String::new(),
    };
    HealthClient::new(channel)
        .watch(request)
        .await
        .expect("watch")
        .into_inner()
}

/// Returns the next status of a watch of the health.
async fn next_health(changes: &mut tonic::Streaming<tonic_health::pb::HealthCheckResponse>) -> i32 {
    let change = within(changes.message()).await.expect("watch");
    change.expect("open").status
}

/// Returns the answer of GetServerInfo.
async fn get_info(client: &Client) -> pb::ServerInfo {
    let request = pb::GetServerInfoRequest {};
    let info = client.server().get_server_info(request).await;
    info.expect("info").into_inner()
}

/// Calls an rpc by its path with a message of any type.
async fn call_path<T>(channel: Transport, path: &'static str, message: T) -> Result<(), Status>
where
    T: Message + Default + Send + Sync + 'static,
{
    let mut grpc = tonic::client::Grpc::new(channel);
    grpc.ready().await.expect("ready");
    let codec = tonic_prost::ProstCodec::<T, ()>::default();
    let path = http::uri::PathAndQuery::from_static(path);
    grpc.unary(tonic::Request::new(message), path, codec)
        .await
        .map(drop)
}

const SERVICES: [&str; 7] = [
    "skilld.v1.AdminService",
    "skilld.v1.ArtifactService",
    "skilld.v1.ExecService",
    "skilld.v1.FileService",
    "skilld.v1.ServerService",
    "skilld.v1.SkillService",
    "skilld.v1.WorkspaceService",
];

#[tokio::test]
async fn health_of_server_and_services_follows_the_engine() {
    let daemon = TestDaemon::start("", |_| {}).await;
    let channel = daemon.channel().await;
    let mut changes = watch_health(channel.clone()).await;
    while next_health(&mut changes).await != 1 {}
    for service in SERVICES {
        assert_eq!(
            health(channel.clone(), service).await,
            ServingStatus::Serving,
            "{service}"
        );
    }
    daemon.engine.set_unavailable(true);
    assert_eq!(next_health(&mut changes).await, 2);
    for service in SERVICES {
        assert_eq!(
            health(channel.clone(), service).await,
            ServingStatus::NotServing,
            "{service}"
        );
    }
    let info = get_info(&daemon.client().await).await;
    assert!(!info.engine.expect("engine").available);
    daemon.engine.set_unavailable(false);
    assert_eq!(next_health(&mut changes).await, 1);
    daemon.signal().await;
    assert!(daemon.wait_for_end().await);
}

/// Makes these look-ups in one stream of a version of the protocol, and returns the answers. Both versions have the same
/// messages.
async fn reflect(
    channel: Transport,
    version: &str,
    requests: Vec<MessageRequest>,
) -> Vec<(MessageRequest, MessageResponse)> {
    let messages: Vec<_> = requests
        .into_iter()
        .map(|request| ServerReflectionRequest {
            host: String::new(),
            message_request: Some(request),
        })
        .collect();
    let request = tonic::Request::new(futures::stream::iter(messages));
    let name = format!("/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo");
    let path = http::uri::PathAndQuery::try_from(name).expect("a path");
    let mut grpc = tonic::client::Grpc::new(channel);
    grpc.ready().await.expect("ready");
    let codec = tonic_prost::ProstCodec::<_, ServerReflectionResponse>::default();
    let answered = grpc.streaming(request, path, codec).await;
    let mut answers = answered.expect(version).into_inner();
    let mut all = Vec::new();
    while let Some(answer) = within(answers.message()).await.expect("the stream goes on") {
        let request = answer
            .original_request
            .and_then(|request| request.message_request);
        let response = answer.message_response;
        all.push((request.expect("a request"), response.expect("a response")));
    }
    all
}

#[tokio::test]
async fn reflection_v1_and_v1alpha_list_every_service() {
    let daemon = TestDaemon::start("", |_| {}).await;
    for version in ["v1", "v1alpha"] {
        let list = MessageRequest::ListServices(String::new());
        let answers = reflect(daemon.channel().await, version, vec![list]).await;
        let [(_, MessageResponse::ListServicesResponse(list))] = answers.as_slice() else {
            panic!("{answers:?}");
        };
        let names: BTreeSet<&str> = list
            .service
            .iter()
            .map(|service| service.name.as_str())
            .collect();
        for service in SERVICES.into_iter().chain(["grpc.health.v1.Health"]) {
            assert!(names.contains(service), "{version}: {names:?}");
        }
    }
}

#[tokio::test]
async fn reflection_finds_symbols_and_survives_a_failed_lookup() {
    let daemon = TestDaemon::start("", |_| {}).await;
    let extension = ExtensionRequest {
        containing_type: "google.protobuf.MethodOptions".to_owned(),
        extension_number: 1,
    };
    let symbol = |name: &str| MessageRequest::FileContainingSymbol(name.to_owned());
    let requests = vec![
        MessageRequest::FileContainingExtension(extension),
        symbol("skilld.v1.Nothing"),
        symbol("skilld.v1.ExecResult.nothing"),
        MessageRequest::FileByFilename("no.proto".to_owned()),
        MessageRequest::AllExtensionNumbersOfType("skilld.v1.Nothing".to_owned()),
        symbol("skilld.v1.ExecService.RunExec"),
        symbol("skilld.v1.SpawnFailure.Step"),
        symbol("skilld.v1.OutputEvent.content"),
        symbol("skilld.v1.ExecResult.exit_code"),
        symbol("skilld.v1.EXIT_REASON_EXITED"),
        symbol("skilld.v1.ExitReason.EXIT_REASON_EXITED"),
    ];
    for version in ["v1", "v1alpha"] {
        let answers = reflect(daemon.channel().await, version, requests.clone()).await;
        let asked: Vec<_> = answers.iter().map(|(request, _)| request.clone()).collect();
        assert_eq!(asked, requests);
        let (failed, found) = answers.split_at(5);
        for (request, answer) in failed {
            let MessageResponse::ErrorResponse(error) = answer else {
                panic!("{request:?}: {answer:?}");
            };
            assert_eq!(error.error_code, Code::NotFound as i32, "{request:?}");
            assert!(error.error_message.contains("this server has no"));
        }
        let names: Vec<String> = found.iter().map(|(_, answer)| file_name(answer)).collect();
        assert_eq!(names, ["skilld/v1/exec.proto"; 6]);
    }
}

/// Returns the name of the one file in an answer. It must be as it was built.
fn file_name(answer: &MessageResponse) -> String {
    let MessageResponse::FileDescriptorResponse(files) = answer else {
        panic!("{answer:?}");
    };
    let [file] = files.file_descriptor_proto.as_slice() else {
        panic!("{answer:?}");
    };
    let mut parts = pb::FILE_DESCRIPTOR_SET.windows(file.len());
    assert!(parts.any(|part| part == file), "{answer:?}");
    let decoded = prost_types::FileDescriptorProto::decode(file.as_slice()).expect("a file");
    decoded.name().to_owned()
}

#[tokio::test]
async fn a_watch_of_an_unknown_service_says_so_and_stays_open() {
    const SERVICE_UNKNOWN: i32 = 3;
    let daemon = TestDaemon::start("", |_| {}).await;
    let request = HealthCheckRequest {
        service: "no.such.Service".to_owned(),
    };
    let mut health = HealthClient::new(daemon.channel().await);
    let watched = health.watch(request.clone()).await;
    let mut changes = watched.expect("watch").into_inner();
    assert_eq!(next_health(&mut changes).await, SERVICE_UNKNOWN);
    let checked = health.check(request).await.expect_err("unknown");
    assert_eq!(checked.code(), Code::NotFound);
    // The stream ends with the daemon, and not before.
    daemon.signal().await;
    let end = within(changes.message()).await.expect_err("the stop");
    assert_eq!(end.code(), Code::Unavailable);
    assert!(daemon.wait_for_end().await);
}

#[tokio::test]
async fn reflection_can_be_disabled() {
    let daemon = TestDaemon::start("", |config| config.server.reflection = false).await;
    let path = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";
    let status = call_path(daemon.channel().await, path, String::new())
        .await
        .expect_err("off");
    assert_eq!(status.code(), Code::Unimplemented);
    let info = get_info(&daemon.client().await).await;
    let features = info.features;
    assert!(!features.contains(&"reflection".to_owned()), "{features:?}");
}

#[tokio::test]
async fn server_info_shows_every_limit() {
    let daemon = TestDaemon::start("[execs]\ncount_max = 7\n", |_| {}).await;
    let info = get_info(&daemon.client().await).await;
    assert_eq!(info.version, env!("CARGO_PKG_VERSION"));
    assert_eq!(info.instance.len(), 12);
    let instance = std::fs::read_to_string(daemon.dir.path().join("instance")).expect("instance");
    assert_eq!(instance.lines().next(), Some(info.instance.as_str()));
    assert_eq!(info.engine.expect("engine").name, "fake");
    assert!(info.seccomp_digest.starts_with("sha256:"));
    assert_eq!(
        (info.pools, info.default_pool.as_str()),
        (vec!["pools/default".to_owned()], "pools/default")
    );
    assert!(info.features.is_sorted());
    assert!(info.features.contains(&"exec.run".to_owned()));
    assert_eq!(info.guest_generation, skilld_proto::guest::GENERATION);
    let limits = info.limits.expect("limits");
    assert_eq!(limits.execs_per_workspace, 7);
    assert_eq!(limits.message_bytes, 4 << 20);
    assert_eq!(limits.exec_timeout_default.expect("set").seconds, 300);
    // Every limit is greater than zero.
    let text = format!("{limits:?}").replace("seconds: 0, nanos: 500000000", "half a second");
    assert!(!text.contains(": 0,") && !text.contains("None"), "{text}");
}

#[tokio::test]
async fn a_message_of_5_mib_is_refused_and_the_connection_stays() {
    let daemon = TestDaemon::start("", |_| {}).await;
    let client = daemon.client().await;
    let request = pb::CreateWorkspaceRequest {
        workspace_id: "x".repeat(5 << 20),
        ..Default::default()
    };
    let status = within(client.workspaces().create_workspace(request))
        .await
        .expect_err("too large");
    assert_eq!(status.code(), Code::ResourceExhausted, "{status:?}");
    assert_eq!(reason(&status), "LIMIT_EXCEEDED");
    assert_eq!(status.message(), "the message is over the limit of 4194304");
    let info = within(client.server().get_server_info(pb::GetServerInfoRequest {})).await;
    assert!(info.is_ok(), "{info:?}");
}

#[tokio::test]
async fn request_with_4096_violations_is_rejected_with_the_first_ones() {
    let daemon = TestDaemon::start("", |_| {}).await;
    let client = daemon.client().await;
    let spec = pb::ExecSpec {
        argv: vec!["\0".into(); 4096],
        ..Default::default()
    };
    let request = pb::StartExecRequest {
        parent: "workspaces/w".into(),
        spec: Some(spec),
        ..Default::default()
    };
    let status = within(client.execs().start_exec(request))
        .await
        .expect_err("refused");
    assert_eq!(
        (status.code(), reason(&status).as_str()),
        (Code::InvalidArgument, "INVALID_REQUEST"),
        "{status:?}"
    );
    let details = status.get_error_details();
    let faults = &details.bad_request().expect("faults").field_violations;
    assert_eq!(faults.len(), 33, "{faults:?}");
    assert_eq!(faults[31].field, "spec.argv[31]");
    assert_eq!(faults[32].description, "and 4064 more faults");
}

#[tokio::test]
async fn errors_of_the_transport_have_a_reason() {
    let daemon = TestDaemon::start("", |_| {}).await;
    let channel = daemon.channel().await;
    // Field 1 is a string in the API and a number in this message.
    let status = call_path(
        channel.clone(),
        "/skilld.v1.WorkspaceService/GetWorkspace",
        7_u64,
    )
    .await
    .expect_err("not decodable");
    assert_eq!(
        (status.code(), reason(&status).as_str()),
        (Code::InvalidArgument, "INVALID_REQUEST"),
        "{status:?}"
    );
    for path in [
        "/skilld.v1.WorkspaceService/Nothing",
        "/no.such.Service/Method",
    ] {
        let status = call_path(channel.clone(), path, String::new())
            .await
            .expect_err("not there");
        assert_eq!(
            (status.code(), reason(&status).as_str()),
            (Code::Unimplemented, "NOT_IMPLEMENTED"),
            "{path}"
        );
    }
}

#[tokio::test]
async fn unary_call_ends_at_its_deadline() {
    let daemon = TestDaemon::start("", |config| {
        config.server.unary_timeout = Duration::from_millis(200);
    })
    .await;
    // The claim itself would fail after ten seconds, with another reason.
    daemon.engine.start_without_guest();
    let request = pb::CreateWorkspaceRequest::default();
    let status = within(daemon.client().await.workspaces().create_workspace(request))
        .await
        .expect_err("late");
    assert_eq!(
        (status.code(), reason(&status).as_str()),
        (Code::DeadlineExceeded, "DEADLINE"),
        "{status:?}"
    );
}

#[tokio::test]
async fn silent_connection_is_closed_after_the_handshake_timeout() {
    let daemon = TestDaemon::start("", |config| {
        config.server.handshake_timeout = Duration::from_millis(100);
    })
    .await;
    let path = daemon.dir.path().join("skilld.sock");
    // A client that connected before the silent ones and completed its handshake.
    let client = wait_until("a client completes its handshake in time", async || {
        let client = Client::connect(&daemon.endpoint()).await.ok()?;
        let request = pb::GetServerInfoRequest {};
        client.server().get_server_info(request).await.ok()?;
        Some(client)
    })
    .await;
    // No bytes, and an incomplete preface.
    for sent in [&b""[..], b"PRI * HTTP/2"] {
        let mut stream = UnixStream::connect(&path).await.expect("connect");
        // The daemon may have closed it meanwhile.
        stream.write_all(sent).await.unwrap_or_default();
        let mut rest = Vec::new();
        // The daemon closes or resets the connection.
        drop(within(stream.read_to_end(&mut rest)).await);
    }
    // The timeout has passed twice, and the first connection is still open.
    get_info(&client).await;
}
