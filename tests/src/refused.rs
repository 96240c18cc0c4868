//! What a call was refused with: code and reason, and what belongs to them.

use anyhow::{Context, Result, ensure};
use skilld_client::{Error, Failure};
use skilld_proto::v1::Reason;
use tonic::Code;

/// Checks that a call failed with this code and reason; what it said, for a closer look.
///
/// # Errors
/// When it succeeded, or failed in another way.
pub fn refused<T: std::fmt::Debug>(
    result: Result<T, Error>,
    code: Code,
    reason: Reason,
) -> Result<Failure> {
    let error = match result {
        Ok(answer) => anyhow::bail!("was to be refused with {reason:?}, answered {answer:?}"),
        Err(error) => error,
    };
    let failure = error
        .failure()
        .with_context(|| format!("no status: {error}"))?;
    ensure!(
        failure.code == code && failure.reason == Some(reason),
        "was to be refused with {code:?} {reason:?}: {failure:?}"
    );
    ensure!(!failure.message.is_empty(), "{failure:?} has no words");
    Ok(failure.clone())
}

/// The same for a call that the tests make through a generated stub.
///
/// # Errors
/// When it succeeded, or failed in another way.
pub fn refused_status<T: std::fmt::Debug>(
    result: Result<T, tonic::Status>,
    code: Code,
    reason: Reason,
) -> Result<Failure> {
    refused(result.map_err(Error::from), code, reason)
}
