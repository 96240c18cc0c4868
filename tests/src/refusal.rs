//! Checks that a call was refused with a reason and its status code.

use anyhow::{Context, Result, ensure};
use skilld_client::{Error, Failure};
use skilld_proto::v1::ErrorReason;
use tonic::{Code, Status};

/// Reasons that determine the status code they come with.
const CODES: [(Code, &[ErrorReason]); 8] = [
    (
        Code::InvalidArgument,
        &[
            ErrorReason::InvalidRequest,
            ErrorReason::PathEscapes,
            ErrorReason::ArchiveInvalid,
            ErrorReason::ChecksumMismatch,
        ],
    ),
    (
        Code::NotFound,
        &[
            ErrorReason::WorkspaceNotFound,
            ErrorReason::ExecNotFound,
            ErrorReason::SkillNotFound,
            ErrorReason::FileNotFound,
            ErrorReason::ArtifactNotFound,
            ErrorReason::PoolNotFound,
        ],
    ),
    (
        Code::FailedPrecondition,
        &[
            ErrorReason::SkillInvalid,
            ErrorReason::WorkspaceNotReady,
            ErrorReason::LimitUnsupported,
            ErrorReason::WrongFileType,
            ErrorReason::ReadOnly,
            ErrorReason::ExecNotRunning,
        ],
    ),
    (
        Code::ResourceExhausted,
        &[
            ErrorReason::PoolExhausted,
            ErrorReason::QuotaExceeded,
            ErrorReason::LimitExceeded,
            ErrorReason::DiskFull,
        ],
    ),
    (
        Code::PermissionDenied,
        &[ErrorReason::PermissionDenied, ErrorReason::FilePermission],
    ),
    (
        Code::Unavailable,
        &[ErrorReason::StorageUnavailable, ErrorReason::Draining],
    ),
    (Code::AlreadyExists, &[ErrorReason::IdTaken]),
    (Code::Unauthenticated, &[ErrorReason::Unauthenticated]),
];

/// Checks that a call failed with a reason and the status code of that reason, and returns the failure for more checks.
///
/// # Errors
/// When it succeeded, or failed in another way.
pub fn expect_refusal<T: std::fmt::Debug>(
    result: Result<T, impl Into<anyhow::Error>>,
    reason: ErrorReason,
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
    reason: ErrorReason,
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
