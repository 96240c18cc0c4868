//! What a command needs in its workspace: its skill, and the inputs that the call names.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use skilld_proto::v1::input_spec::Source;
use skilld_proto::v1::{
    InputSpec, Reason, StageInputsRequest, StageMode, StagedInput, StagedSkill,
};

use crate::Error;
use crate::names::split_version;
use crate::tools::trpc::mistake::Arguments;
use crate::tools::trpc::result::StagedFile;
use crate::tools::{Inner, Session, ToolError, lookup};

/// One input of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub(super) struct Input {
    /// `artifact://name[@version]`, `workspace://path`, `skill://name/path`, or what else the operator allows.
    pub(super) from: String,
    /// Where it goes in the workspace; `work/inputs/` and its name if it is left out.
    pub(super) to: String,
    /// `copy` (default) or `link`.
    pub(super) mode: String,
    /// Use the version of the artifact that this workspace used before.
    pub(super) pin: bool,
}

impl Input {
    fn spec(&self) -> InputSpec {
        let to = self.to.trim().replace('\\', "/");
        let is_default = matches!(to.as_str(), "." | "inputs" | "inputs/");
        let mode = match self.mode.trim().eq_ignore_ascii_case("link") {
            true => StageMode::Link,
            false => StageMode::Copy,
        };
        InputSpec {
            source: Some(Source::From(self.from.trim().to_owned())),
            to: if is_default { String::new() } else { to },
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
            original_name: staged.from,
            size_bytes: u64::try_from(file.size.max(staged.bytes_total)).unwrap_or_default(),
            sha256: file.sha256,
            unchanged: staged.unchanged,
            note: staged.note,
        }
    }
}

/// Puts a skill, and inputs if there are any, into the session's workspace. Its name comes first.
pub(super) async fn stage(
    tools: &Inner,
    session: &Session,
    skill: &str,
    inputs: &[Input],
) -> Result<(String, StagedSkill, Vec<StagedFile>), ToolError> {
    let staged = tools
        .workspaces
        .within(&tools.client, session, |workspace| async move {
            let staged = tools.client.stage_skills(&workspace, &[skill]).await;
            let staged =
                staged.map_err(|error| lookup::unknown_skill(&tools.options, error, skill))?;
            let staged = staged.into_iter().next().ok_or_else(nothing)?;
            Ok((workspace, staged))
        });
    let (workspace, staged) = staged.await?;
    let mut files = Vec::new();
    if !inputs.is_empty() {
        let specs = inputs.iter().map(Input::spec).collect();
        let brought = bring(tools, session, &workspace, specs).await;
        files = brought.map_err(|error| mistake(error, inputs))?;
    }
    Ok((workspace, staged, files))
}

/// A refusal of inputs in the words of the tool.
fn mistake(error: ToolError, inputs: &[Input]) -> ToolError {
    let ToolError::Daemon(daemon) = &error else {
        return error;
    };
    let mut sources = inputs.iter().map(|input| input.from.trim());
    let of_skill = sources.find(|from| from.starts_with("skill://"));
    match (daemon.reason(), of_skill) {
        (Some(Reason::SkillNotFound), Some(from)) => ToolError::arguments(format!(
            "inputs {from:?}: this skill is not in the workspace: run a command of it with skill_run first, or read the \
             file with read_file"
        )),
        _ => Arguments::default().translate(error),
    }
}

/// Puts inputs into a workspace, all of them or none.
pub(super) async fn bring(
    tools: &Inner,
    session: &Session,
    workspace: &str,
    inputs: Vec<InputSpec>,
) -> Result<Vec<StagedFile>, ToolError> {
    let asked: Vec<String> = inputs
        .iter()
        .filter_map(|input| match &input.source {
            Some(Source::From(from)) => Some(from.clone()),
            Some(Source::Data(_)) | None => None,
        })
        .collect();
    let request = StageInputsRequest {
        workspace: workspace.to_owned(),
        inputs,
        scope: Some(session.scope()),
    };
    let staged = tools.client.stage_inputs(request).await;
    let staged = staged.map_err(|error| missing(error, &asked))?;
    Ok(staged.into_iter().map(StagedFile::from).collect())
}

/// A file or an artifact that is not there is the call's fault. `asked` are the references that it may be about.
pub(super) fn missing(error: Error, asked: &[String]) -> ToolError {
    let Some(failure) = error.failure() else {
        return error.into();
    };
    let is_named = |from: &&String| {
        let artifact = from.strip_prefix("artifact://").unwrap_or_default();
        let (name, _) = split_version(artifact);
        !name.is_empty() && failure.message.contains(name)
    };
    let path = match failure.reason {
        Some(Reason::FileNotFound) => failure.metadata.get("path").or(asked.first()),
        Some(Reason::ArtifactNotFound) => asked.iter().find(is_named).or(asked.first()),
        _ => return error.into(),
    };
    ToolError::FileNotFound {
        path: path.cloned().unwrap_or_default(),
        nearest_names: lookup::nearest(&error),
    }
}

fn nothing() -> ToolError {
    Error::protocol("it staged no skill").into()
}
