//! Streamable HTTP on loopback. Hosts and browser origins other than loopback's are refused, so that no web page
//! reaches it through a name that leads here.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Body, Incoming};
use hyper::header::{self, HeaderValue};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use rmcp::transport::{StreamableHttpServerConfig, StreamableHttpService};
use skilld_client::v1::ServerLimits;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::commands::mcp::kept_events::KeptEvents;
use crate::commands::mcp::server::Server;
use crate::commands::mcp::session_limit::{LimitedSessions, SESSIONS_MAX};
use crate::commands::mcp::write_file_tool::MESSAGE_BYTES_MAX;
use crate::output;
use crate::terminal::interrupt::InterruptSignals;

/// Maximum number of handlers: one for each session, and as many for requests that need no session and for sessions
/// that end.
const HANDLERS_MAX: usize = 2 * SESSIONS_MAX;

/// Maximum number of connections; more wait to be accepted. A client has one on which it listens, and one for each
/// call.
const CONNECTIONS_MAX: usize = 4 * SESSIONS_MAX;

/// Size above which the body of a request is large, in bytes.
const LARGE_BODY_BYTES: u64 = 1024 * 1024;

/// Maximum number of large bodies that are read at once, each of up to [`MESSAGE_BYTES_MAX`]; more wait.
const LARGE_BODIES_MAX: usize = 4;

/// Maximum time from the accept of a connection to its first request. Clients send one at once; hyper waits for the
/// first bytes for ever.
const FIRST_REQUEST_MAX: Duration = Duration::from_secs(30);

/// Time without a request after which a session is forgotten and its call cancelled, added to the longest command. It
/// covers staging before the command and a user who thinks.
const IDLE_MORE: Duration = Duration::from_secs(60 * 60);

/// Maximum time of a command if the daemon names none.
const COMMAND_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// Wait after a connection could not be accepted, for instance for lack of descriptors.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// Returns the maximum time that a session may be without a request.
pub(crate) fn idle_max(limits: &ServerLimits) -> Duration {
    let longest = limits.exec_timeout_max.and_then(|max| max.try_into().ok());
    longest.unwrap_or(COMMAND_MAX) + IDLE_MORE
}

/// Serves MCP over HTTP at a loopback address until a signal stops the program.
pub(crate) async fn serve_http(
    address: SocketAddr,
    server: &Server,
    idle_max: Duration,
    interrupt: &mut InterruptSignals,
) -> anyhow::Result<()> {
    if !address.ip().is_loopback() {
        anyhow::bail!("{address} is not on loopback; whoever reaches the server can use it");
    }
    let listener = TcpListener::bind(address)
        .await
        .with_context(|| format!("cannot listen on {address}"))?;
    output::note!("serving http://{}/mcp", listener.local_addr()?);
    let stop = CancellationToken::new();
    let http_service = make_service(server, idle_max, &stop);
    let large_bodies = Arc::new(Semaphore::new(LARGE_BODIES_MAX));
    let mut connections = JoinSet::new();
    let accepting = async {
        loop {
            while connections.len() >= CONNECTIONS_MAX {
                connections.join_next().await;
            }
            // Those that have ended are let go of as others come.
            while connections.try_join_next().is_some() {}
            let Ok((stream, _)) = listener.accept().await else {
                // Out of descriptors, or gone before it was taken.
                sleep(ACCEPT_AGAIN).await;
                continue;
            };
            let (http_service, large_bodies) = (http_service.clone(), Arc::clone(&large_bodies));
            let has_called = CancellationToken::new();
            let called = has_called.clone();
            let service = service_fn(move |request| {
                called.cancel();
                answer_request(http_service.clone(), Arc::clone(&large_bodies), request)
            });
            connections.spawn(async move {
                let mut builder = Builder::new(TokioExecutor::new());
                // With a clock, a request that does not come to its end is not waited for.
                builder.http1().timer(TokioTimer::new());
                builder.http2().timer(TokioTimer::new());
                let serving = builder.serve_connection(TokioIo::new(stream), service);
                wait_for_end(serving, &has_called).await;
            });
        }
    };
    // The loop has no end of its own.
    let _: Result<(), _> = interrupt.race(accepting).await;
    stop.cancel();
    connections.shutdown().await;
    Ok(())
}

