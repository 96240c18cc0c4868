//! Tower layer around every call: permission, deadline, count, log and errors. It refuses requests that are not gRPC or
//! not authorised, counts calls, names them in the log, ends them at their deadline, and converts panics and transport
//! errors to skilld's errors.
//!
//! | | unary | client streams | server streams |
//! |---|---|---|---|
//! | deadline | the shorter of the client's and `unary_timeout` | the client's | the client's, up to the last byte |
//! | when the daemon stops | goes on for half of `stop_timeout` | its handler ends it | ends with UNAVAILABLE |
//!
//! A request, or the first message of a stream, must arrive within the timeout of `request_body.rs`, and the rest of
//! another message within `upload_timeout`.
//!
//! A drain does not wait for calls that clients can resume: they end with UNAVAILABLE when the daemon stops. A RunExec
//! whose first message was not sent ends with ABORTED, because it may have started an exec, and so does a CollectOutputs
//! that saves artifacts.

use std::convert::Infallible;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use http::header::{ALLOW, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Method as HttpMethod, Request, Response, StatusCode};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tonic::body::Body;
use tonic::{Code, Status};
use tower::{Layer, Service};
use tracing::{Instrument, Span};

use super::audited_body::AuditedRequestBody;
use super::call_gate::{AdmittedCall, CallGate, CallRefusal, CallRequest};
use super::connections::ConnectionHandle;
use super::methods::{MethodProperties, MethodTable};
use super::open_calls::OpenCalls;
use super::request_body::{ConnectionProtection, MessageBounds, PendingCall, TimedRequestBody};
use super::response_body::{
    GuardedResponseBody, ResponseGuards, is_lost_guest, revoked_error, stop_error,
};
use super::response_budget::{AnswerOwner, AnswerPermit, ResponseBudget};
use super::response_status::status_response;
use crate::access::TenantName;
use crate::audit::TraceParent;
use crate::config::ServerConfig;
use crate::error::Error;
use crate::rpc::AnswerDeadline;
use crate::rpc::server_info::HEADER_BYTES_MAX;
use crate::telemetry::trace_span;

/// Header with the compressions of requests that a server accepts.
const ACCEPT_ENCODING: &str = "grpc-accept-encoding";

/// Tower layer that checks and counts every call, ends it at its deadline and translates its errors.
#[derive(Debug, Clone)]
pub(super) struct CallLayer {
    shared: Arc<CallLayerContext>,
}

/// Service that the layer has wrapped.
#[derive(Debug, Clone)]
pub(super) struct CallService<S> {
    inner: S,
    shared: Arc<CallLayerContext>,
}

#[derive(Debug)]
struct CallLayerContext {
    methods: Arc<MethodTable>,
    gate: CallGate,
    open: OpenCalls,
    budget: ResponseBudget,
    message_timeout: Duration,
    unary_timeout: Duration,
    stop: CancellationToken,
}

// === impl CallLayer ===

impl CallLayer {
    pub(super) fn new(
        methods: Arc<MethodTable>,
        gate: CallGate,
        open: OpenCalls,
        config: &ServerConfig,
        stop: CancellationToken,
    ) -> Self {
        Self {
            shared: Arc::new(CallLayerContext {
                methods,
                gate,
                open,
                budget: ResponseBudget::new(config.relay_bytes_max),
                message_timeout: config.upload_timeout,
                unary_timeout: config.unary_timeout,
                stop,
            }),
        }
    }
}

impl<S> Layer<S> for CallLayer {
    type Service = CallService<S>;

    fn layer(&self, inner: S) -> CallService<S> {
        CallService {
            inner,
            shared: Arc::clone(&self.shared),
        }
    }
}

// === impl CallService ===

