//! What a guest answered, as the daemon's error.

use skilld_proto::ERROR_DOMAIN;
use skilld_proto::v1::Reason;
use tonic::Status;
use tonic_types::StatusExt;

use super::Error;

/// Entries of a guest's metadata that are passed on.
const METADATA_MAX: usize = 16;
/// Characters of a guest's message that are passed on.
const MESSAGE_CHARS_MAX: usize = 1024;

impl Error {
    /// Turns what a call to a guest answered into an error. A status without one of our reasons means that the
    /// transport broke: the guest may or may not have done what it was asked to.
    pub fn from_guest(workspace: &str, status: &Status) -> Self {
        let details = status.get_error_details();
        let message: String = status.message().chars().take(MESSAGE_CHARS_MAX).collect();
        let known = details
            .error_info()
            .filter(|info| info.domain == ERROR_DOMAIN)
            .and_then(|info| {
                let reason = Reason::from_str_name(&format!("REASON_{}", info.reason))?;
                Some((reason, info.metadata.clone()))
            });
        match known {
            Some((reason, mut metadata)) if reason != Reason::Internal => {
                metadata.retain(|key, value| key.len() <= 64 && value.len() <= 4096);
                let metadata = metadata.into_iter().take(METADATA_MAX).collect();
                Self::Guest {
                    code: status.code(),
                    reason,
                    message,
                    metadata,
                }
            }
            Some(_) => Self::Internal(format!("guest of {workspace}: {message}")),
            None => Self::GuestLost {
                workspace: workspace.to_owned(),
                why: format!("{}: {message}", status.code()),
            },
        }
    }
}
