//! Body of a request, with a deadline for its arrival. The request, or the first message of a stream, must arrive in
//! time; from then on its call protects the connection.
//!
//! The decoder keeps a message until it is complete. So each has a limit of its size, the rest of one that has begun must
//! arrive in time as well, and the incomplete messages of one tenant hold a limited number of bytes.
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
use crate::rpc::upload::{ARRIVING_BYTES_MAX, arriving_bytes_error};
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
    bounds: MessageBounds,
    arrival: MessageArrival,
    /// Deadline of an incomplete message after the first one; `None` before it is waited for.
    rest_deadline: Option<Pin<Box<Sleep>>>,
    /// Counts the bytes of the request; `None` for a call without a tenant.
    meter: Option<RequestMeter>,
}

/// Limits of each message of a request.
#[derive(Debug, Clone, Copy)]
pub(super) struct MessageBounds {
    /// Maximum size in bytes, as the message is sent; `None` if only the decoder limits it.
    pub(super) bytes_max: Option<u64>,
    /// Longest wait for the rest of a later message of a stream, of which a part has arrived.
    pub(super) rest_timeout: Duration,
}

/// Counts the bytes of a request for its tenant. Dropping it gives back those of an incomplete message.
#[derive(Debug)]
struct RequestMeter {
    meter: Arc<ByteMeter>,
    /// Number of bytes that count for the incomplete message.
    arriving: u64,
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
    pending: Option<PendingCall>,
    /// `true` if the first message of a stream suffices; a unary request must arrive completely.
    is_stream: bool,
}

/// Arrival of gRPC messages, by the lengths in their prefixes.
#[derive(Debug, Default)]
struct MessageArrival {
    prefix: [u8; PREFIX_BYTES],
    /// Number of bytes of the incomplete message that have arrived; 0 between two messages.
    seen: u64,
}

// === impl ConnectionProtection ===

