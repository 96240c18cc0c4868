//! Body of a response: counts its call as open until its end, and ends a stream at its deadline or when the server
//! stops. Such a stream ends with a status; its connection stays open.

use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures::FutureExt;
use http::{HeaderMap, Response};
use http_body::{Frame, SizeHint};
use skilld_proto::v1::ErrorReason;
use tokio::time::{Instant, Sleep};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tonic::body::Body;
use tonic::{Code, Status};
use tracing::Span;

use super::call_audit::AuditEndGuard;
use super::open_calls::OpenCallGuard;
use super::request_body::ConnectionProtection;
use super::response_budget::{AnswerPermit, BudgetedBody};
use super::response_status::{status_trailers, write_uri_signs};
use crate::access::StreamGuard;
use crate::audit::CreatedResource;
use crate::collect::{STOPPED, SavesArtifacts};
use crate::error::{Error, reason_of};
use crate::usage::ByteMeter;

/// Response body that counts its call as open and ends a stream at its deadline or at the server's stop. All fields are
/// `Unpin`, so no pin projection is needed.
#[derive(Debug)]
pub(super) struct GuardedResponseBody {
    inner: BudgetedBody,
    _open: Option<OpenCallGuard>,
    _protection: ConnectionProtection,
    span: Span,
    start: Instant,
    deadline: Option<Pin<Box<Sleep>>>,
    stop: Option<Pin<Box<WaitForCancellationFutureOwned>>>,
    /// Entry among the open streams; `None` without authentication, and for a call that is no stream.
    stream: Option<RevocableStream>,
    /// Record of the call's end; `None` without an audit log.
    audit: Option<AuditEndGuard>,
    /// Counts the bytes of the answer; `None` for a call without a tenant.
    meter: Option<Arc<ByteMeter>>,
    /// Status of the call; `None` until it is known, and if the client went away.
    code: Option<Code>,
    /// `true` if the call may have started an exec that only its first message reports.
    starts_exec: bool,
    /// `true` after the first message was sent.
    has_begun: bool,
    /// `true` if the call may have saved artifacts that no message has reported.
    saves_artifacts: bool,
    has_ended: bool,
}

/// Open stream whose credentials may be revoked.
#[derive(Debug)]
struct RevocableStream {
    _guard: StreamGuard,
    revoked: Pin<Box<WaitForCancellationFutureOwned>>,
}

/// Guards and deadlines of a response's body.
#[derive(Debug)]
pub(super) struct ResponseGuards {
    pub(super) open: Option<OpenCallGuard>,
    pub(super) protection: ConnectionProtection,
    pub(super) span: Span,
    pub(super) start: Instant,
    pub(super) deadline: Option<Instant>,
    pub(super) stop: Option<CancellationToken>,
    pub(super) stream: Option<StreamGuard>,
    pub(super) audit: Option<AuditEndGuard>,
    pub(super) meter: Option<Arc<ByteMeter>>,
    pub(super) permit: AnswerPermit,
    pub(super) starts_exec: bool,
}

/// Makes the error of a call that the daemon's stop ends. Only [`Error::Draining`] (UNAVAILABLE) promises that nothing
/// was started.
pub(super) fn stop_error(may_have_started: bool) -> Error {
    if may_have_started {
        let doing = "starting the exec";
        Error::Stopped { doing }
    } else {
        Error::Draining
    }
}

/// Makes the error of a stream whose credentials are no longer valid.
pub(super) fn revoked_error() -> Error {
    Error::Unauthenticated {
        why: "the credential of this stream has expired or was revoked".to_owned(),
    }
}

/// Returns `true` for the status of a call that failed because its guest's connection ended. The daemon's stop cuts
/// these connections, so such a status during the stop is the stop's.
pub(super) fn is_lost_guest(headers: &HeaderMap) -> bool {
    let status = Status::from_header_map(headers);
    status.is_some_and(|status| reason_of(&status) == Some(ErrorReason::GuestLost))
}

