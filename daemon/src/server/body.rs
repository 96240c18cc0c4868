//! The body of a response: keeps its call counted until its end, and ends a stream at its deadline or when the
//! server stops, with a status and never by tearing the connection.

use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures::FutureExt;
use http::HeaderMap;
use http_body::{Frame, SizeHint};
use tokio::time::{Instant, Sleep};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tonic::Status;
use tonic::body::Body;
use tracing::Span;

use super::call::OpenCall;
use crate::error::Error;

/// A wrapped body. Every part of it lives on the heap or can be moved, so none of it needs pinning.
#[derive(Debug)]
pub(super) struct CallBody {
    inner: Body,
    /// `None` once the body has ended.
    _open: Option<OpenCall>,
    span: Span,
    start: Instant,
    deadline: Option<Pin<Box<Sleep>>>,
    stop: Option<Pin<Box<WaitForCancellationFutureOwned>>>,
    ended: bool,
}

impl CallBody {
    pub(super) fn new(
        inner: Body,
        open: Option<OpenCall>,
        span: Span,
        start: Instant,
        deadline: Option<Instant>,
        stop: Option<CancellationToken>,
    ) -> Self {
        Self {
            inner,
            _open: open,
            span,
            start,
            deadline: deadline.map(|deadline| Box::pin(tokio::time::sleep_until(deadline))),
            stop: stop.map(|stop| Box::pin(stop.cancelled_owned())),
            ended: false,
        }
    }

    /// Why the stream must end now, if it must.
    fn overdue(&mut self, context: &mut Context<'_>) -> Option<Error> {
        if self
            .stop
            .as_mut()
            .is_some_and(|stop| stop.poll_unpin(context).is_ready())
        {
            return Some(Error::Draining);
        }
        let deadline = self.deadline.as_mut()?;
        deadline
            .poll_unpin(context)
            .is_ready()
            .then_some(Error::Deadline {
                doing: "streaming the answer",
            })
    }

    fn end(&mut self, error: Error) -> Frame<Bytes> {
        self.ended = true;
        let status = Status::from(error);
        let mut trailers = HeaderMap::new();
        if let Err(status) = status.add_header(&mut trailers) {
            tracing::error!(error = %status, "status does not fit into trailers");
        }
        Frame::trailers(trailers)
    }
}

impl http_body::Body for CallBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if self.ended {
            return Poll::Ready(None);
        }
        if let Some(error) = self.overdue(context) {
            return Poll::Ready(Some(Ok(self.end(error))));
        }
        let this = &mut *self;
        let polled = {
            let _entered = this.span.enter();
            let inner = Pin::new(&mut this.inner);
            std::panic::catch_unwind(AssertUnwindSafe(|| inner.poll_frame(context)))
        };
        match polled {
            Ok(poll) => poll,
            Err(_panic) => {
                let error = Error::Internal("a stream panicked".into());
                Poll::Ready(Some(Ok(self.end(error))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.ended || self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

impl Drop for CallBody {
    fn drop(&mut self) {
        let _entered = self.span.enter();
        tracing::debug!(elapsed_us = self.start.elapsed().as_micros(), "call ended");
    }
}
