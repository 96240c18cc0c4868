//! Streamable HTTP on loopback. Hosts and browser origins other than loopback's are refused, so that no web page
//! reaches it through a name that leads here.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use bytes::Bytes;
use hyper::body::{Body, Incoming};
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
use tokio::time::sleep;

use crate::interrupt::InterruptSignals;
use crate::mcp::server::Server;
use crate::mcp::session_limit::{LimitedSessions, SESSIONS_MAX};
use crate::output;

/// Maximum number of handlers: one for each session, and as many for requests that need no session and for sessions
/// that end.
const HANDLERS_MAX: usize = 2 * SESSIONS_MAX;

/// Maximum number of connections; more wait to be accepted. A client has one on which it listens, and one for each
/// call.
const CONNECTIONS_MAX: usize = 4 * SESSIONS_MAX;

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
    let stop = tokio_util::sync::CancellationToken::new();
    // Origins: none but loopback's. Hosts: loopback's by default.
    let config = StreamableHttpServerConfig::default()
        .with_allowed_origins(["http://localhost:*", "http://127.0.0.1:*", "http://[::1]:*"])
        .with_cancellation_token(stop.child_token());
    let (handler, places) = (server.clone(), Arc::new(Semaphore::new(HANDLERS_MAX)));
    let mut sessions = LocalSessionManager::default();
    sessions.session_config.keep_alive = Some(idle_max);
    let service = StreamableHttpService::new(
        move || {
            let place = Arc::clone(&places).try_acquire_owned();
            Ok::<_, io::Error>(handler.at(place.map_err(io::Error::other)?))
        },
        Arc::new(LimitedSessions::new(sessions)),
        config,
    );
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
            let service = service.clone();
            let service = service_fn(move |request| answer_request(service.clone(), request));
            connections.spawn(async move {
                let mut builder = Builder::new(TokioExecutor::new());
                // With a clock, a request that does not come to its end is not waited for.
                builder.http1().timer(TokioTimer::new());
                builder.http2().timer(TokioTimer::new());
                // A client that breaks off is its own business.
                drop(
                    builder
                        .serve_connection(TokioIo::new(stream), service)
                        .await,
                );
            });
        }
    };
    // The loop has no end of its own.
    let _: Result<(), _> = interrupt.race(accepting).await;
    stop.cancel();
    connections.shutdown().await;
    Ok(())
}

/// Answers one HTTP request. The library accepts the end of a session with 202, which clients take for a failure: the
/// protocol's own client expects 200 or 204.
async fn answer_request(
    service: StreamableHttpService<Server, LimitedSessions>,
    request: Request<Incoming>,
) -> Result<Response<impl Body<Data = Bytes, Error = Infallible>>, Infallible> {
    let ends_session = request.method() == Method::DELETE;
    let mut response = service.handle(request).await;
    if ends_session && response.status() == StatusCode::ACCEPTED {
        *response.status_mut() = StatusCode::NO_CONTENT;
    }
    Ok(response)
}

#[cfg(test)]
mod tests {
    use super::*;

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
