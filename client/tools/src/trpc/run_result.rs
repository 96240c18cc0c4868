//! Result of a run: the same for `skill_run` and for a `skill_exec` that has ended.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use skilld_client::v1::ExecResult;

use crate::call_context::CallContext;
use crate::exec_run::{ExecEnd, FinishedExec};
use crate::output_buffer::OutputStreams;
use crate::output_collection::ArtifactOwner;
use crate::result_budget::{TEXT_BYTES_MAX, json_bytes, take_fitting};
use crate::run_warnings;
use crate::state::{ARTIFACTS, StateDelta};
use crate::tool_options::ToolOptions;

/// End of the warning about output that is not UTF-8. Images may lack iconv.
const DECODING_ADVICE: &str =
    "; a command can convert text, for example `iconv -f ENCODING -t UTF-8`";

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
    /// Creates the result of a command that has ended, without its output and its files.
    pub(super) fn new(result: &ExecResult) -> Self {
        let end = ExecEnd::from(result);
        let failure = end.spawn_failure.iter();
        let mut warnings: Vec<String> = failure
            .map(|message| format!("the command could not be started: {message}"))
            .collect();
        if end.timed_out {
            let warning =
                "the command was ended for its time; output and files until then are kept";
            warnings.push(warning.to_owned());
        }
        Self {
            exit_code: end.exit_code.unwrap_or(-1),
            signal: end.signal,
            reason: end.reason,
            timed_out: end.timed_out,
            duration_ms: end.duration_ms,
            warnings,
            ..Self::default()
        }
    }

    /// Creates the result of a command with its output, without its files.
    pub(super) fn with_output(
        options: &ToolOptions,
        finished: FinishedExec,
        staged: Vec<StagedFile>,
    ) -> Self {
        let mut result = Self {
            staged_inputs: staged,
            ..Self::new(&finished.result)
        };
        let OutputStreams { stdout, stderr } = finished.output;
        result.stdout = stdout.into_text("stdout", DECODING_ADVICE, &mut result.warnings);
        result.stderr = stderr.into_text("stderr", DECODING_ADVICE, &mut result.warnings);
        result.warnings.extend(finished.warnings);
        let (end, spec, streams) = (&finished.result, &finished.spec, result.streams());
        let warnings = run_warnings::describe_run(options, end, spec, &streams);
        result.warnings.extend(warnings);
        result
    }

    fn streams(&self) -> [&str; 2] {
        [&self.stdout, &self.stderr]
    }

    /// Returns `true` if packages that the skill lacks may be why the command did not do what it should.
    pub(super) fn may_lack_packages(&self) -> bool {
        self.has_failed() || run_warnings::lacks_package(&self.streams())
    }

    pub(super) fn has_failed(&self) -> bool {
        self.exit_code != 0 || self.timed_out
    }
}

/// Returns the change of state that records saved artifacts where the reference systems look for them: the first ones of
/// very many, since hosts may keep states. `merge` combines those of calls side by side.
pub(super) fn record_artifacts(call: CallContext<'_>, files: &[ArtifactFile]) -> StateDelta {
    let mut delta = StateDelta::new();
    if !files.is_empty() {
        let recorded = take_fitting(files.iter(), TEXT_BYTES_MAX, json_bytes);
        let recorded: Vec<&ArtifactFile> = recorded.collect();
        let saved = json!({"tool_call_id": call.id, "artifacts": recorded});
        delta.set(ARTIFACTS, saved);
    }
    delta
}
