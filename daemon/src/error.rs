//! The daemon's one error type, and its only mapping to a gRPC status.
//!
//! The mapping answers one question: may the caller retry? UNAVAILABLE promises that nothing was started.
//! What a program did is never an error; see `ExecResult` in the API.

use std::collections::HashMap;
use std::time::Duration;

use skilld_proto::ERROR_DOMAIN;
use skilld_proto::v1::Reason;
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};

mod guest;
mod host;
mod resource;
mod source;
mod text;

pub use host::HostFault;
pub use source::SourceFault;
use text::{AtVersion, Entry, Nearest, Violations};
pub use text::{Chain, Violation};

/// Target of the log lines of INTERNAL errors. Callers are told to look their request id up in one of these, so they have
/// a limit of their own.
pub const INTERNAL_TARGET: &str = "skilld::error::internal";

/// Shorthand for results of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why skilld could not do its job.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The request is malformed; its faults are listed.
    #[error("invalid request: {}", Violations(.0))]
    Invalid(Vec<Violation>),
    /// No such workspace.
    #[error("workspace {name} does not exist")]
    WorkspaceNotFound {
        /// As asked for.
        name: String,
    },
    /// No such skill.
    #[error("skill {name} does not exist{}", Nearest(.nearest))]
    SkillNotFound {
        /// As asked for.
        name: String,
        /// Similar names, best first.
        nearest: Vec<String>,
    },
    /// The skill is not staged in the workspace.
    #[error("skill {name} is not staged in this workspace: stage it with StageSkills first{}", Nearest(.nearest))]
    SkillNotStaged {
        /// As asked for.
        name: String,
        /// What is staged, at most three.
        nearest: Vec<String>,
    },
    /// A staged skill has no such script.
    #[error("skill {skill} has no script {path}{}", Nearest(.nearest))]
    ScriptNotFound {
        /// Name of the skill.
        skill: String,
        /// As asked for.
        path: String,
        /// Similar paths, best first.
        nearest: Vec<String>,
    },
    /// The skill exists and cannot be used.
    #[error("skill {name} cannot be used: {problem}")]
    SkillInvalid {
        /// As asked for.
        name: String,
        /// Why.
        problem: String,
    },
    /// No such artifact, or no such version of it.
    #[error("artifact {name}{} does not exist", AtVersion(*.version))]
    ArtifactNotFound {
        /// Without a prefix.
        name: String,
        /// As asked for.
        version: Option<u64>,
    },
    /// The record of a version is not one.
    #[error("the record of version {version} of artifact {name} is damaged: {why}")]
    ArtifactDamaged {
        /// Without a prefix.
        name: String,
        /// Its number.
        version: u64,
        /// What is wrong with it.
        why: String,
    },
    /// The store of artifacts failed, and nothing was changed.
    #[error("the artifact store failed to {operation}: {why}")]
    Storage {
        /// For instance `read the record`.
        operation: &'static str,
        /// The kind of failure; details are in the log.
        why: &'static str,
    },
    /// The store of artifacts failed where something may have been changed.
    #[error("the artifact store failed to {operation}: {why}; look before repeating it")]
    StorageUnsure {
        /// For instance `publish the version`.
        operation: &'static str,
        /// The kind of failure; details are in the log.
        why: &'static str,
    },
    /// No such pool.
    #[error("pool {name} does not exist; there are {}", .pools.join(", "))]
    PoolNotFound {
        /// As asked for.
        name: String,
        /// What there is.
        pools: Vec<String>,
    },
    /// The id belongs to something that another request made.
    #[error("{name} exists already: choose another id, or set allow_existing to use it")]
    IdTaken {
        /// Resource name.
        name: String,
    },
    /// This version of a skill has other contents.
    #[error(
        "{name} has version {version} already, with other contents (sha256:{digest}); give yours another version, or \
         delete that one"
    )]
    VersionTaken {
        /// Resource name.
        name: String,
        /// As the skill says, or `none`.
        version: String,
        /// Of what is there.
        digest: String,
    },
    /// A skill that nobody published.
    #[error("skill {name} comes from the root {root}, which is read only: remove its folder there")]
    SkillReadOnly {
        /// As asked for.
        name: String,
        /// As configured.
        root: String,
    },
    /// The workspace exists and is not usable.
    #[error("workspace {name} is {state}")]
    WorkspaceNotReady {
        /// Resource name.
        name: String,
        /// For instance `closing`.
        state: String,
    },
    /// A limit that cannot be enforced is refused, never ignored.
    #[error("{field} cannot be enforced here: {why}")]
    LimitUnsupported {
        /// Path of the field.
        field: String,
        /// Why, and what would work.
        why: String,
    },
    /// A guest from before an upgrade would leave out a field without a word.
    #[error("{field} needs a newer guest than this workspace has: make a new workspace")]
    GuestTooOld {
        /// Path of the field.
        field: &'static str,
        /// Of the protocol that the guest speaks.
        generation: u32,
    },
    /// A path leaves the workspace.
    #[error("{path} leaves the workspace")]
    PathEscapes {
        /// As given.
        path: String,
    },
    /// A path leaves the skill.
    #[error("{path} leaves the skill: give a path relative to its root")]
    LeavesSkill {
        /// As given.
        path: String,
    },
    /// The skill has no such file.
    #[error("the skill has no file {path}{}", Nearest(.nearest))]
    FileNotFound {
        /// Normalised.
        path: String,
        /// Paths that it has, best first, at most three.
        nearest: Vec<String>,
    },
    /// There is something else than was asked for.
    #[error("{path:?} is not {wanted}")]
    WrongFileType {
        /// Normalised.
        path: String,
        /// For instance `a file`.
        wanted: &'static str,
    },
    /// A write beneath skills/ or to metadata.json.
    #[error(
        "{path} is read-only: only StageSkills writes beneath skills/, and only the daemon writes metadata.json"
    )]
    ReadOnly {
        /// As given.
        path: String,
    },
    /// No warm container within the time, or too many waiters.
    #[error("pool {pool} has no container free: {why}")]
    PoolExhausted {
        /// Name of the pool.
        pool: String,
        /// Queue full, or waited too long, and for which reason the pool cannot fill.
        why: String,
        /// When to try again.
        retry_after: Duration,
    },
    /// A count is used up.
    #[error("{subject} is limited to {limit}")]
    QuotaExceeded {
        /// What is counted.
        subject: String,
        /// How many there may be.
        limit: u64,
    },
    /// More bytes or entries than a limit.
    #[error("{what} is over the limit of {limit}")]
    LimitExceeded {
        /// What is too large.
        what: String,
        /// The limit.
        limit: u64,
    },
    /// An archive cannot be unpacked, or must not be.
    #[error("the archive cannot be taken: {}{problem}", Entry(.entry))]
    ArchiveInvalid {
        /// Which of its entries; empty if it is about the whole.
        entry: String,
        /// Fits after the name.
        problem: String,
    },
    /// What arrived is not what was announced.
    #[error("the sha256 of what arrived is {actual}, not {expected} as announced")]
    ChecksumMismatch {
        /// 64 hex digits.
        expected: String,
        /// 64 hex digits.
        actual: String,
    },
    /// An input cannot be had from where it should come.
    #[error("{from} {fault}")]
    Source {
        /// As asked for.
        from: String,
        /// Why.
        fault: SourceFault,
    },
    /// The daemon is going down.
    #[error("the server is draining; try another one, or this one again after its restart")]
    Draining,
    /// The daemon stopped in the middle of something that may have been done.
    #[error("the server stopped while {doing}: look before repeating it")]
    Stopped {
        /// What was going on.
        doing: &'static str,
    },
    /// The container engine does not answer.
    #[error("the container engine does not answer: {message}")]
    EngineUnavailable {
        /// What it said, or how it could not be reached, and what to do.
        message: String,
    },
    /// The container engine refused something.
    #[error("the container engine failed to {operation}: {message}")]
    Engine {
        /// For instance `create container`.
        operation: &'static str,
        /// What it said.
        message: String,
    },
    /// The image is not there, or may not be used.
    #[error("image {image} cannot be used: {why}")]
    Image {
        /// As configured.
        image: String,
        /// Why, and what to do.
        why: String,
    },
    /// The guest went away, or broke the protocol.
    #[error("the guest of {workspace} is lost: {why}")]
    GuestLost {
        /// Workspace or slot.
        workspace: String,
        /// How it was noticed.
        why: String,
    },
    /// The guest answered with an error that is the caller's business.
    #[error("{message}")]
    Guest {
        /// Workspace or slot.
        workspace: String,
        /// As the guest gave it.
        code: Code,
        /// As the guest gave it, checked against the list of reasons.
        reason: Reason,
        /// For people.
        message: String,
        /// At most 16 entries.
        metadata: HashMap<String, String>,
    },
    /// The RPC belongs to a later version.
    #[error("{what} is not implemented in this version")]
    NotImplemented {
        /// Rpc or option.
        what: &'static str,
    },
    /// The caller's deadline passed.
    #[error("the deadline passed while {doing}")]
    Deadline {
        /// What was going on.
        doing: &'static str,
    },
    /// The daemon cannot start.
    #[error("{what} cannot be used: {why}")]
    Start {
        /// For instance `the artifact store`.
        what: &'static str,
        /// Why, and what to do.
        why: String,
    },
    /// Something on the host failed that should not.
    #[error("failed to {operation}")]
    Io {
        /// For instance `write slot record /var/lib/…`.
        operation: String,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// A defect of skilld.
    #[error("internal error: {0}")]
    Internal(String),
}

