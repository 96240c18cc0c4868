//! Checks that a call was refused with a reason and its status code.

use anyhow::{Context, Result, ensure};
use skilld_client::{Error, Failure};
use skilld_proto::v1::Reason;
use tonic::{Code, Status};

/// Reasons that determine the status code they come with.
const CODES: [(Code, &[Reason]); 8] = [
    (
        Code::InvalidArgument,
        &[
            Reason::InvalidRequest,
            Reason::PathEscapes,
            Reason::ArchiveInvalid,
            Reason::ChecksumMismatch,
        ],
    ),
    (
        Code::NotFound,
        &[
            Reason::WorkspaceNotFound,
            Reason::ExecNotFound,
            Reason::SkillNotFound,
            Reason::FileNotFound,
            Reason::ArtifactNotFound,
            Reason::PoolNotFound,
        ],
    ),
    (
        Code::FailedPrecondition,
        &[
            Reason::SkillInvalid,
            Reason::WorkspaceNotReady,
            Reason::LimitUnsupported,
            Reason::WrongFileType,
            Reason::ReadOnly,
            Reason::ExecNotRunning,
        ],
    ),
    (
        Code::ResourceExhausted,
        &[
            Reason::PoolExhausted,
            Reason::QuotaExceeded,
            Reason::LimitExceeded,
            Reason::DiskFull,
        ],
    ),
    (
        Code::PermissionDenied,
        &[Reason::PermissionDenied, Reason::FilePermission],
    ),
    (
        Code::Unavailable,
        &[Reason::StorageUnavailable, Reason::Draining],
    ),
    (Code::AlreadyExists, &[Reason::IdTaken]),
    (Code::Unauthenticated, &[Reason::Unauthenticated]),
];

/// Checks that a call failed with a reason and the status code of that reason, and returns the failure for more checks.
///
/// # Errors
/// When it succeeded, or failed in another way.
pub fn expect_refusal<T: std::fmt::Debug>(
    result: Result<T, impl Into<anyhow::Error>>,
    reason: Reason,
) -> Result<Failure> {
    let code = CODES.iter().find(|(_, reasons)| reasons.contains(&reason));
    let (code, _) = code.with_context(|| format!("{reason:?} is not in the table"))?;
    expect_refusal_with(result, *code, reason)
}

/// Checks the same for a call whose status code is not the usual one of its reason.
///
/// # Errors
/// When it succeeded, or failed in another way.
pub fn expect_refusal_with<T: std::fmt::Debug>(
    result: Result<T, impl Into<anyhow::Error>>,
    code: Code,
    reason: Reason,
) -> Result<Failure> {
    let error = match result {
        Ok(answer) => {
            anyhow::bail!("expected a refusal with {reason:?}, got the answer {answer:?}")
        }
        Err(error) => error.into(),
    };
    let error: Error = match error.downcast::<Status>() {
        Ok(status) => status.into(),
        Err(error) => error.downcast()?,
    };
    let failure = error
        .failure()
        .with_context(|| format!("no status: {error}"))?;
    ensure!(
        failure.code == code && failure.reason == Some(reason),
        "expected a refusal with {code:?} {reason:?}: {failure:?}"
    );
    ensure!(!failure.message.is_empty(), "{failure:?} has no message");
    Ok(failure.clone())
}
