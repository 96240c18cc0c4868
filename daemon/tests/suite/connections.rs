//! Tests of connections from other clients: frames of gRPC implementations in other languages, requests that are not gRPC,
//! and clients that occupy all connections. They use a real socket and a whole server.

mod http2_limits;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use http::header::{ALLOW, CONTENT_TYPE};
use http::{Method, Request, StatusCode};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use skilld_client::{Client, ConnectOptions, RetryPolicy, SaveTarget};
use skilld_proto::v1 as pb;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tonic::body::Body;
use tonic_health::pb::health_client::HealthClient;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};
use tower::{Service, ServiceExt};

use crate::server::{TestServer, connect, within};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const GOAWAY: u8 = 7;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
/// Size of the largest frame that most clients send, in bytes.
const FRAME_BYTES_MAX: usize = 16 << 10;

/// Returns the path of the server's socket.
fn socket_path(server: &TestServer) -> PathBuf {
    server.state_dir().join("skilld.sock")
}

/// Client that writes HTTP/2 frames itself.
struct RawClient {
    stream: UnixStream,
    next_stream: u32,
}

impl RawClient {
    async fn connect(server: &TestServer) -> Self {
        let mut stream = UnixStream::connect(socket_path(server))
            .await
            .expect("connect");
        let begin = [PREFACE, &encode_frame(SETTINGS, 0, 0, &[])].concat();
        stream.write_all(&begin).await.expect("write");
        Self {
            stream,
            next_stream: 1,
        }
    }

    /// Reads the header and the payload of one frame.
    async fn read_frame(&mut self) -> ([u8; 9], Vec<u8>) {
        let mut head = [0; 9];
        within(self.stream.read_exact(&mut head))
            .await
            .expect("a frame");
        let mut payload = vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
        within(self.stream.read_exact(&mut payload))
            .await
            .expect("its payload");
        (head, payload)
    }

    /// Calls GetServerInfo with this header block. Returns `true` after a response, and `false` after a refusal, or if
    /// the server reset the stream or the connection.
    async fn is_answered(&mut self, block: &[u8]) -> bool {
        let id = self.next_stream;
        self.next_stream += 2;
        let parts = block.chunks(FRAME_BYTES_MAX);
        let (last, mut frames) = (parts.len() - 1, Vec::new());
        for (number, part) in parts.enumerate() {
            let kind = if number == 0 { HEADERS } else { CONTINUATION };
            let flags = if number == last { END_HEADERS } else { 0 };
            frames.extend(encode_frame(kind, flags, id, part));
        }
        frames.extend(encode_frame(DATA, END_STREAM, id, &[0; 5]));
        self.stream.write_all(&frames).await.expect("write");
        let mut has_message = false;
        loop {
            let (head, payload) = self.read_frame().await;
            let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
            match head[3] {
                GOAWAY => return false,
                RST_STREAM if stream == id => return false,
                // A response is a message followed by trailers.
                DATA if stream == id => {
                    assert!(payload.len() > 100, "{payload:?}");
                    has_message = true;
                }
                HEADERS if stream == id && head[4] & END_STREAM != 0 => return has_message,
                _ => {}
            }
        }
    }
}

/// Encodes an HTTP/2 frame.
fn encode_frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("short").to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// Decodes hex digits.
fn decode_hex(text: &str) -> Vec<u8> {
    let digit = |at: usize| u8::from_str_radix(&text[at..at + 2], 16).expect("hex");
    (0..text.len()).step_by(2).map(digit).collect()
}

/// Encodes a header as an HPACK literal with incremental indexing and a literal name.
fn indexed_header(name: &str, value: &str) -> Vec<u8> {
    let length = |text: &str| u8::try_from(text.len()).expect("short");
    let lengths = (length(name), length(value));
    [
        &[0x40, lengths.0],
        name.as_bytes(),
        &[lengths.1],
        value.as_bytes(),
    ]
    .concat()
}

/// Encodes `:method POST`, `:scheme http`, and the path of GetServerInfo with incremental indexing.
fn pseudo_headers() -> Vec<u8> {
    pseudo_headers_for("/skilld.v1.ServerService/GetServerInfo")
}