impl<S> Service<Request<Body>> for CallService<S>
where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible>,
    S::Future: Send + 'static,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        let shared = Arc::clone(&self.shared);
        let connection = request.extensions().get::<ConnectionHandle>().cloned();
        if connection.as_ref().is_some_and(ConnectionHandle::is_closed) {
            return std::future::pending().boxed();
        }
        let (path, method) = match shared.find_method(&request) {
            Ok(found) => found,
            Err(refusal) => return std::future::ready(Ok(*refusal)).boxed(),
        };
        let request_id = uuid::Uuid::now_v7().simple().to_string();
        let span = call_span(path, &request_id, request.headers());
        trace_span::set_attribute("skilld.request_id", || request_id.clone());
        let call_request = CallRequest {
            path,
            method,
            request_id: &request_id,
        };
        let gate = &shared.gate;
        let admitted =
            span.in_scope(|| gate.admit(&mut request, connection.as_ref(), &call_request));
        let call: AdmittedCall = match admitted {
            Ok(admitted) => admitted,
            Err(refusal) => return shared.answer_refusal(refusal).boxed(),
        };
        let open = (method.is_skilld && !method.is_resumable).then(|| shared.open.open());
        let start = Instant::now();
        let deadline = call_deadline(method, request.headers(), shared.unary_timeout)
            .map(|after| start + after);
        if let Some(deadline) = deadline {
            let extensions = request.extensions_mut();
            extensions.insert(AnswerDeadline::new(deadline));
        }
        let permit = shared.permit(method, call.tenant.clone(), connection.as_ref());
        let protection = ConnectionProtection::default();
        let pending =
            connection.map(|connection| protection.pending_call(connection, method.priority()));
        let wrapped = request.map(|body| shared.wrap_body(body, method, pending, &call));
        let response = span.in_scope(|| self.inner.call(wrapped));
        let guards = ResponseGuards {
            open,
            protection,
            span: span.clone(),
            start,
            deadline: deadline.filter(|_| method.server_streams),
            stop: method.server_streams.then(|| shared.stop.clone()),
            stream: call.stream,
            audit: call.audit,
            meter: call.meter,
            permit,
            starts_exec: method.starts_exec,
        };
        async move {
            let revoked = guards.stream.as_ref().map(|stream| stream.revoked.clone());
            let handled = AssertUnwindSafe(response).catch_unwind().instrument(span);
            let ends = CallEnds {
                deadline,
                stop: &shared.stop,
                revoked,
            };
            let response = ends.await_answer(method, handled).await;
            Ok(GuardedResponseBody::wrap(response, guards))
        }
        .boxed()
    }
}

impl CallLayerContext {
    /// Returns the method of a request, or the answer to a request that calls none.
    fn find_method(
        &self,
        request: &Request<Body>,
    ) -> Result<(&str, MethodProperties), Box<Response<Body>>> {
        if let Some(refusal) = refuse_foreign_request(request) {
            return Err(Box::new(refusal));
        }
        let refusal = if header_list_bytes(request.headers()) > HEADER_BYTES_MAX {
            Error::limit_exceeded("the size of the call's metadata", HEADER_BYTES_MAX)
        } else if let Some(found) = self.methods.get(request.uri().path()) {
            return Ok(found);
        } else {
            // The path comes from the client: its debug format escapes it.
            tracing::debug!(path = ?request.uri().path(), "call of an unknown method");
            let what = "this method";
            Error::NotImplemented { what }
        };
        Err(Box::new(status_response(&Status::from(refusal))))
    }

    /// Wraps the body of a request, which `pending` counts on its connection.
    fn wrap_body(
        &self,
        body: Body,
        method: MethodProperties,
        pending: Option<PendingCall>,
        call: &AdmittedCall,
    ) -> Body {
        let bounds = MessageBounds {
            bytes_max: method.message_bytes_max(),
            rest_timeout: self.message_timeout,
        };
        let body = TimedRequestBody::new(body, method.client_streams, bounds, pending)
            .with_meter(call.meter.clone());
        let Some(end) = &call.audit else {
            return Body::new(body);
        };
        Body::new(AuditedRequestBody::new(body, Arc::clone(&end.call)))
    }

    /// Makes the permit of a call's answer in the memory budget.
    fn permit(
        &self,
        method: MethodProperties,
        tenant: Option<TenantName>,
        connection: Option<&ConnectionHandle>,
    ) -> AnswerPermit {
        let owner = AnswerOwner {
            tenant,
            connection: connection.cloned(),
        };
        // Health and reflection buffer nothing, so that unread watches of anyone take no room of streams.
        let is_stream = method.server_streams && method.is_skilld;
        self.budget
            .new_permit(owner, is_stream, method.reports_change())
    }

    /// Answers a call that may not begin, at once or after a delay.
    async fn answer_refusal(
        self: Arc<Self>,
        refusal: CallRefusal,
    ) -> Result<Response<Body>, Infallible> {
        if refusal.is_delayed {
            self.gate.delay_refusal(&self.stop).await;
        }
        Ok(status_response(&refusal.status))
    }
}