/// Waits until a connection has ended, or until it has brought no request for [`FIRST_REQUEST_MAX`].
async fn wait_for_end(serving: impl Future, has_called: &CancellationToken) {
    let silent = async {
        let called = timeout(FIRST_REQUEST_MAX, has_called.cancelled()).await;
        if called.is_ok() {
            std::future::pending::<()>().await;
        }
    };
    tokio::select! {
        // A client that breaks off is its own business.
        _ended = serving => {}
        () = silent => {}
    }
}

/// Creates the MCP service, for clients of all protocol versions.
fn make_service(
    server: &Server,
    idle_max: Duration,
    stop: &CancellationToken,
) -> StreamableHttpService<Server, LimitedSessions> {
    // Origins: none but loopback's. Hosts: loopback's by default. No retry interval: the sessions send one at the
    // beginning of each call's stream, to clients that understand it.
    let config = StreamableHttpServerConfig::default()
        .with_allowed_origins(["http://localhost:*", "http://127.0.0.1:*", "http://[::1]:*"])
        .with_max_request_body_bytes(MESSAGE_BYTES_MAX)
        .with_sse_retry(None)
        .with_cancellation_token(stop.child_token());
    let (handler, places) = (server.clone(), Arc::new(Semaphore::new(HANDLERS_MAX)));
    let mut sessions = LocalSessionManager::default().with_event_store(Arc::new(KeptEvents::new()));
    sessions.session_config.keep_alive = Some(idle_max);
    let make_handler = move || {
        let place = Arc::clone(&places).try_acquire_owned();
        Ok::<_, io::Error>(handler.at(place.map_err(io::Error::other)?))
    };
    let sessions = Arc::new(LimitedSessions::new(sessions));
    StreamableHttpService::new(make_handler, sessions, config)
}

/// Answer to a body that is not one message.
const NOT_ONE_MESSAGE: &str = r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"the body is not one JSON-RPC message: send each message in a request of its own, since batches are not supported"}}"#;

/// Answers one HTTP request. The library accepts the end of a session with 202, which clients take for a failure: the
/// protocol's own client expects 200 or 204. It calls JSON that is no message, such as a batch, an unsupported type.
async fn answer_request(
    service: StreamableHttpService<Server, LimitedSessions>,
    large_bodies: Arc<Semaphore>,
    request: Request<Incoming>,
) -> Result<Response<impl Body<Data = Bytes, Error = Infallible>>, Infallible> {
    let ends_session = request.method() == Method::DELETE;
    let content_type = request.headers().get(header::CONTENT_TYPE);
    let is_json = content_type.is_some_and(|kind| kind.as_bytes().starts_with(b"application/json"));
    let size = request.body().size_hint().upper();
    let place = match size {
        Some(bytes) if bytes <= LARGE_BODY_BYTES => None,
        Some(_) | None => large_bodies.acquire_owned().await.ok(),
    };
    // The library drops the body, and with it its place, before the call begins.
    let request = request.map(|body| {
        body.map_frame(move |frame| {
            let _place = &place;
            frame
        })
    });
    let mut response = service.handle(request).await;
    match response.status() {
        StatusCode::ACCEPTED if ends_session => *response.status_mut() = StatusCode::NO_CONTENT,
        StatusCode::UNSUPPORTED_MEDIA_TYPE if is_json => {
            *response.status_mut() = StatusCode::BAD_REQUEST;
            let json = HeaderValue::from_static("application/json");
            response.headers_mut().insert(header::CONTENT_TYPE, json);
            *response.body_mut() = Full::from(NOT_ONE_MESSAGE).boxed();
        }
        _ => {}
    }
    Ok(response)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn only_a_connection_without_a_request_ends_by_itself() {
        let has_called = CancellationToken::new();
        let start = tokio::time::Instant::now();
        wait_for_end(std::future::pending::<()>(), &has_called).await;
        assert!(start.elapsed() >= FIRST_REQUEST_MAX);
        has_called.cancel();
        let serving = sleep(2 * FIRST_REQUEST_MAX);
        let start = tokio::time::Instant::now();
        wait_for_end(serving, &has_called).await;
        assert!(start.elapsed() >= 2 * FIRST_REQUEST_MAX);
    }

    #[test]
    fn a_session_outlives_the_longest_command() {
        let limits = ServerLimits {
            exec_timeout_max: Some(Duration::from_secs(900).try_into().expect("short")),
            ..ServerLimits::default()
        };
        assert_eq!(idle_max(&limits), Duration::from_secs(900 + 3600));
        assert!(idle_max(&ServerLimits::default()) > COMMAND_MAX);
    }
}
