//! Error of an attempt to fetch a remote root, and its conversion from the errors of fetching and storing.

use std::io;

use crate::content_store::content_hashing::IngestError;
use crate::error::Error;
use crate::fetch::{FetchError, FetchErrorKind, WebUrl};
use crate::parse::problem::Problem;

/// Error of a failed refresh of a remote root: the problem to report for that root.
#[derive(Debug)]
pub(super) struct RefreshError(pub(super) Problem);

impl RefreshError {
    /// Makes the error of a document from which nothing can be fetched.
    pub(super) fn of_document(from: &WebUrl, why: &str) -> Self {
        Self(Problem::error(
            "root.document_invalid",
            format!("{from} {why}"),
        ))
    }
}

impl From<Problem> for RefreshError {
    fn from(problem: Problem) -> Self {
        Self(problem)
    }
}

impl From<IngestError> for RefreshError {
    fn from(error: IngestError) -> Self {
        Self(error.into_problem())
    }
}

impl From<Error> for RefreshError {
    fn from(error: Error) -> Self {
        Self(Problem::error("root.cache", error.to_string()))
    }
}

impl From<io::Error> for RefreshError {
    fn from(error: io::Error) -> Self {
        let message = format!("what was fetched cannot be stored: {error}");
        Self(Problem::error("root.cache", message))
    }
}

impl From<FetchError> for RefreshError {
    fn from(error: FetchError) -> Self {
        let code = match error.kind {
            FetchErrorKind::Url { .. } => "root.url_invalid",
            FetchErrorKind::Address { .. } | FetchErrorKind::Downgrade { .. } => "root.refused",
            FetchErrorKind::Redirects { .. }
            | FetchErrorKind::Unreachable { .. }
            | FetchErrorKind::Timeout { .. }
            | FetchErrorKind::Status { .. }
            | FetchErrorKind::Client { .. } => "root.unreachable",
            FetchErrorKind::TooLarge { .. } => "root.too_large",
            FetchErrorKind::Checksum { .. } => "root.checksum_mismatch",
            FetchErrorKind::File { .. } => "root.cache",
        };
        Self(Problem::error(code, error.to_string()))
    }
}
