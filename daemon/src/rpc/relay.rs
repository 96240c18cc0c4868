//! Relays a stream of the guest or of the artifact store to the client. Messages pass unchanged; errors are translated.
//!
//! This module buffers nothing: HTTP/2's windows do, and `relay_budget.rs` limits their sum. `server/response_body.rs`
//! ends every stream when the daemon stops.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use futures::{Stream, TryStreamExt};
use tonic::Status;

use super::relay_budget::{BufferPermit, RelayBudget};
use crate::error::Error;
use crate::workspace::WorkspaceGrant;

/// Relayed stream, boxed as tonic's service traits require.
pub type RelayedStream<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

struct RelayStream<S, H> {
    /// Source of the messages; the budget takes it away to free its memory.
    source: Arc<Mutex<Option<S>>>,
    permit: BufferPermit,
    budget: RelayBudget,
    /// `true` after the first message. That one is sent even without a permit, because it reports what was started.
    has_begun: bool,
    is_done: bool,
    /// Value that is dropped when the stream ends, such as the grant of a workspace.
    _held: H,
}

/// Relays a guest's stream to its end. Errors name `workspace`, which counts as in use until then.
pub fn relay_guest_stream<T, S>(
    guest: S,
    grant: WorkspaceGrant,
    workspace: String,
    budget: &RelayBudget,
) -> RelayedStream<T>
where
    T: Send + 'static,
    S: Stream<Item = Result<T, Status>> + Unpin + Send + 'static,
{
    let messages = guest.map_err(move |status| Error::from_guest(&workspace, &status));
    relay_stream(messages, grant, budget)
}

/// Relays a stream within the memory budget, and drops `held` when the stream ends.
pub fn relay_stream<T, S, H>(source: S, held: H, budget: &RelayBudget) -> RelayedStream<T>
where
    T: Send + 'static,
    S: Stream<Item = Result<T, Error>> + Unpin + Send + 'static,
    H: Unpin + Send + 'static,
{
    let source = Arc::new(Mutex::new(Some(source)));
    let ended = Arc::downgrade(&source);
    let permit = budget.new_permit(move || {
        if let Some(source) = ended.upgrade() {
            drop(source.lock().unwrap_or_else(PoisonError::into_inner).take());
        }
    });
    Box::pin(RelayStream {
        source,
        permit,
        budget: budget.clone(),
        has_begun: false,
        is_done: false,
        _held: held,
    })
}

impl<S, H> RelayStream<S, H> {
    /// Ends the stream and frees what it holds.
    fn end(&mut self) {
        self.is_done = true;
        self.permit.release();
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

impl<T, S, H> Stream for RelayStream<S, H>
where
    S: Stream<Item = Result<T, Error>> + Unpin,
    H: Unpin,
{
    type Item = Result<T, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.is_done {
            return Poll::Ready(None);
        }
        let polled = self
            .source
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .as_mut()
            .map(|source| Pin::new(source).poll_next(cx));
        let Some(polled) = polled else {
            // The budget gave the memory to a stream whose client reads.
            let error = self.budget.exhausted_error();
            return self.end_with(error);
        };
        match polled {
            Poll::Pending => {
                self.permit.release();
                Poll::Pending
            }
            Poll::Ready(Some(Ok(message))) if self.permit.try_hold() || !self.has_begun => {
                self.has_begun = true;
                Poll::Ready(Some(Ok(message)))
            }
            Poll::Ready(Some(Ok(_))) => {
                let error = self.budget.exhausted_error();
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
