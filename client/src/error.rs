//! What can go wrong, for programs (codes, reasons, metadata) and for people (a message and what to do next).

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use skilld_proto::v1::Reason;
use tonic::{Code, Status};
use tonic_types::StatusExt;

mod hint;

pub(crate) use hint::connect as connect_hint;

/// Why a call did not succeed. Displays as a message, and what to do next where that is known.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The endpoint is not one that this client can use.
    #[error("cannot use the endpoint {endpoint:?}: {problem}")]
    Endpoint {
        /// As given.
        endpoint: String,
        /// What is wrong with it.
        problem: String,
    },
    /// No connection could be made.
    #[error("cannot connect to {endpoint}: {cause}; {hint}")]
    Connect {
        /// As given.
        endpoint: String,
        /// The system's words.
        cause: String,
        /// What to do next.
        hint: String,
        /// As tonic had it.
        source: tonic::transport::Error,
    },
    /// The server, or the way to it, answered with a status other than OK.
    #[error(transparent)]
    Status(Box<Failure>),
    /// A stream broke and could not be attached again in time. The exec goes on.
    #[error(
        "lost the stream of {exec} at stdout {stdout}, stderr {stderr}: {source}; attach from there"
    )]
    StreamLost {
        /// `workspaces/{workspace}/execs/{exec}`.
        exec: String,
        /// The next byte of stdout.
        stdout: u64,
        /// The next byte of stderr.
        stderr: u64,
        /// What the last attempt met.
        source: Box<Failure>,
    },
    /// A file on this side could not be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// A skill cannot be packed; nothing was sent.
    #[error("cannot publish {}: {problem}", path.display())]
    Pack {
        /// Its folder or archive.
        path: PathBuf,
        /// What is wrong with it, and where.
        problem: String,
    },
    /// A file's name, as the server gave it, leads out of the target directory or through a link.
    #[error("refused to write {path:?}: {problem}")]
    UnsafeName {
        /// As the server gave it.
        path: String,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// Bytes were damaged on their way.
    #[error(
        "{path}: the bytes have the sha256 {actual}, the server sent {expected}; collect again"
    )]
    Checksum {
        /// As the server gave it.
        path: String,
        /// What the server said.
        expected: String,
        /// What came.
        actual: String,
    },
    /// The server did what its API rules out.
    #[error("the server broke the protocol: {problem}; are client and server of the same release?")]
    Protocol {
        /// What it did.
        problem: String,
    },
}

impl Error {
    /// The status behind it, if there is one.
    #[must_use]
    pub fn failure(&self) -> Option<&Failure> {
        match self {
            Self::Status(failure)
            | Self::StreamLost {
                source: failure, ..
            } => Some(failure),
            Self::Endpoint { .. }
            | Self::Connect { .. }
            | Self::Io { .. }
            | Self::Pack { .. }
            | Self::UnsafeName { .. }
            | Self::Checksum { .. }
            | Self::Protocol { .. } => None,
        }
    }

    /// skilld's reason, if skilld gave one.
    #[must_use]
    pub fn reason(&self) -> Option<Reason> {
        self.failure().and_then(|failure| failure.reason)
    }

    /// The status code, if there is one.
    #[must_use]
    pub fn code(&self) -> Option<Code> {
        self.failure().map(|failure| failure.code)
    }

    pub(crate) fn protocol(problem: impl Into<String>) -> Self {
        Self::Protocol {
            problem: problem.into(),
        }
    }
}

impl From<Status> for Error {
    fn from(status: Status) -> Self {
        Self::Status(Box::new(Failure::from(status)))
    }
}

/// A status with its details taken apart.
#[derive(Clone, Debug)]
pub struct Failure {
    /// May the caller try again? UNAVAILABLE promises that nothing was started.
    pub code: Code,
    /// Why, in skilld's words; none if something else than skilld answered.
    pub reason: Option<Reason>,
    /// For people.
    pub message: String,
    /// Belongs to the reason; its keys are listed with the reasons.
    pub metadata: BTreeMap<String, String>,
    /// When the server wants to be asked again.
    pub retry_after: Option<Duration>,
    /// Everything that is wrong with the request's fields.
    pub violations: Vec<FieldViolation>,
    /// Name of the resource that it is about.
    pub resource: Option<String>,
}

/// What is wrong with one field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldViolation {
    /// Path of the field, for instance `spec.argv`.
    pub field: String,
    /// What is wrong with it.
    pub description: String,
}

impl Failure {
    /// What to do next, if that is known.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        hint::status(self)
    }
}

/// What a suggestion of similar names begins with.
const SUGGESTS: &str = "did you mean ";

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
                let name = reason.as_str_name();
                write!(f, " ({})", name.strip_prefix("REASON_").unwrap_or(name))?;
            }
            None => write!(f, " ({:?})", self.code)?,
        }
        match self.hint() {
            // The daemon's own words may have the names already.
            Some(hint) if hint.starts_with(SUGGESTS) && self.message.contains(SUGGESTS) => Ok(()),
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
            reason: info.and_then(|info| Reason::from_str_name(&format!("REASON_{}", info.reason))),
            message: message(&status),
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

/// The status's words, and the root cause when the transport made the status ("transport error" alone helps
/// nobody).
fn message(status: &Status) -> String {
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

/// The innermost error's words.
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
    fn suggestions_are_printed_once() {
        let failure = |message: &str| Failure {
            code: Code::NotFound,
            reason: Some(Reason::SkillNotFound),
            message: message.to_owned(),
            metadata: [("nearest".to_owned(), "demo,other".to_owned())].into(),
            retry_after: None,
            violations: Vec::new(),
            resource: None,
        };
        let said = failure("skill dem does not exist; did you mean demo, other?").to_string();
        let wanted = "skill dem does not exist; did you mean demo, other? (SKILL_NOT_FOUND)";
        assert_eq!(said, wanted);
        let said = failure("skill dem does not exist").to_string();
        let wanted = "skill dem does not exist (SKILL_NOT_FOUND); did you mean demo or other?";
        assert_eq!(said, wanted);
    }
}
