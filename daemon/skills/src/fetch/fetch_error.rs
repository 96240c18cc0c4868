//! Errors of fetching, with the remedy in their messages.

use std::fmt;
use std::time::Duration;

use super::AddressError;

/// Error of a URL that was not fetched.
#[derive(Debug, thiserror::Error)]
pub struct FetchError {
    /// URL without query and fragment, which may hold secrets: the requested one, or that of a redirect that failed.
    pub url: String,
    /// Reason of the failure.
    pub kind: FetchErrorKind,
}

/// Reason why a URL was not fetched. The messages follow the URL.
#[derive(Debug, thiserror::Error)]
pub enum FetchErrorKind {
    /// The URL is of a kind that is never fetched.
    #[error("cannot be fetched: {why}")]
    Url {
        /// Description of the fault and of a correct URL.
        why: String,
    },
    /// The URL leads to an address that is not public.
    #[error(
        "is refused: {refused}{}",
        if .refused.allowable { "; fetching from private addresses has to be allowed in the configuration" } else { "" }
    )]
    Address {
        /// The address, with its host.
        refused: AddressError,
    },
    /// An https URL redirects to http.
    #[error(
        "is refused: it redirects to {to}, which is not encrypted; ask its owner for an https URL"
    )]
    Downgrade {
        /// Target of the redirect.
        to: String,
    },
    /// Too many redirects, or a circle of them.
    #[error("redirects more than {limit} times; use the URL that it ends at")]
    Redirects {
        /// Maximum number of redirects.
        limit: usize,
    },
    /// The connection failed or broke.
    #[error("cannot be reached: {why}{}", authority_advice(.why))]
    Unreachable {
        /// Message of the system or the library.
        why: String,
    },
    /// The fetch took longer than allowed, in all or to connect.
    #[error("took longer than {}; is its server alive?", humantime::format_duration(*.limit))]
    Timeout {
        /// The limit that was met.
        limit: Duration,
    },
    /// The server answered something else than 200.
    #[error("was answered with {status}{}", advice(*.status))]
    Status {
        /// HTTP status code.
        status: u16,
    },
    /// The server announced or sent more bytes than allowed.
    #[error("has more than {limit} bytes")]
    TooLarge {
        /// The limit.
        limit: u64,
    },
    /// The bytes are not those that were pinned.
    #[error(
        "has the sha256 {found} and not {expected}: its content changed, or the pin is of another file"
    )]
    Checksum {
        /// Pinned SHA-256, 64 hex digits.
        expected: String,
        /// SHA-256 of the received bytes, 64 hex digits.
        found: String,
    },
    /// The file for it could not be written.
    #[error("cannot be stored: {source}")]
    File {
        /// Error of the system.
        #[source]
        source: std::io::Error,
    },
    /// This host cannot fetch anything. The message stands alone.
    #[error(
        "nothing can be fetched: {why}; are the certificates of the system's authorities installed (ca-certificates)?"
    )]
    Client {
        /// Message of the library.
        why: String,
    },
}

impl fmt::Display for FetchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !matches!(self.kind, FetchErrorKind::Client { .. }) {
            write!(f, "{} ", self.url)?;
        }
        write!(f, "{}", self.kind)
    }
}

impl FetchError {
    /// Makes the error of a URL that is never fetched. `url` is without secrets.
    pub(crate) fn refused(url: String, why: impl Into<String>) -> Self {
        let why = why.into();
        let kind = FetchErrorKind::Url { why };
        Self { url, kind }
    }
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
