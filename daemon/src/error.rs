//! Error type of the daemon, and its only mapping to a gRPC status.
//!
//! The mapping answers one question: may the caller retry? UNAVAILABLE promises that nothing was started; libraries make
//! it too, but without the ErrorInfo that each of these statuses has. The outcome of a command is never an error; see
//! `ExecResult` in the API.

use std::collections::HashMap;

use skilld_proto::ERROR_DOMAIN;
use skilld_proto::v1::ErrorReason as Reason;
use tonic::metadata::MetadataMap;
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};

mod constructors;
mod daemon_problem;
mod error_subject;
mod error_text;
mod guest_status;
mod host_fault;
mod input_source_error;
mod metadata;
mod retry_advice;
mod skills_error;
mod status_reason;

pub use daemon_problem::DaemonProblem;
pub use error_text::Violation;
use error_text::{
    entry_prefix, join_violations, missing_image_remedy, nearest_hint, nearest_skills, pool_names,
    quota_remedy, stderr_note, version_suffix,
};
pub use host_fault::HostFault;
pub use input_source_error::InputSourceError;
pub use skilld_skills::error::ErrorChain as Chain;
pub(crate) use skilld_skills::error::tolerate;
pub(crate) use status_reason::reason_of;

/// Log target of INTERNAL errors, to which statuses refer by request id, so that they have a rate limit of their own.
pub const INTERNAL_TARGET: &str = "skilld::error::internal";

/// Metadata with the time after which a library may repeat the call, in milliseconds (gRFC A6). Retry policies obey it,
/// and don't read RetryInfo.
const RETRY_PUSHBACK: &str = "grpc-retry-pushback-ms";

