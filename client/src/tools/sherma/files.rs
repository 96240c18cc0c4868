//! A skill's references, assets and scripts: of the version that is loaded, unless another one is asked for.

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::json;
use skilld_proto::v1::skill_file::Kind;

use super::arguments::{File, Skill};
use super::resolve;
use crate::state::sherma::Loaded;
use crate::tools::{Answer, Inner, ToolError, lookup};

/// What the tools that read a file return.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Content {
    /// The file's own path, however it was asked for.
    path: String,
    mime_type: String,
    /// Of the whole file.
    size: i64,
    sha256: String,
    /// It is no text: there is no content.
    binary: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<String>,
    /// Where to go on reading.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_offset: Option<u64>,
    /// What to know beyond that.
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<String>,
}

/// Paths beneath one of a skill's folders.
pub(super) async fn list(
    tools: &Inner,
    loads: &Loaded,
    skill: &Skill,
    folder: &str,
) -> Result<Answer, ToolError> {
    let skill = resolve::skill(tools, loads, skill).await?;
    let files = lookup::files(tools, &lookup::pinned(&skill), folder).await?;
    let paths: Vec<String> = files.into_iter().map(|file| file.path).collect();
    Ok(Answer::of(json!(paths)))
}

/// Paths of what can be run.
pub(super) async fn scripts(
    tools: &Inner,
    loads: &Loaded,
    skill: &Skill,
) -> Result<Answer, ToolError> {
    let skill = resolve::skill(tools, loads, skill).await?;
    let files = lookup::files(tools, &lookup::pinned(&skill), "").await?;
    let scripts = files.into_iter().filter(|file| file.kind() == Kind::Script);
    let paths: Vec<String> = scripts.map(|file| file.path).collect();
    Ok(Answer::of(json!(paths)))
}

pub(super) async fn read(tools: &Inner, loads: &Loaded, file: &File) -> Result<Answer, ToolError> {
    if file.path.trim().is_empty() {
        return Err(ToolError::arguments("the path is empty"));
    }
    let skill = resolve::skill(tools, loads, &file.skill).await?;
    let max = tools.options.primary_bytes_max;
    let read = lookup::read(
        tools,
        &lookup::pinned(&skill),
        file.path.trim(),
        file.offset,
        max,
    )
    .await?;
    let described = read.file;
    let message = match (&read.text, read.next_offset) {
        (None, _) => Some(format!(
            "binary, {} bytes, sha256 {}, {}",
            described.size, described.sha256, described.mime_type
        )),
        (Some(_), Some(next)) => Some(format!(
            "bytes {} to {next} of {}; go on with offset {next}",
            file.offset, described.size
        )),
        (Some(_), None) => None,
    };
    Ok(Answer::of(json!(Content {
        binary: read.text.is_none(),
        path: described.path,
        mime_type: described.mime_type,
        size: described.size,
        sha256: described.sha256,
        content: read.text,
        next_offset: read.next_offset,
        message,
    })))
}
