//! HTTP proxy through which the build of an environment reaches the configured package indexes and nothing else.
//!
//! ```text
//! Unix socket → head     at most 16 KiB, within 10 s
//!             → target   CONNECT HOST:PORT, or GET and HEAD of an http URL; the host is on the allow-list
//!             → fetcher  resolves and checks: the address that was checked is the one that is connected to
//!             → bytes    counted over all connections; beyond the build's bound they end
//! ```
//!
//! One proxy serves one build, whose programs are hostile. A connection carries one request. The proxy decrypts nothing,
//! stores nothing and follows no redirect: a redirect's target is another request of the client, and checked like it.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::header::{self, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::upgrade::OnUpgrade;
use hyper::{Method, Request, Response, StatusCode, Version};
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::Mutex;
use reqwest::Body;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::{FetchErrorKind, UrlFetcher, WebUrl};
use crate::error::ErrorChain;

mod byte_budget;
mod host_connection;
mod index_host;
mod request_rules;
#[cfg(test)]
mod tests;

use byte_budget::{ByteBudget, CountedBody};
use host_connection::ByteStream;
pub use index_host::IndexHost;
use index_host::missing_entry;
use request_rules::{RefusedRequest, remove_hop_headers, requested_url};

/// Maximum size of the head of a request, in bytes.
const HEAD_BYTES_MAX: usize = 16 * 1024;
/// Maximum time from a connection to the end of its request's head.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum number of connections beyond `connections_max` that are answered with 503; further ones are not accepted yet.
const REFUSALS_MAX: usize = 16;
/// Maximum number of reasons that are remembered, and of characters of one.
const REASONS_MAX: usize = 32;
const REASON_CHARS_MAX: usize = 400;
/// Time between attempts to accept while the process has no descriptors left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// End of the reason for which a build that transferred too many bytes is refused further ones.
pub const BYTES_LIMIT_ADVICE: &str = "which is its limit (skills.build_disk): depend on less";

/// HTTP proxy of one build, with an allow-list of hosts.
#[derive(Debug)]
pub struct IndexProxy {
    options: IndexProxyOptions,
    fetcher: UrlFetcher,
    budget: Arc<ByteBudget>,
    /// Reasons for which requests were refused or failed.
    reasons: Mutex<BTreeSet<String>>,
}

/// Options of an [`IndexProxy`].
#[derive(Debug, Clone)]
pub struct IndexProxyOptions {
    /// Hosts that may be reached.
    pub hosts: Vec<IndexHost>,
    /// Maximum number of simultaneous connections; further ones are answered with 503.
    pub connections_max: usize,
    /// Maximum number of bytes of all tunnels, in both directions, and of all bodies of responses. Heads do not count.
    pub bytes_max: u64,
}

/// Tunnel that begins once its client has received the response.
struct AcceptedTunnel {
    client: OnUpgrade,
    server: Box<dyn ByteStream>,
}

// === impl IndexProxy ===

impl IndexProxy {
    /// Makes the proxy of one build. `fetcher` resolves and connects: its address policy, its timeouts and its own proxy
    /// apply.
    pub fn new(options: IndexProxyOptions, fetcher: UrlFetcher) -> Self {
        Self {
            budget: Arc::new(ByteBudget::new(options.bytes_max)),
            options,
            fetcher,
            reasons: Mutex::default(),
        }
    }

