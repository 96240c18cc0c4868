//! Shortages of the host, distinguished from defects of skilld: a full or read-only disk, and no file descriptors left.

use std::error::Error as StdError;
use std::io::{self, ErrorKind};

use nix::errno::Errno;
use skilld_proto::v1::ErrorReason;
use tonic::Code;

use super::Error;

/// Shortage of the host that an operator can end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HostFault {
    /// File system without free bytes or inodes, or with a used-up quota.
    DiskFull,
    /// File system that is mounted read-only, or became read-only after an error.
    DiskReadOnly,
    /// Process or host without free file descriptors.
    TooManyFiles,
}

impl HostFault {
    /// Finds a shortage in an error or one of its sources. Libraries wrap the system's error and lose its number.
    pub fn of(error: &(dyn StdError + 'static)) -> Option<Self> {
        let mut next = Some(error);
        while let Some(current) = next {
            if let Some(system) = current.downcast_ref::<io::Error>() {
                if let Some(fault) = Self::of_io(system) {
                    return Some(fault);
                }
                // `source` skips the error that an I/O error wraps.
                if let Some(inner) = system.get_ref()
                    && let Some(fault) = Self::of(inner)
                {
                    return Some(fault);
                }
            }
            next = current.source();
        }
        None
    }

    fn of_io(error: &io::Error) -> Option<Self> {
        match error.raw_os_error().map(Errno::from_raw) {
            Some(Errno::EMFILE | Errno::ENFILE) => return Some(Self::TooManyFiles),
            Some(Errno::ENOSPC | Errno::EDQUOT) => return Some(Self::DiskFull),
            Some(Errno::EROFS) => return Some(Self::DiskReadOnly),
            _ => {}
        }
        // An error that a library made has no number.
        let kind = error.kind();
        if matches!(kind, ErrorKind::StorageFull | ErrorKind::QuotaExceeded) {
            return Some(Self::DiskFull);
        }
        (kind == ErrorKind::ReadOnlyFilesystem).then_some(Self::DiskReadOnly)
    }

    /// Returns a message with the shortage and its remedy. `disk` names the file system, for instance `a disk of the
    /// server`: the system's error does not name it, and clients must not see paths of the host.
    pub fn remedy(self, disk: &str) -> String {
        match self {
            Self::DiskFull => format!(
                "{disk} has no bytes or no inodes left: free some, delete artifacts, or give it more; running commands go on"
            ),
            Self::DiskReadOnly => format!(
                "{disk} is read-only: see the kernel's log for the reason, repair it, and mount it for writing again; \
                 running commands go on"
            ),
            Self::TooManyFiles => {
                "the server has no file descriptors left: close connections, or raise its limit (LimitNOFILE) or the host's \
                 (fs.file-max) and restart it; running commands go on"
                    .to_owned()
            }
        }
    }

    /// Makes the error of an operation that failed because of this shortage.
    pub fn error(self, operation: &str) -> Error {
        let errno = match self {
            Self::DiskFull => Errno::ENOSPC,
            Self::DiskReadOnly => Errno::EROFS,
            Self::TooManyFiles => Errno::EMFILE,
        };
        Error::io(operation, errno.into())
    }

    fn kind(self) -> (Code, ErrorReason) {
        match self {
            Self::DiskFull => (Code::ResourceExhausted, ErrorReason::StateDiskFull),
            Self::DiskReadOnly => (Code::Unavailable, ErrorReason::StateDiskReadOnly),
            Self::TooManyFiles => (Code::ResourceExhausted, ErrorReason::TooManyFiles),
        }
    }
}

impl Error {
    /// Returns the shortage that caused a failed operation on the host; `None` for other errors.
    pub(super) fn host_fault(&self) -> Option<HostFault> {
        if let Self::Io { source, .. } = self {
            return HostFault::of(source);
        }
        None
    }

    /// Returns code and reason of a failed operation on the host.
    pub(super) fn host_kind(source: &io::Error) -> (Code, ErrorReason) {
        HostFault::of(source).map_or((Code::Internal, ErrorReason::Internal), HostFault::kind)
    }

    /// Returns the message for clients. Details of the host go to the log.
    pub(super) fn message(&self) -> String {
        if let Self::GuestLost { .. } = self {
            // Only here: the log and the problems tell operators of guests that were lost before any call.
            return format!("{self}; look at the workspace before repeating the call");
        }
        let Some(fault) = self.host_fault() else {
            return self.to_string();
        };
        tracing::warn!(error = %super::Chain(self), "the host is short of something");
        fault.remedy("a disk of the server (its log names the file)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("wrapped")]
    struct WrapperError(#[source] io::Error);

    #[test]
    fn a_shortage_of_the_host_has_its_reason_however_it_is_wrapped() {
        let cases = [
            (
                Errno::ENOSPC,
                Code::ResourceExhausted,
                ErrorReason::StateDiskFull,
            ),
            (
                Errno::EDQUOT,
                Code::ResourceExhausted,
                ErrorReason::StateDiskFull,
            ),
            (
                Errno::EROFS,
                Code::Unavailable,
                ErrorReason::StateDiskReadOnly,
            ),
            (
                Errno::EMFILE,
                Code::ResourceExhausted,
                ErrorReason::TooManyFiles,
            ),
            (
                Errno::ENFILE,
                Code::ResourceExhausted,
                ErrorReason::TooManyFiles,
            ),
            (Errno::EIO, Code::Internal, ErrorReason::Internal),
        ];
        for (errno, code, reason) in cases {
            let system = || io::Error::from(errno);
            // The crate tempfile wraps errors like this; `twice` adds another layer.
            let wrapped = || io::Error::new(system().kind(), WrapperError(system()));
            let twice = io::Error::other(WrapperError(wrapped()));
            for source in [system(), wrapped(), twice] {
                let error = Error::Io {
                    operation: "write /var/lib/skilld/x".into(),
                    source,
                };
                assert_eq!(error.kind(), (code, reason), "{error:?}");
                let is_shortage = reason != ErrorReason::Internal;
                assert_eq!(error.retry_after().is_some(), is_shortage);
                assert_eq!(!error.message().contains("/var"), is_shortage);
                // The system's error does not name the disk.
                assert!(!error.message().contains("state directory"));
            }
        }
    }
}
