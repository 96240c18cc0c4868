//! Checks that a call was refused with a code and a reason.

use anyhow::{Context, Result, ensure};
use skilld_client::{Error, Failure};
use skilld_proto::v1::Reason;
use tonic::Code;

/// Checks that a call failed with a code and a reason, and returns the failure for more checks.
///
/// # Errors
/// When it succeeded, or failed in another way.
pub fn expect_refusal<T: std::fmt::Debug>(
    result: Result<T, Error>,
    code: Code,
    reason: Reason,
) -> Result<Failure> {
    let error = match result {
        Ok(answer) => {
            anyhow::bail!("expected a refusal with {reason:?}, got the answer {answer:?}")
        }
        Err(error) => error,
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

/// Checks the same for a call that the test makes through a generated stub.
///
/// # Errors
/// When it succeeded, or failed in another way.
pub fn expect_refused_status<T: std::fmt::Debug>(
    result: Result<T, tonic::Status>,
    code: Code,
    reason: Reason,
) -> Result<Failure> {
    expect_refusal(result.map_err(Error::from), code, reason)
}