    /// Serves connections until `stop` is cancelled, which ends all of them at once. Dropping the future does the same.
    /// Returns the first 32 different reasons for which requests were refused or failed, for people and sorted. Each says
    /// what to do: programs such as uv and npm do not print the body of a proxy's response.
    pub async fn serve(self, listener: UnixListener, stop: CancellationToken) -> BTreeSet<String> {
        let connections_max = self.options.connections_max.min(Semaphore::MAX_PERMITS);
        let accepted_max = connections_max.saturating_add(REFUSALS_MAX);
        let permits = Arc::new(Semaphore::new(connections_max));
        let proxy = Arc::new(self);
        let mut connections = JoinSet::new();
        loop {
            let has_room = connections.len() < accepted_max;
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                Some(_) = connections.join_next() => {}
                stream = accept_stream(&listener), if has_room => {
                    let permit = Arc::clone(&permits).try_acquire_owned().ok();
                    connections.spawn(Arc::clone(&proxy).serve_stream(stream, permit));
                }
            }
        }
        connections.shutdown().await;
        if proxy.budget.is_exceeded() {
            proxy.remember_reason(&proxy.limit_reason());
        }
        std::mem::take(&mut *proxy.reasons.lock())
    }

    /// Serves one connection: a request, and the tunnel that it may ask for. Without a permit the answer is 503.
    async fn serve_stream(
        self: Arc<Self>,
        stream: UnixStream,
        permit: Option<OwnedSemaphorePermit>,
    ) {
        let (hand_over, mut accepted) = mpsc::channel(1);
        let service = service_fn(async |request| {
            let answered = match &permit {
                Some(_) => self.answer_request(request, &hand_over).await,
                None => Err(self.too_many_connections()),
            };
            Ok::<_, Infallible>(answered.unwrap_or_else(|refused| {
                self.remember_reason(&refused.why);
                refused.into_response()
            }))
        });
        let served = http1::Builder::new()
            .keep_alive(false)
            .max_buf_size(HEAD_BYTES_MAX)
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_TIMEOUT)
            .serve_connection(TokioIo::new(stream), service)
            .with_upgrades()
            .await;
        let ended = match (served, accepted.try_recv()) {
            (Err(error), _) => Err(ErrorChain(&error).to_string()),
            (Ok(()), Err(_)) => Ok(()),
            (Ok(()), Ok(tunnel)) => self.run_tunnel(tunnel).await,
        };
        if let Err(error) = ended {
            tracing::debug!(%error, "a connection to the index proxy broke");
        }
    }

    async fn run_tunnel(&self, tunnel: AcceptedTunnel) -> Result<(), String> {
        let client = tunnel
            .client
            .await
            .map_err(|error| ErrorChain(&error).to_string())?;
        let copied = self
            .budget
            .copy_both_ways(TokioIo::new(client), tunnel.server);
        copied.await.map_err(|error| error.to_string())
    }

    async fn answer_request(
        &self,
        request: Request<Incoming>,
        hand_over: &mpsc::Sender<AcceptedTunnel>,
    ) -> Result<Response<Body>, RefusedRequest> {
        let url = requested_url(&request)?;
        self.check_host(&url)?;
        self.check_budget()?;
        if request.method() != Method::CONNECT {
            return self.forward_request(request, &url).await;
        }
        let server = self.fetcher.connect_to_host(&url).await?;
        let client = hyper::upgrade::on(request);
        // The channel has room: a connection carries one request.
        let _ = hand_over.try_send(AcceptedTunnel { client, server });
        Ok(Response::new(Body::default()))
    }

    /// Sends a request to its server, without the headers of this connection, and returns the response in the same way.
    async fn forward_request(
        &self,
        mut request: Request<Incoming>,
        url: &WebUrl,
    ) -> Result<Response<Body>, RefusedRequest> {
        let mut headers = std::mem::take(request.headers_mut());
        remove_hop_headers(&mut headers);
        // These are about a body, and no request with one gets here.
        headers.remove(header::EXPECT);
        headers.remove(header::CONTENT_LENGTH);
        // The client sets the host of the URL, which is the one that was checked.
        headers.remove(header::HOST);
        headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        let client = self.fetcher.client(url).await?;
        let outgoing = client.request(request.method().clone(), url.url().clone());
        let outgoing = self.fetcher.send_checked(outgoing.headers(headers), url);
        let limit = self.fetcher.inner.bounds.timeout;
        let answered = tokio::time::timeout(limit, outgoing).await;
        let response =
            answered.map_err(|_| url.fetch_error(FetchErrorKind::Timeout { limit }))??;
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            let why = format!("{url} was answered with another protocol");
            return Err(RefusedRequest::new(StatusCode::BAD_GATEWAY, why));
        }
        let mut response = Response::from(response);
        // The server may have answered in HTTP/1.0, which concerns its connection and not this one.
        *response.version_mut() = Version::HTTP_11;
        remove_hop_headers(response.headers_mut());
        let budget = Arc::clone(&self.budget);
        Ok(response.map(|body| Body::wrap(CountedBody { body, budget })))
    }

    fn check_host(&self, url: &WebUrl) -> Result<(), RefusedRequest> {
        if self.options.hosts.iter().any(|host| host.allows(url.url())) {
            return Ok(());
        }
        let entry = missing_entry(url.url());
        tracing::debug!(host = %entry, "the index proxy refused a host");
        let why = format!(
            "{entry} is not a package host of this server: add {entry:?} to skills.package_hosts if builds may reach it"
        );
        Err(RefusedRequest::new(StatusCode::FORBIDDEN, why))
    }

    fn check_budget(&self) -> Result<(), RefusedRequest> {
        if self.budget.left() > 0 {
            return Ok(());
        }
        Err(RefusedRequest::new(
            StatusCode::FORBIDDEN,
            self.limit_reason(),
        ))
    }

    fn too_many_connections(&self) -> RefusedRequest {
        let limit = self.options.connections_max;
        let why =
            format!("this build has {limit} open connections, which is its limit: close one first");
        RefusedRequest::new(StatusCode::SERVICE_UNAVAILABLE, why)
    }

    fn limit_reason(&self) -> String {
        let limit = self.options.bytes_max;
        format!("this build has transferred {limit} bytes, {BYTES_LIMIT_ADVICE}")
    }

    fn remember_reason(&self, reason: &str) {
        let mut reasons = self.reasons.lock();
        if reasons.len() < REASONS_MAX {
            reasons.insert(reason.chars().take(REASON_CHARS_MAX).collect());
        }
    }
}

/// Waits for a connection. Accepting goes on after a failure.
async fn accept_stream(listener: &UnixListener) -> UnixStream {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => return stream,
            Err(error) => {
                tracing::warn!(%error, "connections to the index proxy cannot be accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}
