//! Accepted connection: is counted in the connection table, must send the HTTP/2 preface in time, and can be closed.
//!
//! hyper's keepalive starts only after the preface, so without that deadline a silent peer would stay for ever.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::BytesMut;
use futures::FutureExt;
use nix::sys::socket::sockopt::PeerCredentials;
use nix::sys::socket::{UnixCredentials, getsockopt};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;
use tokio_util::sync::WaitForCancellationFutureOwned;
use tonic::transport::server::Connected;

use super::FRAME_BYTES_MAX;
use super::authority_rewriter::AuthorityRewriter;
use super::connections::{ConnectionGuard, ConnectionHandle};
use crate::socket::FrameSocket;

/// First bytes of every HTTP/2 client.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Accepted connection. All fields are `Unpin`, so no pin projection is needed.
#[derive(Debug)]
pub(super) struct Connection {
    socket: FrameSocket,
    guard: ConnectionGuard,
    /// `None` once the preface is complete.
    handshake: Option<Handshake>,
    filter: AuthorityRewriter,
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
        socket: FrameSocket,
        guard: ConnectionGuard,
        handshake_timeout: Duration,
    ) -> Self {
        let cut = Box::pin(guard.cut.clone().cancelled_owned());
        Self {
            socket,
            guard,
            handshake: Some(Handshake {
                deadline: Box::pin(tokio::time::sleep(handshake_timeout)),
                missing: PREFACE,
            }),
            filter: AuthorityRewriter::new(PREFACE.len(), FRAME_BYTES_MAX as usize),
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

    /// Checks the part of the preface that arrived.
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
        let peer = getsockopt(&self.socket, PeerCredentials).ok();
        let (uid, pid) = (
            peer.as_ref().map(UnixCredentials::uid),
            peer.as_ref().map(UnixCredentials::pid),
        );
        tracing::info!(uid, pid, why, "refused a connection");
        Err(kind.into())
    }
}

/// Names the protocol of a client that does not begin HTTP/2.
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
        self.poll_cut(context)?;
        let this = &mut *self;
        while this.filtered.is_empty() {
            let before = buffer.filled().len();
            let polled = Pin::new(&mut this.socket).poll_read(context, buffer);
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
        self.poll_cut(context)?;
        Pin::new(&mut self.socket).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        // A peer that stops reading can leave nothing but a flush to wait for.
        self.poll_cut(context)?;
        Pin::new(&mut self.socket).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_cut(context)?;
        Pin::new(&mut self.socket).poll_shutdown(context)
    }
}

impl Connected for Connection {
    type ConnectInfo = ConnectionHandle;

    fn connect_info(&self) -> Self::ConnectInfo {
        self.guard.handle()
    }
}
