//! `read_file`: text of a file by reference, in this turn or a later one. No more of the file is read than is
//! requested.

use futures::TryStreamExt;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::decode;
use super::file_reference::{self, FileReference};
use super::line_selector::LineSelector;
use crate::call_context::{CallContext, CallResult, ToolAnswer};
use crate::tool_error::{ToolError, ToolResult};

/// Maximum text of one call, in bytes.
const CONTENT_BYTES_MAX: usize = 256 * 1024;
/// Size of the beginning of a file that is searched for NUL bytes, whichever lines the call requests: no text has one.
const HEAD_BYTES: usize = 8 * 1024;

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub(super) struct ReadArguments {
    /// `workspace://path`, `artifact://name[@version]`, `skill://name/path`, or a path in the workspace or in the folder
    /// of a loaded skill.
    pub(super) file_name: String,
    /// The first line, from 1.
    pub(super) start_line: Option<i64>,
    /// Lines to read at most.
    pub(super) num_lines: Option<i64>,
    /// Bytes of the first line to leave out: `next_start_byte` of the call before.
    pub(super) start_byte: Option<i64>,
}

/// Text of a file, or of some lines of it.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct ReadResult {
    /// Reference as the call gave it; `skill://name/path` for a file of a skill.
    file_name: String,
    content: String,
    /// First line of the content; 0 if there is none.
    start_line: u64,
    end_line: u64,
    /// The line to go on with.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_start_line: Option<u64>,
    /// Line `end_line` is too long to show all of it: `next_start_byte` goes on in it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    truncated: bool,
    /// With `end_line` as `start_line`: the `start_byte` to go on with in a line that is too long.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_start_byte: Option<u64>,
    /// Size of the whole file in bytes.
    size_bytes: u64,
    mime_type: String,
}

pub(super) async fn read_file(call: CallContext<'_>, arguments: Value) -> CallResult {
    let asked: ReadArguments = decode(arguments)?;
    let start = require_positive("start_line", asked.start_line)?.unwrap_or(1);
    let count = require_positive("num_lines", asked.num_lines)?.unwrap_or(u64::MAX);
    let start_byte = u64::try_from(asked.start_byte.unwrap_or(0))
        .map_err(|_| ToolError::arguments("start_byte must not be negative"))?;
    let reference = FileReference::parse(asked.file_name.trim())?;
    let mut file =
        file_reference::open_reference(*call, &reference, asked.file_name.trim()).await?;
    let known_type = std::mem::take(&mut file.mime_type);
    // The workspace's files have no known type: readable ones are text, others are binary.
    let mime_type = |unknown: &str| match known_type.as_str() {
        "" => unknown.to_owned(),
        known => known.to_owned(),
    };
    let not_text = || ToolError::NotText {
        path: file.name.clone(),
        mime_type: mime_type("binary"),
    };
    let mut lines = LineSelector::new(start, count, CONTENT_BYTES_MAX).starting_at(start_byte);
    let mut head = HEAD_BYTES;
    while let Some(data) = file.data.try_next().await? {
        if data.iter().take(head).any(|byte| *byte == 0) {
            return Err(not_text());
        }
        head = head.saturating_sub(data.len());
        if !lines.push(&data) {
            break;
        }
    }
    let taken = lines.take();
    if taken.bytes.contains(&0) {
        return Err(not_text());
    }
    let content = String::from_utf8(taken.bytes).map_err(|_| not_text())?;
    let result = ReadResult {
        file_name: file.name.clone(),
        content,
        start_line: taken.first,
        end_line: taken.last,
        next_start_line: taken.next,
        truncated: taken.next_byte.is_some(),
        next_start_byte: taken.next_byte,
        size_bytes: file.size_bytes,
        mime_type: mime_type("text/plain"),
    };
    Ok(ToolAnswer::of(json!(result)))
}

fn require_positive(field: &str, value: Option<i64>) -> ToolResult<Option<u64>> {
    match value.map(u64::try_from) {
        None => Ok(None),
        Some(Ok(value)) if value > 0 => Ok(Some(value)),
        Some(_) => Err(ToolError::arguments(format!(
            "{field} must be greater than 0"
        ))),
    }
}
