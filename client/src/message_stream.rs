//! Stream of a call's messages, with the client's errors instead of statuses.

use std::pin::Pin;
use std::task::{Context, Poll};

use futures::Stream;

use crate::Error;

/// Stream of the messages of one call. Dropping it ends the call; a command in the workspace goes on.
#[derive(Debug)]
pub struct MessageStream<T> {
    inner: tonic::Streaming<T>,
}

impl<T> MessageStream<T> {
    pub(crate) fn new(inner: tonic::Streaming<T>) -> Self {
        Self { inner }
    }

    /// Returns the next message; `None` when the server ended the stream with OK. Cancel safe.
    ///
    /// # Errors
    ///
    /// [`Error::Status`] if the stream breaks or the daemon ends it with an error.
    pub async fn next(&mut self) -> Result<Option<T>, Error> {
        self.inner.message().await.map_err(Error::from)
    }
}

impl<T> Stream for MessageStream<T> {
    type Item = Result<T, Error>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        Pin::new(&mut self.inner)
            .poll_next(context)
            .map(|item| item.map(|result| result.map_err(Error::from)))
    }
}
