//! Daemon and credentials of a command: the order of flags, contexts and variables.

use std::process::Output;
use std::sync::{Arc, Mutex};

use skilld_testing::Fake;
use tokio::net::TcpListener;
use tokio::process::Command;
use tokio::task::JoinSet;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::codegen::http::{HeaderMap, Request};
use tower::util::MapRequestLayer;

use crate::commands::{fake, skillctl};

/// Server that records the headers of all calls and knows only those of the health service.
pub(crate) struct HeaderServer {
    pub(crate) endpoint: String,
    seen: Arc<Mutex<Vec<HeaderMap>>>,
    _tasks: JoinSet<()>,
}

impl HeaderServer {
    pub(crate) async fn start() -> Self {
        let (_reporter, service) = tonic_health::server::health_reporter();
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let endpoint = format!("http://{}", listener.local_addr().expect("bound"));
        let seen: Arc<Mutex<Vec<HeaderMap>>> = Arc::default();
        let record = Arc::clone(&seen);
        let layer = MapRequestLayer::new(move |request: Request<tonic::body::Body>| {
            let headers = request.headers().clone();
            record.lock().expect("no test panics with it").push(headers);
            request
        });
        let server = tonic::transport::Server::builder()
            .layer(layer)
            .add_service(service)
            .serve_with_incoming(TcpListenerStream::new(listener));
        let mut tasks = JoinSet::new();
        tasks.spawn(async move { server.await.expect("serves") });
        Self {
            endpoint,
            seen,
            _tasks: tasks,
        }
    }

    /// Returns the headers of the calls since the last time.
    pub(crate) fn take_headers(&self) -> Vec<HeaderMap> {
        std::mem::take(&mut *self.seen.lock().expect("no test panics with it"))
    }

    /// Runs `whoami` and returns the token and the tenant that it sent; `None` if no call came.
    async fn credentials(&self, mut command: Command) -> Option<(String, String)> {
        let output = command.arg("whoami").output().await.expect("runs");
        assert_eq!(output.status.code(), Some(1), "no server knows the call");
        let headers = self.take_headers().into_iter().next()?;
        let header = |name| {
            let value = headers.get(name).map(|value| value.to_str().expect("text"));
            value.unwrap_or_default().to_owned()
        };
        Some((header("authorization"), header("skilld-tenant")))
    }
}

/// Returns a command whose endpoint no variable names.
fn without_endpoint(fake: &Fake, words: &[&str]) -> Command {
    let mut command = skillctl(fake, words);
    command.env_remove("SKILLD_ENDPOINT");
    command
}

/// Returns a command with the credentials of a shell for another daemon.
fn with_variables(fake: &Fake, words: &[&str]) -> Command {
    let mut command = without_endpoint(fake, words);
    command
        .env("SKILLD_TOKEN", "of-the-shell")
        .env("SKILLD_TENANT", "of-the-shell");
    command
}

async fn stderr(mut command: Command) -> String {
    let Output { stderr, .. } = command.output().await.expect("runs");
    String::from_utf8(stderr).expect("utf-8")
}

fn sent(token: &str, tenant: &str) -> Option<(String, String)> {
    Some((format!("Bearer {token}"), tenant.to_owned()))
}

#[tokio::test]
async fn the_credentials_of_a_context_precede_those_of_variables() {
    let (fake, server) = (fake(), HeaderServer::start().await);
    for name in ["of-the-context", "of-a-flag"] {
        std::fs::write(fake.path(name), name).expect("writes");
    }
    let token = [
        "--token-file",
        "of-the-context",
        "--tenant",
        "of-the-context",
    ];
    let set = ["context", "set", "prod", "--endpoint", &server.endpoint];
    let set = stderr(with_variables(&fake, &[&set[..], &token].concat())).await;
    assert_eq!(set, "skillctl: set context prod\n");
    let named = with_variables(&fake, &["--context", "prod"]);
    let expected = sent("of-the-context", "of-the-context");
    assert_eq!(server.credentials(named).await, expected);
    stderr(with_variables(&fake, &["context", "use", "prod"])).await;
    let current = with_variables(&fake, &[]);
    assert_eq!(server.credentials(current).await, expected);
    let flag = with_variables(&fake, &["--token-file", "of-a-flag"]);
    let expected = sent("of-a-flag", "of-the-context");
    assert_eq!(server.credentials(flag).await, expected);
    // Without a context the variables count.
    let endpoint = with_variables(&fake, &["--endpoint", &server.endpoint]);
    let expected = sent("of-the-shell", "of-the-shell");
    assert_eq!(server.credentials(endpoint).await, expected);
}

