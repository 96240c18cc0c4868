//! What the guest says when it could not do its job, and its only mapping to a status. The daemon passes
//! these on: their reasons are those of the public API.

use std::collections::HashMap;

use nix::errno::Errno;
use skilld_proto::ERROR_DOMAIN;
use skilld_proto::v1::Reason;
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};

/// Every way in which a call can fail.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("{field}: {problem}")]
    Invalid {
        field: &'static str,
        problem: &'static str,
    },
    #[error("the workspace is not configured or is shutting down")]
    NotReady,
    #[error("no exec {id} here")]
    ExecNotFound { id: String },
    #[error("exec {id} was started by another request")]
    IdTaken { id: String },
    #[error("exec {id} has run, and its result is no longer kept")]
    IdForgotten { id: String },
    #[error("{max} execs are running already")]
    TooManyExecs { max: u32 },
    #[error("exec {id} has ended")]
    ExecNotRunning { id: String },
    #[error("exec {id} has no terminal")]
    NoTerminal { id: String },
    #[error("exec {id} takes no more stdin")]
    StdinClosed { id: String, committed: u64 },
    #[error("offset: lies beyond the {committed} bytes that are committed, or the end before them")]
    StdinOffset { committed: u64 },
    #[error("{max} writes to this stdin are waiting already")]
    TooManyWrites { max: usize },
    #[error("{max} such streams are open already")]
    TooManyStreams { max: usize },
    #[error("exec {id} was started without a stdin to write to")]
    NoStdin { id: String },
    #[error("output before offset {oldest} of {stream} is gone")]
    OutputDropped { stream: &'static str, oldest: u64 },
    #[error("{path} leads out of the workspace")]
    PathEscapes { path: String },
    #[error("{path} is read-only, as everything beneath skills/ and metadata.json")]
    ReadOnly { path: String },
    #[error("no file {path}")]
    FileNotFound { path: String },
    #[error("{path} is not {wanted}")]
    WrongFileType { path: String, wanted: &'static str },
    #[error("{path} may not be accessed")]
    FilePermission { path: String },
    #[error("no space left for {path}")]
    DiskFull { path: String },
    #[error("archive entry {entry:?}: {problem}")]
    ArchiveInvalid {
        entry: String,
        problem: &'static str,
    },
    #[error("the bytes have sha256 {sha256}")]
    ChecksumMismatch { sha256: String },
    #[error("more than {limit} {what}")]
    LimitExceeded { what: &'static str, limit: u64 },
    #[error("{path}: {errno}")]
    Io { path: String, errno: Errno },
}

impl Error {
    /// What a failed system call on a path means.
    pub(crate) fn file(path: &str, errno: Errno) -> Self {
        let path = path.to_owned();
        // Errno has a hundred variants; those without a meaning of their own are Io.
        #[expect(clippy::wildcard_enum_match_arm, reason = "errno is an open set")]
        match errno {
            Errno::ENOENT => Self::FileNotFound { path },
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

    fn parts(&self) -> (Code, Reason, Vec<(&'static str, String)>) {
        use Error as E;
        let none = Vec::new;
        let path = |path: &String| vec![("path", path.clone())];
        match self {
            E::Invalid { field, .. } => (
                Code::InvalidArgument,
                Reason::InvalidRequest,
                vec![("field", (*field).to_owned())],
            ),
            E::NotReady => (Code::FailedPrecondition, Reason::WorkspaceNotReady, none()),
            E::ExecNotFound { .. } => (Code::NotFound, Reason::ExecNotFound, none()),
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
        let (code, reason, metadata) = error.parts();
        let reason = reason.as_str_name().trim_start_matches("REASON_");
        let metadata: HashMap<String, String> = metadata
            .into_iter()
            .map(|(key, value)| (key.to_owned(), value))
            .collect();
        let mut details = ErrorDetails::with_error_info(reason, ERROR_DOMAIN, metadata);
        if let Error::Invalid { field, problem } = &error {
            details.add_bad_request_violation(*field, *problem);
        }
        Self::with_error_details(code, error.to_string(), details)
    }
}
