//! Errors of fetching, with the remedy in their messages.

use std::time::Duration;

/// Why a URL was not fetched. Every `url` is without query and fragment, which may hold secrets.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// The URL is of a kind that is never fetched.
    #[error("{url} cannot be fetched: {why}")]
    Url {
        /// URL as given, without secrets.
        url: String,
        /// Description of the fault and of a correct URL.
        why: String,
    },
    /// The URL leads to an address that is not public.
    #[error(
        "{url} is refused: {host} is at {address}, which is {what}{}",
        if *.allowable { "; fetching from private addresses has to be allowed in the configuration" } else { "" }
    )]
    Address {
        /// URL that led there: the requested one or a redirect's target.
        url: String,
        /// Host of that URL.
        host: String,
        /// Address of the host.
        address: std::net::IpAddr,
        /// For instance `loopback`.
        what: &'static str,
        /// `true` if the configuration could allow it.
        allowable: bool,
    },
    /// An https URL redirects to http.
    #[error(
        "{url} is refused: it redirects to {to}, which is not encrypted; ask its owner for an https URL"
    )]
    Downgrade {
        /// URL that redirects.
        url: String,
        /// Target of the redirect.
        to: String,
    },
    /// Too many redirects, or a circle of them.
    #[error("{url} redirects more than {limit} times; use the URL that it ends at")]
    Redirects {
        /// Requested URL.
        url: String,
        /// Maximum number of redirects.
        limit: usize,
    },
    /// The connection failed or broke.
    #[error("{url} cannot be reached: {why}{}", authority_advice(.why))]
    Unreachable {
        /// Requested URL.
        url: String,
        /// Message of the system or the library.
        why: String,
    },
    /// The fetch took longer than allowed, in all or to connect.
    #[error("{url} took longer than {}; is its server alive?", humantime::format_duration(*.limit))]
    Timeout {
        /// Requested URL.
        url: String,
        /// The limit that was met.
        limit: Duration,
    },
    /// The server answered something else than 200.
    #[error("{url} was answered with {status}{}", advice(*.status))]
    Status {
        /// Requested URL.
        url: String,
        /// HTTP status code.
        status: u16,
    },
    /// The server announced or sent more bytes than allowed.
    #[error("{url} has more than {limit} bytes")]
    TooLarge {
        /// Requested URL.
        url: String,
        /// The limit.
        limit: u64,
    },
    /// The bytes are not those that were pinned.
    #[error(
        "{url} has the sha256 {found} and not {expected}: its content changed, or the pin is of another file"
    )]
    Checksum {
        /// Requested URL.
        url: String,
        /// Pinned SHA-256, 64 hex digits.
        expected: String,
        /// SHA-256 of the received bytes, 64 hex digits.
        found: String,
    },
    /// The file for it could not be written.
    #[error("{url} cannot be stored: {source}")]
    File {
        /// Requested URL.
        url: String,
        /// Error of the system.
        #[source]
        source: std::io::Error,
    },
    /// This host cannot fetch anything.
    #[error(
        "nothing can be fetched: {why}; are the certificates of the system's authorities installed (ca-certificates)?"
    )]
    Client {
        /// Message of the library.
        why: String,
    },
}

/// Words of TLS libraries for a certificate of an authority that they do not know: those of rustls, Node.js and OpenSSL.
const UNKNOWN_AUTHORITY: [&str; 8] = [
    "UnknownIssuer",
    "SELF_SIGNED_CERT",
    "UNABLE_TO_GET_ISSUER_CERT",
    "UNABLE_TO_VERIFY_LEAF_SIGNATURE",
    "CERTIFICATE_VERIFY_FAILED",
    "self-signed certificate",
    "unable to get local issuer certificate",
    "unable to verify the first certificate",
];

/// Returns the end of a message about a connection, which says what to do if the authority of a certificate is not
/// known; empty otherwise.
#[must_use]
pub fn authority_advice(why: &str) -> &'static str {
    if UNKNOWN_AUTHORITY.iter().any(|words| why.contains(words)) {
        "; if it has an authority of its own, or a proxy of this network inspects TLS, let the operator name the file of \
         that authority in skills.package_ca_file"
    } else {
        ""
    }
}

fn advice(status: u16) -> &'static str {
    match status {
        401 | 403 | 407 => "; only what needs no credentials can be fetched",
        404 | 410 => "; is the URL right?",
        429 => "; it is asked too often",
        500.. => "; its server has a problem",
        _ => "",
    }
}
