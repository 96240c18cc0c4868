//! A guest's stream, or the store's, as the client's stream: messages pass through unchanged, errors are translated. Nothing is buffered
//! here; HTTP/2's windows do that, and `budget.rs` bounds their sum. The daemon's stop ends every stream in
//! `server/body.rs`.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use futures::{Stream, TryStreamExt};
use tonic::{Status, Streaming};

use super::budget::{Budget, Place};
use crate::error::Error;
use crate::workspace::Grant;

/// A relayed stream, boxed as tonic's services want it.
pub type Relayed<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

struct Relay<S, H> {
    /// Taken when its memory is needed for a reader that reads.
    source: Arc<Mutex<Option<S>>>,
    place: Place,
    budget: Budget,
    /// The first message came, which says that something was started: it goes out in any case.
    told: bool,
    done: bool,
    /// Kept until the stream ends.
    _held: H,
}

/// Relays a guest's stream to its end. `workspace` is named in errors.
pub fn relay<T>(guest: Streaming<T>, grant: Grant, workspace: String, budget: &Budget) -> Relayed<T>
where
    T: Send + 'static,
{
    let messages = guest.map_err(move |status| Error::from_guest(&workspace, &status));
    // The workspace is in use until then.
    bounded(messages, grant, budget)
}

/// Relays messages of any kind, within the memory that there is for what is not read. `held` is kept to the end.
pub fn bounded<T, S, H>(source: S, held: H, budget: &Budget) -> Relayed<T>
where
    T: Send + 'static,
    S: Stream<Item = Result<T, Error>> + Unpin + Send + 'static,
    H: Unpin + Send + 'static,
{
    let source = Arc::new(Mutex::new(Some(source)));
    let ended = Arc::downgrade(&source);
    let place = budget.stream(move || {
        if let Some(source) = ended.upgrade() {
            drop(source.lock().unwrap_or_else(PoisonError::into_inner).take());
        }
    });
    Box::pin(Relay {
        source,
        place,
        budget: budget.clone(),
        told: false,
        done: false,
        _held: held,
    })
}

impl<S, H> Relay<S, H> {
    /// Nothing comes any more: nothing is kept either.
    fn end(&mut self) {
        self.done = true;
        self.place.leave();
        drop(
            self.source
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .take(),
        );
    }

    fn end_with<M>(&mut self, error: Error) -> Poll<Option<Result<M, Status>>> {
        self.end();
        Poll::Ready(Some(Err(error.into())))
    }
}

impl<T, S, H> Stream for Relay<S, H>
where
    S: Stream<Item = Result<T, Error>> + Unpin,
    H: Unpin,
{
    type Item = Result<T, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.done {
            return Poll::Ready(None);
        }
        let polled = self
            .source
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .as_mut()
            .map(|source| Pin::new(source).poll_next(cx));
        let Some(polled) = polled else {
            // Its memory went to somebody who reads.
            let error = self.budget.exhausted();
            return self.end_with(error);
        };
        match polled {
            Poll::Pending => {
                self.place.leave();
                Poll::Pending
            }
            Poll::Ready(Some(Ok(message))) if self.place.take() || !self.told => {
                self.told = true;
                Poll::Ready(Some(Ok(message)))
            }
            Poll::Ready(Some(Ok(_))) => {
                let error = self.budget.exhausted();
                self.end_with(error)
            }
            Poll::Ready(Some(Err(error))) => self.end_with(error),
            Poll::Ready(None) => {
                self.end();
                Poll::Ready(None)
            }
        }
    }
}
