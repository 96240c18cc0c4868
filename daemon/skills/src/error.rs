//! Errors of the crate skilld-skills. The daemon maps each variant to one of its own, and so to a status.

use std::fmt;
use std::io;

use nix::errno::Errno;

/// Result of an operation of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Error of an operation on skills.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Invalid field of a request.
    #[error("{field}: {description}")]
    Invalid {
        /// Path of the field.
        field: String,
        /// Description of the fault and of a correct value.
        description: String,
    },
    /// No skill answers to the reference.
    #[error("there is no skill {name}")]
    SkillNotFound {
        /// The reference as requested.
        name: String,
        /// Names that may have been meant, best first.
        nearest: Vec<String>,
    },
    /// The skill exists and cannot be used.
    #[error("skill {name} cannot be used: {problem}")]
    SkillInvalid {
        /// The reference as requested.
        name: String,
        /// Code and message of the first problem.
        problem: String,
    },
    /// The version is published already with other content.
    #[error("{name} has version {version} already, with other contents (sha256:{digest})")]
    VersionTaken {
        /// Resource name.
        name: String,
        /// Version as the skill says, or `none`.
        version: String,
        /// Digest of the published content.
        digest: String,
    },
    /// A tenant would exceed its quota.
    #[error("tenant {tenant} has used its quota of {resource}: {used} of {limit}")]
    TenantQuota {
        /// Name of the tenant.
        tenant: String,
        /// Name of the quota in the file of tenants.
        resource: &'static str,
        /// Bytes that the tenant holds.
        used: u64,
        /// Largest number of bytes.
        limit: u64,
    },
    /// The skill comes from a configured root and cannot be deleted.
    #[error("skill {name} comes from the root {root}, which is read only")]
    SkillReadOnly {
        /// The reference as requested.
        name: String,
        /// The root as configured.
        root: String,
    },
    /// A path leaves the skill.
    #[error("{path} leaves the skill")]
    LeavesSkill {
        /// The path as given.
        path: String,
    },
    /// The skill has no such file.
    #[error("the skill has no file {path}")]
    FileNotFound {
        /// Normalised path.
        path: String,
        /// Paths that it has, best first.
        nearest: Vec<String>,
    },
    /// The path names something else than was requested.
    #[error("{path:?} is not {wanted}")]
    WrongFileType {
        /// Normalised path.
        path: String,
        /// For instance `a file`.
        wanted: &'static str,
    },
    /// A limit is exceeded.
    #[error("{what} is over the limit of {limit}")]
    LimitExceeded {
        /// Name of the thing that is too large.
        what: String,
        /// The limit.
        limit: u64,
    },
    /// An archive cannot be unpacked, or must not be.
    #[error("the archive cannot be taken: {entry} {problem}")]
    ArchiveInvalid {
        /// The entry concerned; empty if it is the whole archive.
        entry: String,
        /// Description of the fault; fits after the entry's name.
        problem: String,
    },
    /// The daemon is shutting down.
    #[error("the server is draining")]
    Draining,
    /// An operation on the host failed.
    #[error("failed to {operation}")]
    Io {
        /// For instance `read /var/lib/…`.
        operation: String,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// A defect of skilld.
    #[error("internal error: {0}")]
    Internal(String),
}

impl Error {
    /// Returns a conversion of the system's error during an operation, for instance `read /var/lib/…`.
    pub fn io(operation: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let operation = operation.into();
        move |source| Self::Io { operation, source }
    }

    /// Makes the error of one wrong field.
    pub fn invalid(field: impl Into<String>, description: impl Into<String>) -> Self {
        Self::Invalid {
            field: field.into(),
            description: description.into(),
        }
    }
}

/// Returns `true` if the process or the host has no file descriptors left.
pub(crate) fn is_out_of_descriptors(error: &io::Error) -> bool {
    let errno = error.raw_os_error().map(Errno::from_raw);
    matches!(errno, Some(Errno::EMFILE | Errno::ENFILE))
}

/// Returns `true` if a path leads to nothing, whatever the state of the host.
pub(crate) fn leads_nowhere(error: &io::Error) -> bool {
    let errno = error.raw_os_error().map(Errno::from_raw);
    matches!(
        errno,
        Some(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP | Errno::ENAMETOOLONG)
    )
}

/// Turns an error of a tolerated kind into success.
///
/// # Errors
/// The error, if it is of another kind.
pub fn tolerate(kind: io::ErrorKind, result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == kind => Ok(()),
        result => result,
    }
}

/// Reads the next bytes into a buffer, and again after an interruption. Returns no bytes at the end.
pub(crate) fn read_chunk<'a>(
    source: &mut (impl io::Read + ?Sized),
    buffer: &'a mut [u8],
) -> io::Result<&'a [u8]> {
    loop {
        match source.read(buffer) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            read => return Ok(buffer.get(..read?).unwrap_or_default()),
        }
    }
}

/// Displays an error with all of its sources.
#[derive(Debug)]
pub struct ErrorChain<'a>(pub &'a dyn std::error::Error);

impl fmt::Display for ErrorChain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)?;
        let mut source = self.0.source();
        while let Some(error) = source {
            write!(f, ": {error}")?;
            source = error.source();
        }
        Ok(())
    }
}