/// Encodes `:method POST`, `:scheme http`, and a path with incremental indexing.
fn pseudo_headers_for(path: &str) -> Vec<u8> {
    let length = u8::try_from(path.len()).expect("short");
    [&[0x83, 0x86, 0x44, length][..], path.as_bytes()].concat()
}

/// Header blocks of grpcurl's first and repeated request, as the HPACK encoder of grpc-go encodes them. The tests replace
/// `AUTHORITY` and `AGAIN`.
const GRPCURL: (&str, &str) = (
    "8386449c611d4d45122fdc2bee2d9dcb66e2d9dcc42b188a9dc5b3b96cc954a7AUTHORITY5f8b1d75d0620d263d4c4d65647a959acac96d9431dc2b\
     bebb2a4d65645a63b015dc0ae04082497f864d833505b11f408e9acac8b0c842d6958b510f21aa9b839bd9ab",
    "8386c3AGAINc1c0bfbe",
);

#[tokio::test]
async fn any_authority_derived_from_the_socket_path_is_accepted() {
    let server = TestServer::start("", &[]).await;
    // grpcurl: the plain path, percent-encoded, empty (an entry of the static table), and `localhost`.
    for (what, first, again) in [
        ("/tmp/skilld.sock", "418c6134d6c23a9a8a245d07275f", "c2"),
        (
            "%2Ftmp%2Fskilld.sock",
            "418f5458534d6a8b0a3a9a8a245d07275f",
            "c2",
        ),
        ("localhost", "4186a0e41d139d09", "c2"),
        ("", "81", "81"),
    ] {
        let mut client = RawClient::connect(&server).await;
        // Without an indexed authority, the index of the path is one lower.
        let path = if what.is_empty() { "c2" } else { "c3" };
        let block = decode_hex(&GRPCURL.0.replace("AUTHORITY", first));
        assert!(client.is_answered(&block).await, "grpcurl, {what:?}");
        let block = decode_hex(&GRPCURL.1.replace("AGAIN", again).replace("c3", path));
        assert!(client.is_answered(&block).await, "grpcurl again, {what:?}");
    }
    // grpc core (Python, C++, Ruby, PHP): literal names, no Huffman code.
    for authority in [
        "%2Ftmp%2Fskilld.sock",
        "/tmp/skilld.sock",
        "run%2Fskilld.sock",
        "",
        "localhost",
    ] {
        let mut client = RawClient::connect(&server).await;
        let rest = [
            indexed_header("te", "trailers"),
            indexed_header("content-type", "application/grpc"),
        ]
        .concat();
        let first = [
            pseudo_headers(),
            indexed_header(":authority", authority),
            rest,
        ]
        .concat();
        assert!(client.is_answered(&first).await, "grpc core, {authority:?}");
        // Indexes of path, authority, te, content-type.
        let again = [0x83, 0x86, 0xc1, 0xc0, 0xbf, 0xbe];
        assert!(
            client.is_answered(&again).await,
            "grpc core again, {authority:?}"
        );
    }
    // grpc-java: never indexed.
    let mut client = RawClient::connect(&server).await;
    let authority = b"\x11\x10/tmp/skilld.sock".to_vec();
    let rest = [
        indexed_header("te", "trailers"),
        indexed_header("content-type", "application/grpc"),
    ]
    .concat();
    assert!(
        client
            .is_answered(&[pseudo_headers(), authority, rest].concat())
            .await
    );
    drop(client);
    assert!(server.stop().await);
}