/// Events that end a call before its answer.
struct CallEnds<'a> {
    deadline: Option<Instant>,
    stop: &'a CancellationToken,
    revoked: Option<CancellationToken>,
}

impl CallEnds<'_> {
    /// Waits for the answer of a handler, or for the first event that ends the call.
    async fn await_answer<F, P>(self, method: MethodProperties, handled: F) -> Response<Body>
    where
        F: Future<Output = Result<Result<Response<Body>, Infallible>, P>>,
    {
        let ends_at_stop = method.is_resumable && !method.client_streams;
        let response = tokio::select! {
            // An answer that has arrived takes precedence over the stop.
            biased;
            response = run_until(self.deadline, method.starts_exec, handled) => response,
            () = self.stop.cancelled(), if ends_at_stop => Err(stop_error(method.starts_exec)),
            () = until_revoked(self.revoked) => Err(revoked_error()),
        };
        let stopped = ends_at_stop && self.stop.is_cancelled();
        match response {
            Ok(Ok(Ok(response))) if stopped && is_lost_guest(response.headers()) => {
                Status::from(stop_error(method.starts_exec)).into_http()
            }
            Ok(Ok(Ok(response))) => translate_transport_error(response),
            Ok(Ok(Err(never))) => match never {},
            Ok(Err(_panic)) => {
                Status::from(Error::Internal("a handler panicked".into())).into_http()
            }
            Err(error) => Status::from(error).into_http(),
        }
    }
}

/// Waits until the credentials of a stream are no longer valid; for ever for other calls.
async fn until_revoked(revoked: Option<CancellationToken>) {
    match revoked {
        Some(revoked) => revoked.cancelled().await,
        None => std::future::pending().await,
    }
}

/// Returns the size of headers in bytes, as HTTP/2 counts it (RFC 9113, section 6.5.2).
fn header_list_bytes(headers: &HeaderMap) -> u64 {
    let sizes = headers
        .iter()
        .map(|(name, value)| name.as_str().len() + value.len() + 32);
    sizes.sum::<usize>() as u64
}

/// Returns the answer to a request that is not gRPC, an HTTP status as the protocol requires; `None` if it is gRPC.
fn refuse_foreign_request(request: &Request<Body>) -> Option<Response<Body>> {
    let status = if request.method() != HttpMethod::POST {
        StatusCode::METHOD_NOT_ALLOWED
    } else if !is_grpc(request.headers().get(CONTENT_TYPE)) {
        StatusCode::UNSUPPORTED_MEDIA_TYPE
    } else {
        return None;
    };
    let mut response = Response::new(Body::empty());
    *response.status_mut() = status;
    if status == StatusCode::METHOD_NOT_ALLOWED {
        let allow = HeaderValue::from_static("POST");
        response.headers_mut().insert(ALLOW, allow);
    }
    Some(response)
}

/// Returns `true` for `application/grpc`, alone or followed by a format (`+proto`) or a parameter.
fn is_grpc(content_type: Option<&HeaderValue>) -> bool {
    let bytes = content_type.map_or(&b""[..], HeaderValue::as_bytes);
    let (kind, rest) = bytes.split_at(bytes.len().min(b"application/grpc".len()));
    kind.eq_ignore_ascii_case(b"application/grpc")
        && matches!(rest.first(), None | Some(b'+' | b';' | b' '))
}

fn call_span(path: &str, request_id: &str, headers: &HeaderMap) -> Span {
    let span = tracing::info_span!(
        "rpc",
        method = path,
        request_id,
        traceparent = tracing::field::Empty,
        // The gate records these once it knows them.
        principal = tracing::field::Empty,
        tenant = tracing::field::Empty
    );
    if let Some(traceparent) = traceparent(headers) {
        span.record("traceparent", traceparent);
    }
    span
}

/// Returns the W3C trace context if it is well formed.
fn traceparent(headers: &HeaderMap) -> Option<&str> {
    let text = headers.get("traceparent")?.to_str().ok()?;
    TraceParent::is_well_formed(text).then_some(text)
}

fn call_deadline(
    method: MethodProperties,
    headers: &HeaderMap,
    unary_timeout: Duration,
) -> Option<Duration> {
    let asked = grpc_timeout(headers);
    if method.client_streams || method.server_streams {
        return asked;
    }
    Some(asked.map_or(unary_timeout, |asked| asked.min(unary_timeout)))
}

