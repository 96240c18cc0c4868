//! `workspace_save_artifact`: keeps one file of the workspace beyond it. Its bytes go from the guest to the store and never
//! come here.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use skilld_proto::v1::Reason;

use crate::tools::collected::SavedScope;
use crate::tools::trpc::result::ArtifactFile;
use crate::tools::trpc::{ALIASES, run, stage};
use crate::tools::{Answer, Call, Inner, Session, ToolError, arguments, workspace_path};
use crate::{Error, SaveTarget};

/// Directories of the workspace that files may be saved from.
const AREAS: [&str; 3] = ["work", "out", "runs"];

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
    /// Whose artifact it is: with another app, user or session nobody finds it.
    scope: SavedScope,
    mime_type: String,
    size_bytes: u64,
    sha256: String,
}

pub(super) async fn save(
    tools: &Inner,
    session: &Session,
    call: Call,
) -> Result<Answer, ToolError> {
    let asked: SaveArguments = arguments::decode(call.arguments, ALIASES)?;
    let path = path(&asked.path)?;
    let target = SaveTarget::new(&path, session.scope());
    let workspace = session.workspace_id();
    let saved = tools.client.save_artifact_from(target, &workspace, &path);
    let saved = saved.await.map_err(|error| missing(error, &path))?;
    let reference = format!("artifact://{path}@{}", saved.version);
    let artifact = ArtifactFile {
        name: path.clone(),
        version: saved.version,
        reference: reference.clone(),
    };
    let result = SaveResult {
        scope: session.into(),
        saved_as: path.clone(),
        path,
        version: saved.version,
        reference,
        mime_type: saved.mime_type,
        size_bytes: u64::try_from(saved.size).unwrap_or_default(),
        sha256: saved.sha256,
    };
    Ok(Answer {
        delta: run::artifacts(&call.id, &[artifact]),
        result: json!(result),
    })
}

/// Normalises the path of the one file to save.
fn path(given: &str) -> Result<String, ToolError> {
    let path = workspace_path::file_path(given, &AREAS, "work/, out/ or runs/")?;
    if path.contains(['*', '?', '[', '{']) {
        let problem = format!("path {given:?} must name one file, without glob patterns");
        return Err(ToolError::arguments(problem));
    }
    Ok(path)
}

fn missing(error: Error, path: &str) -> ToolError {
    match error.reason() {
        // A session that has run nothing has no files.
        Some(Reason::WorkspaceNotFound) => ToolError::FileNotFound {
            path: path.to_owned(),
            nearest_names: Vec::new(),
        },
        Some(Reason::WrongFileType) => {
            ToolError::arguments(format!("path {path:?} is a folder, not a file"))
        }
        _ => stage::missing(error, &[path.to_owned()]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_file_of_the_workspace_can_be_saved() {
        for (given, wanted) in [
            ("$RUN_DIR/x/log", "runs/x/log"),
            ("inputs/a", "work/inputs/a"),
        ] {
            assert_eq!(path(given).ok().as_deref(), Some(wanted), "{given}");
        }
        for given in ["out/*", "out/{a,b}", "skills/x/SKILL.md"] {
            assert!(path(given).is_err(), "{given:?}");
        }
    }
}