#[tokio::test]
async fn indexed_headers_are_found_until_the_client_evicts_them() {
    /// Default size of a header table, in bytes (RFC 7541).
    const TABLE: usize = 4096;
    /// Size of a table entry in addition to its text, in bytes.
    const ENTRY: usize = 32;

    let server = TestServer::start("", &[]).await;
    let mut client = RawClient::connect(&server).await;
    let authority = "%2Fa%2Flong%2Fpath%2Fof%2Fa%2Fsocket%2Fskilld.sock";
    let first = [
        pseudo_headers(),
        indexed_header(":authority", authority),
        indexed_header("te", "trailers"),
        indexed_header("content-type", "application/grpc"),
    ];
    assert!(client.is_answered(&first.concat()).await);
    // Sizes of the entries in the client's table, newest first.
    let mut table = vec![
        ENTRY + "content-typeapplication/grpc".len(),
        ENTRY + "tetrailers".len(),
        ENTRY + ":authority".len() + authority.len(),
        ENTRY + ":path/skilld.v1.ServerService/GetServerInfo".len(),
    ];
    let oldest = table.len();
    for number in 0.. {
        let (name, value) = ("x-filler", format!("{number:0>80}"));
        let used: usize = table.iter().sum();
        if used + ENTRY + name.len() + value.len() > TABLE {
            break;
        }
        let index = |place: usize| u8::try_from(0x80 + 61 + place).expect("one byte");
        let newer = table.len() - oldest;
        // Current indexes of path, authority, te and content-type.
        let block = [4, 3, 2, 1].map(|place| index(newer + place));
        let block = [&[0x83, 0x86][..], &block, &indexed_header(name, &value)].concat();
        assert!(
            client.is_answered(&block).await,
            "after {number} more entries"
        );
        table.insert(0, ENTRY + name.len() + value.len());
    }
    assert!(table.len() > 30, "the table was never full");
    drop(client);
    assert!(server.stop().await);
}

#[tokio::test]
async fn requests_that_are_not_grpc_get_an_http_error() {
    let server = TestServer::start("", &[]).await;
    let mut channel = server.client.channel();
    let path = "/skilld.v1.ServerService/GetServerInfo";
    for (method, content_type, expected) in [
        (
            Method::GET,
            Some("application/grpc"),
            StatusCode::METHOD_NOT_ALLOWED,
        ),
        (
            Method::PUT,
            Some("application/grpc"),
            StatusCode::METHOD_NOT_ALLOWED,
        ),
        (
            Method::POST,
            Some("text/html"),
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
        ),
        (
            Method::POST,
            Some("application/grpc-web"),
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
        ),
        (
            Method::POST,
            Some("application/json"),
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
        ),
        (Method::POST, None, StatusCode::UNSUPPORTED_MEDIA_TYPE),
        (Method::POST, Some("application/grpc"), StatusCode::OK),
        (Method::POST, Some("application/grpc+proto"), StatusCode::OK),
    ] {
        let mut builder = Request::builder().method(method.clone()).uri(path);
        if let Some(content_type) = content_type {
            builder = builder.header(CONTENT_TYPE, content_type);
        }
        let request = builder.body(Body::empty()).expect("a request");
        let ready = channel.ready().await.expect("ready");
        let response = within(ready.call(request)).await.expect("an answer");
        let what = format!("{method} {content_type:?}: {:?}", response.headers());
        assert_eq!(response.status(), expected, "{what}");
        let is_refused = expected != StatusCode::OK;
        assert_eq!(
            response.headers().get("grpc-status").is_none(),
            is_refused,
            "{what}"
        );
        let allow = response.headers().get(ALLOW);
        assert_eq!(
            allow.is_some(),
            expected == StatusCode::METHOD_NOT_ALLOWED,
            "{what}"
        );
    }
    assert!(server.stop().await);
}

/// Watches the health of the server.
async fn watch_health(client: &Client) -> tonic::Streaming<HealthCheckResponse> {
    let request = HealthCheckRequest::default();
    let mut health = HealthClient::new(client.channel());
    health.watch(request).await.expect("watch").into_inner()
}

/// Waits for the next message of a watch and returns its status.
async fn next_status(changes: &mut tonic::Streaming<HealthCheckResponse>) -> i32 {
    let message = within(changes.message()).await.expect("open");
    message.expect("a status").status
}

/// Asserts that a new client is connected and its first call answered. No connection of these tests times out meanwhile,
/// and a client that is kept out is disconnected.
async fn assert_new_client_is_served(server: &TestServer, what: &str) {
    let endpoint = format!("unix:{}", socket_path(server).display());
    let served = within(async {
        let client = connect(&ConnectOptions::new(endpoint)).await;
        client.with_retry(RetryPolicy::none()).server_info().await
    });
    if let Err(error) = served.await {
        panic!("a new client is kept out after {what}: {error}");
    }
}