impl Error {
    /// One violation of one field.
    pub fn invalid(field: impl Into<String>, description: impl Into<String>) -> Self {
        Self::Invalid(vec![Violation::new(field, description)])
    }

    /// Code and reason on the wire.
    #[must_use]
    pub fn kind(&self) -> (Code, Reason) {
        match self {
            Self::Invalid(_) => (Code::InvalidArgument, Reason::InvalidRequest),
            Self::WorkspaceNotFound { .. } => (Code::NotFound, Reason::WorkspaceNotFound),
            Self::SkillNotFound { .. } | Self::SkillNotStaged { .. } => {
                (Code::NotFound, Reason::SkillNotFound)
            }
            Self::ScriptNotFound { .. } => (Code::NotFound, Reason::FileNotFound),
            Self::SkillInvalid { .. } => (Code::FailedPrecondition, Reason::SkillInvalid),
            Self::ArtifactNotFound { .. } => (Code::NotFound, Reason::ArtifactNotFound),
            Self::Storage { .. } => (Code::Unavailable, Reason::StorageUnavailable),
            Self::StorageUnsure { .. } => (Code::Aborted, Reason::StorageUnavailable),
            Self::PoolNotFound { .. } => (Code::NotFound, Reason::PoolNotFound),
            Self::IdTaken { .. } | Self::VersionTaken { .. } => {
                (Code::AlreadyExists, Reason::IdTaken)
            }
            Self::WorkspaceNotReady { .. } => (Code::FailedPrecondition, Reason::WorkspaceNotReady),
            Self::LimitUnsupported { .. } | Self::GuestTooOld { .. } => {
                (Code::FailedPrecondition, Reason::LimitUnsupported)
            }
            Self::PathEscapes { .. } | Self::LeavesSkill { .. } => {
                (Code::InvalidArgument, Reason::PathEscapes)
            }
            Self::FileNotFound { .. } => (Code::NotFound, Reason::FileNotFound),
            Self::WrongFileType { .. } => (Code::FailedPrecondition, Reason::WrongFileType),
            Self::Source { fault, .. } => fault.kind(),
            Self::ReadOnly { .. } | Self::SkillReadOnly { .. } => {
                (Code::FailedPrecondition, Reason::ReadOnly)
            }
            Self::PoolExhausted { .. } => (Code::ResourceExhausted, Reason::PoolExhausted),
            Self::QuotaExceeded { .. } => (Code::ResourceExhausted, Reason::QuotaExceeded),
            Self::LimitExceeded { .. } => (Code::ResourceExhausted, Reason::LimitExceeded),
            Self::ArchiveInvalid { .. } => (Code::InvalidArgument, Reason::ArchiveInvalid),
            Self::ChecksumMismatch { .. } => (Code::InvalidArgument, Reason::ChecksumMismatch),
            Self::Draining => (Code::Unavailable, Reason::Draining),
            Self::EngineUnavailable { .. } => (Code::Unavailable, Reason::EngineUnavailable),
            Self::GuestLost { .. } | Self::Stopped { .. } => (Code::Aborted, Reason::GuestLost),
            Self::Guest { code, reason, .. } => (*code, *reason),
            Self::NotImplemented { .. } => (Code::Unimplemented, Reason::NotImplemented),
            Self::Deadline { .. } => (Code::DeadlineExceeded, Reason::Deadline),
            Self::Io { source, .. } => Self::host_kind(source),
            Self::Engine { .. }
            | Self::Image { .. }
            | Self::Start { .. }
            | Self::ArtifactDamaged { .. }
            | Self::Internal(_) => (Code::Internal, Reason::Internal),
        }
    }