impl ConnectionProtection {
    /// Makes the value with which the request's body fills this protection.
    pub(super) fn pending_call(
        &self,
        connection: ConnectionHandle,
        kind: CallPriority,
    ) -> PendingCall {
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

// === impl MessageArrival ===

impl MessageArrival {
    /// Counts bytes that arrived. Returns `true` if a message is complete with them.
    fn add(&mut self, mut bytes: &[u8]) -> bool {
        let mut is_complete = false;
        while !bytes.is_empty() {
            let begin = usize::try_from(self.seen).unwrap_or(PREFIX_BYTES);
            let missing = self.prefix.iter_mut().skip(begin);
            for (to, from) in missing.zip(bytes) {
                *to = *from;
            }
            let seen = self.seen + bytes.len() as u64;
            let length = match seen < PREFIX_BYTES as u64 {
                true => PREFIX_BYTES as u64,
                false => framed_bytes(self.prefix),
            };
            let missing = usize::try_from(length - self.seen).unwrap_or(usize::MAX);
            let Some((_, rest)) = bytes.split_at_checked(missing) else {
                self.seen = seen;
                break;
            };
            (self.seen, is_complete, bytes) = (0, true, rest);
        }
        is_complete
    }

    /// Returns the size of the incomplete message in bytes, without its prefix; 0 while that is not known.
    fn message_bytes(&self) -> u64 {
        match self.seen < PREFIX_BYTES as u64 {
            true => 0,
            false => framed_bytes(self.prefix) - PREFIX_BYTES as u64,
        }
    }
}

// === impl RequestMeter ===

impl RequestMeter {
    /// Counts bytes that arrived, with which `arriving` bytes of an incomplete message have.
    ///
    /// # Errors
    /// `QuotaExceeded` for an incomplete message of a tenant whose messages hold too many bytes.
    fn count(&mut self, bytes: usize, arriving: u64) -> Result<(), Error> {
        self.meter.count_in(bytes);
        let sum = self.meter.count_arriving(self.arriving, arriving);
        self.arriving = arriving;
        if arriving > 0 && sum > ARRIVING_BYTES_MAX {
            return Err(arriving_bytes_error());
        }
        Ok(())
    }
}

impl Drop for RequestMeter {
    fn drop(&mut self) {
        self.meter.count_arriving(self.arriving, 0);
    }
}

// === impl TimedRequestBody ===

impl TimedRequestBody {
    /// Wraps a body. `pending` is `None` for a call without a counted connection; `is_stream` is `true` for a stream of
    /// requests.
    pub(super) fn new(
        inner: Body,
        is_stream: bool,
        bounds: MessageBounds,
        pending: Option<PendingCall>,
    ) -> Self {
        let awaited = AwaitedRequest {
            deadline: Box::pin(tokio::time::sleep(REQUEST_TIMEOUT)),
            pending,
            is_stream,
        };
        Self {
            inner,
            awaited: Some(awaited),
            bounds,
            arrival: MessageArrival::default(),
            rest_deadline: None,
            meter: None,
        }
    }

    /// Counts the bytes of the request with a meter.
    pub(super) fn with_meter(self, meter: Option<Arc<ByteMeter>>) -> Self {
        Self {
            meter: meter.map(|meter| RequestMeter { meter, arriving: 0 }),
            ..self
        }
    }

    /// Counts data that arrived. Returns `true` if the request has arrived far enough for its call to count.
    ///
    /// # Errors
    /// `LimitExceeded` for a message that is too large; that of the meter.
    fn count(&mut self, data: &[u8]) -> Result<bool, Error> {
        let is_complete = self.arrival.add(data);
        if is_complete {
            self.rest_deadline = None;
        }
        let bytes = self.arrival.message_bytes();
        if let Some(limit) = self.bounds.bytes_max.filter(|limit| bytes > *limit) {
            return Err(Error::limit_exceeded("a message of the request", limit));
        }
        if let Some(meter) = &mut self.meter {
            meter.count(data.len(), self.arrival.seen)?;
        }
        let is_stream = self.awaited.as_ref().is_some_and(|it| it.is_stream);
        Ok(match is_stream {
            true => is_complete,
            false => http_body::Body::is_end_stream(&self.inner),
        })
    }

    /// Counts the call. Returns `false` if its connection is being closed.
    fn open_call(&mut self) -> bool {
        let pending = self.awaited.take().and_then(|request| request.pending);
        pending.is_none_or(PendingCall::open)
    }

    /// Waits until the request, or the rest of a message, is late, while no data arrives.
    fn poll_late(&mut self, context: &mut Context<'_>) -> Poll<Status> {
        if let Some(awaited) = &mut self.awaited {
            ready!(awaited.deadline.poll_unpin(context));
            self.awaited = None;
            return Poll::Ready(missing_request());
        }
        if self.arrival.seen == 0 {
            return Poll::Pending;
        }
        let timeout = self.bounds.rest_timeout;
        let deadline = self
            .rest_deadline
            .get_or_insert_with(|| Box::pin(tokio::time::sleep(timeout)));
        ready!(deadline.poll_unpin(context));
        let doing = "waiting for the rest of a message (server.upload_timeout)";
        Poll::Ready(Error::deadline(doing).into())
    }
}

impl http_body::Body for TimedRequestBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let Poll::Ready(polled) = Pin::new(&mut self.inner).poll_frame(context) else {
            return self.poll_late(context).map(|status| Some(Err(status)));
        };
        let frame = match polled.transpose().map_err(broken) {
            Ok(frame) => frame,
            Err(status) => return Poll::Ready(Some(Err(status))),
        };
        let has_arrived = match frame.as_ref().and_then(Frame::data_ref) {
            Some(data) => self.count(data),
            None => Ok(true),
        };
        let refusal = match has_arrived {
            // The connection is closing: the call ends with it, before its handler has begun.
            Ok(true) if !self.open_call() => Some(missing_request()),
            Ok(_) => None,
            Err(error) => Some(error.into()),
        };
        match refusal {
            None => Poll::Ready(frame.map(Ok)),
            Some(status) => Poll::Ready(Some(Err(status))),
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
    Error::deadline("waiting for the request").into()
}

#[cfg(test)]
mod tests;
