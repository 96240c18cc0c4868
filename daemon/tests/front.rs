//! The front door, through a real socket and the fake engine: health, reflection, limits, errors, start and stop.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use skilld::config::Config;
use skilld::engine::fake::FakeEngine;
use skilld::server::Server;
use skilld::shutdown::Tasks;
use skilld_client::Client;
use skilld_proto::v1 as pb;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tonic::transport::Channel;
use tonic::{Code, Status};
use tonic_health::ServingStatus;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tonic_types::StatusExt;

/// Longer than anything here takes; a wait that reaches it has failed.
const PATIENCE: Duration = Duration::from_secs(20);

/// A daemon in this process.
struct Daemon {
    dir: tempfile::TempDir,
    engine: Arc<FakeEngine>,
    signals: mpsc::Sender<()>,
    running: JoinHandle<bool>,
}

impl Daemon {
    async fn start(text: &str, change: impl FnOnce(&mut Config)) -> Self {
        let dir = tempfile::tempdir().expect("temporary directory");
        let engine = Arc::new(FakeEngine::new());
        let config = config(dir.path(), text, change);
        let server = Server::start(config, Arc::<FakeEngine>::clone(&engine))
            .await
            .expect("start");
        let (signals, received) = mpsc::channel(2);
        let running = Tasks::default().spawn(server.run(received));
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
        Client::connect(&self.endpoint()).await.expect("connect")
    }

    async fn channel(&self) -> Channel {
        self.client().await.channel()
    }

    async fn signal(&self) {
        self.signals
            .send(())
            .await
            .expect("the server listens for signals");
    }

    /// Ends it; true if everything ended in time.
    async fn ended(self) -> bool {
        drop(self.signals);
        within(self.running)
            .await
            .expect("the server does not panic")
    }
}

fn config(dir: &Path, text: &str, change: impl FnOnce(&mut Config)) -> Config {
    let text = format!(
        "state_dir = {:?}\n{text}\n[pools.default]\nwarm = 0\n",
        dir.display().to_string()
    );
    let mut config = Config::from_toml(&text).expect("configuration").config;
    change(&mut config);
    config
}

async fn within<F: Future>(future: F) -> F::Output {
    tokio::time::timeout(PATIENCE, future)
        .await
        .expect("takes too long")
}

fn reason(status: &Status) -> String {
    let details = status.get_error_details();
    details
        .error_info()
        .map(|info| info.reason.clone())
        .unwrap_or_default()
}

