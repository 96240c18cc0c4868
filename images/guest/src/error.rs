//! Errors of the guest and their only mapping to a gRPC status. The daemon passes them on, so their reasons are those
//! of the public API.

use std::collections::HashMap;

use nix::errno::Errno;
use skilld_proto::ERROR_DOMAIN;
use skilld_proto::v1::ErrorReason as Reason;
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};

/// Failure of a guest RPC.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("{field}: {problem}")]
    Invalid {
        field: &'static str,
        problem: &'static str,
    },
    #[error("the workspace is not configured yet or is shutting down: use another one")]
    NotReady,
    #[error(
        "exec {id} not found: it never ran in this workspace, was deleted, or its retention is over; list the execs"
    )]
    ExecNotFound { id: String },
    #[error("exec {id} was started by another request: choose another id")]
    IdTaken { id: String },
    #[error("exec {id} has run and its result is no longer kept: choose another id")]
    IdForgotten { id: String },
    #[error("{max} execs are running, which is the limit: wait for one to end")]
    TooManyExecs { max: u32 },
    #[error("exec {id} has ended")]
    ExecNotRunning { id: String },
    #[error("exec {id} has no terminal: start it with one")]
    NoTerminal { id: String },
    #[error("stdin of exec {id} is closed after {committed} bytes")]
    StdinClosed { id: String, committed: u64 },
    #[error(
        "offset lies beyond the {committed} committed bytes, or the end before them: continue at {committed}"
    )]
    StdinOffset { committed: u64 },
    #[error("{max} writes to this stdin are waiting, which is the limit: wait for one to end")]
    TooManyWrites { max: usize },
    #[error("{max} streams of this kind are open, which is the limit: close one")]
    TooManyStreams { max: usize },
    #[error("exec {id} was started without an open stdin: start it with one")]
    NoStdin { id: String },
    #[error(
        "output of {stream} before offset {oldest} was dropped: continue at {oldest}, or accept gaps"
    )]
    OutputDropped { stream: &'static str, oldest: u64 },
    #[error("{path} leads out of the workspace: use a path beneath it")]
    PathEscapes { path: String },
    #[error(
        "{path} is read-only: only the daemon writes skills/ and metadata.json; write to work/ or out/ instead"
    )]
    ReadOnly { path: String },
    #[error("file {path} not found")]
    FileNotFound { path: String },
    #[error("{path} is not {wanted}")]
    WrongFileType { path: String, wanted: &'static str },
    #[error("permission denied for {path}")]
    FilePermission { path: String },
    #[error(
        "no space left for {path}: delete files of the workspace, or use a pool with a larger disk"
    )]
    DiskFull { path: String },
    #[error("{} {problem}", archive_subject(entry))]
    ArchiveInvalid {
        entry: String,
        problem: &'static str,
    },
    #[error("the received bytes have sha256 {sha256}, not the one of the request")]
    ChecksumMismatch { sha256: String },
    #[error("more than {limit} {what}")]
    LimitExceeded { what: &'static str, limit: u64 },
    #[error("{path}: {errno}")]
    Io { path: String, errno: Errno },
}

impl Error {
    /// Returns the error for a field of a request that has a fault.
    pub(crate) fn invalid(field: &'static str, problem: &'static str) -> Self {
        Self::Invalid { field, problem }
    }

    /// Returns the error for a failed operation on the file at `path`.
    pub(crate) fn io(path: &str, error: &std::io::Error) -> Self {
        let errno = error.raw_os_error().map_or(Errno::EIO, Errno::from_raw);
        Self::file(path, errno)
    }

    /// Returns the error for a failed system call on `path`.
    pub(crate) fn file(path: &str, errno: Errno) -> Self {
        let path = path.to_owned();
        // Errno has a hundred variants. Those without a meaning of their own become Io.
        #[expect(clippy::wildcard_enum_match_arm, reason = "errno is an open set")]
        match errno {
            Errno::ENOENT => Self::FileNotFound { path },
            // The kernel answers EXDEV for a path that leads out, and ELOOP for a link where none is followed.
            Errno::EXDEV | Errno::ELOOP => Self::PathEscapes { path },
            Errno::EROFS => Self::ReadOnly { path },
            Errno::EACCES | Errno::EPERM => Self::FilePermission { path },
            Errno::ENOSPC | Errno::EDQUOT => Self::DiskFull { path },
            Errno::ENOTDIR => Self::WrongFileType {
                path,
                wanted: "a directory",
            },
            Errno::EISDIR => Self::WrongFileType {
                path,
                wanted: "a file",
            },
            Errno::ENAMETOOLONG => Self::Invalid {
                field: "path",
                problem: "is too long",
            },
            errno => Self::Io { path, errno },
        }
    }