/// Result of this crate's functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Error of the daemon, which becomes a gRPC status for clients.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Malformed request, with all violations.
    #[error("invalid request: {}", join_violations(.0))]
    Invalid(Vec<Violation>),
    /// Call without a valid credential.
    #[error("the call is not authenticated: {why}")]
    Unauthenticated {
        /// Reason, without any part of a secret.
        why: String,
    },
    /// Call that the caller's role does not permit.
    #[error("the caller may not do this: {why}")]
    PermissionDenied {
        /// Missing permission, and who has which.
        why: String,
        /// Lowest role that would suffice; `None` if no role would.
        required: Option<&'static str>,
    },
    /// Token that was requested although nothing is authenticated.
    #[error("the server does not authenticate callers: configure [auth] first")]
    AuthenticationOff,
    /// Call that changes something while its record cannot be written to the audit log.
    #[error("the audit log cannot be written, so nothing may change: {why}")]
    AuditUnavailable {
        /// Fault of the log.
        why: String,
    },
    /// Unknown workspace.
    #[error(
        "workspace {name} does not exist: it was deleted, has expired, or never existed; create one"
    )]
    WorkspaceNotFound {
        /// Requested name.
        name: String,
    },
    /// Unknown skill.
    #[error("skill {name} does not exist{}", nearest_skills(.nearest))]
    SkillNotFound {
        /// Requested name.
        name: String,
        /// Similar names, best first.
        nearest: Vec<String>,
    },
    /// Skill that exists, but is not staged in the workspace.
    #[error("skill {name} is not staged in this workspace: stage it with StageSkills first{}", nearest_hint(.nearest))]
    SkillNotStaged {
        /// Requested name.
        name: String,
        /// Up to three staged skills with similar names.
        nearest: Vec<String>,
    },
    /// Unknown script of a staged skill.
    #[error("skill {skill} has no script {path}{}", nearest_hint(.nearest))]
    ScriptNotFound {
        /// Name of the skill.
        skill: String,
        /// Requested path.
        path: String,
        /// Similar paths, best first.
        nearest: Vec<String>,
    },
    /// Skill that exists, but cannot be used.
    #[error("skill {name} cannot be used: {problem}")]
    SkillInvalid {
        /// Requested name.
        name: String,
        /// Reason why the skill cannot be used.
        problem: String,
    },
    /// Unknown artifact, or unknown version of it.
    #[error("artifact {name}{} does not exist: list the artifacts of its scope", version_suffix(*.version))]
    ArtifactNotFound {
        /// Name without its prefix.
        name: String,
        /// Requested version; `None` means the newest.
        version: Option<u64>,
    },
    /// Damaged record of an artifact version.
    #[error("the record of version {version} of artifact {name} is damaged: {why}")]
    ArtifactDamaged {
        /// Name without its prefix.
        name: String,
        /// Number of the version.
        version: u64,
        /// Description of the damage.
        why: String,
    },
    /// Failure of the artifact store that changed nothing.
    #[error("the artifact store failed to {operation}: {why}")]
    Storage {
        /// Name of the operation, for instance `read the record`.
        operation: &'static str,
        /// The kind of failure; details are in the log.
        why: &'static str,
    },
    /// Failure of the artifact store that may have changed something.
    #[error("the artifact store failed to {operation}: {why}; look before repeating it")]
    StorageUnsure {
        /// Name of the operation, for instance `publish the version`.
        operation: &'static str,
        /// The kind of failure; details are in the log.
        why: &'static str,
    },
    /// Unknown pool.
    #[error("pool {name} does not exist{}", pool_names(.pools))]
    PoolNotFound {
        /// Requested name.
        name: String,
        /// Names of all pools.
        pools: Vec<String>,
    },
    /// Id of an object that another request created.
    #[error("{name} exists already: choose another id, or set allow_existing to use it")]
    IdTaken {
        /// Resource name of the object.
        name: String,
    },
    /// Version of a skill that was published with other contents.
    #[error(
        "{name} has version {version} already, with other contents (sha256:{digest}); give yours another version, or \
         delete that one"
    )]
    VersionTaken {
        /// Resource name of the object.
        name: String,
        /// Version as the skill's front matter gives it, or `none`.
        version: String,
        /// Digest of the published contents, 64 hex digits.
        digest: String,
    },
    /// Skill that comes from a root, so it cannot be deleted by a call.
    #[error("skill {name} comes from the root {root}, which is read only: remove its folder there")]
    SkillReadOnly {
        /// Requested name.
        name: String,
        /// Text of the root in the configuration.
        root: String,
    },
    /// Workspace that exists, but cannot be used in its state.
    #[error("workspace {name} is {state}: create another one")]
    WorkspaceNotReady {
        /// Resource name of the object.
        name: String,
        /// State of the workspace, for instance `closing`.
        state: String,
    },
    /// Requested limit that cannot be enforced. Such a limit is never ignored.
    #[error("{field} cannot be enforced here: {why}")]
    LimitUnsupported {
        /// Path of the field.
        field: String,
        /// Reason, and what would work instead.
        why: String,
    },
    /// Path that leaves the workspace.
    #[error("{path} leaves the workspace: use a path beneath it")]
    PathEscapes {
        /// Path of the request.
        path: String,
    },
    /// Path that leaves the skill.
    #[error("{path} leaves the skill: give a path relative to its root")]
    LeavesSkill {
        /// Path of the request.
        path: String,
    },
    /// Unknown file of a skill.
    #[error("the skill has no file {path}{}", nearest_hint(.nearest))]
    FileNotFound {
        /// Normalised path.
        path: String,
        /// Up to three similar paths of the skill, best first.
        nearest: Vec<String>,
    },
    /// Path of another kind than the request needs.
    #[error("{path:?} is not {wanted}")]
    WrongFileType {
        /// Normalised path.
        path: String,
        /// Required kind, for instance `a file`.
        wanted: &'static str,
    },
    /// Write below skills/ or to metadata.json.
    #[error(
        "{path} is read-only: only StageSkills writes beneath skills/, and only the daemon writes metadata.json; write \
         to work/ or out/ instead"
    )]
    ReadOnly {
        /// Path of the request.
        path: String,
    },
    /// Pool without a free container: the wait is over, or its queue is full.
    #[error("pool {pool} has no container free: {why}")]
    PoolExhausted {
        /// Name of the pool.
        pool: String,
        /// Reason: a full queue or a wait that is over, and why the pool cannot fill.
        why: String,
    },
    /// Count or memory budget that is used up.
    #[error("{subject} is limited to {limit}: try again later")]
    QuotaExceeded {
        /// Name of the count, with its configuration key if it has one.
        subject: String,
        /// Maximum of the count.
        limit: u64,
    },
    /// Quota of a tenant that is used up.
    #[error("tenant {tenant} has used its quota of {resource}: {used} of {limit}{}", quota_remedy(*.retry_after))]
    TenantQuota {
        /// Name of the tenant.
        tenant: String,
        /// Name of the quota in the file of tenants.
        resource: &'static str,
        /// Amount that the tenant holds, in the unit of the quota.
        used: u64,
        /// Largest amount.
        limit: u64,
        /// Time after which a rate permits the call again; `None` for what the tenant has to release first.
        retry_after: Option<std::time::Duration>,
    },
    /// Number of bytes or entries over a limit.
    #[error("{what} is over the limit of {limit}")]
    LimitExceeded {
        /// Name of the value that is too large.
        what: String,
        /// Largest permitted value.
        limit: u64,
    },
    /// Archive that cannot or must not be unpacked.
    #[error("the archive cannot be taken: {}{problem}", entry_prefix(.entry))]
    ArchiveInvalid {
        /// Name of the entry; empty for the whole archive.
        entry: String,
        /// Predicate that follows the entry's name in the message.
        problem: String,
    },
    /// Received bytes whose checksum differs from the announced one.
    #[error("the sha256 of what arrived is {actual}, not {expected} as announced")]
    ChecksumMismatch {
        /// 64 hex digits.
        expected: String,
        /// 64 hex digits.
        actual: String,
    },
    /// Command of a setup that did not succeed.
    #[error(
        "failed to prepare the workspace: {exec} ended with exit code {exit_code}: correct the setup and repeat the \
         call{}", stderr_note(.stderr_end)
    )]
    SetupFailed {
        /// Resource name of the exec.
        exec: String,
        /// Exit code as shells have it.
        exit_code: i32,
        /// End of its stderr, or the reason why it did not start.
        stderr_end: String,
    },
    /// Input that cannot be read from its source.
    #[error("{from} {fault}")]
    Source {
        /// Requested reference.
        from: String,
        /// Reason of the failure.
        fault: InputSourceError,
    },
    /// Call that the draining daemon refuses.
    #[error(
        "the server is draining: try another one, or this one again after its restart or `skillctl undrain`"
    )]
    Draining,
    /// Operation during which the daemon stopped; it may have had an effect.
    #[error("the server stopped while {doing}: look before repeating it")]
    Stopped {
        /// Operation in progress, as a gerund such as `saving the artifact`.
        doing: &'static str,
    },
    /// Container engine that does not answer.
    #[error("the container engine does not answer: {message}")]
    EngineUnavailable {
        /// Answer of the engine or failure of the connection, and what to do.
        message: String,
    },
    /// Operation that the container engine refused.
    #[error("the container engine failed to {operation}: {message}")]
    Engine {
        /// Name of the operation, for instance `create container`.
        operation: &'static str,
        /// Answer of the engine.
        message: String,
    },
    /// Image that is missing or must not be used.
    #[error("image {image} cannot be used: {why}")]
    Image {
        /// Image reference of the configuration.
        image: String,
        /// Reason, and what to do.
        why: String,
    },
    /// Image that the engine does not have.
    #[error("image {image} cannot be used: the engine does not have it; {}", missing_image_remedy(.image))]
    ImageMissing {
        /// Image reference of the configuration.
        image: String,
    },
    /// Guest that went away or broke the protocol.
    #[error("the guest of {workspace} is lost: {why}")]
    GuestLost {
        /// Workspace or slot.
        workspace: String,
        /// Failure that the daemon noticed.
        why: String,
    },
    /// Error of the guest that is passed on to the caller.
    #[error("{message}")]
    Guest {
        /// Workspace or slot.
        workspace: String,
        /// gRPC code of the guest's status.
        code: Code,
        /// Reason of the guest's status, checked against the list of reasons.
        reason: Reason,
        /// Text of the guest's status.
        message: String,
        /// Metadata of the guest's status, at most 16 entries.
        metadata: HashMap<String, String>,
    },
    /// Call or option that this version does not have.
    #[error("{what} is not implemented in this version: a newer one may have it")]
    NotImplemented {
        /// Name of the call or option.
        what: &'static str,
    },
    /// Deadline of the call that has passed.
    #[error("the deadline passed while {doing}")]
    Deadline {
        /// Operation in progress, as a gerund such as `saving the artifact`.
        doing: &'static str,
    },
    /// Failure of the daemon's start.
    #[error("{what} cannot be used: {why}")]
    Start {
        /// Part that cannot be used, for instance `the artifact store`.
        what: &'static str,
        /// Reason, and what to do.
        why: String,
    },
    /// Failed operation on the host.
    #[error("failed to {operation}")]
    Io {
        /// Name of the operation, for instance `write slot record /var/lib/…`.
        operation: String,
        /// Error of the operating system.
        #[source]
        source: std::io::Error,
    },
    /// Defect of skilld.
    #[error("internal error: {0}")]
    Internal(String),
}

