//! Listener of kind `metrics`: answers `GET /metrics` over HTTP/1.1, one request per connection. Its connections are in
//! the table of those of the API: clients that send no request keep none out that does.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http::header::{ACCEPT, ALLOW, CONTENT_TYPE, WWW_AUTHENTICATE};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tonic::Code;

use super::connections::{ConnectionGuard, ConnectionHandle, ConnectionTable};
use super::listener::{ACCEPT_PAUSE, bind_tcp_listener};
use super::metrics_sources::MetricsSources;
use crate::access::{
    AccessControl, CallCredentials, Caller, ConnectionPeer, FileProblems, HTTP1, PeerAddress, Role,
    TlsSettings, WatchedFile, open_tls,
};
use crate::config::{Authenticator, TlsConfig};
use crate::error::{Error, Result};
use crate::metrics::{Metrics, MetricsFormat, SampleFilter};
use crate::shutdown::Tasks;

/// Maximum time of a connection, from its first byte to the last one of the answer.
const CONNECTION_TIME_MAX: Duration = Duration::from_secs(10);
/// Maximum size of a request's head in bytes; hyper's buffer has no smaller one.
const HEAD_BYTES_MAX: usize = 8 << 10;
/// Maximum number of headers of a request.
const HEADERS_MAX: usize = 32;
/// Path of the only page.
const PATH: &str = "/metrics";

/// Bound socket of a listener of kind `metrics`.
#[derive(Debug)]
pub(super) struct MetricsListener {
    listener: TcpListener,
    tls: Option<Arc<WatchedFile<TlsSettings>>>,
    authenticators: BTreeSet<Authenticator>,
}

/// Everything that an answer needs.
#[derive(Debug)]
struct MetricsPage {
    access: Arc<AccessControl>,
    sources: Arc<MetricsSources>,
    metrics: Arc<Metrics>,
}

/// Serves metrics on all listeners of kind `metrics` until the daemon stops.
pub(super) fn serve_metrics(
    listeners: Vec<MetricsListener>,
    (sources, metrics): (MetricsSources, Arc<Metrics>),
    table: &ConnectionTable,
    tasks: &Tasks,
) {
    let page = Arc::new(MetricsPage {
        access: Arc::clone(&sources.services.access),
        sources: Arc::new(sources),
        metrics,
    });
    for listener in listeners {
        tasks.spawn(listener.run(Arc::clone(&page), table.clone(), tasks.clone()));
    }
}

impl MetricsListener {
    /// Binds the socket. `place` is the configuration key of the listener.
    ///
    /// # Errors
    /// [`Error`] if the address cannot be used or a file of TLS is faulty. The message says what to do.
    pub(super) fn bind(
        place: &str,
        address: SocketAddr,
        tls: Option<&TlsConfig>,
        authenticators: &BTreeSet<Authenticator>,
        problems: &FileProblems,
    ) -> Result<Self> {
        let settings = tls.map(|tls| open_tls(place, tls.clone(), false, HTTP1, problems));
        Ok(Self {
            listener: bind_tcp_listener(place, address)?,
            tls: settings.transpose()?,
            authenticators: authenticators.clone(),
        })
    }

    /// Returns the files of TLS; `None` without TLS.
    pub(super) fn tls(&self) -> Option<Arc<WatchedFile<TlsSettings>>> {
        self.tls.clone()
    }

    /// Returns the bound address.
    pub(super) fn address(&self) -> Option<SocketAddr> {
        self.listener.local_addr().ok()
    }

