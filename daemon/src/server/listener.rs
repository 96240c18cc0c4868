//! Listeners of the server: Unix sockets and TCP. A listener always accepts; beyond the limits it closes the new
//! connection or an idle one.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures::stream::{BoxStream, StreamExt};
use tokio::net::{TcpListener, TcpSocket};
use tokio_util::sync::CancellationToken;

use super::connection::Connection;
use super::connection_stream::{ConnectionStream, TlsHandshake};
use super::connections::ConnectionTable;
use super::unix_socket::{BACKLOG, BoundUnixSocket};
use crate::access::{
    ConnectionPeer, FileProblems, HTTP2, PeerAddress, TlsSettings, WatchedFile, open_tls,
};
use crate::config::{Authenticator, TlsConfig};
use crate::error::{Error, Result};

/// Pause after a failed accept, for instance without free file descriptors.
pub(super) const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Bound socket of one `[[listeners]]` table.
#[derive(Debug)]
pub(super) struct Listener {
    socket: BoundSocket,
    authenticators: BTreeSet<Authenticator>,
}

#[derive(Debug)]
enum BoundSocket {
    Unix(BoundUnixSocket),
    Tcp(TcpListener, Option<Arc<WatchedFile<TlsSettings>>>),
}

impl Listener {
    /// Binds a Unix socket.
    ///
    /// # Errors
    /// [`Error`] if the path cannot be used. The message says what to do.
    pub(super) fn bind_unix(
        path: &Path,
        mode: u32,
        group: Option<&str>,
        authenticators: &BTreeSet<Authenticator>,
    ) -> Result<Self> {
        Ok(Self {
            socket: BoundSocket::Unix(BoundUnixSocket::bind(path, mode, group)?),
            authenticators: authenticators.clone(),
        })
    }

    /// Binds a TCP socket. `config_key` is the configuration key of the listener.
    ///
    /// # Errors
    /// [`Error`] if the address cannot be used or a file of TLS is faulty. The message says what to do.
    pub(super) fn bind_tcp(
        config_key: &str,
        address: SocketAddr,
        tls: Option<&TlsConfig>,
        authenticators: &BTreeSet<Authenticator>,
        problems: &FileProblems,
    ) -> Result<Self> {
        // With other credentials, a client without a certificate may still call.
        let is_required = *authenticators == BTreeSet::from([Authenticator::Mtls]);
        let settings =
            tls.map(|tls| open_tls(config_key, tls.clone(), is_required, HTTP2, problems));
        let listener = bind_tcp_listener(config_key, address)?;
        Ok(Self {
            socket: BoundSocket::Tcp(listener, settings.transpose()?),
            authenticators: authenticators.clone(),
        })
    }

    /// Returns the files of TLS; `None` without TLS.
    pub(super) fn tls(&self) -> Option<Arc<WatchedFile<TlsSettings>>> {
        match &self.socket {
            BoundSocket::Unix(_) => None,
            BoundSocket::Tcp(_, tls) => tls.clone(),
        }
    }

    /// Returns the bound address; `None` for a Unix socket.
    pub(super) fn tcp_address(&self) -> Option<SocketAddr> {
        match &self.socket {
            BoundSocket::Unix(_) => None,
            BoundSocket::Tcp(listener, _) => listener.local_addr().ok(),
        }
    }

    /// Returns the stream of accepted connections. It never ends and never yields an error; accepting goes on after a
    /// failure. `cut` closes all connections at once, `handshake_timeout` one that has not begun HTTP/2 by then.
    pub(super) fn connections(
        self,
        table: ConnectionTable,
        handshake_timeout: Duration,
        cut: CancellationToken,
    ) -> BoxStream<'static, std::result::Result<Connection, Infallible>> {
        futures::stream::unfold(
            (self, table, cut),
            move |(listener, table, cut)| async move {
                let connection = loop {
                    let (socket, address) = listener.accept_after_failures().await;
                    let key = listener.tls().map(|tls| tls.key.clone());
                    let peer = Arc::new(ConnectionPeer::new(
                        address,
                        key.unwrap_or_default(),
                        listener.authenticators.clone(),
                    ));
                    if let Some(guard) = table.admit_or_refuse(&peer, &cut) {
                        break Connection::new(socket, peer, guard, handshake_timeout);
                    }
                };
                Some((Ok(connection), (listener, table, cut)))
            },
        )
        .boxed()
    }

    /// Waits for a connection, and returns it with the address of its peer.
    async fn accept_after_failures(&self) -> (ConnectionStream, PeerAddress) {
        let mut failing = false;
        loop {
            match self.accept().await {
                Ok((stream, address)) => {
                    tracing::debug!(peer = %address, "connection");
                    return (stream, address);
                }
                Err(error) => {
                    // Log once per series of failures: accept fails twenty times a second without descriptors.
                    if !failing {
                        tracing::warn!(error = %error, "connections cannot be accepted");
                    }
                    failing = true;
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    async fn accept(&self) -> io::Result<(ConnectionStream, PeerAddress)> {
        match &self.socket {
            BoundSocket::Unix(socket) => {
                let (socket, address) = socket.accept().await?;
                Ok((ConnectionStream::Unix(socket), address))
            }
            BoundSocket::Tcp(listener, tls) => {
                let (socket, address) = listener.accept().await?;
                socket.set_nodelay(true)?;
                let stream = match tls {
                    None => ConnectionStream::Plain(socket),
                    Some(tls) => {
                        let handshake = TlsHandshake::begin(Arc::clone(tls), socket);
                        ConnectionStream::Handshake(Box::new(handshake))
                    }
                };
                Ok((stream, PeerAddress::Tcp(address)))
            }
        }
    }
}

/// Binds a TCP socket. `config_key` is the configuration key of the listener.
///
/// # Errors
/// [`Error::Io`] that names the address and its key.
pub(super) fn bind_tcp_listener(config_key: &str, address: SocketAddr) -> Result<TcpListener> {
    let bound = bind_reusable(address).and_then(|socket| socket.listen(BACKLOG));
    bound.map_err(listen_error(config_key, address))
}

/// Checks that [`bind_tcp_listener`] would succeed. No client can connect meanwhile. If a daemon `is_running`, an
/// address that is in use counts as its own.
///
/// # Errors
/// Those of [`bind_tcp_listener`].
pub(super) fn check_tcp_address(
    config_key: &str,
    address: SocketAddr,
    is_running: bool,
) -> Result<()> {
    match bind_reusable(address) {
        Err(error) if is_running && error.kind() == io::ErrorKind::AddrInUse => Ok(()),
        bound => bound.map(drop).map_err(listen_error(config_key, address)),
    }
}

fn listen_error(config_key: &str, address: SocketAddr) -> impl FnOnce(io::Error) -> Error {
    let operation = format!("listen on {address} ({config_key}.address)");
    move |source| Error::io(operation, source)
}

/// Binds a socket that does not listen yet.
fn bind_reusable(address: SocketAddr) -> io::Result<TcpSocket> {
    let socket = if address.is_ipv4() {
        TcpSocket::new_v4()?
    } else {
        TcpSocket::new_v6()?
    };
    // A restarted daemon must not wait for connections of its predecessor to time out.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    Ok(socket)
}
