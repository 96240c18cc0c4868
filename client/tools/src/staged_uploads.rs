//! Files of a conversation in the workspace of its session.

use schemars::JsonSchema;
use serde::Serialize;

/// Files of the conversation in the workspace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct StagedUploads {
    /// Staged files, in the order in which they were given.
    pub files: Vec<StagedUpload>,
    /// Warnings about files that could not be staged, in words for the model.
    pub warnings: Vec<String>,
}

/// A file of the conversation in the workspace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct StagedUpload {
    /// Path in the workspace.
    pub name: String,
    /// Name that the conversation gave it.
    pub original_name: String,
    /// Size in bytes.
    pub size_bytes: u64,
    /// `true` if the file was there already; always false for a file of more than 1 MiB, which is a link to what was sent
    /// once.
    pub unchanged: bool,
}
