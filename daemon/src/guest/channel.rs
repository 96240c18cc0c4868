//! HTTP/2 channel over one connection of a guest. A call goes from its handler to the connection without a task or a
//! queue between them, and a unary request is one frame, so that it wakes the guest once.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use http::uri::{Authority, Scheme};
use http::{Request, Response, Uri};
use http_body::{Frame, SizeHint};
use hyper::body::Incoming;
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper::rt::Executor;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tonic::Status;
use tonic::body::Body;

/// HTTP/2 window of a stream, in bytes: two of the largest usual messages. It bounds the cost of a stalled reader, and
/// the bytes in flight when a connection breaks, which the guest keeps (3 MiB by default).
pub const STREAM_WINDOW: u32 = 512 << 10;
/// HTTP/2 window of the connection, in bytes. It covers all streams together, so that stalled readers cannot starve the
/// others.
const CONNECTION_WINDOW: u32 = 512 << 20;
/// Maximum HTTP/2 frame size, in bytes: one message of the largest usual size. HTTP/2's default would split it into 16
/// frames.
const FRAME_BYTES_MAX: u32 = (256 << 10) + 1024;
/// Silence of a guest with open calls after which the daemon pings it. The guest may share one processor with hundreds
/// of busy commands, so this is long. An idle guest is not pinged.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(4);
/// Longest wait for the answer to a ping. The engine reports ends, removals and pauses earlier.
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(6);

/// Channel to a guest. Cheap to clone. It ends with its connection and makes no other.
#[derive(Debug, Clone)]
pub struct GuestChannel(SendRequest<EndMarkedBody>);

/// Body of a request that marks the only frame of a unary request as the last one. tonic leaves the mark to a frame of
/// its own.
///
/// Later frames belong to an upload and are not taken before the connection has room for them: reading ahead would
/// hold another message in memory, and take the end of an upload for sent that is not.
#[derive(Debug)]
struct EndMarkedBody {
    inner: Body,
    /// Second frame, if it was there when the first one was returned.
    second: Option<Result<Frame<Bytes>, Status>>,
    has_begun: bool,
    is_ended: bool,
}

impl GuestChannel {
    /// Starts HTTP/2 on a connection. Dropping the last clone of the channel closes it.
    ///
    /// # Errors
    /// When the connection fails at once.
    pub async fn connect<S>(stream: S) -> hyper::Result<Self>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (sender, connection) = Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_frame_size(FRAME_BYTES_MAX)
            .keep_alive_interval(KEEPALIVE_INTERVAL)
            .keep_alive_timeout(KEEPALIVE_TIMEOUT)
            .keep_alive_while_idle(false)
            .handshake(TokioIo::new(stream))
            .await?;
        TokioExecutor::new().execute(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a guest's connection ended");
            }
        });
        Ok(Self(sender))
    }
}

impl tower::Service<Request<Body>> for GuestChannel {
    type Response = Response<Incoming>;
    type Error = hyper::Error;
    type Future = BoxFuture<'static, hyper::Result<Response<Incoming>>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<hyper::Result<()>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        let mut uri = std::mem::take(request.uri_mut()).into_parts();
        uri.scheme = Some(Scheme::HTTP);
        uri.authority = Some(Authority::from_static("guest"));
        // tonic's path is complete, so this does not fail; a request without one would be refused by the guest.
        *request.uri_mut() = Uri::from_parts(uri).unwrap_or_default();
        self.0.send_request(request.map(EndMarkedBody::new)).boxed()
    }
}

impl EndMarkedBody {
    fn new(inner: Body) -> Self {
        Self {
            inner,
            second: None,
            has_begun: false,
            is_ended: false,
        }
    }
}

impl http_body::Body for EndMarkedBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if self.is_ended {
            return Poll::Ready(None);
        }
        if let Some(second) = self.second.take() {
            return Poll::Ready(Some(second));
        }
        let frame = ready!(Pin::new(&mut self.inner).poll_frame(context));
        if frame.is_none() {
            self.is_ended = true;
        } else if !std::mem::replace(&mut self.has_begun, true) {
            match Pin::new(&mut self.inner).poll_frame(context) {
                Poll::Ready(None) => self.is_ended = true,
                Poll::Ready(second) => self.second = second,
                Poll::Pending => {}
            }
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.is_ended
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::sync::{Arc, Mutex};

    use http_body::Body as _;

    use super::*;

    /// Body that yields each entry once, and waits once for each `None`. Clones share the entries.
    #[derive(Clone)]
    struct Frames(Arc<Mutex<VecDeque<Option<&'static [u8]>>>>);

    impl Frames {
        fn new(frames: &[Option<&'static [u8]>]) -> Self {
            Self(Arc::new(Mutex::new(frames.iter().copied().collect())))
        }
    }

    impl http_body::Body for Frames {
        type Data = Bytes;
        type Error = Status;

        fn poll_frame(
            self: Pin<&mut Self>,
            context: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
            match self.0.lock().expect("lock").pop_front() {
                None => Poll::Ready(None),
                Some(Some(data)) => Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(data))))),
                Some(None) => {
                    context.waker().wake_by_ref();
                    Poll::Pending
                }
            }
        }
    }

    async fn next_data(body: &mut EndMarkedBody) -> Option<Bytes> {
        let frame = std::future::poll_fn(|context| Pin::new(&mut *body).poll_frame(context));
        let frame = frame.await?.expect("no error");
        Some(frame.into_data().expect("data"))
    }

    /// Returns all data of a body, each with `true` if it was marked as the last.
    async fn read_frames(frames: &[Option<&'static [u8]>]) -> Vec<(Bytes, bool)> {
        let mut body = EndMarkedBody::new(Body::new(Frames::new(frames)));
        let mut read = Vec::new();
        while let Some(data) = next_data(&mut body).await {
            read.push((data, body.is_end_stream()));
        }
        read
    }

    #[tokio::test]
    async fn the_only_data_of_a_request_is_marked_as_its_end() {
        assert_eq!(
            read_frames(&[Some(b"all")]).await,
            [(Bytes::from("all"), true)]
        );
        for stream in [
            &[Some(&b"a"[..]), None, Some(b"b"), Some(b"c")][..],
            &[Some(&b"a"[..]), Some(b"b"), None, Some(b"c")],
        ] {
            let expected = ["a", "b", "c"].map(|data| (Bytes::from(data), false));
            assert_eq!(read_frames(stream).await, expected);
        }
        // The end of a stream that is not known yet is a frame of its own.
        let late = [Some(&b"a"[..]), None];
        assert_eq!(read_frames(&late).await, [(Bytes::from("a"), false)]);
    }

    #[tokio::test]
    async fn no_data_of_an_upload_is_read_before_it_can_be_sent() {
        let frames = ["header", "a", "b", "c"].map(|data| Some(data.as_bytes()));
        let frames = Frames::new(&frames);
        let mut body = EndMarkedBody::new(Body::new(frames.clone()));
        let mut unread = Vec::new();
        while next_data(&mut body).await.is_some() {
            unread.push(frames.0.lock().expect("lock").len());
        }
        // Only the frame after the header is taken early: for a unary request there is none.
        assert_eq!(unread, [2, 2, 1, 0]);
    }
}
