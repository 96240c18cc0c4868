//! Body of a request. The request, or the first message of a stream, must arrive in time; from then on its call
//! protects the connection.
//!
//! A reset of the body is an error. tonic treats a stream that its sender reset with CANCEL as complete, so a cancelled
//! upload would be stored as a whole file.

use std::pin::Pin;
use std::sync::{Arc, OnceLock, Weak};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use http_body::{Frame, SizeHint};
use tokio::time::Sleep;
use tonic::body::Body;
use tonic::{Code, Status};

use super::connections::{CallPriority, ConnectionCallGuard, ConnectionHandle};
use crate::error::Error;
use crate::usage::ByteMeter;

/// Longest time from the headers of a call to the end of its request, or of the first message of a stream. Clients send
/// both at once; without this limit a call of headers alone would cost its client nothing and last for ever.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Length of the prefix of every gRPC message, in bytes: a flag, and the message's length as four bytes.
const PREFIX_BYTES: usize = 5;

/// Request body that must arrive in time, and then counts its call on the connection.
#[derive(Debug)]
pub(super) struct TimedRequestBody {
    inner: Body,
    /// Part of the request that has not arrived; `None` once the call counts.
    awaited: Option<AwaitedRequest>,
    /// Counts the bytes of the request; `None` for a call without a tenant.
    meter: Option<Arc<ByteMeter>>,
}

/// Protection of a connection by one of its calls: empty until the call's request has arrived. The call owns it, and
/// the request's body, which a handler may keep for longer, only fills it.
#[derive(Debug, Clone, Default)]
pub(super) struct ConnectionProtection(Arc<OnceLock<ConnectionCallGuard>>);

/// Connection and kind of a call that counts once its request has arrived.
#[derive(Debug)]
pub(super) struct PendingCall {
    connection: ConnectionHandle,
    kind: CallPriority,
    protection: Weak<OnceLock<ConnectionCallGuard>>,
}

/// Request that has not arrived far enough to count.
#[derive(Debug)]
struct AwaitedRequest {
    deadline: Pin<Box<Sleep>>,
    opening: Option<PendingCall>,
    /// Progress of the first message of a stream; `None` for a unary request, which must arrive completely.
    first: Option<FirstMessageArrival>,
}

/// Arrival of the first gRPC message of a stream, by the length in its prefix.
#[derive(Debug, Default)]
struct FirstMessageArrival {
    prefix: [u8; PREFIX_BYTES],
    /// Number of bytes that have arrived.
    seen: u64,
}

// === impl ConnectionProtection ===

impl ConnectionProtection {
    /// Makes the value with which the request's body fills this protection.
    pub(super) fn opening(&self, connection: ConnectionHandle, kind: CallPriority) -> PendingCall {
        PendingCall {
            connection,
            kind,
            protection: Arc::downgrade(&self.0),
        }
    }
}

impl PendingCall {
    /// Counts the call on its connection. Returns `false` if the connection is being closed, so that an answer would
    /// not arrive.
    fn open(self) -> bool {
        let Some(call) = self.connection.open_call(self.kind) else {
            return false;
        };
        // If the call has ended already, dropping its count here removes it again.
        if let Some(protection) = self.protection.upgrade() {
            drop(protection.set(call));
        }
        true
    }
}

/// Returns the length of a gRPC message with this prefix, prefix included, in bytes.
pub(super) fn framed_bytes(prefix: [u8; PREFIX_BYTES]) -> u64 {
    let [_, length @ ..] = prefix;
    PREFIX_BYTES as u64 + u64::from(u32::from_be_bytes(length))
}

// === impl FirstMessageArrival ===

impl FirstMessageArrival {
    /// Counts bytes that arrived. Returns `true` if the message is complete.
    fn add(&mut self, bytes: &[u8]) -> bool {
        let begin = usize::try_from(self.seen).unwrap_or(PREFIX_BYTES);
        let missing = self.prefix.iter_mut().skip(begin);
        for (to, from) in missing.zip(bytes) {
            *to = *from;
        }
        self.seen += bytes.len() as u64;
        self.seen >= PREFIX_BYTES as u64 && self.seen >= framed_bytes(self.prefix)
    }
}

// === impl TimedRequestBody ===

