//! Why an input cannot be had from where it should come.

use nix::errno::Errno;
use skilld_proto::v1::Reason;
use tonic::Code;

/// Why an input cannot be had.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SourceFault {
    /// The configuration does not allow it. For instance `is beneath none of the folders …`.
    #[error("{0}")]
    Forbidden(String),
    /// There is no such file.
    #[error("does not exist")]
    Missing,
    /// FIFO, socket or device.
    #[error("is neither a regular file nor a folder")]
    NotAFile,
    /// The system refuses it, or fails.
    #[error("cannot be read: {0}")]
    Unreadable(String),
    /// A name in it is not UTF-8.
    #[error("has a file whose name is not UTF-8: {0}; pack it into a tar for StageFiles")]
    Name(String),
    /// More entries, or folders within folders.
    #[error("has more entries, or is deeper, than the limit of {0}")]
    TooMany(u64),
    /// It lost bytes while it was read.
    #[error("changed while it was read; stage it again once it is complete")]
    Changed,
    /// It is a URL, and what is there has more bytes.
    #[error("has more bytes than the limit of {0}")]
    TooLarge(u64),
    /// It is a URL, and its server did not give it.
    #[error("cannot be fetched: {0}")]
    Fetch(String),
}

impl SourceFault {
    /// What the system says.
    #[must_use]
    pub fn from_errno(errno: Errno) -> Self {
        if matches!(errno, Errno::ENOENT | Errno::ENOTDIR) {
            Self::Missing
        } else if matches!(errno, Errno::EXDEV | Errno::ELOOP) {
            Self::Forbidden("leads out of its folder by a link".into())
        } else if errno == Errno::ENXIO {
            Self::NotAFile
        } else {
            Self::Unreadable(errno.desc().to_owned())
        }
    }

    pub(super) fn kind(&self) -> (Code, Reason) {
        match self {
            Self::Forbidden(_) => (Code::PermissionDenied, Reason::PermissionDenied),
            Self::Missing => (Code::NotFound, Reason::FileNotFound),
            Self::Unreadable(_) => (Code::PermissionDenied, Reason::FilePermission),
            Self::TooMany(_) | Self::TooLarge(_) => {
                (Code::ResourceExhausted, Reason::LimitExceeded)
            }
            Self::NotAFile | Self::Name(_) | Self::Changed => {
                (Code::FailedPrecondition, Reason::WrongFileType)
            }
            Self::Fetch(_) => (Code::FailedPrecondition, Reason::FetchFailed),
        }
    }
}
