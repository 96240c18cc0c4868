//! One accepted connection: holds its place among the connections, must begin HTTP/2 in time, and can be cut.
//!
//! hyper's keepalive starts only after the preface, so a peer that connects and says nothing would stay for ever.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::FutureExt;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Sleep;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tonic::transport::server::{Connected, UdsConnectInfo};

/// Bytes of `PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n`.
const PREFACE: usize = 24;

/// A connection. Every part of it lives on the heap or can be moved, so none of it needs pinning.
#[derive(Debug)]
pub(super) struct Connection {
    stream: UnixStream,
    /// Gives the place back when the connection ends.
    _permit: OwnedSemaphorePermit,
    /// Until the preface is complete: when it must be, and how much of it is missing.
    handshake: Option<(Pin<Box<Sleep>>, usize)>,
    cut: Pin<Box<WaitForCancellationFutureOwned>>,
}

impl Connection {
    pub(super) fn new(
        stream: UnixStream,
        permit: OwnedSemaphorePermit,
        handshake_timeout: Duration,
        cut: CancellationToken,
    ) -> Self {
        Self {
            stream,
            _permit: permit,
            handshake: Some((Box::pin(tokio::time::sleep(handshake_timeout)), PREFACE)),
            cut: Box::pin(cut.cancelled_owned()),
        }
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.cut.poll_unpin(context).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        let before = buffer.filled().len();
        let result = Pin::new(&mut self.stream).poll_read(context, buffer);
        if let Some((deadline, missing)) = &mut self.handshake {
            *missing = missing.saturating_sub(buffer.filled().len() - before);
            if *missing == 0 {
                self.handshake = None;
            } else if deadline.poll_unpin(context).is_ready() {
                tracing::debug!("closing a connection that did not begin HTTP/2 in time");
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
        }
        result
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.cut.poll_unpin(context).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if self.cut.poll_unpin(context).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

impl Connected for Connection {
    type ConnectInfo = UdsConnectInfo;

    fn connect_info(&self) -> Self::ConnectInfo {
        self.stream.connect_info()
    }
}
