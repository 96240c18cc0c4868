//! Body of a response: counts its call as open until its end, and ends a stream at its deadline or when the server
//! stops. Such a stream ends with a status; its connection stays open.

use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures::FutureExt;
use http::{HeaderMap, Response};
use http_body::{Frame, SizeHint};
use skilld_proto::v1::Reason;
use tokio::time::{Instant, Sleep};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tonic::body::Body;
use tonic::{Code, Status};
use tonic_types::StatusExt as _;
use tracing::Span;

use super::call_layer::OpenCallGuard;
use super::request_body::ConnectionProtection;
use crate::error::Error;

/// Response body that counts its call as open and ends a stream at its deadline or at the server's stop. All fields are
/// `Unpin`, so no pin projection is needed.
#[derive(Debug)]
pub(super) struct GuardedResponseBody {
    inner: Body,
    _open: Option<OpenCallGuard>,
    _protection: ConnectionProtection,
    span: Span,
    start: Instant,
    deadline: Option<Pin<Box<Sleep>>>,
    stop: Option<Pin<Box<WaitForCancellationFutureOwned>>>,
    /// Status of the call; `None` until it is known, and if the client went away.
    code: Option<Code>,
    /// `true` if the call may have started an exec that only its first message reports.
    starts: bool,
    /// `true` after the first message was sent.
    begun: bool,
    ended: bool,
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
    pub(super) starts: bool,
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

/// Returns `true` for the status of a call that failed because its guest's connection ended. The daemon's stop cuts
/// these connections, so such a status during the stop is the stop's.
pub(super) fn is_lost_guest(headers: &HeaderMap) -> bool {
    let lost = Reason::GuestLost.as_str_name();
    Status::from_header_map(headers).is_some_and(|status| {
        let details = status.get_error_details();
        let info = details.error_info();
        info.is_some_and(|info| lost.strip_prefix("REASON_") == Some(info.reason.as_str()))
    })
}

impl GuardedResponseBody {
    pub(super) fn wrap(response: Response<Body>, watch: ResponseGuards) -> Response<Body> {
        let ResponseGuards {
            open,
            protection,
            span,
            start,
            deadline,
            stop,
            starts,
        } = watch;
        // A call that fails at once has its status in the headers.
        let code = Status::from_header_map(response.headers()).map(|status| status.code());
        response.map(|inner| {
            Body::new(Self {
                inner,
                _open: open,
                _protection: protection,
                span,
                start,
                deadline: deadline.map(|deadline| Box::pin(tokio::time::sleep_until(deadline))),
                stop: stop.map(|stop| Box::pin(stop.cancelled_owned())),
                code,
                starts,
                begun: false,
                ended: false,
            })
        })
    }

    /// Returns the error with which the stream must end now; `None` if it may go on.
    fn overdue(&mut self, context: &mut Context<'_>) -> Option<Error> {
        if self.is_stopped(context) {
            return Some(stop_error(self.starts && !self.begun));
        }
        let deadline = self.deadline.as_mut()?;
        deadline
            .poll_unpin(context)
            .is_ready()
            .then_some(Error::Deadline {
                doing: "streaming the answer",
            })
    }

    fn is_stopped(&mut self, context: &mut Context<'_>) -> bool {
        let stop = self.stop.as_mut();
        stop.is_some_and(|stop| stop.poll_unpin(context).is_ready())
    }

    fn end(&mut self, error: Error) -> Frame<Bytes> {
        let status = Status::from(error);
        self.ended = true;
        self.code = Some(status.code());
        let mut trailers = HeaderMap::new();
        if let Err(status) = status.add_header(&mut trailers) {
            tracing::error!(error = %status, "status does not fit into trailers");
        }
        Frame::trailers(trailers)
    }
}

impl http_body::Body for GuardedResponseBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if self.ended {
            return Poll::Ready(None);
        }
        if self.begun
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
        let Ok(polled) = polled else {
            let error = Error::Internal("a stream panicked".into());
            return Poll::Ready(Some(Ok(this.end(error))));
        };
        let trailers = match &polled {
            Poll::Ready(Some(Ok(frame))) => frame.trailers_ref(),
            Poll::Ready(_) | Poll::Pending => None,
        };
        // The status is read only during a stop, not at the end of every stream.
        if let Some(trailers) = trailers
            && this.is_stopped(context)
            && is_lost_guest(trailers)
        {
            let error = stop_error(this.starts && !this.begun);
            return Poll::Ready(Some(Ok(this.end(error))));
        }
        // The first message goes out if it is there: it tells what was started.
        if !this.begun
            && polled.is_pending()
            && let Some(error) = this.overdue(context)
        {
            return Poll::Ready(Some(Ok(this.end(error))));
        }
        this.begun |= polled.is_ready();
        if let Some(trailers) = trailers {
            this.code = Status::from_header_map(trailers).map(|status| status.code());
            this.ended = true;
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.ended || self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

impl Drop for GuardedResponseBody {
    fn drop(&mut self) {
        let _entered = self.span.enter();
        let elapsed_us = self.start.elapsed().as_micros();
        // Without a code the client went away first.
        let code = self.code.map(tracing::field::debug);
        tracing::debug!(code, elapsed_us, "call ended");
    }
}
