//! Tables `[[listeners]]`: addresses at which the daemon serves, and how callers prove who they are.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::PathBuf;

use serde::Deserialize;

use super::fault_list::FaultList;
use super::{AuthConfig, Config, values};

/// Address at which the daemon serves.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "RawListener")]
pub struct ListenerConfig {
    /// Socket to listen on.
    pub address: ListenAddress,
    /// Kinds of credentials that callers may present; empty without `[auth]`.
    pub authenticators: BTreeSet<Authenticator>,
}

/// Socket to listen on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ListenAddress {
    /// Unix socket.
    Unix {
        /// Absolute path.
        path: PathBuf,
        /// Permission bits.
        mode: u32,
        /// Group that owns the socket, by name or number; `None` leaves it to the daemon's.
        group: Option<String>,
    },
    /// TCP socket.
    Tcp {
        /// Address and port; port 0 takes a free one.
        address: SocketAddr,
        /// Certificates; `None` for plain text on the loopback interface.
        tls: Option<TlsConfig>,
    },
    /// TCP socket for metrics over HTTP/1.1, which serves no API.
    Metrics {
        /// Address and port; port 0 takes a free one.
        address: SocketAddr,
        /// Certificate of the server; `None` for plain text on the loopback interface.
        tls: Option<TlsConfig>,
    },
}

impl ListenAddress {
    /// Returns `true` if clients can call the API there.
    #[must_use]
    pub fn serves_api(&self) -> bool {
        match self {
            Self::Unix { .. } | Self::Tcp { .. } => true,
            Self::Metrics { .. } => false,
        }
    }
}

/// Files for TLS, in PEM.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TlsConfig {
    /// Certificate of the server, followed by its intermediates.
    #[serde(deserialize_with = "values::path")]
    pub cert: PathBuf,
    /// Private key of the certificate.
    #[serde(deserialize_with = "values::path")]
    pub key: PathBuf,
    /// Certificates of the authorities that sign client certificates; `None` accepts none.
    #[serde(default, deserialize_with = "values::optional_path")]
    pub client_ca: Option<PathBuf>,
    /// Lists of revoked client certificates; `None` checks none.
    #[serde(default, deserialize_with = "values::optional_path")]
    pub crl: Option<PathBuf>,
}

/// Kind of credential that a listener accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Authenticator {
    /// User of the host, by the credentials of the socket's peer.
    Peer,
    /// Client certificate.
    Mtls,
    /// Token of the tokens file.
    Token,
    /// JSON web token.
    Jwt,
}

/// Keys of all kinds of listeners, as they are written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawListener {
    kind: String,
    #[serde(default, deserialize_with = "values::optional_path")]
    path: Option<PathBuf>,
    #[serde(default, deserialize_with = "optional_mode")]
    mode: Option<u32>,
    group: Option<String>,
    address: Option<SocketAddr>,
    tls: Option<TlsConfig>,
    #[serde(default)]
    insecure_loopback: bool,
    #[serde(default)]
    authenticators: BTreeSet<Authenticator>,
}

/// Permission bits of a Unix socket whose table sets none, and of that of `listen`. Every user who may write to it may
/// run commands, so its group is the list of users.
pub(super) const SOCKET_MODE: u32 = 0o660;

impl TryFrom<RawListener> for ListenerConfig {
    type Error = String;

    fn try_from(raw: RawListener) -> Result<Self, String> {
        let foreign = |given: &[(&str, bool)]| {
            given
                .iter()
                .find(|(_, given)| *given)
                .map(|(key, _)| format!("a listener of kind {:?} has no key {key}", raw.kind))
        };
        let (fault, address) = match raw.kind.as_str() {
            "unix" => {
                let fault = foreign(&[
                    ("address", raw.address.is_some()),
                    ("tls", raw.tls.is_some()),
                    ("insecure_loopback", raw.insecure_loopback),
                ]);
                let address = raw.path.map(|path| ListenAddress::Unix {
                    path,
                    mode: raw.mode.unwrap_or(SOCKET_MODE),
                    group: raw.group.filter(|group| !group.is_empty()),
                });
                (fault, address.ok_or("needs the key path"))
            }
            "tcp" => {
                let fault = foreign(&[
                    ("path", raw.path.is_some()),
                    ("mode", raw.mode.is_some()),
                    ("group", raw.group.is_some()),
                ]);
                let address = tcp_address(raw.address, raw.tls, raw.insecure_loopback);
                (fault, address)
            }
            "metrics" => {
                let fault = foreign(&[
                    ("path", raw.path.is_some()),
                    ("mode", raw.mode.is_some()),
                    ("group", raw.group.is_some()),
                    ("insecure_loopback", raw.insecure_loopback),
                ]);
                (
                    fault,
                    metrics_address(raw.address, raw.tls, &raw.authenticators),
                )
            }
            other => {
                return Err(format!(
                    "{other:?} is not a kind; use \"unix\", \"tcp\" or \"metrics\""
                ));
            }
        };
        if let Some(fault) = fault {
            return Err(fault);
        }
        Ok(Self {
            address: address.map_err(str::to_owned)?,
            authenticators: raw.authenticators,
        })
    }
}