impl Error {
    /// Returns the gRPC code and the reason for the status.
    pub fn kind(&self) -> (Code, Reason) {
        match self {
            Self::Invalid(_) => (Code::InvalidArgument, Reason::InvalidRequest),
            Self::Unauthenticated { .. } => (Code::Unauthenticated, Reason::Unauthenticated),
            Self::PermissionDenied { .. } => (Code::PermissionDenied, Reason::PermissionDenied),
            Self::AuditUnavailable { .. } => (Code::Unavailable, Reason::AuditUnavailable),
            Self::AuthenticationOff => (Code::FailedPrecondition, Reason::AuthenticationOff),
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
            Self::SetupFailed { .. } => (Code::FailedPrecondition, Reason::SetupFailed),
            Self::IdTaken { .. } | Self::VersionTaken { .. } => {
                (Code::AlreadyExists, Reason::IdTaken)
            }
            Self::WorkspaceNotReady { .. } => (Code::FailedPrecondition, Reason::WorkspaceNotReady),
            Self::LimitUnsupported { .. } => (Code::FailedPrecondition, Reason::LimitUnsupported),
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
            Self::QuotaExceeded { .. } | Self::TenantQuota { .. } => {
                (Code::ResourceExhausted, Reason::QuotaExceeded)
            }
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
            | Self::ImageMissing { .. }
            | Self::Start { .. }
            | Self::ArtifactDamaged { .. }
            | Self::Internal(_) => (Code::Internal, Reason::Internal),
        }
    }
}

