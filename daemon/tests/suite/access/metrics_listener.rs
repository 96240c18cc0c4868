//! Listener of metrics: who may read what, and what hostile clients can't do.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use skilld_proto::v1 as pb;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::harness::{AccessServer, token};
use super::quotas::create;
use crate::connections::raise_descriptor_limit;
use crate::server::{wait_until, within};

/// Number of connections with half a request: more than one address may have. If a listener served a few of them at a
/// time, up to their deadlines, others would wait for longer than these tests do.
const HALF_REQUESTS: usize = 950;

/// Time after which the listener ends a connection.
const CONNECTION_TIME_MAX: Duration = Duration::from_secs(10);

/// Sends a request with further header lines, and returns status and body.
pub(super) async fn fetch(
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: &str,
) -> (u16, String) {
    repeat_late(async || {
        let stream = TcpStream::connect(address).await.expect("connected");
        exchange(stream, method, path, headers).await
    })
    .await
}

/// Makes a request, which must be answered. One that took as long as a connection may, because the machine paused, is
/// repeated.
async fn repeat_late(
    mut request: impl AsyncFnMut() -> Result<(u16, String), String>,
) -> (u16, String) {
    wait_until("the listener answers", async || {
        let started = Instant::now();
        let answer = request().await;
        let is_late = started.elapsed() >= CONNECTION_TIME_MAX;
        assert!(is_late || answer.is_ok(), "{answer:?}");
        answer.ok()
    })
    .await
}

/// Returns status and body, or what was read if the connection ended before.
async fn exchange(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    method: &str,
    path: &str,
    headers: &str,
) -> Result<(u16, String), String> {
    let accept = "Accept: application/openmetrics-text;version=1.0.0,text/plain;q=0.5";
    let request = format!("{method} {path} HTTP/1.1\r\nHost: x\r\n{accept}\r\n{headers}\r\n");
    let sent = stream.write_all(request.as_bytes()).await;
    let mut answer = Vec::new();
    // A server that refuses a head while it arrives closes the connection.
    let read = stream.read_to_end(&mut answer).await;
    let text = String::from_utf8_lossy(&answer).into_owned();
    let Some((head, body)) = text.split_once("\r\n\r\n") else {
        return Err(format!("{sent:?}, {read:?}, {text}"));
    };
    let status = head
        .split(' ')
        .nth(1)
        .and_then(|status| status.parse().ok());
    Ok((status.expect("a status"), body.to_owned()))
}

/// Reads the metrics of the listener that asks for tokens.
async fn fetch_with_token(server: &AccessServer, token: Option<&str>) -> (u16, String) {
    let mut roots = RootCertStore::empty();
    let certificate = CertificateDer::from_pem_file(&server.authority.ca_file).expect("PEM");
    roots.add(certificate).expect("authority");
    let mut config = ClientConfig::builder()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    let address = *server.metrics.get(1).expect("with TLS");
    let connector = TlsConnector::from(Arc::new(config));
    let header = token
        .map(|token| format!("Authorization: Bearer {token}\r\n"))
        .unwrap_or_default();
    repeat_late(async || {
        let stream = TcpStream::connect(address).await.expect("connected");
        let name = ServerName::try_from("localhost").expect("name");
        let handshake = connector.connect(name, stream).await;
        let stream = handshake.map_err(|error| error.to_string())?;
        exchange(stream, "GET", "/metrics", &header).await
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_show_a_tenant_its_own_samples_and_an_admin_all() {
    let server = AccessServer::start_with_metrics().await;
    let user = server.client("b", "user").await;
    create(&user, "w").await.expect("created");
    let wrong = format!("skt_a-observer_{}", "x".repeat(43));
    for refused in [None, Some(wrong.as_str()), Some("x"), Some("a.b.c")] {
        let (status, body) = fetch_with_token(&server, refused).await;
        assert_eq!(status, 401, "{body}");
        assert!(!body.contains("skilld_"), "{body}");
    }
    let usage = |tenant: &str| format!("skilld_tenant_usage{{tenant=\"{tenant}\"");
    let (status, own) = fetch_with_token(&server, Some(&token("a", "observer"))).await;
    assert_eq!(status, 200, "{own}");
    assert!(
        own.contains(&usage("a")) && !own.contains("tenant=\"b\""),
        "{own}"
    );
    let (status, all) = fetch_with_token(&server, Some(&token("a", "admin"))).await;
    assert_eq!(status, 200, "{all}");
    assert!(
        all.contains(&usage("a")) && all.contains(&usage("b")),
        "{all}"
    );

    let minter = server.client("b", "tenant_admin").await;
    let request = pb::CreateWorkspaceTokenRequest {
        workspace: "workspaces/w".to_owned(),
        ..pb::CreateWorkspaceTokenRequest::default()
    };
    let minted = minter
        .create_workspace_token(request)
        .await
        .expect("minted");
    let (status, body) = fetch_with_token(&server, Some(&minted.token)).await;
    assert_eq!(status, 403, "{body}");
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn only_get_of_the_page_is_answered() {
    let server = AccessServer::start_with_metrics().await;
    let plain = *server.metrics.first().expect("plain");
    for (method, path, wanted) in [
        ("GET", "/metrics", 200),
        ("GET", "/metrics?x=1", 200),
        ("GET", "/", 404),
        ("GET", "/metrics/", 404),
        ("POST", "/metrics", 405),
        ("DELETE", "/metrics", 405),
        ("PRI", "*", 404),
    ] {
        let (status, body) = fetch(plain, method, path, "").await;
        assert_eq!(status, wanted, "{method} {path}: {body}");
    }
    let many = "X: y\r\n".repeat(100);
    let long = format!("X: {}\r\n", "y".repeat(64 << 10));
    for headers in [many, long] {
        let (status, body) = fetch(plain, "GET", "/metrics", &headers).await;
        assert_eq!(status, 431, "{body}");
    }
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn half_requests_keep_no_reader_of_metrics_out() {
    raise_descriptor_limit();
    let server = AccessServer::start_with_metrics().await;
    let mut silent = Vec::new();
    for index in 0..HALF_REQUESTS {
        let address = server.metrics[index % 2];
        let mut stream = TcpStream::connect(address).await.expect("connected");
        stream.write_all(b"G").await.expect("sent");
        silent.push(stream);
    }
    let plain = *server.metrics.first().expect("plain");
    let (status, _) = within(fetch(plain, "GET", "/metrics", "")).await;
    assert_eq!(status, 200);
    let observer = token("a", "observer");
    let (status, _) = within(fetch_with_token(&server, Some(&observer))).await;
    assert_eq!(status, 200);
    let user = server.client("a", "user").await;
    user.get_principal().await.expect("the API is served");
    for address in &server.metrics {
        silent.push(TcpStream::connect(address).await.expect("connected"));
    }
    assert!(server.stop().await, "stopped in time");
    drop(silent);
}
