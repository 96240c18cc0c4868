//! One accepted connection: holds its place in the table of connections, must begin HTTP/2 in time, and can be cut.
//!
//! hyper's keepalive starts only after the preface, so a peer that connects and says nothing would stay for ever.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::BytesMut;
use futures::FutureExt;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;
use tokio::time::Sleep;
use tokio_util::sync::WaitForCancellationFutureOwned;
use tonic::transport::server::Connected;

use super::FRAME_BYTES_MAX;
use super::authority::AuthorityFilter;
use super::connections::{ConnectionGuard, ConnectionHandle};

/// What every HTTP/2 client sends first.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A connection. Every part of it lives on the heap or can be moved, so none of it needs pinning.
#[derive(Debug)]
pub(super) struct Connection {
    stream: UnixStream,
    guard: ConnectionGuard,
    /// `None` once the preface is complete.
    handshake: Option<Handshake>,
    filter: AuthorityFilter,
    /// Filtered bytes that hyper has not read yet.
    filtered: BytesMut,
    cut: Pin<Box<WaitForCancellationFutureOwned>>,
}

/// Waits for the preface.
#[derive(Debug)]
struct Handshake {
    deadline: Pin<Box<Sleep>>,
    /// Rest of the preface.
    missing: &'static [u8],
}

impl Connection {
    pub(super) fn new(
        stream: UnixStream,
        guard: ConnectionGuard,
        handshake_timeout: Duration,
    ) -> Self {
        let cut = Box::pin(guard.cut.clone().cancelled_owned());
        Self {
            stream,
            guard,
            handshake: Some(Handshake {
                deadline: Box::pin(tokio::time::sleep(handshake_timeout)),
                missing: PREFACE,
            }),
            filter: AuthorityFilter::new(PREFACE.len(), FRAME_BYTES_MAX as usize),
            filtered: BytesMut::new(),
            cut,
        }
    }

    /// Checks what arrived of the preface.
    fn poll_handshake(&mut self, context: &mut Context<'_>, arrived: &[u8]) -> io::Result<()> {
        let Some(Handshake { deadline, missing }) = &mut self.handshake else {
            return Ok(());
        };
        let length = arrived.len().min(missing.len());
        let (expected, rest) = missing.split_at(length);
        let (why, kind) = if !arrived.starts_with(expected) {
            (foreign_protocol(arrived), io::ErrorKind::InvalidData)
        } else if !rest.is_empty() && deadline.poll_unpin(context).is_ready() {
            ("it did not begin HTTP/2 in time", io::ErrorKind::TimedOut)
        } else {
            *missing = rest;
            if rest.is_empty() {
                self.handshake = None;
            }
            return Ok(());
        };
        let peer = self.stream.peer_cred().ok();
        let (uid, pid) = (
            peer.map(|peer| peer.uid()),
            peer.and_then(|peer| peer.pid()),
        );
        tracing::info!(uid, pid, why, "refused a connection");
        Err(kind.into())
    }
}

/// Describes what a client speaks that does not begin HTTP/2.
fn foreign_protocol(begin: &[u8]) -> &'static str {
    if begin.starts_with(&[0x16]) {
        "it speaks TLS; the socket takes plaintext"
    } else if begin
        .iter()
        .take_while(|byte| byte.is_ascii_uppercase())
        .count()
        >= 3
    {
        "it speaks HTTP/1; the socket takes gRPC, which is HTTP/2"
    } else {
        "it does not speak HTTP/2"
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
        let this = &mut *self;
        while this.filtered.is_empty() {
            let before = buffer.filled().len();
            let polled = Pin::new(&mut this.stream).poll_read(context, buffer);
            let arrived = buffer.filled().get(before..).unwrap_or_default();
            this.poll_handshake(context, arrived)?;
            ready!(polled)?;
            if arrived.is_empty() {
                return Poll::Ready(Ok(()));
            }
            this.filter.feed(arrived, &mut this.filtered);
            buffer.set_filled(before);
        }
        let count = this.filtered.len().min(buffer.remaining());
        buffer.put_slice(&this.filtered.split_to(count));
        Poll::Ready(Ok(()))
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
    type ConnectInfo = ConnectionHandle;

    fn connect_info(&self) -> Self::ConnectInfo {
        self.guard.handle()
    }
}