/// Returns the client's deadline from the `grpc-timeout` header: up to eight digits and a unit. `None` if it is
/// malformed.
fn grpc_timeout(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get("grpc-timeout")?.to_str().ok()?;
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if digits.is_empty() || digits.len() > 8 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let count: u64 = digits.parse().ok()?;
    match unit {
        "H" => Some(Duration::from_secs(count * 3600)),
        "M" => Some(Duration::from_secs(count * 60)),
        "S" => Some(Duration::from_secs(count)),
        "m" => Some(Duration::from_millis(count)),
        "u" => Some(Duration::from_micros(count)),
        "n" => Some(Duration::from_nanos(count)),
        _ => None,
    }
}

async fn run_until<F: Future>(
    deadline: Option<Instant>,
    starts_exec: bool,
    future: F,
) -> Result<F::Output, Error> {
    let Some(deadline) = deadline else {
        return Ok(future.await);
    };
    let answered = tokio::time::timeout_at(deadline, future).await;
    answered.map_err(|_| {
        Error::deadline(match starts_exec {
            true => "answering the call; an exec that was started goes on: attach to it",
            false => "answering the call",
        })
    })
}

/// Converts errors that tonic makes before skilld's code runs to skilld's errors.
fn translate_transport_error(response: Response<Body>) -> Response<Body> {
    let Some(status) = Status::from_header_map(response.headers()) else {
        return response;
    };
    if !status.details().is_empty() {
        return response;
    }
    let code = status.code();
    let error = if matches!(code, Code::OutOfRange | Code::ResourceExhausted)
        && let Some(limit) = message_limit(&status)
    {
        Error::limit_exceeded("the message", limit)
    } else if code == Code::Internal {
        // skilld's errors always have details, so tonic could not decode the message.
        Error::invalid("request", status.message())
    } else if code == Code::Unimplemented {
        let accepted = response.headers().get(ACCEPT_ENCODING);
        // Without it the API has the service, but this version does not serve it.
        let what = accepted.map_or(
            "this method",
            |_| "a compression of requests other than gzip",
        );
        let status = Status::from(Error::NotImplemented { what });
        let mut refusal = status_response(&status);
        if let Some(accepted) = accepted {
            let headers = refusal.headers_mut();
            headers.insert(ACCEPT_ENCODING, accepted.clone());
        }
        return refusal;
    } else {
        return response;
    };
    status_response(&Status::from(error))
}

