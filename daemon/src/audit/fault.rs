//! Reasons why the audit log can't be written.

use std::io;
use std::path::{Path, PathBuf};

use nix::errno::Errno;

use crate::error::Error;

/// Reason why the audit log can't be written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AuditFault {
    /// Failed operation on the file.
    #[error("failed to {operation} the audit log {}: {}", path.display(), errno.desc())]
    Io {
        /// Name of the operation, for instance `write`.
        operation: &'static str,
        /// Path of the log.
        path: PathBuf,
        /// Error of the operating system.
        errno: Errno,
    },
    /// File that is a directory, a device or a pipe.
    #[error("the audit log {} is not a regular file: choose another path", .0.display())]
    WrongFileType(PathBuf),
    /// File whose end is not an audit log's.
    #[error(
        "the last line of {} is not a record of an audit log: move the file away, or choose another path",
        .0.display()
    )]
    ForeignFile(PathBuf),
    /// File that another process writes.
    #[error("another process has the audit log {} open: give each daemon a file of its own", .0.display())]
    InUse(PathBuf),
    /// File that does not answer within [`super::RECORD_TIMEOUT`].
    #[error("the disk of the audit log {} does not answer", .0.display())]
    NoAnswer(PathBuf),
    /// Queue of records that is full, because they come faster than the disk takes them.
    #[error("the queue of the audit log is full")]
    QueueFull,
    /// Log of a daemon that stops.
    #[error("the audit log is closed")]
    Closed,
}

impl AuditFault {
    /// Makes the fault of a failed operation.
    pub(super) fn io(operation: &'static str, path: &Path, error: &io::Error) -> Self {
        Self::Io {
            operation,
            path: path.to_owned(),
            // Only errors of the standard library have no number: a write that wrote nothing.
            errno: error.raw_os_error().map_or(Errno::EIO, Errno::from_raw),
        }
    }

    /// Makes the error of a start that this fault ends.
    pub(super) fn start_error(&self) -> Error {
        Error::start("the audit log", self.to_string())
    }

    /// Returns `true` if the host is short of something, which may get better while the daemon runs; `false` if the
    /// configuration has to change.
    pub(super) fn is_recoverable(&self) -> bool {
        match self {
            Self::Io { errno, .. } => matches!(
                errno,
                Errno::ENOSPC
                    | Errno::EDQUOT
                    | Errno::EROFS
                    | Errno::EIO
                    | Errno::EMFILE
                    | Errno::ENFILE
            ),
            Self::NoAnswer(_) | Self::QueueFull => true,
            Self::WrongFileType(_) | Self::ForeignFile(_) | Self::InUse(_) | Self::Closed => false,
        }
    }
}