impl TimedRequestBody {
    /// Wraps a body. `opening` is `None` for a call without a counted connection; `is_stream` is `true` for a stream of
    /// requests.
    pub(super) fn new(inner: Body, is_stream: bool, opening: Option<PendingCall>) -> Self {
        let awaited = AwaitedRequest {
            deadline: Box::pin(tokio::time::sleep(REQUEST_TIMEOUT)),
            opening,
            first: is_stream.then(FirstMessageArrival::default),
        };
        Self {
            inner,
            awaited: Some(awaited),
            meter: None,
        }
    }

    /// Counts the bytes of the request with a meter.
    pub(super) fn with_meter(self, meter: Option<Arc<ByteMeter>>) -> Self {
        Self { meter, ..self }
    }

    /// Returns `true` if enough has arrived, with `data`, for the call to count.
    fn is_complete(&mut self, data: Option<&Bytes>) -> bool {
        let first = self
            .awaited
            .as_mut()
            .and_then(|request| request.first.as_mut());
        match (first, data) {
            (Some(first), Some(data)) => first.add(data),
            (None, Some(_)) => http_body::Body::is_end_stream(&self.inner),
            (_, None) => true,
        }
    }

    /// Counts the call if enough of it has arrived. Returns `false` if its connection is being closed.
    fn try_open(&mut self, data: Option<&Bytes>) -> bool {
        if self.awaited.is_none() || !self.is_complete(data) {
            return true;
        }
        let opening = self.awaited.take().and_then(|request| request.opening);
        opening.is_none_or(PendingCall::open)
    }
}

impl http_body::Body for TimedRequestBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let polled = Pin::new(&mut self.inner).poll_frame(context);
        if polled.is_pending()
            && let Some(awaited) = &mut self.awaited
            && awaited.deadline.poll_unpin(context).is_ready()
        {
            self.awaited = None;
            return Poll::Ready(Some(Err(missing_request())));
        }
        let frame = ready!(polled).transpose().map_err(broken);
        if let (Some(meter), Ok(Some(frame))) = (&self.meter, &frame) {
            meter.count_in(frame.data_ref().map_or(0, Bytes::len));
        }
        let is_open = match &frame {
            Ok(frame) => self.try_open(frame.as_ref().and_then(Frame::data_ref)),
            Err(_) => true,
        };
        if is_open {
            Poll::Ready(frame.transpose())
        } else {
            // The connection is closing: the call ends with it, before its handler has begun.
            Poll::Ready(Some(Err(missing_request())))
        }
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

fn broken(status: Status) -> Status {
    if status.code() == Code::Cancelled {
        Error::invalid("data", "the stream was reset before its end").into()
    } else {
        status
    }
}

