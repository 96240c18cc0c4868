//! Body of a request whose call is audited: a call that changes something begins only after its record was written.

use std::borrow::Cow;
use std::io::Read;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use flate2::read::GzDecoder;
use futures::FutureExt;
use futures::future::BoxFuture;
use http_body::{Frame, SizeHint};
use tonic::Status;

use super::call_audit::SharedCallAudit;
use super::request_body::{TimedRequestBody, framed_bytes};
use crate::error::Error;
use crate::rpc::server_info::MESSAGE_BYTES_MAX;

/// Request body that holds the end of its first message back until the call may begin.
pub(super) struct AuditedRequestBody {
    inner: TimedRequestBody,
    call: SharedCallAudit,
    /// First message as far as it has arrived; `None` once it is complete.
    first: Option<Vec<u8>>,
    /// Frame that completed the first message, and the wait for the record.
    held: Option<HeldFrame>,
}

/// Frame that waits for the record of its call.
struct HeldFrame {
    frame: Frame<Bytes>,
    recorded: BoxFuture<'static, Result<(), Error>>,
}

impl AuditedRequestBody {
    pub(super) fn new(inner: TimedRequestBody, call: SharedCallAudit) -> Self {
        Self {
            inner,
            call,
            first: Some(Vec::new()),
            held: None,
        }
    }

    /// Takes a frame that arrived. Returns it, unless it has to wait.
    fn take(&mut self, frame: Frame<Bytes>) -> Option<Frame<Bytes>> {
        let Some(data) = frame.data_ref() else {
            return Some(frame);
        };
        self.call.count_in(data.len());
        let Some(first) = &mut self.first else {
            return Some(frame);
        };
        first.extend_from_slice(data);
        let Some(message) = complete_message(first) else {
            return Some(frame);
        };
        let recorded = self.call.begin(&message);
        self.first = None;
        let Some(recorded) = recorded else {
            return Some(frame);
        };
        self.held = Some(HeldFrame {
            frame,
            recorded: recorded.boxed(),
        });
        None
    }
}

/// Returns the first message of a stream's bytes, unpacked and without its prefix; `None` if it is not complete.
fn complete_message(bytes: &[u8]) -> Option<Cow<'_, [u8]>> {
    let prefix = *bytes.first_chunk()?;
    let message = bytes.get(prefix.len()..usize::try_from(framed_bytes(prefix)).ok()?)?;
    Some(match prefix.first() {
        Some(0) => Cow::Borrowed(message),
        _ => Cow::Owned(unpack_message(message)),
    })
}

/// Unpacks a message that its client compressed. Returns an empty one if it is faulty or too large, because its handler
/// is then never called.
fn unpack_message(message: &[u8]) -> Vec<u8> {
    let mut unpacked = Vec::new();
    let mut reader = GzDecoder::new(message).take(MESSAGE_BYTES_MAX as u64 + 1);
    match reader.read_to_end(&mut unpacked) {
        Ok(length) if length <= MESSAGE_BYTES_MAX => unpacked,
        Ok(_) | Err(_) => Vec::new(),
    }
}

impl http_body::Body for AuditedRequestBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        loop {
            if let Some(held) = &mut self.held {
                let recorded = ready!(held.recorded.poll_unpin(context));
                let frame = self.held.take().map(|held| held.frame);
                return Poll::Ready(match recorded {
                    Ok(()) => frame.map(Ok),
                    Err(error) => Some(Err(error.into())),
                });
            }
            let frame = match ready!(Pin::new(&mut self.inner).poll_frame(context)) {
                Some(Ok(frame)) => frame,
                ended => return Poll::Ready(ended),
            };
            if let Some(frame) = self.take(frame) {
                return Poll::Ready(Some(Ok(frame)));
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.held.is_none() && self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        match self.held {
            None => self.inner.size_hint(),
            Some(_) => SizeHint::default(),
        }
    }
}
