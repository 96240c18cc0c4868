//! Tests with a fake Docker socket: versions, events and connection errors. End-to-end tests use a real Docker.

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixListener;
use tokio_util::task::AbortOnDropHandle;

use super::*;
use crate::engine::ContainerEventKind;

/// Deadline of each call, which no engine of these tests reaches but the silent one.
const CALL_TIMEOUT: Duration = Duration::from_secs(60);

/// Fake engine that responds to one request per connection.
pub(super) struct FakeSocket {
    dir: tempfile::TempDir,
    _server: AbortOnDropHandle<()>,
}

impl FakeSocket {
    /// Starts an engine that accepts everything. `respond` gets `GET /path?query` and returns a body.
    pub(super) fn new(respond: impl Fn(&str) -> String + Send + 'static) -> Self {
        Self::with_statuses(move |request, _| (200, respond(request)))
    }

    /// Starts an engine. `respond` gets `GET /path?query` and the body, and returns a status and a body.
    pub(super) fn with_statuses(
        respond: impl Fn(&str, &str) -> (u16, String) + Send + 'static,
    ) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let listener = UnixListener::bind(dir.path().join("docker.sock")).expect("bound");
        let server = async move {
            while let Ok((stream, _)) = listener.accept().await {
                let mut stream = BufReader::new(stream);
                let mut head = String::new();
                while !head.ends_with("\r\n\r\n")
                    && stream.read_line(&mut head).await.is_ok_and(|read| read > 0)
                {
                }
                let length = head
                    .to_lowercase()
                    .split("content-length: ")
                    .nth(1)
                    .and_then(|rest| rest.split("\r\n").next()?.parse().ok());
                let mut body = vec![0; length.unwrap_or(0)];
                stream.read_exact(&mut body).await.expect("a body");
                let request = head.split(" HTTP/").next().unwrap_or_default();
                let (status, body) = respond(request, &String::from_utf8_lossy(&body));
                let reply = format!(
                    "HTTP/1.1 {status} Status\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n{body}"
                );
                // A client that has what it needs may have gone.
                drop(stream.write_all(reply.as_bytes()).await);
            }
        };
        let tasks = tokio_util::task::TaskTracker::new();
        Self {
            dir,
            _server: AbortOnDropHandle::new(tasks.spawn(server)),
        }
    }

    pub(super) async fn connect(&self) -> Result<Arc<dyn Engine>> {
        let path = self.dir.path().join("docker.sock");
        connect_engine(&path.to_string_lossy(), CALL_TIMEOUT, None).await
    }
}

/// Returns a responder for a Docker with this API version. Requests must name no API version, so that newer engines accept
/// them.
fn docker_responses(api_version: &'static str) -> impl Fn(&str) -> String {
    move |request| match request.split('?').next().unwrap_or_default() {
        "GET /version" => format!(r#"{{"Version":"99.0","ApiVersion":"{api_version}"}}"#),
        "GET /info" => r#"{"CgroupVersion":"2"}"#.to_owned(),
        "GET /_ping" => "OK".to_owned(),
        "GET /events" => {
            r#"{"Type":"container","Action":"die","Actor":{"ID":"abc"}}"#.to_owned() + "\n"
        }
        other => panic!("{other} was not expected"),
    }
}

#[tokio::test]
async fn old_docker_is_rejected_and_newer_docker_is_accepted() {
    let error = FakeSocket::new(docker_responses("1.40"))
        .connect()
        .await
        .expect_err("too old")
        .to_string();
    assert!(
        error.contains("Docker 99.0 with API 1.40")
            && error.contains("needs Docker 20.10 (API 1.41)"),
        "{error}"
    );
    let docker = FakeSocket::new(docker_responses("1.99"));
    let info = docker
        .connect()
        .await
        .expect("new")
        .describe()
        .await
        .expect("described");
    assert_eq!(
        (info.api_version.as_str(), info.cgroup_version),
        ("1.99", 2)
    );
}

#[tokio::test]
async fn event_stream_ends_with_an_error_when_docker_stops() {
    let docker = FakeSocket::new(docker_responses("1.41"));
    let engine = docker.connect().await.expect("connected");
    let mut events = engine.events("one").await.expect("events");
    let first = events.next().await.expect("an event").expect("fine");
    assert_eq!(
        (first.container_id.as_str(), first.kind),
        ("abc", ContainerEventKind::Died)
    );
    let end = events.next().await.expect("an end");
    assert!(
        matches!(end, Err(Error::EngineUnavailable { .. })),
        "{end:?}"
    );
    drop(docker);
    assert!(matches!(
        engine.ping().await,
        Err(Error::EngineUnavailable { .. })
    ));
}

#[tokio::test]
async fn connect_errors_advise_if_docker_is_missing_or_stopped() {
    let dir = tempfile::tempdir().expect("a directory");
    let missing = dir.path().join("docker.sock");
    let text = |error: Error| {
        assert!(
            matches!(error, Error::EngineUnavailable { .. }),
            "{error:?}"
        );
        error.to_string()
    };
    let path = missing.to_string_lossy().into_owned();
    let error = connect_engine(&path, CALL_TIMEOUT, None)
        .await
        .expect_err("no socket");
    assert!(text(error).contains("not running or not installed"));

    // A socket file without a listener.
    drop(std::os::unix::net::UnixListener::bind(&missing).expect("bound"));
    let error = connect_engine(&path, CALL_TIMEOUT, None)
        .await
        .expect_err("no process listens");
    assert!(text(error).contains("no process listens"));
}

#[tokio::test]
async fn connect_to_a_silent_docker_times_out() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("docker.sock");
    let _silent = std::os::unix::net::UnixListener::bind(&path).expect("bound");
    let error = connect_engine(&path.to_string_lossy(), Duration::from_millis(50), None)
        .await
        .expect_err("no answer");
    assert!(
        matches!(&error, Error::EngineUnavailable { message } if message.contains("no answer within 50ms")),
        "{error}"
    );
}

#[tokio::test]
async fn rootless_engine_is_refused_with_the_reason_and_what_to_do() {
    for (version, start, host) in [
        (
            r#"{"Version":"28.2.2","ApiVersion":"1.50"}"#,
            "systemctl start docker",
            "unix:///var/run/docker.sock",
        ),
        (
            r#"{"Version":"4.3.1","ApiVersion":"1.41","Components":[{"Name":"Podman Engine","Version":"4.3.1"}]}"#,
            "systemctl enable --now podman.socket",
            "unix:///run/podman/podman.sock",
        ),
    ] {
        let info = r#"{"CgroupVersion":"2","SecurityOptions":["name=seccomp,profile=builtin","name=rootless"]}"#;
        let socket = FakeSocket::new(move |request| match request {
            "GET /version" => version.to_owned(),
            _ => info.to_owned(),
        });
        let error = socket.connect().await.expect_err("rootless").to_string();
        for part in [
            "failed to isolate workspaces: it runs rootless",
            "uids that isolate",
            start,
            host,
        ] {
            assert!(error.contains(part), "{part}: {error}");
        }
    }
}
