//! `workspace_save_artifact`: keeps one file of the workspace beyond it. Its bytes go from the guest to the store and never
//! come here.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use skilld_proto::v1::Reason;

use crate::tools::collected::SavedScope;
use crate::tools::trpc::result::ArtifactFile;
use crate::tools::trpc::{ALIASES, run, stage};
use crate::tools::{Answer, Call, Inner, Session, ToolError, arguments};
use crate::{Error, SaveTarget};

/// Where files may be saved from.
const AREAS: [&str; 3] = ["work", "out", "runs"];
/// Variables that a path may begin with, and what they stand for.
const VARIABLES: [(&str, &str); 5] = [
    ("WORKSPACE_DIR", ""),
    ("WORK_DIR", "work"),
    ("INPUTS_DIR", "work/inputs"),
    ("OUTPUT_DIR", "out"),
    ("RUN_DIR", "runs"),
];

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub(super) struct SaveArguments {
    /// A file beneath work/, out/ or runs/: `out/report.md`, `$OUTPUT_DIR/report.md`, `workspace://out/report.md`.
    pub(super) path: String,
}

/// What was saved.
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

/// A path relative to the workspace, beneath where commands write.
fn path(given: &str) -> Result<String, ToolError> {
    let refused = |why: &str| ToolError::arguments(format!("path {given:?} {why}"));
    let text = given.trim().replace('\\', "/");
    if text.is_empty() {
        return Err(ToolError::arguments("path is required"));
    }
    let text = text.strip_prefix("workspace://").unwrap_or(&text);
    let text = match text.strip_prefix('/') {
        Some(absolute) => absolute.strip_prefix("workspace/").unwrap_or(absolute),
        None => text,
    };
    let text = expanded(text).ok_or_else(|| refused("begins with an unknown variable"))?;
    if text.contains(['*', '?', '[', '{']) {
        return Err(refused("must name one file, without glob patterns"));
    }
    let parts: Vec<&str> = text
        .split('/')
        .filter(|part| !matches!(*part, "" | "."))
        .collect();
    if parts.contains(&"..") {
        return Err(refused("must not contain .."));
    }
    match parts.split_first() {
        Some((&"inputs", [_, ..])) => Ok(format!("work/{}", parts.join("/"))),
        Some((area, [_, ..])) if AREAS.contains(area) => Ok(parts.join("/")),
        _ => Err(refused("must be a file beneath work/, out/ or runs/")),
    }
}

fn expanded(path: &str) -> Option<String> {
    let Some(rest) = path.strip_prefix('$') else {
        return Some(path.to_owned());
    };
    let (name, rest) = match rest.strip_prefix('{') {
        Some(braced) => braced.split_once('}')?,
        None => rest.split_at(rest.find('/').unwrap_or(rest.len())),
    };
    if !(rest.is_empty() || rest.starts_with('/')) {
        return None;
    }
    let known = VARIABLES.iter().find(|(variable, _)| *variable == name);
    known.map(|(_, value)| format!("{value}{rest}"))
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
    fn a_path_may_be_written_in_many_ways_and_leads_nowhere_else() {
        for (given, wanted) in [
            ("out/a.txt", "out/a.txt"),
            (" workspace://out/./a.txt ", "out/a.txt"),
            ("$OUTPUT_DIR/a", "out/a"),
            ("${WORK_DIR}/a", "work/a"),
            ("$RUN_DIR/x/log", "runs/x/log"),
            ("$WORKSPACE_DIR/out/a", "out/a"),
            ("/workspace/out/a", "out/a"),
            ("/out/a", "out/a"),
            ("inputs/a", "work/inputs/a"),
            ("out\\a", "out/a"),
        ] {
            assert_eq!(path(given).ok().as_deref(), Some(wanted), "{given}");
        }
        for given in [
            "",
            " ",
            "a",
            "out",
            "out/",
            "skills/x/SKILL.md",
            "../out/a",
            "out/../../a",
            "/etc/passwd",
            "out/*",
            "out/{a,b}",
            "$HOME/a",
            "$OUTPUT_DIRX/a",
            "${OUTPUT_DIR/a",
            "metadata.json",
            "workspace://",
        ] {
            assert!(path(given).is_err(), "{given:?}");
        }
    }
}