#[tokio::test]
async fn a_certificate_gets_no_key_of_another_source() {
    let fake = fake();
    let endpoint = ["--endpoint", "https://127.0.0.1:1"];
    let set = ["context", "set", "prod", "--cert-file", "client.pem"];
    stderr(without_endpoint(&fake, &[&set[..], &endpoint].concat())).await;
    let mut command = without_endpoint(&fake, &["--context", "prod", "whoami"]);
    command.env("SKILLD_KEY_FILE", "other.key");
    let error = stderr(command).await;
    assert!(error.contains("belong together"), "{error}");
}

#[tokio::test]
async fn a_contexts_certificate_precedes_a_variables_token() {
    let fake = fake();
    let pair = ["--cert-file", "client.pem", "--key-file", "client.key"];
    let endpoint = ["--endpoint", "https://127.0.0.1:1"];
    let set = ["context", "set", "prod"];
    stderr(without_endpoint(
        &fake,
        &[&set[..], &pair, &endpoint].concat(),
    ))
    .await;
    let mut command = without_endpoint(&fake, &["--context", "prod", "whoami"]);
    command.env("SKILLD_TOKEN", "no token");
    let error = stderr(command).await;
    assert!(error.contains("client.pem"), "{error}");
}

#[tokio::test]
async fn the_token_itself_precedes_a_file_of_variables() {
    let (fake, server) = (fake(), HeaderServer::start().await);
    let mut command = with_variables(&fake, &["--endpoint", &server.endpoint]);
    command.env("SKILLD_TOKEN_FILE", "/nonexistent/token");
    let expected = sent("of-the-shell", "of-the-shell");
    assert_eq!(server.credentials(command).await, expected);
}

#[tokio::test]
async fn a_context_without_an_endpoint_is_refused() {
    let fake = fake();
    let set = ["context", "set", "bare", "--token-file", "secret"];
    let error = stderr(skillctl(&fake, &set)).await;
    assert!(error.contains("a context needs --endpoint"), "{error}");
    let saved = "current = \"bare\"\n[contexts.bare]\ntoken_file = \"/secret\"\n";
    std::fs::write(fake.path("contexts.toml"), saved).expect("writes");
    for mut command in [
        without_endpoint(&fake, &[]),
        skillctl(&fake, &["--context", "bare"]),
    ] {
        command.arg("whoami");
        let error = stderr(command).await;
        assert!(
            error.contains("the context \"bare\" has no endpoint"),
            "{error}"
        );
    }
    let deleted = stderr(skillctl(&fake, &["context", "delete", "bare"])).await;
    assert_eq!(deleted, "skillctl: deleted context bare\n");
}

#[tokio::test]
async fn a_blank_variable_is_unset() {
    let (fake, server) = (fake(), HeaderServer::start().await);
    let mut command = skillctl(&fake, &["--endpoint", &server.endpoint]);
    for name in [
        "ENDPOINT",
        "CONTEXT",
        "CA_FILE",
        "CERT_FILE",
        "KEY_FILE",
        "TOKEN",
        "TOKEN_FILE",
        "TENANT",
    ] {
        command.env(format!("SKILLD_{name}"), " ");
    }
    let nothing = (String::new(), String::new());
    assert_eq!(server.credentials(command).await, Some(nothing));
}

#[tokio::test]
async fn a_damaged_file_of_contexts_matters_only_if_it_is_used() {
    let fake = fake();
    std::fs::write(fake.path("contexts.toml"), "contexts = 3\n").expect("writes");
    assert_eq!(stderr(skillctl(&fake, &["ps", "w"])).await, "");
    let error = stderr(without_endpoint(&fake, &["ps", "w"])).await;
    assert!(
        error.contains("contexts.toml is damaged: invalid type: integer `3`"),
        "{error}"
    );
}
