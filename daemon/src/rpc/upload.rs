//! A client's stream as the guest's: messages are checked and passed on as they come, one at a time, so that
//! HTTP/2's windows are the only buffer. A stream that ends well ends the guest's; one that breaks must not look
//! like that, so it never ends at all: the failure goes to the handler, which drops the call and so resets it.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures::{FutureExt, Stream, stream};
use tokio::sync::oneshot;
use tokio::time::Sleep;
use tonic::Streaming;

use super::Shared;
use crate::config::ServerConfig;
use crate::error::{Error, Result};

/// The client has said nothing for too long.
const SILENT: Error = Error::Deadline {
    doing: "waiting for the next message of the upload (server.upload_timeout)",
};

/// What a client's stream may take.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// For the error about a larger message.
    pub message_bytes_max: u64,
    /// How long the client may be silent while the guest wants more; `None` for a person who types.
    pub patience: Option<Duration>,
}

/// The guest's half.
#[derive(Debug)]
pub struct Upload<C, G, F> {
    first: Option<G>,
    client: Streaming<C>,
    check: F,
    bounds: Bounds,
    silence: Option<Pin<Box<Sleep>>>,
    /// Taken once it has failed.
    failed: Option<oneshot::Sender<Error>>,
    ended: Arc<AtomicBool>,
}

/// The first message of a client's stream, which says what it is for. `field` is what an empty one lacks.
///
/// # Errors
/// `Deadline` when it does not come within 10 s, which the server's `request` module sees to; `Draining` at the stop; `Invalid`.
pub async fn first<C>(client: &mut Streaming<C>, shared: &Shared, field: &str) -> Result<C> {
    let first = next(client, shared).await?;
    first.ok_or_else(|| Error::invalid(field, "is missing: the stream is empty"))
}

/// The next message of a client's stream that ends here; `None` after the last one.
///
/// # Errors
/// `Deadline` when it does not come within `server.upload_timeout`; `Draining` at the stop; `Invalid`.
pub async fn next<C>(client: &mut Streaming<C>, shared: &Shared) -> Result<Option<C>> {
    let server = &shared.config.server;
    let next = tokio::select! {
        next = tokio::time::timeout(server.upload_timeout, client.message()) => next,
        () = shared.tasks.stop.cancelled() => return Err(Error::Draining),
    };
    next.map_err(|_| SILENT)?
        .map_err(|status| broken(&status, server.message_bytes_max as u64))
}

/// A client's stream as bytes, after its first message: what `check` makes of each, or why there are no more.
pub fn pieces<C, F>(
    client: Streaming<C>,
    config: &ServerConfig,
    check: F,
) -> impl Stream<Item = Result<Bytes>> + Send + 'static
where
    C: Send + 'static,
    F: FnMut(C) -> Result<Bytes> + Send + 'static,
{
    let (patience, limit) = (config.upload_timeout, config.message_bytes_max as u64);
    stream::try_unfold((client, check), move |(mut client, mut check)| async move {
        let message = tokio::time::timeout(patience, client.message()).await;
        let message = message.map_err(|_| SILENT)?;
        match message.map_err(|status| broken(&status, limit))? {
            Some(message) => Ok(Some((check(message)?, (client, check)))),
            None => Ok(None),
        }
    })
}

/// Passes a client's stream on: `first`, then what `check` makes of each message that follows. The receiver hears of
/// a failure; it is closed when the stream ended well.
pub fn upload<C, G, F>(
    first: G,
    client: Streaming<C>,
    bounds: Bounds,
    check: F,
) -> (Upload<C, G, F>, oneshot::Receiver<Error>)
where
    F: FnMut(C) -> Result<G>,
{
    let (failed, failure) = oneshot::channel();
    let upload = Upload {
        first: Some(first),
        client,
        check,
        bounds,
        silence: None,
        failed: Some(failed),
        ended: Arc::default(),
    };
    (upload, failure)
}

impl<C, G, F> Upload<C, G, F> {
    /// Tells whether the client's stream has ended well: from then on the guest may have all of it.
    pub fn ended(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.ended)
    }
}

impl<C, G, F> Stream for Upload<C, G, F>
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
            Poll::Ready(Some(Err(status))) => Err(broken(&status, self.bounds.message_bytes_max)),
            Poll::Pending => {
                let Some(patience) = self.bounds.patience else {
                    return Poll::Pending;
                };
                let silence = self
                    .silence
                    .get_or_insert_with(|| Box::pin(tokio::time::sleep(patience)));
                futures::ready!(silence.poll_unpin(cx));
                Err(SILENT)
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

/// A client's stream that cannot be read on: most often the client is gone and nobody hears this. A message that
/// is too large comes here too.
fn broken(status: &tonic::Status, message_bytes_max: u64) -> Error {
    let message: String = status.message().chars().take(256).collect();
    if status.code() == tonic::Code::OutOfRange {
        let what = format!("a message of the stream ({message})");
        return Error::LimitExceeded {
            what,
            limit: message_bytes_max,
        };
    }
    Error::invalid("data", format!("the stream broke off: {message}"))
}
