//! The body of a request, whose reset is an error. tonic takes a stream of requests that its sender reset with
//! CANCEL for one that ended well; an upload that was given up would be half a file taken for all of it.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use tonic::{Code, Status};

use crate::error::Error;

/// What the daemon sends.
#[derive(Debug)]
pub(crate) struct RequestBody(pub(crate) Incoming);

impl Body for RequestBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let frame = ready!(Pin::new(&mut self.0).poll_frame(context));
        Poll::Ready(frame.map(|frame| frame.map_err(broken)))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.0.size_hint()
    }
}

fn broken(error: hyper::Error) -> Status {
    let status = Status::from_error(Box::new(error));
    if status.code() == Code::Cancelled {
        return Error::Invalid {
            field: "data",
            problem: "the stream was reset before its end",
        }
        .into();
    }
    status
}