    fn metadata(&self) -> HashMap<String, String> {
        let pairs: Vec<(&str, String)> = match self {
            Self::SkillNotFound { nearest, .. }
            | Self::SkillNotStaged { nearest, .. }
            | Self::ScriptNotFound { nearest, .. } => {
                vec![("nearest", nearest.join(","))]
            }
            Self::SkillInvalid { problem, .. } => vec![("problem", problem.clone())],
            Self::PoolNotFound { pools, .. } => vec![("pools", pools.join(","))],
            Self::WorkspaceNotReady { state, .. } => vec![("state", state.clone())],
            Self::LimitUnsupported { field, .. } => vec![("field", field.clone())],
            Self::GuestTooOld { field, generation } => vec![
                ("field", (*field).to_owned()),
                ("guest_generation", generation.to_string()),
            ],
            Self::FileNotFound { path, nearest } => {
                vec![("path", path.clone()), ("nearest", nearest.join(","))]
            }
            Self::PathEscapes { path }
            | Self::LeavesSkill { path }
            | Self::WrongFileType { path, .. }
            | Self::ReadOnly { path } => vec![("path", path.clone())],
            Self::QuotaExceeded { limit, .. } | Self::LimitExceeded { limit, .. } => {
                vec![("limit", limit.to_string())]
            }
            Self::VersionTaken { digest, .. } => vec![("digest", format!("sha256:{digest}"))],
            Self::SkillReadOnly { root, .. } => vec![("root", root.clone())],
            Self::ArchiveInvalid { entry, .. } => vec![("entry", entry.clone())],
            Self::ChecksumMismatch { actual, .. } => vec![("sha256", actual.clone())],
            Self::Source {
                fault: SourceFault::TooMany(limit) | SourceFault::TooLarge(limit),
                ..
            } => vec![("limit", limit.to_string())],
            Self::Source { from, .. } => vec![("path", from.clone())],
            Self::Guest { metadata, .. } => return metadata.clone(),
            Self::Invalid(_)
            | Self::WorkspaceNotFound { .. }
            | Self::ArtifactNotFound { .. }
            | Self::ArtifactDamaged { .. }
            | Self::Storage { .. }
            | Self::StorageUnsure { .. }
            | Self::IdTaken { .. }
            | Self::PoolExhausted { .. }
            | Self::Draining
            | Self::Stopped { .. }
            | Self::EngineUnavailable { .. }
            | Self::Engine { .. }
            | Self::Image { .. }
            | Self::Start { .. }
            | Self::GuestLost { .. }
            | Self::NotImplemented { .. }
            | Self::Deadline { .. }
            | Self::Io { .. }
            | Self::Internal(_) => vec![],
        };
        pairs
            .into_iter()
            .map(|(key, value)| (key.to_owned(), value))
            .collect()
    }
}

