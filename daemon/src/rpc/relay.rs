//! A guest's stream as the client's stream: messages pass through unchanged, errors are translated. Nothing is buffered
//! here; HTTP/2's windows do that, and `budget.rs` bounds their sum. The daemon's stop ends every stream in
//! `server/body.rs`.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use futures::Stream;
use tonic::{Status, Streaming};

use super::budget::{Budget, Place};
use crate::error::Error;
use crate::workspace::Grant;

/// A relayed stream, boxed as tonic's services want it.
pub type Relayed<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

struct Relay<T> {
    /// Taken when its memory is needed for a reader that reads.
    guest: Arc<Mutex<Option<Streaming<T>>>>,
    place: Place,
    budget: Budget,
    workspace: String,
    /// The first message came, which says that something was started: it goes out in any case.
    told: bool,
    done: bool,
    /// The workspace is in use until the stream ends.
    _grant: Grant,
}

/// Relays a guest's stream to its end. `workspace` is named in errors.
pub fn relay<T>(guest: Streaming<T>, grant: Grant, workspace: String, budget: &Budget) -> Relayed<T>
where
    T: Send + 'static,
{
    let guest = Arc::new(Mutex::new(Some(guest)));
    let ended = Arc::downgrade(&guest);
    let place = budget.stream(move || {
        if let Some(guest) = ended.upgrade() {
            drop(guest.lock().unwrap_or_else(PoisonError::into_inner).take());
        }
    });
    Box::pin(Relay {
        guest,
        place,
        budget: budget.clone(),
        workspace,
        told: false,
        done: false,
        _grant: grant,
    })
}

impl<T> Relay<T> {
    /// Nothing comes any more: nothing is kept either.
    fn end(&mut self) {
        self.done = true;
        self.place.leave();
        drop(
            self.guest
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

impl<T> Stream for Relay<T> {
    type Item = Result<T, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.done {
            return Poll::Ready(None);
        }
        let polled = self
            .guest
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .as_mut()
            .map(|guest| Pin::new(guest).poll_next(cx));
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
            Poll::Ready(Some(Err(status))) => {
                let error = Error::from_guest(&self.workspace, &status);
                self.end_with(error)
            }
            Poll::Ready(None) => {
                self.end();
                Poll::Ready(None)
            }
        }
    }
}