    /// Serves until the daemon stops.
    async fn run(self, page: Arc<MetricsPage>, table: ConnectionTable, tasks: Tasks) {
        let this = Arc::new(self);
        let accept = async {
            loop {
                match this.listener.accept().await {
                    Ok((socket, address)) => {
                        let peer = this.peer(address);
                        if let Some(guard) = table.admit_or_refuse(&peer, &tasks.stop) {
                            let served = Arc::clone(&this).serve(socket, Arc::clone(&page), guard);
                            tasks.spawn(served);
                        }
                    }
                    Err(error) => {
                        tracing::warn!(%error, "connections for metrics cannot be accepted");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                }
            }
        };
        tasks.stop.run_until_cancelled(accept).await;
    }

    fn peer(&self, address: SocketAddr) -> Arc<ConnectionPeer> {
        let key = self.tls.as_ref().map(|tls| tls.key.clone());
        Arc::new(ConnectionPeer::new(
            PeerAddress::Tcp(address),
            key.unwrap_or_default(),
            self.authenticators.clone(),
        ))
    }

    /// Serves a connection until it ends, is closed for another one, or the daemon stops.
    async fn serve(
        self: Arc<Self>,
        socket: TcpStream,
        page: Arc<MetricsPage>,
        guard: ConnectionGuard,
    ) {
        let handle = guard.handle.clone();
        let served = async {
            match &self.tls {
                None => serve_request(socket, page, handle).await,
                Some(tls) => {
                    let acceptor = TlsAcceptor::from(Arc::clone(&tls.current().server));
                    let stream = acceptor.accept(socket).await?;
                    serve_request(stream, page, handle).await
                }
            }
        };
        let served = tokio::select! {
            () = guard.cut.cancelled() => return,
            served = tokio::time::timeout(CONNECTION_TIME_MAX, served) => served,
        };
        let failure = match served {
            Ok(Ok(())) => return,
            Ok(Err(error)) => error.to_string(),
            Err(_) => "it took too long".to_owned(),
        };
        tracing::debug!(error = failure, "connection for metrics");
    }
}

/// Answers the one request of a connection.
async fn serve_request<S>(
    stream: S,
    page: Arc<MetricsPage>,
    connection: ConnectionHandle,
) -> std::io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let service = service_fn(move |request: Request<Incoming>| {
        let response = page.answer(
            request.method(),
            request.uri().path(),
            request.headers(),
            &connection,
        );
        std::future::ready(Ok::<_, Infallible>(response))
    });
    http1::Builder::new()
        .keep_alive(false)
        .max_buf_size(HEAD_BYTES_MAX)
        .max_headers(HEADERS_MAX)
        .serve_connection(TokioIo::new(stream), service)
        .await
        .map_err(std::io::Error::other)
}

impl MetricsPage {
    fn answer(
        &self,
        method: &Method,
        path: &str,
        headers: &HeaderMap,
        connection: &ConnectionHandle,
    ) -> Response<String> {
        if path != PATH {
            return refusal(StatusCode::NOT_FOUND, "only /metrics exists here");
        }
        if method != Method::GET {
            let mut response = refusal(StatusCode::METHOD_NOT_ALLOWED, "use GET");
            let allow = HeaderValue::from_static("GET");
            response.headers_mut().insert(ALLOW, allow);
            return response;
        }
        let caller = match self.authorize(headers, connection) {
            Ok(caller) => caller,
            Err(error) => return access_refusal(&error),
        };
        let accept = headers.get(ACCEPT).and_then(|accept| accept.to_str().ok());
        let format = MetricsFormat::for_accept_header(accept.unwrap_or_default());
        let sources = Box::new(Arc::clone(&self.sources));
        let filter = caller.map(|caller| {
            move |label: &str, value: &str| match label {
                "pool" => caller.may_use_pool(value),
                _ => caller.tenant().as_str() == value,
            }
        });
        let is_visible = filter.as_ref().map(|visible| visible as &SampleFilter<'_>);
        match self.metrics.encode(format, sources, is_visible) {
            Ok(page) => {
                let mut response = Response::new(page);
                let content_type = HeaderValue::from_static(format.content_type());
                response.headers_mut().insert(CONTENT_TYPE, content_type);
                response
            }
            Err(error) => {
                tracing::error!(%error, "metrics cannot be encoded");
                refusal(StatusCode::INTERNAL_SERVER_ERROR, "internal error")
            }
        }
    }

    /// Returns the caller if the client may see only the samples of its tenant; `None` means all.
    fn authorize(
        &self,
        headers: &HeaderMap,
        connection: &ConnectionHandle,
    ) -> Result<Option<Caller>> {
        let peer = &connection.peer;
        if peer.authenticators.is_empty() {
            return Ok(None);
        }
        let credentials = CallCredentials::new(Some(Arc::clone(peer)), headers);
        let principal = self.access.authenticate(&credentials)?;
        self.access.count_request(&principal)?;
        let caller = self
            .access
            .authorize(&credentials, principal, Role::Observer)?;
        caller.require_whole_tenant()?;
        connection.set_authenticated();
        let sees_all = caller.role() == Role::Admin;
        Ok((!sees_all).then_some(caller))
    }
}

fn access_refusal(error: &Error) -> Response<String> {
    tracing::info!(%error, "refused a request for metrics");
    let code = error.kind().0;
    let status = if code == Code::Unauthenticated {
        StatusCode::UNAUTHORIZED
    } else if code == Code::ResourceExhausted {
        StatusCode::TOO_MANY_REQUESTS
    } else {
        StatusCode::FORBIDDEN
    };
    let mut response = refusal(status, &error.to_string());
    if status != StatusCode::UNAUTHORIZED {
        return response;
    }
    let scheme = HeaderValue::from_static("Bearer");
    response.headers_mut().insert(WWW_AUTHENTICATE, scheme);
    response
}

fn refusal(status: StatusCode, why: &str) -> Response<String> {
    let mut response = Response::new(format!("{why}\n"));
    *response.status_mut() = status;
    let content_type = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, content_type);
    response
}