impl From<Error> for Status {
    fn from(error: Error) -> Self {
        let (code, reason) = error.kind();
        let (mut message, mut metadata) = (error.message(), error.metadata());
        if reason == Reason::Internal {
            // The caller gets a number to ask about; what happened is the operator's business.
            let request_id = uuid::Uuid::now_v7().simple().to_string();
            tracing::error!(target: INTERNAL_TARGET, %request_id, error = %Chain(&error), "internal error");
            message = format!("internal error; the server's log has it under {request_id}");
            metadata = HashMap::from([("request_id".to_owned(), request_id)]);
        }
        let name = reason.as_str_name().trim_start_matches("REASON_");
        let mut details = ErrorDetails::with_error_info(name, ERROR_DOMAIN, metadata);
        if let Error::Invalid(violations) = &error {
            for violation in violations {
                details.add_bad_request_violation(&violation.field, &violation.description);
            }
        }
        if reason == Reason::QuotaExceeded {
            details.add_quota_failure_violation(error.quota_subject(), &message);
        }
        if let Some(after) = error.retry_after() {
            details.set_retry_info(Some(after));
        }
        if let Some((kind, name)) = error.resource() {
            details.set_resource_info(kind, name, "", &message);
        }
        Self::with_error_details(code, message, details)
    }
}
