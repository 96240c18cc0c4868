//! Result of a run: the same for `skill_run` and for a `skill_exec` that has ended.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::call_context::CallContext;
use crate::output_collection::ArtifactOwner;
use crate::result_budget::{TEXT_BYTES_MAX, json_bytes, take_fitting};
use crate::run_outcome::RunOutcome;
use crate::state::{ARTIFACTS, StateDelta};

/// Result of a run: its end, its output and the files that it left.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub(super) struct RunResult {
    /// Output on stdout; of a long one the beginning and the end, and a warning says so.
    pub(super) stdout: String,
    /// Output on stderr; of a long one the beginning and the end, and a warning says so.
    pub(super) stderr: String,
    /// -1 if no exit code was reached: `signal` or `reason` says why.
    pub(super) exit_code: i32,
    /// The signal that ended it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(super) signal: Option<i32>,
    /// exited, signaled, timeout, oom_killed, output_limit, disk_full, pids_limit, killed_by_client, spawn_failed and
    /// so on.
    pub(super) reason: String,
    pub(super) timed_out: bool,
    /// From start to end, as it really was.
    pub(super) duration_ms: u64,
    /// Files that this run made or changed and that were asked for; nothing of earlier runs.
    pub(super) output_files: Vec<OutputFile>,
    /// Main output: of the text files that are not blank and not too long, the first one.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(super) primary_output: Option<OutputFile>,
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub(super) artifact_files: Vec<ArtifactFile>,
    /// Owner of the artifacts, without which they cannot be found.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(super) artifact_scope: Option<ArtifactOwner>,
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub(super) staged_inputs: Vec<StagedFile>,
    /// A limit kept files, or parts of them, out of the result. Lists that the size of the whole result cuts are named in
    /// warnings.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub(super) limits_hit: bool,
    /// Files that were left out, and why.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub(super) skipped_files: Vec<SkippedFile>,
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub(super) warnings: Vec<String>,
}

/// File that a run made or changed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub(super) struct OutputFile {
    /// Path in the workspace.
    pub(super) name: String,
    /// `workspace://NAME`, for read_file and inputs.
    #[serde(rename = "ref")]
    pub(super) reference: String,
    /// Text of a text file, if the call asks for contents.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(super) content: Option<String>,
    pub(super) mime_type: String,
    pub(super) size_bytes: u64,
    /// SHA-256 of the file; `None` if it was cut.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(super) sha256: Option<String>,
    /// The content is its beginning only.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub(super) truncated: bool,
    /// `artifact://NAME@VERSION`, if it was saved.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(super) artifact: Option<String>,
    /// Why there is no content, where that is not plain.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(super) note: Option<String>,
}

/// Version of an artifact.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub(super) struct ArtifactFile {
    pub(super) name: String,
    pub(super) version: i64,
    /// `artifact://NAME@VERSION`.
    #[serde(rename = "ref")]
    pub(super) reference: String,
}

/// File that was put into the workspace.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub(super) struct StagedFile {
    /// Path in the workspace.
    pub(super) name: String,
    /// Where it came from.
    pub(super) original_name: String,
    pub(super) size_bytes: u64,
    /// SHA-256 of a file; empty for a folder or a link.
    #[serde(skip_serializing_if = "String::is_empty", default)]
    pub(super) sha256: String,
    /// `true` if the file was there already.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub(super) unchanged: bool,
    /// Deviation from the request.
    #[serde(skip_serializing_if = "String::is_empty", default)]
    pub(super) note: String,
}

/// File that is not in the result.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub(super) struct SkippedFile {
    pub(super) name: String,
    /// MAX_FILES, MAX_TOTAL_BYTES, PERMISSION, FILE_TYPE, NOT_WHOLE, UNCHANGED and so on.
    pub(super) reason: String,
}

impl ArtifactFile {
    /// Parses `artifact://NAME@VERSION`.
    pub(super) fn parse(reference: &str) -> Option<Self> {
        let (name, version) = reference.strip_prefix("artifact://")?.rsplit_once('@')?;
        Some(Self {
            name: name.to_owned(),
            version: version.parse().ok()?,
            reference: reference.to_owned(),
        })
    }
}

impl RunResult {
    /// Creates the result of a command that has ended, without its files.
    pub(super) fn new(outcome: RunOutcome, staged: Vec<StagedFile>) -> Self {
        Self {
            stdout: outcome.stdout,
            stderr: outcome.stderr,
            exit_code: outcome.exit_code.unwrap_or(-1),
            signal: outcome.signal,
            reason: outcome.reason,
            timed_out: outcome.timed_out,
            duration_ms: outcome.duration_ms,
            staged_inputs: staged,
            warnings: outcome.warnings,
            ..Self::default()
        }
    }

    pub(super) fn has_failed(&self) -> bool {
        self.exit_code != 0 || self.timed_out
    }
}

/// Returns the change of state that records saved artifacts where the reference systems look for them: the first ones of
/// very many, since hosts may keep states. `merge` combines those of calls side by side.
pub(super) fn artifacts_delta(call: CallContext<'_>, files: &[ArtifactFile]) -> StateDelta {
    let mut delta = StateDelta::new();
    if !files.is_empty() {
        let recorded: Vec<&ArtifactFile> =
            take_fitting(files.iter(), TEXT_BYTES_MAX, json_bytes).collect();
        let saved = json!({"tool_call_id": call.id, "artifacts": recorded});
        delta.set(ARTIFACTS, saved);
    }
    delta
}