/// Makes the status of a call whose request did not arrive.
fn missing_request() -> Status {
    let doing = "waiting for the request";
    Error::Deadline { doing }.into()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::collections::VecDeque;

    use http_body::Body as _;
    use tokio::time::Instant;
    use tokio_util::sync::CancellationToken;

    use super::super::connections::{ConnectionAdmission, ConnectionGuard, ConnectionTable};
    use super::*;
    use crate::access::{ConnectionPeer, PeerAddress};

    #[test]
    fn a_message_is_complete_with_its_last_byte_however_it_is_cut() {
        for (message, more) in [
            (&[0, 0, 0, 0, 0][..], 0),
            (&[0, 0, 0, 0, 3, 7, 7, 7], 0),
            (&[0, 0, 0, 0, 1, 7, 0, 0], 2),
        ] {
            let whole = message.len() - more;
            for cut in 0..message.len() {
                let (begin, rest) = message.split_at(cut);
                let mut arrival = FirstMessageArrival::default();
                assert_eq!(arrival.add(begin), cut >= whole, "{message:?} at {cut}");
                assert!(arrival.add(rest), "{message:?} at {cut}");
            }
        }
    }

    fn peer() -> Arc<ConnectionPeer> {
        let (uid, gid, pid) = (1, 1, None);
        let address = PeerAddress::Unix { uid, gid, pid };
        let (listener, authenticators) = (String::new(), BTreeSet::new());
        Arc::new(ConnectionPeer::new(address, listener, authenticators))
    }

    fn connection(table: &ConnectionTable) -> ConnectionGuard {
        match table.admit(peer(), &CancellationToken::new()) {
            ConnectionAdmission::Free(guard) | ConnectionAdmission::Replaced(guard) => guard,
            ConnectionAdmission::Full => panic!("full"),
        }
    }

    fn is_full(table: &ConnectionTable) -> bool {
        let admission = table.admit(peer(), &CancellationToken::new());
        matches!(admission, ConnectionAdmission::Full)
    }

    /// Polls until the next frame or error.
    async fn next(body: &mut TimedRequestBody) -> Option<Result<Frame<Bytes>, Status>> {
        std::future::poll_fn(|context| Pin::new(&mut *body).poll_frame(context)).await
    }

    /// Body that yields frames, and then ends or stays silent for ever.
    struct Frames {
        frames: VecDeque<Bytes>,
        ends: bool,
    }

    impl http_body::Body for Frames {
        type Data = Bytes;
        type Error = Status;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _context: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
            match self.frames.pop_front() {
                Some(data) => Poll::Ready(Some(Ok(Frame::data(data)))),
                None if self.ends => Poll::Ready(None),
                None => Poll::Pending,
            }
        }
    }

    fn frames<const N: usize>(frames: [&'static [u8]; N], ends: bool) -> Body {
        let frames = frames.map(Bytes::from_static).into();
        Body::new(Frames { frames, ends })
    }

    /// Connection that fills its table, and the request of a call on it.
    struct OnlyConnection {
        table: ConnectionTable,
        guard: ConnectionGuard,
        protection: ConnectionProtection,
        body: TimedRequestBody,
    }

    fn call_on_the_only_connection(request: Body, is_stream: bool) -> OnlyConnection {
        let table = ConnectionTable::new(1, 1);
        let guard = connection(&table);
        let protection = ConnectionProtection::default();
        let opening = protection.opening(guard.handle(), CallPriority::Work);
        OnlyConnection {
            body: TimedRequestBody::new(request, is_stream, Some(opening)),
            table,
            guard,
            protection,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_protects_its_connection_from_its_first_message_to_its_end() {
        let silent = frames([&[0, 0, 0, 0, 2, 7], &[7]], false);
        let OnlyConnection {
            table,
            guard,
            protection,
            mut body,
        } = call_on_the_only_connection(silent, true);

        next(&mut body).await.expect("a frame").expect("data");
        assert!(!guard.cut.is_cancelled() && protection.0.get().is_none());
        next(&mut body).await.expect("a frame").expect("data");
        assert!(protection.0.get().is_some() && is_full(&table));
        // The handler may keep the body longer than the call lasts.
        drop(protection);
        assert!(!is_full(&table) && guard.cut.is_cancelled());
    }

    #[tokio::test]
    async fn a_single_request_protects_its_connection_from_its_end() {
        let mut call = call_on_the_only_connection(frames([&[0; 5]], true), false);
        next(&mut call.body).await.expect("a frame").expect("data");
        assert!(call.protection.0.get().is_none());
        assert!(next(&mut call.body).await.is_none());
        assert!(call.protection.0.get().is_some() && is_full(&call.table));
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_does_not_arrive_ends_its_call_and_protects_nothing() {
        for (body, is_stream) in [
            (frames([], false), true),
            (frames([], false), false),
            (frames([&[0, 0, 0, 0, 2, 7]], false), true),
            // Handlers of single requests wait for the end of the body.
            (frames([&[0; 5]], false), false),
        ] {
            let mut call = call_on_the_only_connection(body, is_stream);
            let start = Instant::now();
            let status = loop {
                match next(&mut call.body).await.expect("no end") {
                    Ok(_frame) => {}
                    Err(status) => break status,
                }
            };
            assert_eq!(status.code(), Code::DeadlineExceeded);
            assert!(!status.details().is_empty());
            assert!(start.elapsed() >= REQUEST_TIMEOUT);
            assert!(!is_full(&call.table) && call.guard.cut.is_cancelled());
        }
    }

    #[tokio::test]
    async fn a_call_whose_connection_is_closed_does_not_begin() {
        let mut call = call_on_the_only_connection(frames([&[0; 5]], true), true);
        let _newer = connection(&call.table);
        assert!(call.guard.cut.is_cancelled());
        let frame = next(&mut call.body).await.expect("an end");
        frame.expect_err("the call has begun");
    }
}
