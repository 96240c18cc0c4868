//! Bytes that one build may transfer, counted over all of its connections.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, ready};

use hyper::body::{Body, Bytes, Frame, SizeHint};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

/// Size of the buffer of one direction of a tunnel, in bytes.
const BUFFER_BYTES: usize = 16 * 1024;

/// Number of bytes that a build may still transfer.
#[derive(Debug)]
pub(super) struct ByteBudget {
    left: AtomicU64,
    /// Set once more bytes arrived than were left.
    exceeded: AtomicBool,
}

/// Body of a response that is counted while it is read.
#[derive(Debug)]
pub(super) struct CountedBody {
    pub(super) body: reqwest::Body,
    pub(super) budget: Arc<ByteBudget>,
}

impl ByteBudget {
    /// Makes a budget of `bytes`.
    pub(super) fn new(bytes: u64) -> Self {
        Self {
            left: AtomicU64::new(bytes),
            exceeded: AtomicBool::new(false),
        }
    }

    /// Returns the number of bytes that are left.
    pub(super) fn left(&self) -> u64 {
        self.left.load(Ordering::Relaxed)
    }

    /// Returns `true` if bytes were refused because none were left.
    pub(super) fn is_exceeded(&self) -> bool {
        self.exceeded.load(Ordering::Relaxed)
    }

    /// Takes bytes that were received and are about to be passed on. Fails if fewer are left, and takes those.
    pub(super) fn take(&self, bytes: usize) -> io::Result<()> {
        let bytes = bytes as u64;
        let take = |left: u64| Some(left.saturating_sub(bytes));
        let (set, fetch) = (Ordering::Relaxed, Ordering::Relaxed);
        let (Ok(left) | Err(left)) = self.left.fetch_update(set, fetch, take);
        if left < bytes {
            self.exceeded.store(true, Ordering::Relaxed);
            return Err(io::Error::other("the build has no bytes left"));
        }
        Ok(())
    }

    /// Copies bytes in both directions until both have ended. The end of one direction is passed on, and the other goes
    /// on. A failure, or an exceeded budget, ends both.
    pub(super) async fn copy_both_ways(
        &self,
        client: impl AsyncRead + AsyncWrite,
        server: impl AsyncRead + AsyncWrite,
    ) -> io::Result<()> {
        let (from_client, to_client) = tokio::io::split(client);
        let (from_server, to_server) = tokio::io::split(server);
        let up = self.copy_one_way(from_client, to_server);
        let down = self.copy_one_way(from_server, to_client);
        tokio::try_join!(up, down).map(|((), ())| ())
    }

    async fn copy_one_way(
        &self,
        mut from: impl AsyncRead + Unpin,
        mut to: impl AsyncWrite + Unpin,
    ) -> io::Result<()> {
        let mut buffer = vec![0; BUFFER_BYTES];
        loop {
            let count = from.read(&mut buffer).await?;
            let Some(bytes) = buffer.get(..count).filter(|bytes| !bytes.is_empty()) else {
                return to.shutdown().await;
            };
            self.take(count)?;
            to.write_all(bytes).await?;
            // TLS to a proxy keeps bytes back until it is flushed.
            to.flush().await?;
        }
    }
}

impl Body for CountedBody {
    type Data = Bytes;
    type Error = Box<dyn std::error::Error + Send + Sync>;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let received = ready!(Pin::new(&mut self.body).poll_frame(context));
        let counted = received.map(|frame| {
            let frame = frame?;
            let count = frame.data_ref().map_or(0, Bytes::len);
            self.budget.take(count)?;
            Ok(frame)
        });
        Poll::Ready(counted)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
