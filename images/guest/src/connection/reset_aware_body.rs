//! Request body that reports a reset as an error. tonic takes a request stream that its sender cancelled for a
//! complete one, so half of an abandoned upload would pass for a whole file.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use tonic::{Code, Status};

use crate::error::Error;

/// Request body that reports a reset by the sender as an error instead of the end.
#[derive(Debug)]
pub(crate) struct ResetAwareBody(pub(crate) Incoming);

impl Body for ResetAwareBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let frame = ready!(Pin::new(&mut self.0).poll_frame(context));
        Poll::Ready(frame.map(|frame| frame.map_err(body_error)))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.0.size_hint()
    }
}

/// Converts a failed read of a request body to a status. A reset becomes an invalid request.
fn body_error(error: hyper::Error) -> Status {
    let status = Status::from_error(Box::new(error));
    if status.code() == Code::Cancelled {
        return Error::invalid("data", "the stream was reset before its end").into();
    }
    status
}