/// Raises the limit of open files, because this process holds both ends of every connection.
pub(crate) fn raise_descriptor_limit() {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).expect("limit");
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).expect("raised");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_idle_connections_keep_no_new_client_out() {
    raise_descriptor_limit();
    let server = TestServer::start("", &[]).await;
    let mut changes = watch_health(&server.client).await;
    assert_eq!(next_status(&mut changes).await, 1);
    let mut idle = Vec::new();
    for number in 0..1000 {
        let mut stream = within(UnixStream::connect(socket_path(&server)))
            .await
            .expect("accepted");
        let begin = [PREFACE, &encode_frame(SETTINGS, 0, 0, &[])].concat();
        // The server closes the first connections to admit the last ones.
        let _ended = stream.write_all(&begin).await;
        idle.push(stream);
        if number % 100 == 99 {
            assert_new_client_is_served(&server, &format!("{number} idle connections")).await;
        }
    }
    // The server did not close the connection with an open stream.
    server.engine.set_unavailable(true);
    // While a thousand clients connect, the health may have changed and recovered.
    while next_status(&mut changes).await != 2 {}
    drop(idle);
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watcher_is_told_a_status_only_when_it_changed() {
    let server = TestServer::start("", &[("csv", "name: csv\ndescription: d")]).await;
    let mut changes = watch_health(&server.client).await;
    assert_eq!(next_status(&mut changes).await, 1);
    let skill = within(server.client.get_skill("csv")).await.expect("there");
    let root = PathBuf::from(skill.root);
    std::fs::rename(&root, root.with_file_name("away")).expect("rename");
    let mut skills = server.client.skills();
    within(skills.refresh_skills(pb::RefreshSkillsRequest {}))
        .await
        .expect("refreshed");
    // The status of one service changes; the server's own does not.
    let service = "skilld.v1.SkillService";
    while within(server.client.is_serving(service))
        .await
        .expect("health")
    {}
    server.engine.set_unavailable(true);
    assert_eq!(next_status(&mut changes).await, 2);
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_without_a_preface_keep_no_new_client_out() {
    raise_descriptor_limit();
    let server = TestServer::start("", &[]).await;
    let mut changes = watch_health(&server.client).await;
    assert_eq!(next_status(&mut changes).await, 1);
    let mut silent = Vec::new();
    for round in 0..3 {
        for _ in 0..1000 {
            silent.push(
                within(UnixStream::connect(socket_path(&server)))
                    .await
                    .expect("accepted"),
            );
        }
        assert_new_client_is_served(&server, &format!("round {round}")).await;
    }
    server.engine.set_unavailable(true);
    assert_eq!(next_status(&mut changes).await, 2);
    drop(silent);
    assert!(server.stop().await);
}

/// Begins a call and sends a message, unless it is empty, without ending the stream.
async fn begin_call(server: &TestServer, path: &str, message: &[u8]) -> RawClient {
    let mut client = RawClient::connect(server).await;
    let rest = [
        indexed_header(":authority", "localhost"),
        indexed_header("te", "trailers"),
        indexed_header("content-type", "application/grpc"),
    ];
    let block = [pseudo_headers_for(path), rest.concat()].concat();
    let mut frames = encode_frame(HEADERS, END_HEADERS, client.next_stream, &block);
    if !message.is_empty() {
        frames.extend(encode_frame(DATA, 0, client.next_stream, message));
    }
    // The server may already have closed this connection.
    drop(client.stream.write_all(&frames).await);
    client
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_that_are_not_complete_keep_no_new_client_out() {
    let server = TestServer::start("server.connections_max = 9", &[]).await;
    let mut open = Vec::new();
    for (path, message) in [
        ("/skilld.v1.ExecService/RunExec", &[][..]),
        // A complete message in a stream without an end.
        ("/skilld.v1.ExecService/RunExec", &[0; 5]),
        ("/skilld.v1.FileService/StageFiles", &[]),
        ("/skilld.v1.FileService/StageFiles", &[0, 0, 0, 0, 9, 1]),
        ("/grpc.health.v1.Health/Watch", &[]),
    ] {
        for _ in 0..20 {
            open.push(begin_call(&server, path, message).await);
        }
        assert_new_client_is_served(&server, path).await;
    }
    drop(open);
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_that_only_watch_keep_no_new_client_out() {
    let server = TestServer::start("server.connections_max = 9", &[]).await;
    let endpoint = format!("unix:{}", socket_path(&server).display());
    let mut watching = Vec::new();
    for _ in 0..8 {
        let client = connect(&ConnectOptions::new(endpoint.clone())).await;
        let mut changes = watch_health(&client).await;
        within(changes.message()).await.expect("open");
        watching.push((client, changes));
    }
    assert_new_client_is_served(&server, "eight watches").await;
    // The server closed the oldest connection, because none was idle; the newest is open.
    let (_, oldest) = watching.first_mut().expect("eight");
    // A change of health may arrive first.
    while let Ok(Some(_)) = within(oldest.message()).await {}
    server.engine.set_unavailable(true);
    let (_, newest) = watching.last_mut().expect("eight");
    loop {
        let state = within(newest.message()).await.expect("open");
        if state.expect("a state").status == 2 {
            break;
        }
    }
    assert!(server.stop().await);
}

#[tokio::test]
async fn call_without_a_request_ends_after_ten_seconds() {
    let server = TestServer::start("", &[]).await;
    let begun = Instant::now();
    let mut client = begin_call(&server, "/skilld.v1.ExecService/RunExec", &[]).await;
    // The response is one HEADERS frame with the status.
    loop {
        let (head, _) = client.read_frame().await;
        if head[3..5] == [HEADERS, END_HEADERS | END_STREAM] {
            break;
        }
    }
    let took = begun.elapsed();
    assert!(took >= Duration::from_secs(9), "{took:?}");
    drop(client);
    assert!(server.stop().await);
}

#[tokio::test]
async fn clients_over_the_limit_are_rejected_if_all_others_are_busy() {
    let server = TestServer::start("server.connections_max = 1", &[]).await;
    let scope = pb::ArtifactScope {
        app: "app".to_owned(),
        user: "ada".to_owned(),
        session: "1".to_owned(),
    };
    // Larger than all windows and buffers together, so that an unread stream does not end.
    let source = std::io::Cursor::new(vec![7; 32 << 20]);
    let target = SaveTarget::new("a.bin", scope);
    let saved = server
        .client
        .save_artifact(target, source)
        .await
        .expect("saved");
    let request = pb::LoadArtifactRequest {
        name: saved.name,
        scope: saved.scope,
        version: None,
    };
    let mut loading = server
        .client
        .artifacts()
        .load_artifact(request)
        .await
        .expect("loads")
        .into_inner();
    within(loading.message()).await.expect("open");
    let mut second = UnixStream::connect(socket_path(&server))
        .await
        .expect("accepted");
    let mut rest = Vec::new();
    // The server closes or resets the connection, long before the timeout of a handshake.
    drop(within(second.read_to_end(&mut rest)).await);
    assert!(rest.is_empty(), "{rest:?}");
    drop(loading);
    // The end of the stream frees the connection.
    let served = async {
        loop {
            let endpoint = format!("unix:{}", socket_path(&server).display());
            if let Ok(client) = Client::connect(&endpoint).await
                && client.server_info().await.is_ok()
            {
                break;
            }
        }
    };
    within(served).await;
    assert!(server.stop().await);
}

#[tokio::test]
async fn quota_error_names_the_quota() {
    use tonic_types::StatusExt;

    let server = TestServer::start("workspaces.count_max = 1\n", &[]).await;
    server.workspace().await;
    let request = pb::CreateWorkspaceRequest::default();
    let created = server.client.workspaces().create_workspace(request).await;
    let status = created.expect_err("over the limit");
    let details = status.get_error_details();
    let reason = details.error_info().map(|info| info.reason.clone());
    assert_eq!(reason.as_deref(), Some("QUOTA_EXCEEDED"), "{status:?}");
    let failure = details.quota_failure().expect("QuotaFailure");
    let violations: Vec<(&str, &str)> = failure
        .violations
        .iter()
        .map(|one| (one.subject.as_str(), one.description.as_str()))
        .collect();
    let subject = "workspaces (workspaces.count_max)";
    assert_eq!(violations, [(subject, status.message())]);
    assert!(details.retry_info().is_some(), "{status:?}");
    let pushback = status
        .metadata()
        .get("grpc-retry-pushback-ms")
        .and_then(|value| value.to_str().ok());
    assert_eq!(pushback, Some("1000"), "what retry policies obey");
    assert!(server.stop().await);
}
