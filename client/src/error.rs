//! Errors for programs (codes, reasons, metadata) and for people (a message and what to do next).

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use skilld_proto::v1::ErrorReason;
use tonic::{Code, Status};
use tonic_types::StatusExt;

mod hint;

pub(crate) use hint::connect_hint;

/// Error of a call. Displays as a message that says what to do next where that is known.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The endpoint is not one that this client can use.
    #[error("cannot use the endpoint {endpoint:?}: {problem}")]
    Endpoint {
        /// Endpoint as the caller gave it.
        endpoint: String,
        /// Description of the fault.
        problem: String,
    },
    /// A credential cannot be read.
    #[error("cannot use {credential}: {problem}")]
    Credential {
        /// Name of the credential: a file, or what it is.
        credential: String,
        /// Description of the fault, without any part of a secret.
        problem: String,
    },
    /// No connection could be made.
    #[error("cannot connect to {endpoint}: {cause}; {hint}")]
    Connect {
        /// Endpoint as the caller gave it.
        endpoint: String,
        /// Message of the operating system.
        cause: String,
        /// Advice for the user.
        hint: String,
        /// Error of the transport or of the TLS handshake.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The server, or the way to it, answered with a status other than OK.
    #[error(transparent)]
    Status(Box<Failure>),
    /// A stream broke and could not be attached again in time. The exec goes on.
    #[error(
        "lost the stream of {exec} at stdout {stdout}, stderr {stderr}: {source}; attach from there"
    )]
    StreamLost {
        /// Name of the exec, `workspaces/{workspace}/execs/{exec}`.
        exec: String,
        /// Offset of the next byte of stdout.
        stdout: u64,
        /// Offset of the next byte of stderr.
        stderr: u64,
        /// Answer to the last attempt.
        source: Box<Failure>,
    },
    /// A file on this side could not be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// Path of the file.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// A skill cannot be packed; nothing was sent.
    #[error("cannot publish {}: {problem}", path.display())]
    Pack {
        /// Path of the skill's folder or archive.
        path: PathBuf,
        /// Description and place of the fault.
        problem: String,
    },
    /// A file's name, as the server gave it, leads out of the target directory.
    #[error("refused to write {path:?}: {problem}")]
    UnsafeName {
        /// Path as the server sent it.
        path: String,
        /// Description of the fault.
        problem: &'static str,
    },
    /// Bytes were damaged on their way.
    #[error(
        "{path}: the bytes have the sha256 {actual}, the server sent {expected}; collect again"
    )]
    Checksum {
        /// Path as the server sent it.
        path: String,
        /// SHA-256 that the server announced.
        expected: String,
        /// SHA-256 of the received bytes.
        actual: String,
    },
    /// The server did what its API rules out.
    #[error("the server broke the protocol: {problem}; are client and server of the same release?")]
    Protocol {
        /// Description of the server's behaviour.
        problem: String,
    },
}

impl Error {
    /// Returns the failure behind the error, if the server or the way to it answered with a status.
    #[must_use]
    pub fn failure(&self) -> Option<&Failure> {
        match self {
            Self::Status(failure)
            | Self::StreamLost {
                source: failure, ..
            } => Some(failure),
            Self::Endpoint { .. }
            | Self::Credential { .. }
            | Self::Connect { .. }
            | Self::Io { .. }
            | Self::Pack { .. }
            | Self::UnsafeName { .. }
            | Self::Checksum { .. }
            | Self::Protocol { .. } => None,
        }
    }

    /// Returns skilld's reason, if skilld gave one.
    #[must_use]
    pub fn reason(&self) -> Option<ErrorReason> {
        self.failure().and_then(|failure| failure.reason)
    }

    /// Returns the status code, if there is one.
    #[must_use]
    pub fn code(&self) -> Option<Code> {
        self.failure().map(|failure| failure.code)
    }

    pub(crate) fn protocol(problem: impl Into<String>) -> Self {
        Self::Protocol {
            problem: problem.into(),
        }
    }

    pub(crate) fn pack(path: &Path, problem: impl Into<String>) -> Self {
        Self::Pack {
            path: path.to_owned(),
            problem: problem.into(),
        }
    }
}

