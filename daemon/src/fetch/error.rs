//! Why something was not fetched, and what to do about it.

use std::time::Duration;

/// Why a URL was not fetched. A `url` in it has lost its query and fragment, which may hold secrets.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// Not a URL that is fetched at all.
    #[error("{url} cannot be fetched: {why}")]
    Url {
        /// As given, without what may be secret.
        url: String,
        /// What is wrong and what would be right.
        why: String,
    },
    /// It leads to an address that is not public.
    #[error(
        "{url} is refused: {host} is at {address}, which is {what}{}",
        if *.allowable { "; fetching from private addresses has to be allowed in the configuration" } else { "" }
    )]
    Address {
        /// What was to be fetched when it was noticed: the URL or what it redirects to.
        url: String,
        /// Its host.
        host: String,
        /// Where that is.
        address: std::net::IpAddr,
        /// For instance `loopback`.
        what: &'static str,
        /// The configuration could allow it.
        allowable: bool,
    },
    /// An https URL redirects to http.
    #[error(
        "{url} is refused: it redirects to {to}, which is not encrypted; ask its owner for an https URL"
    )]
    Downgrade {
        /// What redirects.
        url: String,
        /// Where to.
        to: String,
    },
    /// Too many redirects, or a circle of them.
    #[error("{url} redirects more than {limit} times; use the URL that it ends at")]
    Redirects {
        /// What was asked for.
        url: String,
        /// How many are followed.
        limit: usize,
    },
    /// No connection, or one that broke.
    #[error("{url} cannot be reached: {why}")]
    Unreachable {
        /// What was asked for.
        url: String,
        /// What the system or the library said.
        why: String,
    },
    /// It took longer than allowed, in all or to connect.
    #[error("{url} took longer than {}; is its server alive?", humantime::format_duration(*.limit))]
    Timeout {
        /// What was asked for.
        url: String,
        /// The limit that was met.
        limit: Duration,
    },
    /// The server answered something else than 200.
    #[error("{url} was answered with {status}{}", advice(*.status))]
    Status {
        /// What was asked for.
        url: String,
        /// Of HTTP.
        status: u16,
    },
    /// More bytes than allowed, announced or sent.
    #[error("{url} has more than {limit} bytes")]
    TooLarge {
        /// What was asked for.
        url: String,
        /// The limit.
        limit: u64,
    },
    /// The bytes are not those that were pinned.
    #[error(
        "{url} has the sha256 {found} and not {expected}: its content changed, or the pin is of another file"
    )]
    Checksum {
        /// What was asked for.
        url: String,
        /// 64 hex digits.
        expected: String,
        /// 64 hex digits.
        found: String,
    },
    /// The file for it could not be written.
    #[error("{url} cannot be stored: {source}")]
    File {
        /// What was asked for.
        url: String,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// Nothing can be fetched by this host.
    #[error(
        "nothing can be fetched: {why}; are the certificates of the system's authorities installed (ca-certificates)?"
    )]
    Client {
        /// What the library said.
        why: String,
    },
}

impl FetchError {
    /// Whether asking again later may help, without anybody changing anything here.
    #[must_use]
    pub fn is_temporary(&self) -> bool {
        match self {
            Self::Unreachable { .. } | Self::Timeout { .. } => true,
            Self::Status { status, .. } => *status >= 500 || matches!(status, 408 | 425 | 429),
            Self::Url { .. }
            | Self::Address { .. }
            | Self::Downgrade { .. }
            | Self::Redirects { .. }
            | Self::TooLarge { .. }
            | Self::Checksum { .. }
            | Self::File { .. }
            | Self::Client { .. } => false,
        }
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