/// Reads the limit from the text of tonic's error about a message that is too long, as it arrives or unpacked.
fn message_limit(status: &Status) -> Option<u64> {
    let text = status.message();
    let as_arrived = text.rsplit_once("the limit is: ");
    let (_, limit) = as_arrived.or_else(|| text.rsplit_once("size limit, of "))?;
    limit.split(' ').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::super::refusal_table::RefusalTable;
    use super::*;
    use crate::collect::SavesArtifacts;
    use crate::usage::UsageLedger;

    #[test]
    fn only_a_well_formed_traceparent_reaches_the_log() {
        let read = |text: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert("traceparent", HeaderValue::from_static(text));
            traceparent(&headers).map(str::to_owned)
        };
        let good = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        assert_eq!(read(good).as_deref(), Some(good));
        for bad in [
            "",
            "x",
            "00-zz-00-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-x",
        ] {
            assert_eq!(read(bad), None, "{bad}");
        }
    }

    #[test]
    fn deadlines_are_read_as_grpc_writes_them() {
        let read = |text: &str| {
            let mut headers = HeaderMap::new();
            headers.insert("grpc-timeout", text.parse().expect("header"));
            grpc_timeout(&headers)
        };
        assert_eq!(read("1H"), Some(Duration::from_secs(3600)));
        assert_eq!(read("2M"), Some(Duration::from_secs(120)));
        assert_eq!(read("3S"), Some(Duration::from_secs(3)));
        assert_eq!(read("500m"), Some(Duration::from_millis(500)));
        assert_eq!(read("7u"), Some(Duration::from_micros(7)));
        assert_eq!(read("99999999n"), Some(Duration::from_nanos(99_999_999)));
        for nonsense in ["", "S", "1", "1x", "-1S", "+1S", "123456789S", "1.5S"] {
            assert_eq!(read(nonsense), None, "{nonsense}");
        }
    }

    /// Calls a method whose handler is `handle`, and returns the response's status.
    async fn call<F>(
        path: &str,
        timeout: Option<&str>,
        stop: &CancellationToken,
        handle: F,
    ) -> Status
    where
        F: Future<Output = Result<Response<Body>, Infallible>> + Send + 'static,
    {
        call_all(path, timeout, stop, handle).await.1
    }

    fn default_config() -> crate::config::Config {
        let loaded = crate::config::Config::from_toml("").expect("defaults");
        loaded.config
    }

    fn gate_without_authentication() -> CallGate {
        let access = crate::access::AccessControl::open(&default_config(), Arc::default())
            .expect("no files");
        let refusals = Arc::new(RefusalTable::new(None));
        CallGate::new(Arc::new(access), None, (refusals, UsageLedger::default()))
    }

    fn grpc_request(path: &str) -> Request<Body> {
        let request = Request::post(path).header(CONTENT_TYPE, "application/grpc");
        request.body(Body::empty()).expect("a request")
    }

    /// Calls a method like `call`, and returns the bytes before the status too.
    async fn call_all<F>(
        path: &str,
        timeout: Option<&str>,
        stop: &CancellationToken,
        handle: F,
    ) -> (Vec<u8>, Status)
    where
        F: Future<Output = Result<Response<Body>, Infallible>> + Send + 'static,
    {
        let open = OpenCalls::default();
        let layer = CallLayer::new(
            Arc::new(MethodTable::new()),
            gate_without_authentication(),
            open.clone(),
            &default_config().server,
            stop.clone(),
        );
        let handle = std::sync::Mutex::new(Some(handle));
        let mut service = layer.layer(tower::service_fn(move |_request: Request<Body>| {
            handle.lock().expect("lock").take().expect("one call")
        }));
        let mut request = grpc_request(path);
        if let Some(timeout) = timeout {
            request
                .headers_mut()
                .insert("grpc-timeout", timeout.parse().expect("header"));
        }
        let response = service.call(request).await.expect("infallible");
        let (head, mut body) = response.into_parts();
        let mut status = Status::from_header_map(&head.headers);
        let mut bytes = Vec::new();
        while let Some(frame) = std::future::poll_fn(|context| {
            http_body::Body::poll_frame(std::pin::Pin::new(&mut body), context)
        })
        .await
        {
            match frame.expect("frame").into_data() {
                Ok(data) => bytes.extend_from_slice(&data),
                Err(frame) => {
                    status = frame.trailers_ref().and_then(Status::from_header_map);
                }
            }
        }
        drop(body);
        assert_eq!(open.count(), 0, "a call that ended is not counted");
        (bytes, status.expect("a status"))
    }

    const UNARY: &str = "/skilld.v1.ServerService/GetServerInfo";
    const POLL: &str = "/skilld.v1.ExecService/PollExec";
    const COLLECT: &str = "/skilld.v1.FileService/CollectOutputs";
    const RUN: &str = "/skilld.v1.ExecService/RunExec";
    const STREAM: &str = "/skilld.v1.ExecService/AttachExec";

    /// Body that has at most one message and then never ends, or panics.
    struct Silent {
        panics: bool,
        message: Option<&'static [u8]>,
    }

    impl http_body::Body for Silent {
        type Data = bytes::Bytes;
        type Error = Infallible;

        fn poll_frame(
            mut self: std::pin::Pin<&mut Self>,
            _context: &mut Context<'_>,
        ) -> Poll<Option<Result<http_body::Frame<bytes::Bytes>, Infallible>>> {
            assert!(!self.panics, "a stream that panics");
            match self.message.take() {
                Some(message) => Poll::Ready(Some(Ok(http_body::Frame::data(message.into())))),
                None => Poll::Pending,
            }
        }
    }

    /// Body of a stream that ends with a status before its first message.
    struct Lost(Option<Status>);

    impl http_body::Body for Lost {
        type Data = bytes::Bytes;
        type Error = Infallible;

        fn poll_frame(
            mut self: std::pin::Pin<&mut Self>,
            _context: &mut Context<'_>,
        ) -> Poll<Option<Result<http_body::Frame<bytes::Bytes>, Infallible>>> {
            Poll::Ready(self.0.take().map(|status| {
                let mut trailers = HeaderMap::new();
                status.add_header(&mut trailers).expect("trailers");
                Ok(http_body::Frame::trailers(trailers))
            }))
        }
    }

    /// Body of a stream that has a message, and whose guest the stop disconnects after it.
    struct CutByStop {
        message: Option<&'static [u8]>,
        stop: CancellationToken,
        end: Lost,
    }

    impl http_body::Body for CutByStop {
        type Data = bytes::Bytes;
        type Error = Infallible;

        fn poll_frame(
            mut self: std::pin::Pin<&mut Self>,
            context: &mut Context<'_>,
        ) -> Poll<Option<Result<http_body::Frame<bytes::Bytes>, Infallible>>> {
            if let Some(message) = self.message.take() {
                return Poll::Ready(Some(Ok(http_body::Frame::data(message.into()))));
            }
            self.stop.cancel();
            std::pin::Pin::new(&mut self.end).poll_frame(context)
        }
    }

    fn answer(panics: bool) -> Response<Body> {
        let message = None;
        Response::new(Body::new(Silent { panics, message }))
    }

    fn answer_once() -> Response<Body> {
        let message = Some(&b"first"[..]);
        let panics = false;
        Response::new(Body::new(Silent { panics, message }))
    }

    #[tokio::test(start_paused = true)]
    async fn a_unary_call_ends_at_the_shorter_deadline() {
        let stop = CancellationToken::new();
        for (asked, seconds) in [(None, 90), (Some("5S"), 5), (Some("1H"), 90)] {
            let start = Instant::now();
            let status = call(UNARY, asked, &stop, std::future::pending()).await;
            assert_eq!(status.code(), Code::DeadlineExceeded);
            assert_eq!(start.elapsed().as_secs(), seconds);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_ends_at_the_clients_deadline_up_to_its_last_byte() {
        let (stop, start) = (CancellationToken::new(), Instant::now());
        let status = call(STREAM, Some("7S"), &stop, async { Ok(answer(false)) }).await;
        assert_eq!(status.code(), Code::DeadlineExceeded);
        assert_eq!(start.elapsed().as_secs(), 7);
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_ends_with_unavailable_when_the_server_stops() {
        let stop = CancellationToken::new();
        let (_, status) = tokio::join!(
            async {
                tokio::time::sleep(Duration::from_secs(1000)).await;
                stop.cancel();
            },
            call(STREAM, None, &stop, async { Ok(answer(false)) })
        );
        assert_eq!(status.code(), Code::Unavailable);
        assert!(!status.details().is_empty());
    }

    #[tokio::test]
    async fn a_run_without_a_reported_start_is_aborted_at_the_stop() {
        let stop = CancellationToken::new();
        stop.cancel();
        // The exec may have started: the guest has not answered, or its stream has no message yet.
        for handled in [
            std::future::pending().left_future(),
            std::future::ready(Ok(answer(false))).right_future(),
        ] {
            let (_, status) = call_all(RUN, None, &stop, handled).await;
            assert_eq!(status.code(), Code::Aborted);
            assert!(!status.details().is_empty());
        }
        let attached = call(STREAM, None, &stop, std::future::pending()).await;
        assert_eq!(attached.code(), Code::Unavailable);
    }

    #[tokio::test]
    async fn a_collection_that_saves_never_ends_with_unavailable() {
        let (workspace, why) = ("workspaces/w".into(), "its connection ended".into());
        let lost = Status::from(Error::GuestLost { workspace, why });
        let lost = || Response::new(Body::new(Lost(Some(lost.clone()))));
        for (mut response, saves, code) in [
            // Its first file may be saved, and so may the one after the last that it has reported.
            (answer(false), true, Code::Aborted),
            (answer_once(), true, Code::Aborted),
            (lost(), true, Code::Aborted),
            (answer_once(), false, Code::Unavailable),
            (lost(), false, Code::Unavailable),
        ] {
            if saves {
                response.extensions_mut().insert(SavesArtifacts);
            }
            let stop = CancellationToken::new();
            stop.cancel();
            let status = call(COLLECT, None, &stop, async { Ok(response) }).await;
            assert_eq!(status.code(), code, "{saves}: {status}");
            assert!(!status.details().is_empty());
        }
    }

    #[tokio::test]
    async fn the_first_message_is_sent_before_the_stop() {
        let stop = CancellationToken::new();
        stop.cancel();
        for path in [RUN, STREAM] {
            let (bytes, status) = call_all(path, None, &stop, async { Ok(answer_once()) }).await;
            assert_eq!(bytes, b"first");
            assert_eq!(status.code(), Code::Unavailable);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_waiting_poll_ends_with_unavailable_when_the_server_stops() {
        let (stop, start) = (CancellationToken::new(), Instant::now());
        let (_, polled, other) = tokio::join!(
            async {
                tokio::time::sleep(Duration::from_secs(20)).await;
                stop.cancel();
            },
            call(POLL, None, &stop, std::future::pending()),
            // The call may have had an effect, so only its own end may end it.
            call(UNARY, None, &stop, std::future::pending())
        );
        assert_eq!(polled.code(), Code::Unavailable);
        assert_eq!(other.code(), Code::DeadlineExceeded);
        assert_eq!(start.elapsed().as_secs(), 90);
    }

    #[tokio::test]
    async fn a_guest_that_the_stop_disconnects_is_reported_as_the_stop() {
        let lost = || {
            let (workspace, why) = ("workspaces/w".into(), "its connection ended".into());
            Status::from(Error::GuestLost { workspace, why })
        };
        let refused = || lost().into_http();
        let ended = || Response::new(Body::new(Lost(Some(lost()))));
        let starting = "while starting the exec";
        for (path, response, at_stop, text) in [
            (POLL, refused(), Code::Unavailable, ""),
            (STREAM, refused(), Code::Unavailable, ""),
            (STREAM, ended(), Code::Unavailable, ""),
            (RUN, refused(), Code::Aborted, starting),
            (RUN, ended(), Code::Aborted, starting),
        ] {
            let stop = CancellationToken::new();
            stop.cancel();
            let status = call(path, None, &stop, async { Ok(response) }).await;
            assert_eq!(status.code(), at_stop, "{path}");
            assert!(status.message().contains(text), "{path}: {status}");
        }
        for response in [refused(), ended()] {
            let stop = CancellationToken::new();
            let status = call(STREAM, None, &stop, async { Ok(response) }).await;
            assert_eq!(status.code(), Code::Aborted, "the server goes on");
        }
        let missing = Status::from(Error::WorkspaceNotFound {
            name: "workspaces/w".into(),
        });
        for response in [
            missing.clone().into_http(),
            Response::new(Body::new(Lost(Some(missing)))),
        ] {
            let stop = CancellationToken::new();
            stop.cancel();
            let status = call(STREAM, None, &stop, async { Ok(response) }).await;
            assert_eq!(status.code(), Code::NotFound, "another error stays");
        }
    }

    /// The stop may come between a look at it and the one at the guest's stream.
    #[tokio::test]
    async fn a_stream_disconnected_by_the_stop_reports_the_stop() {
        for path in [RUN, STREAM] {
            let stop = CancellationToken::new();
            let (workspace, why) = ("workspaces/w".into(), "its connection ended".into());
            let body = CutByStop {
                message: Some(b"first"),
                stop: stop.clone(),
                end: Lost(Some(Status::from(Error::GuestLost { workspace, why }))),
            };
            let response = Response::new(Body::new(body));
            let (bytes, status) = call_all(path, None, &stop, async { Ok(response) }).await;
            assert_eq!(bytes, b"first");
            assert_eq!(status.code(), Code::Unavailable, "{path}");
        }
    }

    #[tokio::test]
    async fn a_drain_does_not_wait_for_resumable_calls() {
        let open = OpenCalls::default();
        let (methods, stop) = (Arc::new(MethodTable::new()), CancellationToken::new());
        let (gate, config) = (gate_without_authentication(), default_config());
        let layer = CallLayer::new(methods, gate, open.clone(), &config.server, stop);
        let mut service = layer.layer(tower::service_fn(|_request: Request<Body>| {
            std::future::pending::<Result<Response<Body>, Infallible>>()
        }));
        for (path, counted) in [(POLL, 0), (STREAM, 0), (UNARY, 1)] {
            let request = grpc_request(path);
            let calling = service.call(request);
            assert_eq!(open.count(), counted, "{path}");
            drop(calling);
        }
    }

    #[tokio::test]
    async fn a_panic_is_an_internal_error_and_nothing_more() {
        let stop = CancellationToken::new();
        let status = call(UNARY, None, &stop, async { panic!("secret") }).await;
        assert_eq!(status.code(), Code::Internal);
        assert!(!status.message().contains("secret"), "{}", status.message());
        let status = call(STREAM, None, &stop, async { Ok(answer(true)) }).await;
        assert_eq!(status.code(), Code::Internal);
    }
}
