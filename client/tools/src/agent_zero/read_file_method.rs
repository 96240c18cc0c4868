//! Method `read_file`: reads a file of a skill.

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::json;

use super::{MethodArguments, skill_name_resolution};
use crate::call_context::{CallContext, CallResult, ToolAnswer};
use crate::prompt::untrusted_text::one_line;
use crate::skill_lookup::{self, FileContent};
use crate::skill_text_tag::wrap_in_tag;
use crate::tool_error::ToolError;

/// Result of `read_file`.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct ReadResult {
    /// For the model.
    text: String,
    name: String,
    #[serde(flatten)]
    file: FileContent,
    /// Offset at which to continue.
    next_offset: Option<u64>,
}

pub(super) async fn read_file(call: CallContext<'_>, arguments: &MethodArguments) -> CallResult {
    let (path, offset) = (arguments.file_path.trim(), arguments.offset);
    if path.is_empty() {
        return Err(ToolError::arguments(
            "file_path is empty: use one that the method load shows",
        ));
    }
    let skill =
        skill_name_resolution::find_loaded_skill(call.context, &arguments.skill_name).await?;
    let max = call.tools.options.primary_bytes_max;
    let file = skill_lookup::read_requested_file(call.tools, &skill, path, offset, max).await?;
    let reading = match call.tools.options.runs_commands() {
        true => ": a script can read it",
        false => "",
    };
    let mut text = match &file.text {
        Some(text) => wrap_in_tag(&skill, Some(&file.path), text),
        None => format!(
            "{} is {}{reading}",
            one_line(&file.path),
            file.describe_binary()
        ),
    };
    if !file.encoding.is_empty() {
        text += &format!("[decoded from {}]\n", one_line(&file.encoding));
    }
    if let Some(rest) = file.describe_rest(offset) {
        text += &format!("[{rest}]\n");
    }
    Ok(ToolAnswer::of(json!(ReadResult {
        text,
        name: skill_lookup::skill_id(&skill),
        next_offset: file.next_offset,
        file,
    })))
}
