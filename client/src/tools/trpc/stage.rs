//! What a command needs in its workspace: its skill, the inputs that the call names, the files of the conversation.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use skilld_proto::v1::input_spec::Source;
use skilld_proto::v1::{
    InputSpec, Reason, StageInputsRequest, StageMode, StagedInput, StagedSkill,
};

use crate::prompt::{Upload, UploadContent};
use crate::tools::trpc::result::StagedFile;
use crate::tools::trpc::skills;
use crate::tools::{Inner, Session, StagedUpload, ToolError};
use crate::{Error, StageTarget};

/// Bytes that one input can bring with the request, and all of one request together.
const DATA_BYTES_MAX: usize = 1024 * 1024;
const REQUEST_BYTES_MAX: usize = 3 * 1024 * 1024;
/// Inputs of one request.
const INPUTS_MAX: usize = 256;

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
            let staged = staged.map_err(|error| skills::refused(&tools.options, skill, error))?;
            let staged = staged.into_iter().next().ok_or_else(nothing)?;
            Ok((workspace, staged))
        });
    let (workspace, staged) = staged.await?;
    let mut files = Vec::new();
    if !inputs.is_empty() {
        let specs = inputs.iter().map(Input::spec).collect();
        files = bring(tools, session, &workspace, specs).await?;
    }
    Ok((workspace, staged, files))
}

/// Puts files of the conversation into the session's workspace: one call, unless they are large.
pub(crate) async fn uploads(
    tools: &Inner,
    session: &Session,
    uploads: &[Upload],
) -> Result<Vec<StagedUpload>, ToolError> {
    let mut staged = Vec::new();
    let mut batch: Vec<InputSpec> = Vec::new();
    let mut bytes = 0;
    let within = |batch: Vec<InputSpec>| {
        tools
            .workspaces
            .within(&tools.client, session, move |workspace| {
                let batch = batch.clone();
                async move { bring(tools, session, &workspace, batch).await }
            })
    };
    for (index, upload) in uploads.iter().enumerate() {
        let name = match upload.name.trim() {
            "" => format!("upload_{}", index + 1),
            name => name.to_owned(),
        };
        let source = match &upload.content {
            UploadContent::Reference(from) => Source::From(from.clone()),
            UploadContent::ProviderId(id) => {
                let problem =
                    format!("{name}: the provider has it as {id:?}; only the host can fetch it");
                return Err(ToolError::arguments(problem));
            }
            UploadContent::Bytes(data) if data.len() > DATA_BYTES_MAX => {
                staged.push(large(tools, session, &name, data).await?);
                continue;
            }
            UploadContent::Bytes(data) => {
                bytes += data.len();
                Source::Data(data.clone().into())
            }
        };
        batch.push(InputSpec {
            source: Some(source),
            name,
            ..InputSpec::default()
        });
        if bytes > REQUEST_BYTES_MAX - DATA_BYTES_MAX || batch.len() == INPUTS_MAX {
            staged.extend(within(std::mem::take(&mut batch)).await?);
            bytes = 0;
        }
    }
    if !batch.is_empty() {
        staged.extend(within(batch).await?);
    }
    Ok(staged.into_iter().map(StagedUpload::from).collect())
}

/// One that no request holds: it is sent as a file, under its own name.
async fn large(
    tools: &Inner,
    session: &Session,
    name: &str,
    data: &[u8],
) -> Result<StagedFile, ToolError> {
    let file = name.replace('\\', "/");
    let file = file.rsplit('/').next().unwrap_or_default();
    let file: String = file.chars().filter(|letter| !letter.is_control()).collect();
    let file = match file.as_str() {
        "" | "." | ".." => "upload",
        file => file,
    };
    let path = format!("work/inputs/{file}");
    let path = path.as_str();
    let sent = tools
        .workspaces
        .within(&tools.client, session, |workspace| async move {
            let target = StageTarget::file(&workspace, path);
            let source = std::io::Cursor::new(data.to_vec());
            Ok(tools.client.stage(target, source).await?)
        });
    let written = sent.await?.files.into_iter().next().unwrap_or_default();
    Ok(StagedFile {
        name: path.to_owned(),
        original_name: name.to_owned(),
        size_bytes: data.len() as u64,
        sha256: written.sha256,
        ..StagedFile::default()
    })
}

async fn bring(
    tools: &Inner,
    session: &Session,
    workspace: &str,
    inputs: Vec<InputSpec>,
) -> Result<Vec<StagedFile>, ToolError> {
    let names: Vec<String> = inputs.iter().map(|input| input.name.clone()).collect();
    let request = StageInputsRequest {
        workspace: workspace.to_owned(),
        inputs,
        scope: Some(session.scope()),
    };
    let staged = tools.client.stage_inputs(request).await.map_err(missing)?;
    let staged = staged.into_iter().map(StagedFile::from).zip(names);
    Ok(staged
        .map(|(mut file, name)| {
            if file.original_name.is_empty() {
                file.original_name = name;
            }
            file
        })
        .collect())
}

/// An input that is not there is the call's fault.
fn missing(error: Error) -> ToolError {
    if error.reason() != Some(Reason::FileNotFound) {
        return error.into();
    }
    let metadata = error.failure().map(|failure| &failure.metadata);
    let path = metadata.and_then(|metadata| metadata.get("path")).cloned();
    ToolError::FileNotFound {
        path: path.unwrap_or_default(),
        nearest_names: skills::nearest(&error),
    }
}

fn nothing() -> ToolError {
    Error::protocol("it staged no skill").into()
}

impl From<StagedFile> for StagedUpload {
    fn from(file: StagedFile) -> Self {
        Self {
            name: file.name,
            original_name: file.original_name,
            size_bytes: file.size_bytes,
            unchanged: file.unchanged,
        }
    }
}