    /// Returns code, reason and metadata of the error.
    fn parts(&self) -> (Code, Reason, Vec<(&'static str, String)>) {
        use Error as E;
        let none = Vec::new;
        let one = |name: &'static str, value: &String| vec![(name, value.clone())];
        let path = |path: &String| one("path", path);
        match self {
            E::Invalid { field, .. } => (
                Code::InvalidArgument,
                Reason::InvalidRequest,
                vec![("field", (*field).to_owned())],
            ),
            E::NotReady => (Code::FailedPrecondition, Reason::WorkspaceNotReady, none()),
            E::ExecNotFound { id } => (Code::NotFound, Reason::ExecNotFound, one("exec", id)),
            E::IdTaken { .. } | E::IdForgotten { .. } => {
                (Code::AlreadyExists, Reason::IdTaken, none())
            }
            E::TooManyExecs { .. } | E::TooManyWrites { .. } | E::TooManyStreams { .. } => {
                (Code::ResourceExhausted, Reason::QuotaExceeded, none())
            }
            E::ExecNotRunning { .. } | E::NoTerminal { .. } | E::NoStdin { .. } => {
                (Code::FailedPrecondition, Reason::ExecNotRunning, none())
            }
            E::StdinClosed { committed, .. } => (
                Code::FailedPrecondition,
                Reason::StdinClosed,
                vec![("committed_offset", committed.to_string())],
            ),
            E::StdinOffset { committed } => (
                Code::OutOfRange,
                Reason::InvalidRequest,
                vec![
                    ("field", "offset".to_owned()),
                    ("committed_offset", committed.to_string()),
                ],
            ),
            E::OutputDropped { stream, oldest } => (
                Code::OutOfRange,
                Reason::OutputDropped,
                vec![
                    ("field", "offsets".to_owned()),
                    ("stream", (*stream).to_owned()),
                    ("oldest_offset", oldest.to_string()),
                ],
            ),
            E::PathEscapes { path: p } => (Code::InvalidArgument, Reason::PathEscapes, path(p)),
            E::ReadOnly { path: p } => (Code::FailedPrecondition, Reason::ReadOnly, path(p)),
            E::FileNotFound { path: p } => (Code::NotFound, Reason::FileNotFound, path(p)),
            E::WrongFileType { path: p, .. } => {
                (Code::FailedPrecondition, Reason::WrongFileType, path(p))
            }
            E::FilePermission { path: p } => {
                (Code::PermissionDenied, Reason::FilePermission, path(p))
            }
            E::DiskFull { path: p } => (Code::ResourceExhausted, Reason::DiskFull, path(p)),
            E::ArchiveInvalid { entry, .. } => (
                Code::InvalidArgument,
                Reason::ArchiveInvalid,
                vec![("entry", entry.clone())],
            ),
            E::ChecksumMismatch { sha256 } => (
                Code::InvalidArgument,
                Reason::ChecksumMismatch,
                vec![("sha256", sha256.clone())],
            ),
            E::LimitExceeded { limit, .. } => (
                Code::ResourceExhausted,
                Reason::LimitExceeded,
                vec![("limit", limit.to_string())],
            ),
            E::Io { path: p, .. } => (Code::Internal, Reason::Internal, path(p)),
        }
    }
}

impl From<Error> for Status {
    fn from(error: Error) -> Self {
        let (code, reason, pairs) = error.parts();
        let metadata: HashMap<String, String> = pairs
            .into_iter()
            .map(|(key, value)| (key.to_owned(), value))
            .collect();
        let mut details =
            ErrorDetails::with_error_info(reason.error_info_name(), ERROR_DOMAIN, metadata);
        if let Error::Invalid { field, problem } = &error {
            details.add_bad_request_violation(*field, *problem);
        }
        Self::with_error_details(code, error.to_string(), details)
    }
}

/// Returns what the problem of an archive is about: an entry, or the whole archive if its name is empty.
fn archive_subject(entry: &str) -> String {
    match entry {
        "" => "the archive".to_owned(),
        entry => format!("archive entry {entry:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_error_names_the_entry_or_the_archive() {
        for (entry, expected) in [
            ("a/b", "archive entry \"a/b\" is cut off"),
            ("", "the archive is cut off"),
        ] {
            let entry = entry.to_owned();
            let problem = "is cut off";
            let error = Error::ArchiveInvalid { entry, problem };
            assert_eq!(error.to_string(), expected);
        }
    }
}
