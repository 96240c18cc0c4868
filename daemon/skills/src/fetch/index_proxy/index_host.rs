//! Entries of the allow-list of package indexes: host names, optionally with a port, and suffixes of names.

use std::fmt;

use url::{Host, Url};

use super::super::web_url::{hide_secrets, shorten};

/// Ports of an entry that names none: those of http and https.
const DEFAULT_PORTS: [u16; 2] = [80, 443];
/// Maximum length of a host name in bytes (RFC 1035).
const NAME_BYTES_MAX: usize = 253;

/// Entry of the allow-list of an [`IndexProxy`](super::IndexProxy).
///
/// `HOST` allows one host on the ports 80 and 443, `HOST:PORT` on one other port. `*.SUFFIX` and `*.SUFFIX:PORT` allow
/// every name below the suffix, and not the suffix itself. A host may be an IP address, IPv6 in brackets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IndexHost {
    pattern: HostPattern,
    /// Only allowed port; `None` allows those of http and https.
    port: Option<u16>,
}

/// Hosts of one entry.
#[derive(Debug, Clone, PartialEq, Eq)]
enum HostPattern {
    Exact(Host),
    /// Every name below this one, which begins with a dot.
    Suffix(String),
}

impl IndexHost {
    /// Parses an entry of the configuration. Names become lower case, and international ones Punycode.
    ///
    /// # Errors
    /// Message for the operator if the text is no such entry. It shows no credentials.
    pub fn parse(text: &str) -> Result<Self, String> {
        let refused = |why: &str| {
            let shown = shorten(&hide_secrets(text));
            format!(
                "{shown:?} is not a package host, because {why}: write HOST, HOST:PORT or *.SUFFIX, for instance \
                 pypi.org"
            )
        };
        if text.contains('/') {
            return Err(refused("it has a scheme or a path"));
        }
        let below = text.strip_prefix("*.");
        let rest = below.unwrap_or(text);
        // The last colon of an IPv6 address is within its brackets.
        let (host, port) = match rest.rsplit_once(':') {
            Some((host, port)) if !port.ends_with(']') => (host, Some(port)),
            _ => (rest, None),
        };
        let port = port
            .map(|port| parse_port(port).ok_or("its port is not between 1 and 65535"))
            .transpose()
            .map_err(refused)?;
        let host = Host::parse(host).map_err(|error| refused(&error.to_string()))?;
        if let Host::Domain(name) = &host
            && !is_host_name(name)
        {
            return Err(refused("its host is not a valid name"));
        }
        let pattern = match (host, below) {
            (host, None) => HostPattern::Exact(host),
            (Host::Domain(name), Some(_)) => HostPattern::Suffix(format!(".{name}")),
            _ => return Err(refused("no name is below an address")),
        };
        Ok(Self { pattern, port })
    }

    /// Returns `true` if the host and the port of a URL are allowed.
    pub(super) fn allows(&self, url: &Url) -> bool {
        let port = url.port_or_known_default().unwrap_or_default();
        let allows_port = match self.port {
            Some(allowed) => allowed == port,
            None => DEFAULT_PORTS.contains(&port),
        };
        allows_port
            && match (&self.pattern, url.host()) {
                (HostPattern::Exact(allowed), Some(host)) => *allowed == host,
                (HostPattern::Suffix(suffix), Some(Host::Domain(name))) => {
                    name.ends_with(suffix.as_str())
                }
                (HostPattern::Suffix(_), _) | (_, None) => false,
            }
    }
}

/// Prints the entry as it is written in the configuration.
impl fmt::Display for IndexHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.pattern {
            HostPattern::Exact(host) => write!(f, "{host}")?,
            HostPattern::Suffix(suffix) => write!(f, "*{suffix}")?,
        }
        self.port.map_or(Ok(()), |port| write!(f, ":{port}"))
    }
}

/// Returns the entry that would allow the host and the port of a URL.
pub(super) fn missing_entry(url: &Url) -> String {
    let host = url.host_str().unwrap_or_default();
    match url.port_or_known_default() {
        Some(port) if !DEFAULT_PORTS.contains(&port) => format!("{host}:{port}"),
        _ => host.to_owned(),
    }
}

fn parse_port(text: &str) -> Option<u16> {
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
    let port = text.parse().ok().filter(|_| is_number)?;
    (port > 0).then_some(port)
}

/// Returns `true` for a host name in ASCII. The URL parser also accepts asterisks and empty labels.
fn is_host_name(name: &str) -> bool {
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    let is_label = |label: &str| !label.is_empty() && label.bytes().all(is_letter);
    name.len() <= NAME_BYTES_MAX && name.split('.').all(is_label)
}
