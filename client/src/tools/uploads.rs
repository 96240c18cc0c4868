//! Files of a conversation in the workspace of its session.

use schemars::JsonSchema;
use serde::Serialize;

/// A file of the conversation in the workspace.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct StagedUpload {
    /// Its path in the workspace.
    pub name: String,
    /// As it was called.
    pub original_name: String,
    /// How large it is.
    pub size_bytes: u64,
    /// It was there already.
    pub unchanged: bool,
}
