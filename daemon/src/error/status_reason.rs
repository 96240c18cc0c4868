//! Reasons of statuses that skilld made.

use skilld_proto::v1::Reason;
use tonic::Status;
use tonic_types::StatusExt;

/// Returns the reason in the details of a status; `None` if they name none.
pub(crate) fn reason_of(status: &Status) -> Option<Reason> {
    let details = status.get_error_details();
    let name = &details.error_info()?.reason;
    Reason::from_str_name(&format!("REASON_{name}"))
}
