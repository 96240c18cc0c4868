//! Conversion of a guest's status to the daemon's error.

use skilld_proto::ERROR_DOMAIN;
use skilld_proto::v1::ErrorReason;
use tonic::Status;
use tonic_types::StatusExt;

use super::Error;

/// Maximum number of entries of a guest's metadata that are passed on.
const METADATA_MAX: usize = 16;
/// Maximum length of a guest's message that is passed on, in characters.
const MESSAGE_CHARS_MAX: usize = 1024;

impl Error {
    /// Converts the status of a call to a guest. A status without a known reason means that the transport broke, so the
    /// guest may or may not have executed the call.
    pub fn from_guest(workspace: &str, status: &Status) -> Self {
        let details = status.get_error_details();
        let message: String = status.message().chars().take(MESSAGE_CHARS_MAX).collect();
        let known = details
            .error_info()
            .filter(|info| info.domain == ERROR_DOMAIN)
            .and_then(|info| {
                let reason = ErrorReason::from_error_info_name(&info.reason)?;
                Some((reason, info.metadata.clone()))
            });
        match known {
            Some((reason, mut metadata)) if reason != ErrorReason::Internal => {
                metadata.retain(|key, value| key.len() <= 64 && value.len() <= 4096);
                Self::Guest {
                    workspace: workspace.to_owned(),
                    code: status.code(),
                    reason,
                    message,
                    metadata: metadata.into_iter().take(METADATA_MAX).collect(),
                }
            }
            Some(_) => Self::Internal(format!("guest of {workspace}: {message}")),
            None => Self::guest_lost(workspace, format!("{}: {message}", status.code())),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use tonic::Code;
    use tonic_types::ErrorDetails;

    use super::*;

    #[test]
    fn a_quota_that_the_guest_counts_names_its_workspace() {
        let details = ErrorDetails::with_error_info("QUOTA_EXCEEDED", ERROR_DOMAIN, HashMap::new());
        let message = "32 execs run already";
        let answer = Status::with_error_details(Code::ResourceExhausted, message, details);
        let status = Status::from(Error::from_guest("workspaces/w", &answer));
        assert_eq!(status.code(), Code::ResourceExhausted);
        let details = status.get_error_details();
        assert!(details.retry_info().is_some(), "{status:?}");
        let violations: Vec<(&str, &str)> = details
            .quota_failure()
            .expect("QuotaFailure")
            .violations
            .iter()
            .map(|one| (one.subject.as_str(), one.description.as_str()))
            .collect();
        assert_eq!(violations, [("workspaces/w", message)]);
    }

    /// Returns the daemon's status for a guest's refusal with `reason` and one entry of metadata.
    fn refusal(code: Code, reason: &str, message: &str, entry: (&str, &str)) -> Status {
        let metadata = HashMap::from([(entry.0.to_owned(), entry.1.to_owned())]);
        let details = ErrorDetails::with_error_info(reason, ERROR_DOMAIN, metadata);
        let answer = Status::with_error_details(code, message, details);
        Status::from(Error::from_guest("workspaces/w", &answer))
    }

    #[test]
    fn a_refused_offset_is_listed_in_bad_request() {
        for (code, reason, field, message, description) in [
            (
                Code::OutOfRange,
                "INVALID_REQUEST",
                "offset",
                "too far",
                "too far",
            ),
            (
                Code::OutOfRange,
                "OUTPUT_DROPPED",
                "offsets",
                "gone",
                "gone",
            ),
            (
                Code::InvalidArgument,
                "INVALID_REQUEST",
                "cwd",
                "cwd: bad",
                "bad",
            ),
        ] {
            let status = refusal(code, reason, message, ("field", field));
            let details = status.get_error_details();
            let violations: Vec<(&str, &str)> = details
                .bad_request()
                .expect("BadRequest")
                .field_violations
                .iter()
                .map(|one| (one.field.as_str(), one.description.as_str()))
                .collect();
            assert_eq!(violations, [(field, description)]);
        }
    }

    #[test]
    fn a_missing_exec_is_named_in_resource_info() {
        let status = refusal(Code::NotFound, "EXEC_NOT_FOUND", "not here", ("exec", "e"));
        let details = status.get_error_details();
        let resource = details.resource_info().expect("ResourceInfo");
        assert_eq!(resource.resource_type, "skilld.dev/Exec");
        assert_eq!(resource.resource_name, "workspaces/w/execs/e");
    }
}
