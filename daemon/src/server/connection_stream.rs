//! Byte stream of a client's connection: a Unix socket, TCP, or TLS over TCP. The TLS handshake runs while the
//! connection is read and written for the first time.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use futures::FutureExt;
use skilld_common::frame_socket::FrameSocket;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;
use tokio_rustls::{Accept, TlsAcceptor};

use crate::access::{ConnectionPeer, PeerCertificate, TlsSettings, WatchedFile};

/// Byte stream of a connection. All variants are `Unpin`, so no pin projection is needed.
pub(super) enum ConnectionStream {
    /// Unix socket.
    Unix(FrameSocket),
    /// TCP without TLS.
    Plain(TcpStream),
    /// TLS before the end of its handshake.
    Handshake(Box<TlsHandshake>),
    /// TLS.
    Tls(Box<TlsStream<TcpStream>>),
}

/// TLS handshake that has not ended.
pub(super) struct TlsHandshake {
    accept: Accept<TcpStream>,
    /// Settings with which the handshake began.
    began_with: Arc<TlsSettings>,
    files: Arc<WatchedFile<TlsSettings>>,
}

impl TlsHandshake {
    /// Begins the handshake of an accepted connection with the settings that are in force.
    pub(super) fn begin(files: Arc<WatchedFile<TlsSettings>>, socket: TcpStream) -> Self {
        let began_with = Arc::clone(&files.current());
        let acceptor = TlsAcceptor::from(Arc::clone(&began_with.server));
        Self {
            accept: acceptor.accept(socket),
            began_with,
            files,
        }
    }

    /// Checks a client certificate once more if the settings have changed since the handshake began. The certificate is
    /// known to the connection table by now, so a later reload verifies it as well.
    fn check_again(&self, certificate: Option<&PeerCertificate>) -> io::Result<()> {
        let settings = self.files.current();
        if Arc::ptr_eq(&settings, &self.began_with) {
            return Ok(());
        }
        match certificate {
            Some(certificate) if !settings.accepts(certificate) => Err(io::Error::other(
                "the client certificate was revoked, or its authority removed, during the handshake",
            )),
            Some(_) | None => Ok(()),
        }
    }
}

impl std::fmt::Debug for ConnectionStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Unix(_) => "Unix",
            Self::Plain(_) => "Plain",
            Self::Handshake(_) => "Handshake",
            Self::Tls(_) => "Tls",
        })
    }
}

impl ConnectionStream {
    /// Returns `true` if the client is a process of this host that may send a socket's path as `:authority`.
    pub(super) fn is_unix(&self) -> bool {
        matches!(self, Self::Unix(_))
    }

    /// Completes the TLS handshake, and stores the client's certificate in `peer`.
    ///
    /// # Errors
    /// The failure of the handshake, also if the certificate was revoked meanwhile.
    pub(super) fn poll_handshake(
        &mut self,
        context: &mut Context<'_>,
        peer: &ConnectionPeer,
    ) -> Poll<io::Result<()>> {
        let Self::Handshake(handshake) = self else {
            return Poll::Ready(Ok(()));
        };
        let stream = ready!(handshake.accept.poll_unpin(context))?;
        let (_, session) = stream.get_ref();
        let certificate = session.peer_certificates().and_then(PeerCertificate::parse);
        if let Some(certificate) = certificate {
            // The cell is empty: a handshake completes once.
            drop(peer.certificate.set(certificate));
        }
        handshake.check_again(peer.certificate.get())?;
        *self = Self::Tls(Box::new(stream));
        Poll::Ready(Ok(()))
    }
}

/// Calls a method of the stream that a variant holds. Before the end of the handshake there is none.
macro_rules! with_stream {
    ($self:ident, $stream:ident => $call:expr) => {
        match $self.get_mut() {
            ConnectionStream::Unix($stream) => $call,
            ConnectionStream::Plain($stream) => $call,
            ConnectionStream::Tls($stream) => $call,
            ConnectionStream::Handshake(_) => Poll::Ready(Err(io::ErrorKind::NotConnected.into())),
        }
    };
}

impl AsyncRead for ConnectionStream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        with_stream!(self, stream => Pin::new(stream).poll_read(context, buffer))
    }
}

impl AsyncWrite for ConnectionStream {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        with_stream!(self, stream => Pin::new(stream).poll_write(context, bytes))
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        with_stream!(self, stream => Pin::new(stream).poll_flush(context))
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        with_stream!(self, stream => Pin::new(stream).poll_shutdown(context))
    }
}
