//! `workspace_save_artifact`: saves one file of the workspace as an artifact. Its bytes go from the guest to the store,
//! not through this process.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use skilld_client::v1::ErrorReason;
use skilld_client::{Error, SaveTarget};

use super::run_result::{ArtifactFile, artifacts_delta};
use super::{decode, input_staging};
use crate::call_context::{CallContext, CallResult, ToolAnswer};
use crate::output_collection::ArtifactOwner;
use crate::tool_error::ToolError;
use crate::workspace_path;

/// Directories of the workspace that files may be saved from, and their description for errors.
const AREAS: ([&str; 3], &str) = (["work", "out", "runs"], "work/, out/ or runs/");
/// The same where skills are copies that commands can write.
const WRITABLE_AREAS: ([&str; 4], &str) = (
    ["work", "out", "runs", "skills"],
    "work/, out/, runs/ or skills/",
);

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub(super) struct SaveArguments {
    /// A file beneath work/, out/ or runs/: `out/report.md`, `$OUTPUT_DIR/report.md`, `workspace://out/report.md`.
    pub(super) path: String,
}

/// Description of the saved artifact.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct SaveResult {
    /// In the workspace.
    path: String,
    /// The artifact's name.
    saved_as: String,
    version: i64,
    /// `artifact://NAME@VERSION`.
    #[serde(rename = "ref")]
    reference: String,
    /// Owner of the artifact, without which it cannot be found.
    scope: ArtifactOwner,
    mime_type: String,
    size_bytes: u64,
    sha256: String,
}

pub(super) async fn save_artifact(call: CallContext<'_>, arguments: Value) -> CallResult {
    let asked: SaveArguments = decode(arguments)?;
    let (client, session) = (&call.tools.client, call.session);
    let (areas, place): (&[&str], &str) = match call.tools.options.writable_skills {
        true => (&WRITABLE_AREAS.0, WRITABLE_AREAS.1),
        false => (&AREAS.0, AREAS.1),
    };
    let path = workspace_path::file_path(&asked.path, areas, place)?;
    let target = SaveTarget::new(&path, session.scope());
    let saved = client
        .save_artifact_from(target, &session.workspace_id(), &path)
        .await
        .map_err(|error| translate_error(error, &path))?;
    let artifact = ArtifactFile {
        name: path.clone(),
        version: saved.version,
        reference: format!("artifact://{path}@{}", saved.version),
    };
    let delta = artifacts_delta(call, std::slice::from_ref(&artifact));
    let result = SaveResult {
        scope: session.into(),
        saved_as: artifact.name,
        path,
        version: saved.version,
        reference: artifact.reference,
        mime_type: saved.mime_type,
        size_bytes: u64::try_from(saved.size_bytes).unwrap_or_default(),
        sha256: saved.sha256,
    };
    Ok(ToolAnswer::with(&result, delta))
}

fn translate_error(error: Error, path: &str) -> ToolError {
    match error.reason() {
        // A session that has run nothing has no files.
        Some(ErrorReason::WorkspaceNotFound) => ToolError::FileNotFound {
            path: path.to_owned(),
            nearest_names: Vec::new(),
        },
        Some(ErrorReason::WrongFileType) => {
            ToolError::arguments(format!("path {path:?} is a folder, not a file"))
        }
        _ => input_staging::translate_missing(error, &[path.to_owned()]),
    }
}
