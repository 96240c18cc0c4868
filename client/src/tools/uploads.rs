//! Files of a conversation in the workspace of its session.

use schemars::JsonSchema;
use serde::Serialize;

/// Files of the conversation in the workspace.
#[derive(Clone, Debug, Default, PartialEq, Serialize, JsonSchema)]
pub struct StagedUploads {
    /// In the order in which they were given.
    pub files: Vec<StagedUpload>,
    /// Which could not be had and why, in words for the model.
    pub warnings: Vec<String>,
}

/// A file of the conversation in the workspace.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct StagedUpload {
    /// Its path in the workspace.
    pub name: String,
    /// As it was called.
    pub original_name: String,
    /// How large it is.
    pub size_bytes: u64,
    /// It was there already; always false of one of more than 1 MiB, which is a link to what was sent once.
    pub unchanged: bool,
}
