//! Sockets of all `[[listeners]]`, bound before anything is served.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures::Stream;
use tokio_util::sync::CancellationToken;

use super::connection::Connection;
use super::connections::ConnectionTable;
use super::listener::{Listener, check_tcp_address};
use super::metrics_listener::MetricsListener;
use super::unix_socket::BoundUnixSocket;
use crate::access::{
    AccessControl, FileProblems, HTTP1, HTTP2, TlsSettings, WatchedFile, open_tls,
};
use crate::config::{Config, ListenAddress};
use crate::error::Result;
use crate::metrics::Metrics;

/// Access control and bound sockets.
#[derive(Debug)]
pub(super) struct BoundListeners {
    pub(super) access: Arc<AccessControl>,
    /// Listeners of the API, in the order of the configuration.
    pub(super) api: Vec<Listener>,
    /// Listeners of metrics, in the order of the configuration.
    pub(super) metrics: Vec<MetricsListener>,
}

/// Addresses of listeners, with the ports that were taken.
#[derive(Debug, Clone, Default)]
pub(crate) struct BoundAddresses {
    /// TCP listeners of the API, in the order of the configuration.
    pub(crate) tcp: Vec<SocketAddr>,
    /// Listeners of metrics, in the order of the configuration.
    pub(crate) metrics: Vec<SocketAddr>,
}

impl BoundListeners {
    /// Loads the files of the access control and binds all listeners. Blocks.
    ///
    /// # Errors
    /// The first address or file that cannot be used. The message says what to do.
    pub(super) fn bind(config: &Config, metrics: Arc<Metrics>) -> Result<Self> {
        let mut bound = Self {
            access: Arc::new(AccessControl::open(config, metrics)?),
            api: Vec::new(),
            metrics: Vec::new(),
        };
        for (index, listener) in config.listeners.iter().enumerate() {
            let config_key = format!("listeners.{index}");
            let authenticators = &listener.authenticators;
            let problems = &bound.access.problems;
            match &listener.address {
                ListenAddress::Unix { path, mode, group } => {
                    let listener =
                        Listener::bind_unix(path, *mode, group.as_deref(), authenticators)?;
                    bound.api.push(listener);
                }
                ListenAddress::Tcp { address, tls } => {
                    let listener = Listener::bind_tcp(
                        &config_key,
                        *address,
                        tls.as_ref(),
                        authenticators,
                        problems,
                    )?;
                    bound.api.push(listener);
                }
                ListenAddress::Metrics { address, tls } => {
                    let listener = MetricsListener::bind(
                        &config_key,
                        *address,
                        tls.as_ref(),
                        authenticators,
                        problems,
                    )?;
                    bound.metrics.push(listener);
                }
            }
        }
        Ok(bound)
    }

    /// Returns the files of all listeners with TLS.
    pub(super) fn tls(&self) -> Vec<Arc<WatchedFile<TlsSettings>>> {
        let api = self.api.iter().filter_map(Listener::tls);
        api.chain(self.metrics.iter().filter_map(MetricsListener::tls))
            .collect()
    }

    /// Returns the addresses of the listeners that have one.
    pub(super) fn addresses(&self) -> BoundAddresses {
        let metrics = self.metrics.iter().filter_map(MetricsListener::address);
        BoundAddresses {
            tcp: self.api.iter().filter_map(Listener::tcp_address).collect(),
            metrics: metrics.collect(),
        }
    }
}

/// Checks that [`BoundListeners::bind`] would bind a listener, and changes nothing. Blocks. Addresses of a daemon that
/// `is_running` are in use and no fault.
///
/// # Errors
/// Those of [`BoundListeners::bind`].
pub(super) fn check_listener(
    config_key: &str,
    address: &ListenAddress,
    is_running: bool,
) -> Result<()> {
    let (address, tls, protocol) = match address {
        ListenAddress::Unix { path, group, .. } => {
            return BoundUnixSocket::check(path, group.as_deref(), is_running);
        }
        ListenAddress::Tcp { address, tls } => (*address, tls, HTTP2),
        ListenAddress::Metrics { address, tls } => (*address, tls, HTTP1),
    };
    if let Some(tls) = tls {
        let problems = FileProblems::default();
        open_tls(config_key, tls.clone(), false, protocol, &problems)?;
    }
    check_tcp_address(config_key, address, is_running)
}

/// Accepts the connections of all listeners of the API. The stream never ends; `cut` closes the connections.
pub(super) fn accept_connections(
    listeners: Vec<Listener>,
    table: &ConnectionTable,
    handshake_timeout: Duration,
    cut: &CancellationToken,
) -> impl Stream<Item = Result<Connection, Infallible>> + Send + Unpin + 'static {
    let accept =
        |listener: Listener| listener.connections(table.clone(), handshake_timeout, cut.clone());
    futures::stream::select_all(listeners.into_iter().map(accept))
}
