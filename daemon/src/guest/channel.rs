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
/// Number of cancelled calls whose late answers are ignored for a second: as many as a guest serves at once.
const CANCELLED_CALLS_MAX: usize = 1024;
/// Maximum number of other late frames over the life of the connection; beyond it the connection ends. The daemon
/// answers each with a frame, and a hostile guest reads none.
const LATE_FRAMES_MAX: usize = 16 << 10;
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
            .max_concurrent_reset_streams(CANCELLED_CALLS_MAX)
            .max_local_error_reset_streams(LATE_FRAMES_MAX)
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
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};
    use tower::Service as _;

    use super::*;

    const HEADERS: u8 = 1;
    const RST_STREAM: u8 = 3;
    const SETTINGS: u8 = 4;
    const PING: u8 = 6;
    const GOAWAY: u8 = 7;
    const ACK: u8 = 1;
    /// Flags of headers that are a whole response.
    const WHOLE: u8 = 5;
    /// `:status: 200` in HPACK.
    const STATUS_OK: [u8; 1] = [0x88];

    /// Guest that writes HTTP/2 frames itself.
    struct RawGuest(DuplexStream);

    impl RawGuest {
        async fn write_frame(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
            let length = u32::try_from(payload.len()).expect("short").to_be_bytes();
            let frame = [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat();
            self.0.write_all(&frame).await.expect("written");
        }

        /// Reads frames until one of this type, and returns its stream. Answers pings.
        async fn read_frame(&mut self, kind: u8) -> u32 {
            loop {
                let mut head = [0; 9];
                self.0.read_exact(&mut head).await.expect("a frame");
                let mut payload =
                    vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
                self.0.read_exact(&mut payload).await.expect("its payload");
                assert_ne!(head[3], GOAWAY, "{payload:?}");
                if head[3] == PING && head[4] & ACK == 0 {
                    self.write_frame(PING, ACK, 0, &payload).await;
                }
                if head[3] == kind {
                    return u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
                }
            }
        }
    }

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
        let frame = std::future::poll_fn(|context| Pin::new(&mut *body).poll_frame(context))
            .await?
            .expect("no error");
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

    /// The guest wrote the answers before it read that the calls are cancelled.
    #[tokio::test]
    async fn late_answers_to_cancelled_calls_leave_the_connection_open() {
        let (near, far) = tokio::io::duplex(1 << 20);
        let mut channel = GuestChannel::connect(near).await.expect("connected");
        let mut guest = RawGuest(far);
        let preface = guest.0.read_exact(&mut [0; 24]).await;
        preface.expect("the preface");
        guest.write_frame(SETTINGS, 0, 0, &[]).await;
        let request = || Request::post("/x").body(Body::empty()).expect("a request");
        let count = 2 * CANCELLED_CALLS_MAX + 100;
        let calls: Vec<_> = (0..count).map(|_| channel.call(request())).collect();
        let mut streams = Vec::new();
        for _ in 0..count {
            streams.push(guest.read_frame(HEADERS).await);
        }
        drop(calls);
        for _ in 0..count {
            guest.read_frame(RST_STREAM).await;
        }
        for stream in streams {
            guest.write_frame(HEADERS, WHOLE, stream, &STATUS_OK).await;
        }
        let call = channel.call(request());
        let stream = guest.read_frame(HEADERS).await;
        guest.write_frame(HEADERS, WHOLE, stream, &STATUS_OK).await;
        let response = call.await.expect("answered");
        assert_eq!(response.status(), http::StatusCode::OK);
    }
}
