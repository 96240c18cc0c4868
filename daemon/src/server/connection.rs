//! Accepted connection, which the connection table counts and can close. It must complete the TLS handshake and send
//! the HTTP/2 preface in time.
//!
//! hyper's keepalive starts only after the preface, so without that deadline a silent peer would stay for ever.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::BytesMut;
use futures::FutureExt;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;
use tokio_util::sync::WaitForCancellationFutureOwned;
use tonic::transport::server::Connected;

use super::authority_rewriter::AuthorityRewriter;
use super::connection_stream::ConnectionStream;
use super::connections::{ConnectionGuard, ConnectionHandle};
use super::http2_settings::FRAME_BYTES_MAX;
use crate::access::ConnectionPeer;

/// First bytes of every HTTP/2 client.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Accepted connection. All fields are `Unpin`, so no pin projection is needed.
#[derive(Debug)]
pub(super) struct Connection {
    stream: ConnectionStream,
    peer: Arc<ConnectionPeer>,
    guard: ConnectionGuard,
    /// `None` once the preface is complete.
    handshake: Option<Handshake>,
    /// `None` for TCP, whose clients send a valid `:authority`.
    filter: Option<AuthorityRewriter>,
    /// Filtered bytes that hyper has not read yet.
    filtered: BytesMut,
    cut: Pin<Box<WaitForCancellationFutureOwned>>,
}

/// Preface that has not arrived completely, and its deadline.
#[derive(Debug)]
struct Handshake {
    deadline: Pin<Box<Sleep>>,
    /// Part of the preface that has not arrived.
    missing: &'static [u8],
}

impl Connection {
    pub(super) fn new(
        stream: ConnectionStream,
        peer: Arc<ConnectionPeer>,
        guard: ConnectionGuard,
        handshake_timeout: Duration,
    ) -> Self {
        let cut = Box::pin(guard.cut.clone().cancelled_owned());
        let is_unix = stream.is_unix();
        Self {
            stream,
            peer,
            guard,
            handshake: Some(Handshake {
                deadline: Box::pin(tokio::time::sleep(handshake_timeout)),
                missing: PREFACE,
            }),
            filter: is_unix
                .then(|| AuthorityRewriter::new(PREFACE.len(), FRAME_BYTES_MAX as usize)),
            filtered: BytesMut::new(),
            cut,
        }
    }

    /// Fails once the connection was cut, and wakes its task when that happens.
    fn poll_cut(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        match self.cut.poll_unpin(context) {
            Poll::Ready(()) => Err(io::ErrorKind::ConnectionAborted.into()),
            Poll::Pending => Ok(()),
        }
    }

    /// Completes the TLS handshake, if the connection has one.
    fn poll_tls(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.stream.poll_handshake(context, &self.peer) {
            Poll::Ready(Err(error)) => {
                let why = error.to_string();
                tracing::info!(peer = %self.peer.address, why, "refused a connection in the TLS handshake");
                // A handshake that has ended must not be polled again.
                self.guard.cut.cancel();
                Poll::Ready(Err(error))
            }
            Poll::Pending => {
                self.check_deadline(context)?;
                Poll::Pending
            }
            Poll::Ready(Ok(())) => Poll::Ready(Ok(())),
        }
    }

    /// Fails if HTTP/2 has not begun in time, and wakes the task at the deadline.
    fn check_deadline(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        let Some(Handshake { deadline, .. }) = &mut self.handshake else {
            return Ok(());
        };
        if deadline.poll_unpin(context).is_pending() {
            return Ok(());
        }
        Err(self.refuse("it did not begin HTTP/2 in time", io::ErrorKind::TimedOut))
    }

    /// Checks the part of the preface that arrived.
    fn check_preface(&mut self, context: &mut Context<'_>, arrived: &[u8]) -> io::Result<()> {
        let Some(Handshake { missing, .. }) = &mut self.handshake else {
            return Ok(());
        };
        let length = arrived.len().min(missing.len());
        let (expected, rest) = missing.split_at(length);
        if !arrived.starts_with(expected) {
            let why = foreign_protocol(arrived);
            return Err(self.refuse(why, io::ErrorKind::InvalidData));
        }
        *missing = rest;
        if rest.is_empty() {
            self.handshake = None;
            return Ok(());
        }
        self.check_deadline(context)
    }

    fn refuse(&self, why: &str, kind: io::ErrorKind) -> io::Error {
        tracing::info!(peer = %self.peer.address, why, "refused a connection");
        kind.into()
    }
}

/// Names the protocol of a client that does not begin HTTP/2.
fn foreign_protocol(begin: &[u8]) -> &'static str {
    if begin.starts_with(&[0x16]) {
        "it speaks TLS; this listener takes plain text"
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
        self.poll_cut(context)?;
        ready!(self.poll_tls(context))?;
        let this = &mut *self;
        while this.filtered.is_empty() {
            let before = buffer.filled().len();
            let polled = Pin::new(&mut this.stream).poll_read(context, buffer);
            let arrived = buffer.filled().get(before..).unwrap_or_default();
            this.check_preface(context, arrived)?;
            ready!(polled)?;
            if arrived.is_empty() {
                return Poll::Ready(Ok(()));
            }
            let Some(filter) = &mut this.filter else {
                return Poll::Ready(Ok(()));
            };
            filter.feed(arrived, &mut this.filtered);
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
        self.poll_cut(context)?;
        ready!(self.poll_tls(context))?;
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        // A peer that stops reading can leave nothing but a flush to wait for.
        self.poll_cut(context)?;
        ready!(self.poll_tls(context))?;
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_cut(context)?;
        ready!(self.poll_tls(context))?;
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

impl Connected for Connection {
    type ConnectInfo = ConnectionHandle;

    fn connect_info(&self) -> Self::ConnectInfo {
        self.guard.handle.clone()
    }
}
