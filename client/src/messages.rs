//! A server's stream with our errors instead of statuses.

use std::pin::Pin;
use std::task::{Context, Poll};

use futures::Stream;

use crate::Error;

/// Messages of one call as they come. Dropping it ends the call; what runs in the workspace goes on.
#[derive(Debug)]
pub struct Messages<T> {
    inner: tonic::Streaming<T>,
}

impl<T> Messages<T> {
    pub(crate) fn new(inner: tonic::Streaming<T>) -> Self {
        Self { inner }
    }

    /// The next message; none when the server ended the stream with OK. Cancel safe.
    pub async fn next(&mut self) -> Result<Option<T>, Error> {
        self.inner.message().await.map_err(Error::from)
    }
}

impl<T> Stream for Messages<T> {
    type Item = Result<T, Error>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        Pin::new(&mut self.inner)
            .poll_next(context)
            .map(|item| item.map(|result| result.map_err(Error::from)))
    }
}