impl GuardedResponseBody {
    pub(super) fn wrap(mut response: Response<Body>, guards: ResponseGuards) -> Response<Body> {
        let ResponseGuards {
            open,
            protection,
            span,
            start,
            deadline,
            stop,
            stream,
            mut audit,
            meter,
            permit,
            starts_exec,
        } = guards;
        // A call that fails at once has its status in the headers.
        let status = Status::from_header_map(response.headers());
        let code = status.as_ref().map(Status::code);
        if let (Some(audit), Some(status)) = (&mut audit, &status) {
            audit.set_status(status);
        }
        let created = response.extensions().get::<CreatedResource>();
        if let (Some(audit), Some(created)) = (&audit, created) {
            audit.call.set_created(created.clone());
        }
        let saves_artifacts = response.extensions().get::<SavesArtifacts>().is_some();
        write_uri_signs(response.headers_mut());
        response.map(|inner| {
            Body::new(Self {
                inner: BudgetedBody::new(inner, permit),
                _open: open,
                _protection: protection,
                span,
                start,
                deadline: deadline.map(|deadline| Box::pin(tokio::time::sleep_until(deadline))),
                stop: stop.map(|stop| Box::pin(stop.cancelled_owned())),
                stream: stream.map(|guard| RevocableStream {
                    revoked: Box::pin(guard.revoked.clone().cancelled_owned()),
                    _guard: guard,
                }),
                audit,
                meter,
                code,
                starts_exec,
                has_begun: false,
                saves_artifacts,
                has_ended: false,
            })
        })
    }

    /// Returns the error with which the stream must end now; `None` if it may go on.
    fn overdue(&mut self, context: &mut Context<'_>) -> Option<Error> {
        if self.is_stopped(context) {
            return Some(self.stop_error());
        }
        if let Some(stream) = &mut self.stream
            && stream.revoked.poll_unpin(context).is_ready()
        {
            return Some(revoked_error());
        }
        let deadline = self.deadline.as_mut()?;
        deadline
            .poll_unpin(context)
            .is_ready()
            .then_some(Error::deadline(
                "streaming the answer; an exec that was started goes on: attach to it",
            ))
    }

    /// Makes the error with which the daemon's stop ends the stream.
    fn stop_error(&self) -> Error {
        if self.saves_artifacts {
            return STOPPED;
        }
        stop_error(self.starts_exec && !self.has_begun)
    }

    fn record_status(&mut self, status: &Status) {
        self.code = Some(status.code());
        if let Some(audit) = &mut self.audit {
            audit.set_status(status);
        }
    }

    fn is_stopped(&mut self, context: &mut Context<'_>) -> bool {
        let stop = self.stop.as_mut();
        stop.is_some_and(|stop| stop.poll_unpin(context).is_ready())
    }

    fn end(&mut self, error: Error) -> Frame<Bytes> {
        let status = Status::from(error);
        self.has_ended = true;
        self.record_status(&status);
        status_trailers(&status)
    }
}

impl http_body::Body for GuardedResponseBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if self.has_ended {
            return Poll::Ready(None);
        }
        if self.has_begun
            && let Some(error) = self.overdue(context)
        {
            return Poll::Ready(Some(Ok(self.end(error))));
        }
        let this = &mut *self;
        let polled = {
            let _entered = this.span.enter();
            let inner = Pin::new(&mut this.inner);
            std::panic::catch_unwind(AssertUnwindSafe(|| inner.poll_frame(context)))
        };
        let Ok(mut polled) = polled else {
            let error = Error::Internal("a stream panicked".into());
            return Poll::Ready(Some(Ok(this.end(error))));
        };
        if let Poll::Ready(Some(Ok(frame))) = &mut polled
            && let Some(trailers) = frame.trailers_mut()
        {
            write_uri_signs(trailers);
        }
        let trailers = match &polled {
            Poll::Ready(Some(Ok(frame))) => frame.trailers_ref(),
            Poll::Ready(_) | Poll::Pending => None,
        };
        // The status is read only during a stop, not at the end of every stream.
        if let Some(trailers) = trailers
            && this.is_stopped(context)
            && is_lost_guest(trailers)
        {
            let error = this.stop_error();
            return Poll::Ready(Some(Ok(this.end(error))));
        }
        // The first message goes out if it is there: it reports the exec that was started.
        if !this.has_begun
            && polled.is_pending()
            && let Some(error) = this.overdue(context)
        {
            return Poll::Ready(Some(Ok(this.end(error))));
        }
        this.has_begun |= polled.is_ready();
        if let Some(trailers) = trailers {
            if let Some(status) = Status::from_header_map(trailers) {
                this.record_status(&status);
            }
            this.has_ended = true;
        }
        if let Poll::Ready(Some(Ok(frame))) = &polled {
            let bytes = frame.data_ref().map_or(0, Bytes::len);
            if let Some(audit) = &this.audit {
                audit.call.count_out(bytes);
            }
            if let Some(meter) = &this.meter {
                meter.count_out(bytes);
            }
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.has_ended || self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

impl Drop for GuardedResponseBody {
    fn drop(&mut self) {
        let _entered = self.span.enter();
        let elapsed_us = u64::try_from(self.start.elapsed().as_micros()).unwrap_or(u64::MAX);
        // Without a code the client went away first.
        let code = self.code.map(tracing::field::debug);
        tracing::debug!(code, elapsed_us, "call ended");
    }
}