async fn health(channel: Channel, service: &str) -> ServingStatus {
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

/// A stream of health, and the first thing it says.
async fn watch(channel: Channel) -> tonic::Streaming<tonic_health::pb::HealthCheckResponse> {
    let request = HealthCheckRequest {
        service: String::new(),
    };
    HealthClient::new(channel)
        .watch(request)
        .await
        .expect("watch")
        .into_inner()
}

/// Sends one message of any kind to a path.
async fn call<T>(channel: Channel, path: &'static str, message: T) -> Result<(), Status>
where
    T: prost::Message + Default + Send + Sync + 'static,
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
async fn health_follows_the_engine_for_the_server_and_each_service() {
    let daemon = Daemon::start("", |_| {}).await;
    let channel = daemon.channel().await;
    let mut changes = watch(channel.clone()).await;
    while within(changes.message())
        .await
        .expect("watch")
        .expect("open")
        .status
        != 1
    {}
    for service in SERVICES {
        assert_eq!(
            health(channel.clone(), service).await,
            ServingStatus::Serving,
            "{service}"
        );
    }
    daemon.engine.unavailable(true);
    assert_eq!(
        within(changes.message())
            .await
            .expect("watch")
            .expect("open")
            .status,
        2
    );
    for service in SERVICES {
        assert_eq!(
            health(channel.clone(), service).await,
            ServingStatus::NotServing,
            "{service}"
        );
    }
    let info = daemon
        .client()
        .await
        .server()
        .get_server_info(pb::GetServerInfoRequest {})
        .await;
    assert!(
        !info
            .expect("info")
            .into_inner()
            .engine
            .expect("engine")
            .available
    );
    daemon.engine.unavailable(false);
    assert_eq!(
        within(changes.message())
            .await
            .expect("watch")
            .expect("open")
            .status,
        1
    );
    daemon.signal().await;
    assert!(daemon.ended().await);
}

#[tokio::test]
async fn reflection_v1_and_v1alpha_list_every_service() {
    let daemon = Daemon::start("", |_| {}).await;
    let channel = daemon.channel().await;
    let expected: BTreeSet<String> = SERVICES
        .into_iter()
        .chain(["grpc.health.v1.Health"])
        .map(str::to_owned)
        .collect();

    use tonic_reflection::pb::v1;
    let request = v1::ServerReflectionRequest {
        host: String::new(),
        message_request: Some(v1::server_reflection_request::MessageRequest::ListServices(
            String::new(),
        )),
    };
    let mut client = v1::server_reflection_client::ServerReflectionClient::new(channel.clone());
    let mut answers = client
        .server_reflection_info(futures::stream::iter([request]))
        .await
        .expect("v1")
        .into_inner();
    let answer = within(answers.message())
        .await
        .expect("answer")
        .expect("one")
        .message_response;
    let Some(v1::server_reflection_response::MessageResponse::ListServicesResponse(list)) = answer
    else {
        panic!("{answer:?}");
    };
    let names: BTreeSet<String> = list
        .service
        .into_iter()
        .map(|service| service.name)
        .collect();
    assert!(names.is_superset(&expected), "{names:?}");

    use tonic_reflection::pb::v1alpha;
    let request = v1alpha::ServerReflectionRequest {
        host: String::new(),
        message_request: Some(
            v1alpha::server_reflection_request::MessageRequest::FileContainingSymbol(
                "skilld.v1.ExecService".to_owned(),
            ),
        ),
    };
    let mut client = v1alpha::server_reflection_client::ServerReflectionClient::new(channel);
    let mut answers = client
        .server_reflection_info(futures::stream::iter([request]))
        .await
        .expect("v1alpha")
        .into_inner();
    let answer = within(answers.message())
        .await
        .expect("answer")
        .expect("one")
        .message_response;
    let Some(v1alpha::server_reflection_response::MessageResponse::FileDescriptorResponse(files)) =
        answer
    else {
        panic!("{answer:?}");
    };
    assert!(!files.file_descriptor_proto.is_empty());
}

#[tokio::test]
async fn reflection_can_be_switched_off() {
    let daemon = Daemon::start("", |config| config.server.reflection = false).await;
    let path = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";
    let status = call(daemon.channel().await, path, String::new())
        .await
        .expect_err("off");
    assert_eq!(status.code(), Code::Unimplemented);
    let info = daemon
        .client()
        .await
        .server()
        .get_server_info(pb::GetServerInfoRequest {})
        .await;
    let features = info.expect("info").into_inner().features;
    assert!(!features.contains(&"reflection".to_owned()), "{features:?}");
}

#[tokio::test]
async fn server_info_shows_every_limit() {
    let daemon = Daemon::start("[execs]\ncount_max = 7\n", |_| {}).await;
    let request = pb::GetServerInfoRequest {};
    let info = daemon
        .client()
        .await
        .server()
        .get_server_info(request)
        .await
        .expect("info")
        .into_inner();
    assert_eq!(info.version, env!("CARGO_PKG_VERSION"));
    assert_eq!(info.instance.len(), 12);
    let instance = std::fs::read_to_string(daemon.dir.path().join("instance")).expect("instance");
    assert_eq!(instance.lines().next(), Some(info.instance.as_str()));
    assert_eq!(info.engine.expect("engine").name, "fake");
    assert!(info.seccomp_digest.starts_with("sha256:"));
    assert_eq!(
        (info.pools, info.default_pool.as_str()),
        (vec!["default".to_owned()], "default")
    );
    assert!(info.features.is_sorted());
    assert!(info.features.contains(&"exec.run".to_owned()));
    assert_eq!(info.guest_generation, skilld_proto::guest::GENERATION);
    let limits = info.limits.expect("limits");
    assert_eq!(limits.execs_per_workspace, 7);
    assert_eq!(limits.message_bytes, 4 << 20);
    assert_eq!(limits.exec_timeout_default.expect("set").seconds, 300);
    // None is left at zero: every limit is in force.
    let text = format!("{limits:?}").replace("seconds: 0, nanos: 500000000", "half a second");
    assert!(!text.contains(": 0,") && !text.contains("None"), "{text}");
}

#[tokio::test]
async fn a_message_of_5_mib_is_refused_and_the_connection_stays() {
    let daemon = Daemon::start("", |_| {}).await;
    let client = daemon.client().await;
    let request = pb::CreateWorkspaceRequest {
        name: "x".repeat(5 << 20),
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
async fn a_request_with_4096_faults_is_refused_with_the_first_of_them() {
    let daemon = Daemon::start("", |_| {}).await;
    let client = daemon.client().await;
    let spec = pb::ExecSpec {
        argv: vec!["\0".into(); 4096],
        ..Default::default()
    };
    let request = pb::StartExecRequest {
        workspace: "workspaces/w".into(),
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
async fn what_the_transport_refuses_has_a_reason_too() {
    let daemon = Daemon::start("", |_| {}).await;
    let channel = daemon.channel().await;
    // Field 1 is a string there and a number here.
    let status = call(
        channel.clone(),
        "/skilld.v1.WorkspaceService/GetWorkspace",
        7_u64,
    )
    .await;
    let status = status.expect_err("not decodable");
    assert_eq!(
        (status.code(), reason(&status).as_str()),
        (Code::InvalidArgument, "INVALID_REQUEST"),
        "{status:?}"
    );
    for path in [
        "/skilld.v1.WorkspaceService/Nothing",
        "/no.such.Service/Method",
    ] {
        let status = call(channel.clone(), path, String::new())
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
async fn a_unary_call_ends_at_its_deadline() {
    let daemon = Daemon::start("", |config| {
        config.server.unary_timeout = Duration::from_millis(200);
    })
    .await;
    daemon.engine.start_without_guest();
    let start = Instant::now();
    let request = pb::CreateWorkspaceRequest::default();
    let status = within(daemon.client().await.workspaces().create_workspace(request))
        .await
        .expect_err("late");
    assert_eq!(
        (status.code(), reason(&status).as_str()),
        (Code::DeadlineExceeded, "DEADLINE"),
        "{status:?}"
    );
    assert!(
        start.elapsed() < Duration::from_secs(5),
        "{:?}",
        start.elapsed()
    );
}

#[tokio::test]
async fn a_silent_connection_is_closed() {
    let daemon = Daemon::start("", |config| {
        config.server.handshake_timeout = Duration::from_millis(100);
    })
    .await;
    let path = daemon.dir.path().join("skilld.sock");
    // Nothing at all, and a preface that stops half-way.
    for sent in [&b""[..], b"PRI * HTTP/2"] {
        let mut stream = UnixStream::connect(&path).await.expect("connect");
        stream.write_all(sent).await.expect("write");
        let mut rest = Vec::new();
        // Closed or reset: either way it is over.
        drop(within(stream.read_to_end(&mut rest)).await);
    }
    // One that began in time stays as long as it likes.
    let client = daemon.client().await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(
        client
            .server()
            .get_server_info(pb::GetServerInfoRequest {})
            .await
            .is_ok()
    );
}

#[tokio::test]
async fn a_second_daemon_on_the_same_state_is_turned_away() {
    let daemon = Daemon::start("", |_| {}).await;
    let config = config(
        daemon.dir.path(),
        "listen = \"unix:/nowhere/skilld.sock\"",
        |_| {},
    );
    let error = Server::start(config, Arc::<FakeEngine>::clone(&daemon.engine))
        .await
        .expect_err("second")
        .to_string();
    assert!(error.contains("another skilld runs on it"), "{error}");
    let info = daemon
        .client()
        .await
        .server()
        .get_server_info(pb::GetServerInfoRequest {})
        .await;
    assert!(info.is_ok(), "the first one goes on");
}

#[tokio::test]
async fn the_instance_and_the_socket_survive_restarts() {
    let daemon = Daemon::start("", |_| {}).await;
    let socket = daemon.dir.path().join("skilld.sock");
    let instance = std::fs::read(daemon.dir.path().join("instance")).expect("instance");
    assert!(socket.exists());
    daemon.signal().await;
    let Daemon {
        dir,
        engine,
        signals,
        running,
    } = daemon;
    drop(signals);
    assert!(within(running).await.expect("no panic"));
    assert!(!socket.exists(), "the socket is removed at the end");
    // A socket that a killed daemon left is in nobody's way.
    drop(std::os::unix::net::UnixListener::bind(&socket).expect("bind"));
    let server = Server::start(config(dir.path(), "", |_| {}), engine)
        .await
        .expect("again");
    assert_eq!(
        std::fs::read(dir.path().join("instance")).expect("instance"),
        instance
    );
    let (signals, received) = mpsc::channel(1);
    signals.send(()).await.expect("send");
    assert!(within(server.run(received)).await);
}

/// An open call of skilld's own: an upload whose first message has not come.
async fn upload(
    client: &Client,
) -> (
    mpsc::Sender<pb::StageFilesRequest>,
    JoinHandle<Result<(), Status>>,
) {
    let (sender, receiver) = mpsc::channel(1);
    let mut files = client.files();
    let call = async move {
        let messages = tokio_stream::wrappers::ReceiverStream::new(receiver);
        files.stage_files(messages).await.map(drop)
    };
    let call = Tasks::default().spawn(call);
    // The first answer proves that the upload was begun, the second that it has arrived: one connection keeps
    // the order.
    for _ in 0..2 {
        let info = client
            .server()
            .get_server_info(pb::GetServerInfoRequest {})
            .await;
        assert!(info.is_ok(), "{info:?}");
    }
    (sender, call)
}

#[tokio::test]
async fn a_signal_drains_then_stops() {
    let daemon = Daemon::start("", |_| {}).await;
    let client = daemon.client().await;
    let mut changes = watch(client.channel()).await;
    while within(changes.message())
        .await
        .expect("watch")
        .expect("open")
        .status
        != 1
    {}
    let (sender, call) = upload(&client).await;

    daemon.signal().await;
    assert_eq!(
        within(changes.message())
            .await
            .expect("watch")
            .expect("open")
            .status,
        2
    );
    // It still answers, refuses new work, and waits for the call that is open.
    assert!(
        client
            .server()
            .get_server_info(pb::GetServerInfoRequest {})
            .await
            .is_ok()
    );
    let status = client
        .workspaces()
        .create_workspace(pb::CreateWorkspaceRequest::default())
        .await;
    let status = status.expect_err("draining");
    assert_eq!(
        (status.code(), reason(&status).as_str()),
        (Code::Unavailable, "DRAINING")
    );
    assert!(!daemon.running.is_finished());

    drop(sender);
    let status = within(call)
        .await
        .expect("no panic")
        .expect_err("an upload without a header");
    assert_eq!(status.code(), Code::InvalidArgument, "{status:?}");
    // Then it stops: the stream that is not skilld's own ends cleanly.
    let end = within(changes.message()).await.expect_err("stopped");
    assert_eq!(
        (end.code(), reason(&end).as_str()),
        (Code::Unavailable, "DRAINING"),
        "{end:?}"
    );
    assert!(daemon.ended().await);
}

#[tokio::test]
async fn a_second_signal_cuts_the_drain_short() {
    let daemon = Daemon::start("", |config| {
        config.server.stop_timeout = Duration::from_secs(2);
    })
    .await;
    let client = daemon.client().await;
    let (_sender, call) = upload(&client).await;
    daemon.signal().await;
    daemon.signal().await;
    let start = Instant::now();
    // The client neither sends nor goes away; its connection is cut half-way through the stop timeout.
    assert!(daemon.ended().await, "everything ended");
    assert!(
        start.elapsed() < Duration::from_secs(5),
        "{:?}",
        start.elapsed()
    );
    assert!(within(call).await.expect("no panic").is_err());
}

#[tokio::test]
async fn a_drain_ends_at_its_timeout() {
    let daemon = Daemon::start("", |config| {
        config.server.drain_timeout = Duration::from_millis(300);
        config.server.stop_timeout = Duration::from_secs(2);
    })
    .await;
    let client = daemon.client().await;
    let (_sender, _call) = upload(&client).await;
    let start = Instant::now();
    daemon.signal().await;
    assert!(daemon.ended().await);
    let took = start.elapsed();
    assert!(
        took >= Duration::from_millis(300) && took < Duration::from_secs(5),
        "{took:?}"
    );
}

#[test]
fn without_docker_the_daemon_says_so_and_exits_1() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_skilld"))
        .arg("--state-dir")
        .arg(dir.path())
        .env_clear()
        .env("SKILLD_ENGINE__DOCKER_HOST", "unix:///nowhere/docker.sock")
        .env("SKILLD_ENGINE__GUEST_PATH", env!("CARGO_BIN_EXE_skilld"))
        .output()
        .expect("run skilld");
    assert_eq!(output.status.code(), Some(1));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(
        stderr.contains("error: ") && stderr.contains("/nowhere/docker.sock"),
        "{stderr}"
    );
}
