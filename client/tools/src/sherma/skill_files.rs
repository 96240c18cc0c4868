//! References, assets and scripts of a skill, in the version that is loaded unless the call names another one.

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Value, json};
use skilld_client::v1::{Skill, SkillFile};

use super::decode;
use super::skill_version_resolution::find_meant_skill;
use super::tool_arguments::{AssetArguments, PathsArguments, ResourceArguments};
use crate::call_context::{CallContext, CallResult, ToolAnswer};
use crate::skill_list_page::PathList;
use crate::skill_lookup::{self, FileContent, pinned_reference};
use crate::tool_error::{ToolError, ToolResult};

/// Result of the tools that read a file.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct FileResult {
    #[serde(flatten)]
    file: FileContent,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<String>,
    /// Offset at which to continue.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_offset: Option<u64>,
    /// Note about a binary file, or about the rest of a text.
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<String>,
}

/// Lists the paths of a skill's files beneath `folder` that `is_listed` selects; an empty folder is the whole skill.
pub(super) async fn list_paths(
    call: CallContext<'_>,
    arguments: Value,
    folder: &'static str,
    is_listed: fn(&SkillFile) -> bool,
) -> CallResult {
    let asked: PathsArguments = decode(arguments)?;
    let skill = find_meant_skill(call.context, &asked.skill_id, &asked.version).await?;
    let files = skill_lookup::list_files(call.tools, &pinned_reference(&skill), folder).await?;
    let paths: Vec<String> = files
        .into_iter()
        .filter(is_listed)
        .map(|file| file.path)
        .collect();
    Ok(ToolAnswer::of(json!(PathList::new(&paths, asked.offset))))
}

pub(super) async fn read_resource(call: CallContext<'_>, arguments: Value) -> CallResult {
    let asked: ResourceArguments = decode(arguments)?;
    let skill = find_meant_skill(call.context, &asked.skill_id, &asked.version);
    read_file(call, skill, &asked.resource_path, asked.offset).await
}

pub(super) async fn read_asset(call: CallContext<'_>, arguments: Value) -> CallResult {
    let asked: AssetArguments = decode(arguments)?;
    let skill = find_meant_skill(call.context, &asked.skill_id, &asked.version);
    read_file(call, skill, &asked.asset_path, asked.offset).await
}

/// Reads a text file, or describes a binary one, of the skill that a lookup finds.
async fn read_file(
    call: CallContext<'_>,
    skill: impl Future<Output = ToolResult<Skill>>,
    path: &str,
    offset: u64,
) -> CallResult {
    let path = path.trim();
    if path.is_empty() {
        return Err(ToolError::arguments("the path is empty"));
    }
    let skill = skill.await?;
    let max = call.tools.options.primary_bytes_max;
    let mut file = skill_lookup::read_requested_file(call.tools, &skill, path, offset, max).await?;
    Ok(ToolAnswer::of(json!(FileResult {
        content: file.text.take(),
        next_offset: file.next_offset,
        message: match file.binary {
            true => Some(file.describe_binary()),
            false => file.describe_rest(offset),
        },
        file,
    })))
}
