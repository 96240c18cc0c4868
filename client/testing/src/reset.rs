//! A request stream that the client reset is an error here, as it is in the daemon: tonic takes it for one that
//! ended well.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::Frame;
use tonic::body::Body;
use tonic::codegen::http::Request;
use tonic::{Code, Status};

pub(crate) fn seen(request: Request<Body>) -> Request<Body> {
    request.map(|body| Body::new(ResetBody(body)))
}

struct ResetBody(Body);

impl http_body::Body for ResetBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let frame = ready!(Pin::new(&mut self.0).poll_frame(context));
        Poll::Ready(frame.map(|frame| {
            frame.map_err(|status| match status.code() == Code::Cancelled {
                true => Status::aborted("reset"),
                false => status,
            })
        }))
    }
}
