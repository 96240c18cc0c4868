//! Errors of reading an input from its source.

use nix::errno::Errno;
use skilld_proto::v1::ErrorReason;
use tonic::Code;

/// Reason why an input cannot be read from its source.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InputSourceError {
    /// Source that the configuration does not permit; the text is a predicate such as `is beneath none of the folders
    /// …`.
    #[error("{0}")]
    Forbidden(String),
    /// Missing file.
    #[error("does not exist")]
    Missing,
    /// FIFO, socket or device.
    #[error("is neither a regular file nor a folder")]
    NotAFile,
    /// Operating system error.
    #[error("cannot be read: {0}")]
    Unreadable(String),
    /// File name that is not UTF-8.
    #[error("has a file whose name is not UTF-8: {0}; pack it into a tar for StageFiles")]
    Name(String),
    /// Number of entries, or depth of folders, over the limit.
    #[error("has more entries, or is deeper, than the limit of {0}")]
    TooMany(u64),
    /// File that became shorter while it was read.
    #[error("changed while it was read; stage it again once it is complete")]
    Changed,
    /// URL whose content has more bytes than the limit.
    #[error("has more bytes than the limit of {0}")]
    TooLarge(u64),
    /// URL that could not be fetched.
    #[error("cannot be fetched: {0}")]
    Fetch(String),
}

impl InputSourceError {
    /// Converts an error number of the operating system.
    pub fn from_errno(errno: Errno) -> Self {
        if matches!(errno, Errno::ENOENT | Errno::ENOTDIR) {
            Self::Missing
        } else if matches!(errno, Errno::EXDEV | Errno::ELOOP) {
            // ELOOP is the answer to a link into the open files of /proc, and to one in a circle.
            Self::Forbidden("leads out of its folder by a link".into())
        } else if errno == Errno::ENXIO {
            // open(2) answers so for a socket, and for a device without a driver.
            Self::NotAFile
        } else {
            Self::Unreadable(errno.desc().to_owned())
        }
    }

    pub(super) fn kind(&self) -> (Code, ErrorReason) {
        match self {
            Self::Forbidden(_) => (Code::PermissionDenied, ErrorReason::PermissionDenied),
            Self::Missing => (Code::NotFound, ErrorReason::FileNotFound),
            Self::Unreadable(_) => (Code::PermissionDenied, ErrorReason::FilePermission),
            Self::TooMany(_) | Self::TooLarge(_) => {
                (Code::ResourceExhausted, ErrorReason::LimitExceeded)
            }
            Self::NotAFile | Self::Name(_) | Self::Changed => {
                (Code::FailedPrecondition, ErrorReason::WrongFileType)
            }
            Self::Fetch(_) => (Code::FailedPrecondition, ErrorReason::FetchFailed),
        }
    }
}