impl From<Error> for Status {
    fn from(error: Error) -> Self {
        let (code, reason) = error.kind();
        let (mut message, mut metadata) = (error.message(), error.metadata());
        if reason == Reason::Internal {
            // The caller gets only an id. Details of the host are for the operator, in the log.
            let request_id = uuid::Uuid::now_v7().simple().to_string();
            tracing::error!(target: INTERNAL_TARGET, %request_id, error = %Chain(&error), "internal error");
            message = format!("internal error; the server's log has it under {request_id}");
            metadata = HashMap::from([("request_id".to_owned(), request_id)]);
        }
        let name = reason.error_info_name();
        let mut details = ErrorDetails::with_error_info(name, ERROR_DOMAIN, metadata);
        for violation in error.violations() {
            details.add_bad_request_violation(violation.field, violation.description);
        }
        if reason == Reason::QuotaExceeded {
            details.add_quota_failure_violation(error.quota_subject(), &message);
        }
        let mut headers = MetadataMap::new();
        if let Some(after) = error.retry_after() {
            details.set_retry_info(Some(after));
            let after_ms = u64::try_from(after.as_millis()).unwrap_or(u64::MAX);
            headers.insert(RETRY_PUSHBACK, after_ms.into());
        }
        if let Some((kind, name)) = error.resource() {
            details.set_resource_info(kind, name, "", &message);
        }
        Self::with_error_details_and_metadata(code, message, details, headers)
    }
}
