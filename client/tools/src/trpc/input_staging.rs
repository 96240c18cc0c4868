//! Stages the inputs that a call names into the session's workspace.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use skilld_client::v1::input_spec::Content;
use skilld_client::v1::{ErrorReason, InputSpec, StageInputsRequest, StageMode, StagedInput};
use skilld_client::{Error, split_version};

use super::field_error_translator::FieldErrorTranslator;
use super::run_result::StagedFile;
use crate::call_context::{CallContext, SessionContext};
use crate::skill_lookup;
use crate::tool_error::{ToolError, ToolResult};
use crate::workspace_path::relative_to_workspace;

/// Input of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub(super) struct InputArgument {
    /// `artifact://name[@version]`, a path in the workspace, `skill://name/path`, or what else the operator allows.
    pub(super) from: String,
    /// Where it goes in the workspace; `work/inputs/` and its name if it is left out.
    pub(super) to: String,
    /// `copy` (default) or `link`.
    pub(super) mode: String,
    /// Use the version of the artifact that this workspace used before.
    pub(super) pin: bool,
}

impl InputArgument {
    /// Returns the reference of the source for the daemon; a path without a scheme is one in the workspace.
    fn reference(&self) -> String {
        let from = self.from.trim();
        match from.split_once("://") {
            None | Some(("workspace", _)) if !from.is_empty() => {
                format!("workspace://{}", relative_to_workspace(from))
            }
            _ => from.to_owned(),
        }
    }

    fn to_spec(&self) -> InputSpec {
        let to = self.to.trim().replace('\\', "/");
        let is_default = matches!(to.as_str(), "." | "inputs" | "inputs/");
        let mode = match self.mode.trim().eq_ignore_ascii_case("link") {
            true => StageMode::Link,
            false => StageMode::Copy,
        };
        InputSpec {
            content: Some(Content::Source(self.reference())),
            path: match is_default {
                true => String::new(),
                false => relative_to_workspace(&to).into_owned(),
            },
            mode: mode.into(),
            pin: self.pin,
            ..InputSpec::default()
        }
    }
}

impl From<StagedInput> for StagedFile {
    fn from(staged: StagedInput) -> Self {
        let file = staged.file.unwrap_or_default();
        Self {
            name: file.path,
            original_name: staged.source,
            size_bytes: u64::try_from(file.size_bytes.max(staged.size_bytes)).unwrap_or_default(),
            sha256: file.sha256,
            unchanged: staged.unchanged,
            note: staged.note,
        }
    }
}

/// Stages the inputs of a call. Errors are in the words of the tool.
pub(super) async fn stage_arguments(
    call: CallContext<'_>,
    workspace: &str,
    inputs: &[InputArgument],
) -> ToolResult<Vec<StagedFile>> {
    if inputs.is_empty() {
        return Ok(Vec::new());
    }
    let staged = stage_inputs(call.context, workspace, input_specs(inputs)).await;
    staged.map_err(|error| translate_input_error(error, inputs))
}

/// Returns the inputs of a call for the daemon.
pub(super) fn input_specs(inputs: &[InputArgument]) -> Vec<InputSpec> {
    inputs.iter().map(InputArgument::to_spec).collect()
}

/// Converts the daemon's error about one of the inputs of a call, in the words of the tool; returns others unchanged.
pub(super) fn translate_input_error(error: ToolError, inputs: &[InputArgument]) -> ToolError {
    let mut sources = inputs.iter().map(|input| input.from.trim());
    let of_skill = sources.find(|from| from.starts_with("skill://"));
    let daemon = match (error, of_skill) {
        // The skill of the command was found before.
        (ToolError::UnknownSkill { .. }, Some(from)) => return unstaged_skill(from),
        (ToolError::Daemon(daemon), _) => daemon,
        (error, _) => return error,
    };
    match (daemon.reason(), of_skill) {
        (Some(ErrorReason::SkillNotFound), Some(from)) => unstaged_skill(from),
        _ if inputs.is_empty() => ToolError::Daemon(daemon),
        _ => {
            let sources: Vec<String> = inputs.iter().map(InputArgument::reference).collect();
            let error = translate_missing(daemon, &sources);
            FieldErrorTranslator::with_timeout("timeout").translate(error)
        }
    }
}

/// Returns the error about an input of a skill that is not in the workspace.
fn unstaged_skill(from: &str) -> ToolError {
    ToolError::arguments(format!(
        "inputs {from:?}: this skill is not in the workspace: run a command of it with skill_run first, or read \
         the file with read_file"
    ))
}

/// Stages inputs into a workspace, all of them or none.
pub(super) async fn stage_inputs(
    context: SessionContext<'_>,
    workspace: &str,
    inputs: Vec<InputSpec>,
) -> ToolResult<Vec<StagedFile>> {
    let sources: Vec<String> = inputs
        .iter()
        .filter_map(|input| match &input.content {
            Some(Content::Source(from)) => Some(from.clone()),
            Some(Content::Data(_) | Content::Archive(_)) | None => None,
        })
        .collect();
    let request = StageInputsRequest {
        workspace: workspace.to_owned(),
        inputs,
        scope: Some(context.session.scope()),
    };
    let staged = context
        .tools
        .client
        .stage_inputs(request)
        .await
        .map_err(|error| translate_missing(error, &sources))?;
    Ok(staged.into_iter().map(StagedFile::from).collect())
}

/// Converts the error about a missing file or artifact, which is the call's fault. `sources` are the references that it
/// may be about.
pub(super) fn translate_missing(error: Error, sources: &[String]) -> ToolError {
    let Some(failure) = error.failure() else {
        return error.into();
    };
    let is_named = |from: &&String| {
        let artifact = from.strip_prefix("artifact://").unwrap_or_default();
        let (name, _) = split_version(artifact);
        !name.is_empty() && failure.message.contains(name)
    };
    let path = match failure.reason {
        Some(ErrorReason::FileNotFound) => failure.metadata.get("path").or(sources.first()),
        Some(ErrorReason::ArtifactNotFound) => sources.iter().find(is_named).or(sources.first()),
        _ => return error.into(),
    };
    ToolError::FileNotFound {
        path: path.cloned().unwrap_or_default(),
        nearest_names: skill_lookup::nearest_names(&error),
    }
}