/// Returns a function that adds a path to an error of the operating system.
pub(crate) fn io_error(path: &Path) -> impl FnOnce(io::Error) -> Error {
    let path = path.to_owned();
    |source| Error::Io { path, source }
}

impl From<Status> for Error {
    fn from(status: Status) -> Self {
        Self::Status(Box::new(Failure::from(status)))
    }
}

/// Status of a failed call, with its details decoded.
#[derive(Clone, Debug)]
pub struct Failure {
    /// Status code. UNAVAILABLE promises that nothing was started if `reason` is set: the gRPC library makes it too, for
    /// a connection that broke in the middle of a call.
    pub code: Code,
    /// Reason that skilld gave; `None` if another party answered, such as a proxy.
    pub reason: Option<ErrorReason>,
    /// Message for people.
    pub message: String,
    /// Details of the reason; its keys are listed with the reasons.
    pub metadata: BTreeMap<String, String>,
    /// Time after which the server accepts another try; `None` if it named none.
    pub retry_after: Option<Duration>,
    /// Faults in the request's fields.
    pub violations: Vec<FieldViolation>,
    /// Name of the resource that the failure is about.
    pub resource: Option<String>,
}

/// Fault in one field of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldViolation {
    /// Path of the field, for instance `spec.argv`.
    pub field: String,
    /// Description of the fault.
    pub description: String,
}

impl Failure {
    /// Returns `true` if a quota of the tenant is used up; `false` for limits of the whole daemon.
    #[must_use]
    pub fn is_tenant_quota(&self) -> bool {
        self.reason == Some(ErrorReason::QuotaExceeded) && self.metadata.contains_key("used")
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        for violation in &self.violations {
            if !self.message.contains(&violation.description) {
                write!(f, "; {}: {}", violation.field, violation.description)?;
            }
        }
        match self.reason {
            Some(reason) => {
                return write!(f, " ({})", reason.error_info_name());
            }
            None => write!(f, " ({:?})", self.code)?,
        }
        match hint::transport_hint(self.code) {
            Some(hint) => write!(f, "; {hint}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Failure {}

impl From<Status> for Failure {
    fn from(status: Status) -> Self {
        let details = status.get_error_details();
        let info = details
            .error_info()
            .filter(|info| info.domain == skilld_proto::ERROR_DOMAIN);
        let violations = details
            .bad_request()
            .map(|request| request.field_violations.as_slice())
            .unwrap_or_default();
        Self {
            code: status.code(),
            reason: info.and_then(|info| ErrorReason::from_error_info_name(&info.reason)),
            message: describe_status(&status),
            metadata: info
                .map(|info| info.metadata.clone().into_iter().collect())
                .unwrap_or_default(),
            retry_after: details.retry_info().and_then(|info| info.retry_delay),
            violations: violations
                .iter()
                .map(|violation| FieldViolation {
                    field: violation.field.clone(),
                    description: violation.description.clone(),
                })
                .collect(),
            resource: details
                .resource_info()
                .map(|info| info.resource_name.clone())
                .filter(|name| !name.is_empty()),
        }
    }
}

/// Returns the status's message, and the root cause when the transport made the status: "transport error" alone does
/// not help.
fn describe_status(status: &Status) -> String {
    let mut message = status.message().to_owned();
    if message.is_empty() {
        message = status.code().description().to_owned();
    }
    if let Some(cause) = root_cause(status)
        && !message.contains(&cause)
    {
        message = format!("{message}: {cause}");
    }
    message
}

/// Returns the message of the innermost source of an error.
pub(crate) fn root_cause(error: &(dyn std::error::Error + 'static)) -> Option<String> {
    let mut innermost = error.source()?;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    Some(innermost.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_is_for_statuses_that_skilld_did_not_make() {
        for (reason, expected) in [
            (Some(ErrorReason::Draining), "refused (DRAINING)"),
            (None, "refused (Unavailable); is the daemon still running?"),
        ] {
            let failure = Failure {
                code: Code::Unavailable,
                reason,
                message: "refused".to_owned(),
                metadata: BTreeMap::new(),
                retry_after: None,
                violations: Vec::new(),
                resource: None,
            };
            assert_eq!(failure.to_string(), expected);
        }
    }
}
