//! A guest's stream as the client's stream: messages pass through unchanged, errors are translated, and the
//! daemon's stop ends it. Nothing is buffered here; HTTP/2's windows do that.

use std::pin::Pin;
use std::task::{Context, Poll};

use futures::Stream;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tonic::{Status, Streaming};

use crate::error::Error;
use crate::workspace::Grant;

/// A relayed stream, boxed as tonic's services want it.
pub type Relayed<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

struct Relay<T> {
    guest: Streaming<T>,
    stop: Pin<Box<WaitForCancellationFutureOwned>>,
    workspace: String,
    done: bool,
    /// The workspace is in use until the stream ends.
    _grant: Grant,
}

/// Relays a guest's stream to its end. `workspace` is named in errors.
pub fn relay<T>(
    guest: Streaming<T>,
    grant: Grant,
    workspace: String,
    stop: CancellationToken,
) -> Relayed<T>
where
    T: Send + 'static,
{
    let stop = Box::pin(stop.cancelled_owned());
    Box::pin(Relay {
        guest,
        stop,
        workspace,
        done: false,
        _grant: grant,
    })
}

impl<T> Stream for Relay<T> {
    type Item = Result<T, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.done {
            return Poll::Ready(None);
        }
        if self.stop.as_mut().poll(cx).is_ready() {
            self.done = true;
            return Poll::Ready(Some(Err(Error::Draining.into())));
        }
        match Pin::new(&mut self.guest).poll_next(cx) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Some(Ok(message))) => Poll::Ready(Some(Ok(message))),
            Poll::Ready(Some(Err(status))) => {
                self.done = true;
                Poll::Ready(Some(
                    Err(Error::from_guest(&self.workspace, &status).into()),
                ))
            }
            Poll::Ready(None) => {
                self.done = true;
                Poll::Ready(None)
            }
        }
    }
}
