//! Peer of a connection, as far as it matters for authentication.

use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::OnceLock;

use super::certificate::PeerCertificate;
use crate::config::Authenticator;

/// Peer of a connection, and the kinds of credentials that its listener accepts.
#[derive(Debug)]
pub struct ConnectionPeer {
    /// Where the connection comes from.
    pub(crate) address: PeerAddress,
    /// Configuration key of the listener's TLS; empty without TLS.
    pub(crate) listener: String,
    /// Kinds of credentials that the listener accepts.
    pub(crate) authenticators: BTreeSet<Authenticator>,
    /// Certificate of the client; empty before the TLS handshake ends, and without a certificate.
    pub(crate) certificate: OnceLock<PeerCertificate>,
}

/// Origin of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeerAddress {
    /// Process of the host, by the credentials of its socket.
    Unix {
        /// User id.
        uid: u32,
        /// Primary group id.
        gid: u32,
        /// Process id; `None` if the kernel does not report it.
        pid: Option<i32>,
    },
    /// Address of the network.
    Tcp(SocketAddr),
}

/// User of the host or network, among which connections are shared fairly.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ConnectionOwner {
    /// User of the host.
    User(u32),
    /// IPv4 address, or IPv6 network of 64 bits by its first address: a host has that many addresses to itself.
    Network(IpAddr),
}

/// Number of bits of an IPv6 address that name its host among those of its network.
const INTERFACE_BITS: u32 = 64;

impl ConnectionPeer {
    /// Makes the peer of a new connection. `listener` is the configuration key of the listener's TLS.
    pub fn new(
        address: PeerAddress,
        listener: String,
        authenticators: BTreeSet<Authenticator>,
    ) -> Self {
        Self {
            address,
            listener,
            authenticators,
            certificate: OnceLock::new(),
        }
    }
}

impl PeerAddress {
    /// Returns the owner of the connection.
    pub fn owner(self) -> ConnectionOwner {
        match self {
            Self::Unix { uid, .. } => ConnectionOwner::User(uid),
            Self::Tcp(address) => ConnectionOwner::Network(match address.ip().to_canonical() {
                IpAddr::V6(address) => {
                    let network = address.to_bits() >> INTERFACE_BITS << INTERFACE_BITS;
                    IpAddr::V6(Ipv6Addr::from_bits(network))
                }
                address @ IpAddr::V4(_) => address,
            }),
        }
    }
}

impl fmt::Display for PeerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix { uid, gid, pid } => {
                write!(f, "uid {uid}, gid {gid}")?;
                pid.map_or(Ok(()), |pid| write!(f, ", pid {pid}"))
            }
            Self::Tcp(address) => write!(f, "{address}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_one_ipv6_network_have_one_owner() {
        let owner = |ip: &str| {
            let ip: IpAddr = ip.parse().expect("address");
            PeerAddress::Tcp(SocketAddr::new(ip, 4711)).owner()
        };
        assert_eq!(owner("2001:db8:1:2::1"), owner("2001:db8:1:2:ffff::7"));
        assert_ne!(owner("2001:db8:1:2::1"), owner("2001:db8:1:3::1"));
        assert_ne!(owner("192.0.2.1"), owner("192.0.2.2"));
        assert_eq!(owner("192.0.2.1"), owner("::ffff:192.0.2.1"));
    }
}
