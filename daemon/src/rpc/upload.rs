//! Forwards a client's stream to the guest, one checked message at a time, so that HTTP/2's windows are the only
//! buffer.
//!
//! If the client's stream ends, the guest's stream ends. If it breaks, the guest's stream must not look complete: it
//! stays pending, and the handler, which receives the failure, drops the call and so resets it.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures::{FutureExt, Stream, stream};
use skilld_proto::v1::ErrorReason;
use tokio::sync::oneshot;
use tokio::time::Sleep;
use tonic::Streaming;

use super::SharedDependencies;
use crate::config::ServerConfig;
use crate::error::{Error, Result, reason_of};

/// Maximum size of a message of a client's stream, in bytes: 1 MiB of data, which the API permits at most, and its other
/// fields.
pub const STREAM_MESSAGE_BYTES_MAX: u64 = (1 << 20) + (64 << 10);
/// Maximum number of bytes that one tenant's incomplete messages hold. Each upload has one message on its way.
pub const ARRIVING_BYTES_MAX: u64 = 256 << 20;
/// Subject of the error about more of them.
const ARRIVING_BYTES: &str = "bytes of messages of the tenant that have not arrived completely";

/// Error of a stream whose client sent nothing for `server.upload_timeout`.
const SILENCE_ERROR: Error =
    Error::deadline("waiting for the next message of the upload (server.upload_timeout)");

/// Stream of checked messages for the guest.
#[derive(Debug)]
pub struct UploadStream<C, G, F> {
    first: Option<G>,
    client: Streaming<C>,
    check: F,
    /// Longest time that the client may be silent while the guest waits; `None` is no limit, for a person who types.
    silence_max: Option<Duration>,
    silence: Option<Pin<Box<Sleep>>>,
    /// Sender of the failure; `None` after the stream failed.
    failed: Option<oneshot::Sender<Error>>,
    /// `true` once the client's stream has ended well: the guest may have all of it.
    pub(super) ended: Arc<AtomicBool>,
}

/// Receives the first message of a client's stream, its header. If the stream is empty, the error names `field`.
///
/// # Errors
/// `Deadline` if no message arrives within the request timeout of `server/request_body.rs`; `Draining` when the daemon
/// stops; `Invalid`.
pub async fn first_message<C>(
    client: &mut Streaming<C>,
    shared: &SharedDependencies,
    field: &str,
) -> Result<C> {
    let first = next_message(client, shared).await?;
    first.ok_or_else(|| Error::invalid(field, "is missing: the stream is empty"))
}

/// Receives the next message of a client's stream; `None` after the last one.
///
/// # Errors
/// `Deadline` if no message arrives within `server.upload_timeout`; `Draining` when the daemon stops; `Invalid`.
pub async fn next_message<C>(
    client: &mut Streaming<C>,
    shared: &SharedDependencies,
) -> Result<Option<C>> {
    let server = &shared.config.server;
    let next = tokio::select! {
        next = tokio::time::timeout(server.upload_timeout, client.message()) => next,
        () = shared.tasks.stop.cancelled() => return Err(Error::Draining),
    };
    next.map_err(|_| SILENCE_ERROR)?
        .map_err(|status| stream_error(&status))
}

/// Converts a client's stream, after its first message, to a stream of bytes. `check` extracts the bytes of each
/// message.
pub fn byte_stream<C, F>(
    client: Streaming<C>,
    config: &ServerConfig,
    check: F,
) -> impl Stream<Item = Result<Bytes>> + Send + 'static
where
    C: Send + 'static,
    F: FnMut(C) -> Result<Bytes> + Send + 'static,
{
    let silence_max = config.upload_timeout;
    stream::try_unfold((client, check), move |(mut client, mut check)| async move {
        let message = tokio::time::timeout(silence_max, client.message())
            .await
            .map_err(|_| SILENCE_ERROR)?;
        match message.map_err(|status| stream_error(&status))? {
            Some(message) => Ok(Some((check(message)?, (client, check)))),
            None => Ok(None),
        }
    })
}

/// Makes the guest's stream: `first`, then the result of `check` for each later message of the client, which may be
/// silent for `silence_max`. The receiver gets the failure of the stream, and is closed if the stream ended well.
pub fn upload_stream<C, G, F>(
    first: G,
    client: Streaming<C>,
    silence_max: Option<Duration>,
    check: F,
) -> (UploadStream<C, G, F>, oneshot::Receiver<Error>)
where
    F: FnMut(C) -> Result<G>,
{
    let (failed, failure) = oneshot::channel();
    let upload = UploadStream {
        first: Some(first),
        client,
        check,
        silence_max,
        silence: None,
        failed: Some(failed),
        ended: Arc::default(),
    };
    (upload, failure)
}

impl<C, G, F> Stream for UploadStream<C, G, F>
where
    G: Unpin,
    F: FnMut(C) -> Result<G> + Unpin,
{
    type Item = G;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if let Some(first) = self.first.take() {
            return Poll::Ready(Some(first));
        }
        if self.failed.is_none() {
            return Poll::Pending;
        }
        let checked = match Pin::new(&mut self.client).poll_next(cx) {
            Poll::Ready(None) => {
                self.ended.store(true, Ordering::Release);
                return Poll::Ready(None);
            }
            Poll::Ready(Some(Ok(message))) => (self.check)(message),
            Poll::Ready(Some(Err(status))) => Err(stream_error(&status)),
            Poll::Pending => {
                let Some(silence_max) = self.silence_max else {
                    return Poll::Pending;
                };
                let silence = self
                    .silence
                    .get_or_insert_with(|| Box::pin(tokio::time::sleep(silence_max)));
                futures::ready!(silence.poll_unpin(cx));
                Err(SILENCE_ERROR)
            }
        };
        self.silence = None;
        match checked {
            Ok(request) => Poll::Ready(Some(request)),
            Err(error) => {
                let heard = self.failed.take().map(|failed| failed.send(error));
                tracing::debug!(heard = matches!(heard, Some(Ok(()))), "upload broke off");
                Poll::Pending
            }
        }
    }
}

/// Returns the error of a tenant whose incomplete messages hold more than [`ARRIVING_BYTES_MAX`].
pub fn arriving_bytes_error() -> Error {
    Error::quota_exceeded(ARRIVING_BYTES, ARRIVING_BYTES_MAX)
}

/// Converts the status of a client's stream that cannot be read: the client went away, a message is too large, or the
/// server ends the stream.
fn stream_error(status: &tonic::Status) -> Error {
    let message: String = status.message().chars().take(256).collect();
    let reason = reason_of(status);
    // tonic's own errors, which have no details: a message is too large as it arrives, or once it is unpacked.
    let is_unpacked =
        status.code() == tonic::Code::ResourceExhausted && status.details().is_empty();
    let is_too_large = is_unpacked || status.code() == tonic::Code::OutOfRange;
    if is_too_large || reason == Some(ErrorReason::LimitExceeded) {
        return Error::limit_exceeded("a message of the stream", STREAM_MESSAGE_BYTES_MAX);
    }
    match reason {
        Some(ErrorReason::AuditUnavailable) => Error::AuditUnavailable {
            why: "the record of this call was not written".to_owned(),
        },
        Some(ErrorReason::Deadline) => {
            Error::deadline("waiting for the request, or for the rest of a message")
        }
        Some(ErrorReason::QuotaExceeded) => arriving_bytes_error(),
        _ => Error::invalid("data", format!("the stream broke off: {message}")),
    }
}
