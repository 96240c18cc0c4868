//! Names to addresses, of which only those are passed on that may be reached: what is checked is what is connected to,
//! so a name that changes its address between the two gains nothing.

use std::net::{IpAddr, SocketAddr};

use reqwest::dns::{Addrs, Name, Resolve, Resolving};

use super::address::{Reach, reach};

/// The rule for addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Allow {
    /// Public addresses only.
    Public,
    /// Private ones as well.
    Private,
    /// All: what is resolved is the configured proxy.
    Proxy,
}

/// A name has no address that may be reached.
#[derive(Debug, thiserror::Error)]
#[error("{host} is at {address}, which is {what}")]
pub(super) struct Refused {
    pub(super) host: String,
    pub(super) address: IpAddr,
    pub(super) what: &'static str,
    /// The configuration could allow it.
    pub(super) allowable: bool,
}

impl Allow {
    /// Whether an address of a host may be connected to.
    pub(super) fn check(self, host: &str, address: IpAddr) -> Result<(), Refused> {
        let (what, allowable) = match (reach(address), self) {
            (Reach::Public, _) | (_, Self::Proxy) | (Reach::Private(_), Self::Private) => {
                return Ok(());
            }
            (Reach::Private(what), Self::Public) => (what, true),
            (Reach::Never(what), _) => (what, false),
        };
        Err(Refused {
            host: host.to_owned(),
            address,
            what,
            allowable,
        })
    }
}

impl Resolve for Allow {
    fn resolve(&self, name: Name) -> Resolving {
        let allow = *self;
        Box::pin(async move {
            let host = name.as_str();
            // The port is replaced by the URL's.
            let found = tokio::net::lookup_host((host, 0)).await?;
            let mut refused = None;
            let mut allowed: Vec<SocketAddr> = Vec::new();
            for address in found {
                match allow.check(host, address.ip()) {
                    Ok(()) => allowed.push(address),
                    Err(why) => refused = Some(why),
                }
            }
            match refused {
                Some(refused) if allowed.is_empty() => Err(refused.into()),
                _ => Ok(Box::new(allowed.into_iter()) as Addrs),
            }
        })
    }
}
