//! Reasons of statuses that skilld made.

use skilld_proto::v1::ErrorReason;
use tonic::Status;
use tonic_types::StatusExt;

/// Returns the reason in the details of a status; `None` if they name none.
pub(crate) fn reason_of(status: &Status) -> Option<ErrorReason> {
    let details = status.get_error_details();
    ErrorReason::from_error_info_name(&details.error_info()?.reason)
}
