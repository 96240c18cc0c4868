//! Resolves names to the addresses that may be connected to. The checked address is the one that is connected to, so a
//! name that changes its address in between gains nothing.

use std::net::{IpAddr, SocketAddr};

use reqwest::dns::{Addrs, Name, Resolve, Resolving};

use super::address_class::{AddressClass, classify_address};

/// Rule that decides which addresses may be connected to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AddressPolicy {
    /// Public addresses only.
    Public,
    /// Public and private addresses.
    Private,
    /// All addresses: the only name that is resolved is that of the configured proxy.
    Proxy,
}

/// Error of a host whose address may not be connected to.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{host} is at {address}, which is {what}")]
pub struct AddressError {
    /// Host of a URL.
    pub host: String,
    /// Address of the host.
    pub address: IpAddr,
    /// For instance `loopback`.
    pub what: &'static str,
    /// `true` if the configuration could allow it.
    pub allowable: bool,
}

impl AddressPolicy {
    /// Checks that an address may be connected to.
    pub(super) fn check_address(self, host: &str, address: IpAddr) -> Result<(), AddressError> {
        let (what, allowable) = match (classify_address(address), self) {
            (AddressClass::Public, _)
            | (_, Self::Proxy)
            | (AddressClass::Private(_), Self::Private) => {
                return Ok(());
            }
            (AddressClass::Private(what), Self::Public) => (what, true),
            (AddressClass::Never(what), _) => (what, false),
        };
        Err(AddressError {
            host: host.to_owned(),
            address,
            what,
            allowable,
        })
    }

    /// Returns those addresses of a host that may be connected to. Fails if the host has only others.
    pub(super) fn allowed_addresses(
        self,
        host: &str,
        found: impl Iterator<Item = SocketAddr>,
    ) -> Result<Vec<SocketAddr>, AddressError> {
        let mut refused = None;
        let mut allowed = Vec::new();
        for address in found {
            match self.check_address(host, address.ip()) {
                Ok(()) => allowed.push(address),
                Err(why) => refused = Some(why),
            }
        }
        match refused {
            Some(refused) if allowed.is_empty() => Err(refused),
            _ => Ok(allowed),
        }
    }
}

impl Resolve for AddressPolicy {
    fn resolve(&self, name: Name) -> Resolving {
        let policy = *self;
        Box::pin(async move {
            let host = name.as_str();
            // reqwest replaces the port by that of the URL.
            let found = tokio::net::lookup_host((host, 0)).await?;
            let allowed = policy.allowed_addresses(host, found)?;
            Ok(Box::new(allowed.into_iter()) as Addrs)
        })
    }
}
