//! Bodies of calls: a request whose bytes are recorded, and an answer that ends where a test says.

use std::mem::replace;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes, BytesMut};
use http_body::Frame;
use tonic::body::Body;
use tonic::codegen::http::HeaderMap;
use tonic::{Code, Status};

/// Takes the first message of gRPC from bytes, if it is whole: a flag and its length, which are five bytes, and itself.
pub(crate) fn take_message(bytes: &mut BytesMut) -> Option<Bytes> {
    let length = bytes.get(1..5)?.get_u32();
    let length = usize::try_from(length).ok()? + 5;
    (bytes.len() >= length).then(|| bytes.split_to(length).freeze())
}

/// Body of a request that records what passes. A stream that the client reset is an error here, as it is in the daemon:
/// tonic takes it for one that ended well.
pub(crate) struct RecordedBody {
    inner: Body,
    record: Arc<Mutex<BytesMut>>,
}

impl RecordedBody {
    pub(crate) fn new(inner: Body, record: Arc<Mutex<BytesMut>>) -> Self {
        Self { inner, record }
    }
}

impl http_body::Body for RecordedBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let frame = ready!(Pin::new(&mut self.inner).poll_frame(context));
        if let Some(Ok(frame)) = &frame
            && let Some(data) = frame.data_ref()
        {
            let mut record = self.record.lock().expect("no test panics with it");
            record.extend_from_slice(data);
        }
        Poll::Ready(frame.map(|frame| {
            frame.map_err(|status| match status.code() == Code::Cancelled {
                true => Status::aborted("reset"),
                false => status,
            })
        }))
    }
}

/// End of an answer.
pub(crate) enum BodyEnd {
    /// The answer ends with a status, which may be OK.
    Status(Status),
    /// The answer hangs: it neither goes on nor ends.
    Never,
    /// The status was sent.
    Over,
}

/// Body of an answer that ends after a number of messages.
pub(crate) struct EndingBody {
    inner: Body,
    /// Bytes that came from `inner` and were not passed on.
    bytes: BytesMut,
    /// Number of messages that are still passed on.
    messages: usize,
    end: BodyEnd,
}

impl EndingBody {
    pub(crate) fn new(inner: Body, messages: usize, end: BodyEnd) -> Self {
        Self {
            inner,
            bytes: BytesMut::new(),
            messages,
            end,
        }
    }

    /// Returns the body of an answer with these bytes of messages.
    pub(crate) fn reply(bytes: BytesMut, messages: usize) -> Self {
        let end = BodyEnd::Status(Status::ok(""));
        Self {
            bytes,
            ..Self::new(Body::empty(), messages, end)
        }
    }
}

impl http_body::Body for EndingBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = &mut *self;
        while this.messages > 0 {
            if let Some(message) = take_message(&mut this.bytes) {
                this.messages -= 1;
                return Poll::Ready(Some(Ok(Frame::data(message))));
            }
            match ready!(Pin::new(&mut this.inner).poll_frame(context)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => this.bytes.extend_from_slice(&data),
                    Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
                },
                ended => return Poll::Ready(ended),
            }
        }
        if matches!(this.end, BodyEnd::Never) {
            return Poll::Pending;
        }
        Poll::Ready(match replace(&mut this.end, BodyEnd::Over) {
            BodyEnd::Status(status) => {
                let mut trailers = HeaderMap::new();
                let added = status.add_header(&mut trailers);
                Some(added.map(|()| Frame::trailers(trailers)))
            }
            BodyEnd::Over | BodyEnd::Never => None,
        })
    }
}