/// Checks the keys of a listener of kind `tcp`.
fn tcp_address(
    address: Option<SocketAddr>,
    tls: Option<TlsConfig>,
    insecure_loopback: bool,
) -> Result<ListenAddress, &'static str> {
    let address = address.ok_or("needs the key address, such as \"0.0.0.0:7443\"")?;
    if tls.is_some() && insecure_loopback {
        return Err("has tls, so insecure_loopback has no meaning: leave it out");
    }
    if tls.is_none() && !insecure_loopback {
        return Err(
            "needs tls = { cert, key }, or insecure_loopback = true for plain text on 127.0.0.1 or [::1]",
        );
    }
    if tls.is_none() && !address.ip().is_loopback() {
        return Err(
            "serves plain text on the loopback interface only: use 127.0.0.1 or [::1], or tls",
        );
    }
    Ok(ListenAddress::Tcp { address, tls })
}

/// Checks the keys of a listener of kind `metrics`.
fn metrics_address(
    address: Option<SocketAddr>,
    tls: Option<TlsConfig>,
    authenticators: &BTreeSet<Authenticator>,
) -> Result<ListenAddress, &'static str> {
    let address = address.ok_or("needs the key address, such as \"127.0.0.1:9464\"")?;
    let has_client_files = |tls: &TlsConfig| tls.client_ca.is_some() || tls.crl.is_some();
    if tls.as_ref().is_some_and(has_client_files) {
        return Err(
            "serves metrics without client certificates: leave out tls.client_ca and tls.crl",
        );
    }
    if authenticators
        .iter()
        .any(|kind| *kind != Authenticator::Token)
    {
        return Err("serves metrics, whose only authenticator is \"token\"");
    }
    if !address.ip().is_loopback() && tls.is_none() {
        return Err(
            "serves metrics to the network in plain text: set tls = { cert, key }, or use 127.0.0.1 or [::1]",
        );
    }
    Ok(ListenAddress::Metrics { address, tls })
}

/// Checks the listeners against each other and against `[auth]`.
pub(super) fn check_listeners(faults: &mut FaultList<'_>, config: &Config) {
    for (index, listener) in config.listeners.iter().enumerate() {
        let place = format!("listeners.{index}");
        let mut require = |holds: bool, why: &str| {
            if !holds {
                faults.add(&place, why);
            }
        };
        if !listener.address.serves_api() {
            let has_token = listener.authenticators.contains(&Authenticator::Token);
            let tokens_file = config
                .auth
                .as_ref()
                .and_then(|auth| auth.tokens_file.as_ref());
            require(
                !has_token || tokens_file.is_some(),
                "accepts the authenticator \"token\", which needs auth.tokens_file",
            );
            continue;
        }
        match &config.auth {
            Some(auth) => check_authenticators(&mut require, listener, auth),
            None => {
                require(
                    listener.authenticators.is_empty(),
                    "has authenticators, but there is no section [auth] that says who may do what",
                );
                require(
                    listener.address.tls().is_none(),
                    "serves the network, so it needs the section [auth] and authenticators",
                );
            }
        }
    }
    let mut seen: Vec<&ListenAddress> = Vec::new();
    for (index, listener) in config.listeners.iter().enumerate() {
        if seen.iter().any(|other| listener.address.is_same(other)) {
            let place = format!("listeners.{index}");
            faults.add(&place, "listens where another listener does");
        }
        seen.push(&listener.address);
    }
}

/// Checks that a listener's authenticators can work.
fn check_authenticators(
    require: &mut impl FnMut(bool, &str),
    listener: &ListenerConfig,
    auth: &AuthConfig,
) {
    let has = |kind| listener.authenticators.contains(&kind);
    let tls = listener.address.tls();
    require(
        !listener.authenticators.is_empty(),
        "has no authenticators, so no client could use it: set authenticators = [\"peer\"], or of \"mtls\", \"token\", \
         \"jwt\"",
    );
    require(
        matches!(listener.address, ListenAddress::Unix { .. }) || !has(Authenticator::Peer),
        "accepts the authenticator \"peer\", which works on Unix sockets only",
    );
    require(
        !has(Authenticator::Mtls) || tls.is_some_and(|tls| tls.client_ca.is_some()),
        "accepts the authenticator \"mtls\", which needs tls.client_ca",
    );
    require(
        !has(Authenticator::Token) || auth.tokens_file.is_some(),
        "accepts the authenticator \"token\", which needs auth.tokens_file",
    );
    require(
        !has(Authenticator::Jwt) || auth.jwt.is_some(),
        "accepts the authenticator \"jwt\", which needs the section [auth.jwt]",
    );
    require(
        tls.is_none_or(|tls| tls.crl.is_none() || tls.client_ca.is_some()),
        "has tls.crl, which needs tls.client_ca",
    );
}

impl ListenAddress {
    /// Returns the files of TLS; `None` without TLS.
    fn tls(&self) -> Option<&TlsConfig> {
        match self {
            Self::Unix { .. } => None,
            Self::Tcp { tls, .. } | Self::Metrics { tls, .. } => tls.as_ref(),
        }
    }

    /// Returns the TCP address; `None` for a Unix socket, and for a free port.
    fn fixed_address(&self) -> Option<SocketAddr> {
        match self {
            Self::Unix { .. } => None,
            Self::Tcp { address, .. } | Self::Metrics { address, .. } => {
                (address.port() != 0).then_some(*address)
            }
        }
    }

    /// Returns `true` if only one of both can be bound.
    fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Unix { path, .. }, Self::Unix { path: other, .. }) => path == other,
            (one, other) => {
                let address = one.fixed_address();
                address.is_some() && address == other.fixed_address()
            }
        }
    }
}

fn optional_mode<'de, D: serde::Deserializer<'de>>(source: D) -> Result<Option<u32>, D::Error> {
    values::file_mode(source).map(Some)
}

#[cfg(test)]
mod tests;
