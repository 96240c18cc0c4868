//! What a run gives: the same for `skill_run` and for a `skill_exec` that has ended.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use skilld_proto::v1::ExecResult;
use skilld_proto::v1::exec_result::{Outcome, Reason};

use crate::tools::collected::SavedScope;

/// How a command ended, what it said, and which files it left.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub(super) struct RunResult {
    /// Its beginning and its end if it is long; a warning says so.
    pub(super) stdout: String,
    /// Its beginning and its end if it is long; a warning says so.
    pub(super) stderr: String,
    /// -1 if no exit code was reached: `signal` or `reason` says why.
    pub(super) exit_code: i32,
    /// The signal that ended it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(super) signal: Option<i32>,
    /// exited, signaled, timeout, oom_killed, output_limit, disk_full, pids_limit, killed_by_client, spawn_failed and so
    /// on.
    pub(super) reason: String,
    pub(super) timed_out: bool,
    /// From start to end, as it really was.
    pub(super) duration_ms: u64,
    /// Files that this run made or changed and that were asked for; nothing of earlier runs.
    pub(super) output_files: Vec<OutputFile>,
    /// Of the text files among them that are not blank and not too long, the one whose name sorts first.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(super) primary_output: Option<OutputFile>,
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub(super) artifact_files: Vec<ArtifactFile>,
    /// Whose artifacts these are: with another app, user or session nobody finds them.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(super) artifact_scope: Option<SavedScope>,
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub(super) staged_inputs: Vec<StagedFile>,
    /// A limit kept files, or parts of them, out of the result.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub(super) limits_hit: bool,
    /// Files that were left out, and why.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub(super) skipped_files: Vec<SkippedFile>,
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub(super) warnings: Vec<String>,
}

/// One file that a run made or changed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub(super) struct OutputFile {
    /// Its path in the workspace.
    pub(super) name: String,
    /// `workspace://NAME`, for read_file and inputs.
    #[serde(rename = "ref")]
    pub(super) reference: String,
    /// Its text, if it is text and contents were asked for.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(super) content: Option<String>,
    pub(super) mime_type: String,
    pub(super) size_bytes: u64,
    /// Of all of it; none if it was cut.
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

/// One version of an artifact.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub(super) struct ArtifactFile {
    pub(super) name: String,
    pub(super) version: i64,
    /// `artifact://NAME@VERSION`.
    #[serde(rename = "ref")]
    pub(super) reference: String,
}

/// One file that was put into the workspace.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub(super) struct StagedFile {
    /// Its path in the workspace.
    pub(super) name: String,
    /// Where it came from.
    pub(super) original_name: String,
    pub(super) size_bytes: u64,
    /// Of a file; none of a folder or a link.
    #[serde(skip_serializing_if = "String::is_empty", default)]
    pub(super) sha256: String,
    /// It was there already.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub(super) unchanged: bool,
    /// What was done otherwise than asked.
    #[serde(skip_serializing_if = "String::is_empty", default)]
    pub(super) note: String,
}

/// One file that is not in the result.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub(super) struct SkippedFile {
    pub(super) name: String,
    /// MAX_FILES, MAX_TOTAL_BYTES, PERMISSION, FILE_TYPE, NOT_WHOLE, UNCHANGED and so on.
    pub(super) reason: String,
}

impl ArtifactFile {
    /// From `artifact://NAME@VERSION`.
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
    /// What the daemon says of the end.
    pub(super) fn ended(&mut self, result: &ExecResult) {
        (self.exit_code, self.signal) = match result.outcome {
            Some(Outcome::ExitCode(code)) => (code, None),
            Some(Outcome::Signal(signal)) => (-1, Some(signal)),
            None => (-1, None),
        };
        let reason = result.reason();
        let name = reason.as_str_name();
        let name = name.strip_prefix("REASON_").unwrap_or(name);
        self.reason = name.to_ascii_lowercase();
        self.timed_out = matches!(reason, Reason::Timeout | Reason::NoOutputTimeout);
        let time = result.wall_time.unwrap_or_default();
        let time = std::time::Duration::try_from(time).unwrap_or_default();
        self.duration_ms = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        if let Some(failure) = &result.spawn_failure {
            let message = &failure.message;
            self.warnings
                .push(format!("the command could not be started: {message}"));
        }
        if self.timed_out {
            let warning =
                "the command was ended for its time; output and files until then are kept";
            self.warnings.push(warning.to_owned());
        }
    }

    pub(super) fn failed(&self) -> bool {
        self.exit_code != 0 || self.timed_out
    }
}
