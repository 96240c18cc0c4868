//! Why something of a root on a server is not there, and how its problem says so. Pure.

use std::io;

use super::super::Problem;
use crate::fetch::FetchError;

/// Why one skill of several is not there.
pub(super) enum Fault {
    Fetch(FetchError),
    Other(Problem),
}

// === impl Fault ===

impl Fault {
    /// As a problem of its root.
    pub(super) fn into_problem(self) -> Problem {
        match self {
            Self::Fetch(error) => problem(&error),
            Self::Other(problem) => problem,
        }
    }
}

/// A failed fetch as a problem of its root.
pub(super) fn problem(error: &FetchError) -> Problem {
    let code = match error {
        FetchError::Url { .. } => "root.url_invalid",
        FetchError::Address { .. } | FetchError::Downgrade { .. } => "root.refused",
        FetchError::Redirects { .. }
        | FetchError::Unreachable { .. }
        | FetchError::Timeout { .. }
        | FetchError::Status { .. }
        | FetchError::Client { .. } => "root.unreachable",
        FetchError::TooLarge { .. } => "root.too_large",
        FetchError::Checksum { .. } => "root.checksum_mismatch",
        FetchError::File { .. } => "root.cache",
    };
    Problem::error(code, error.to_string())
}

/// The cache cannot be used, or not for this.
pub(super) fn not_stored(error: &io::Error) -> Problem {
    if error.kind() == io::ErrorKind::FileTooLarge {
        return Problem::error("archive.too_large", error.to_string());
    }
    Problem::error(
        "root.cache",
        format!("the cache cannot be used, see skills.cache_dir: {error}"),
    )
}

/// An answer that fits no question of ours.
pub(super) fn unexpected() -> Fault {
    let message = "its server says that it has not changed, which was not asked";
    Fault::Other(Problem::error("root.unreachable", message))
}
