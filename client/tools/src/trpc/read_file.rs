//! `read_file`: text of a file by reference, in this turn or a later one. No more of the file is read than is
//! requested.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::decode;
use super::file_reference::{self, FileReference};
use super::file_text::{FileText, decode_shown, whole_characters_end};
use super::line_selector::{LineSelector, SelectedLines};
use crate::call_context::{CallContext, CallResult, ToolAnswer};
use crate::result_budget::{TEXT_BYTES_MAX, json_bytes};
use crate::tool_error::{ToolError, ToolResult};

/// Number of bytes of JSON around a text: its quotes and a comma.
const QUOTES_BYTES: usize = 3;
/// Maximum growth of a text of another encoding when it becomes UTF-8.
const UTF8_GROWTH_MAX: usize = 3;

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
    /// Reference of the file; `skill://name/path` for a file of a skill.
    file_name: String,
    content: String,
    /// Encoding of the file if it is not UTF-8; content and offsets are those of the decoded text.
    #[serde(skip_serializing_if = "Option::is_none")]
    encoding: Option<String>,
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
    /// Where the bytes of a file are that is no text.
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<String>,
    /// Reference of a file that is no text, for inputs.
    #[serde(rename = "ref", skip_serializing_if = "Option::is_none")]
    reference: Option<String>,
}

pub(super) async fn read_file(call: CallContext<'_>, arguments: Value) -> CallResult {
    let asked: ReadArguments = decode(arguments)?;
    let start = read_count("start_line", asked.start_line)?.unwrap_or(1);
    let count = read_count("num_lines", asked.num_lines)?.unwrap_or(u64::MAX);
    let start_byte = read_count("start_byte", asked.start_byte)?.unwrap_or(0);
    let reference = FileReference::parse(asked.file_name.trim())?;
    let mut file =
        file_reference::open_reference(call.context, &reference, asked.file_name.trim()).await?;
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
    let mut text = FileText::open(file.data).await?.ok_or_else(not_text)?;
    let mut lines = LineSelector::new(start, count, TEXT_BYTES_MAX).starting_at(start_byte);
    while let Some(data) = text.next().await? {
        if !lines.push(&data) {
            break;
        }
    }
    let mut taken = without_cut_character(lines.take());
    let decoded = |bytes: &[u8]| {
        let shown = decode_shown(bytes, true)?;
        Some((shown.text.into_owned(), shown.encoding))
    };
    let mut shown = decoded(&taken.bytes);
    // The file's beginning may be ASCII, and only these lines of another encoding: as UTF-8 they are longer.
    let is_long = |(text, _): &(String, _)| json_bytes(text) > TEXT_BYTES_MAX + QUOTES_BYTES;
    if shown.as_ref().is_some_and(is_long) {
        taken = without_cut_character(taken.shortened(TEXT_BYTES_MAX / UTF8_GROWTH_MAX));
        shown = decoded(&taken.bytes);
    }
    let (content, shown_encoding) = shown.ok_or_else(not_text)?;
    let encodings = [file.encoding.as_str(), text.encoding, shown_encoding];
    let encoding = encodings
        .into_iter()
        .find(|name| !matches!(*name, "" | "UTF-8"));
    let result = ReadResult {
        file_name: file.name.clone(),
        content,
        encoding: encoding.map(str::to_owned),
        start_line: taken.first,
        end_line: taken.last,
        next_start_line: taken.next,
        truncated: taken.next_byte.is_some(),
        next_start_byte: taken.next_byte,
        size_bytes: file.size_bytes,
        mime_type: mime_type("text/plain"),
        note: None,
        reference: None,
    };
    Ok(ToolAnswer::of(json!(result)))
}

/// Returns selected lines without the beginning of a character at the end of a line that is cut.
fn without_cut_character(mut taken: SelectedLines) -> SelectedLines {
    if let Some(next_byte) = taken.next_byte {
        let end = whole_characters_end(&taken.bytes);
        let cut = taken.bytes.len().saturating_sub(end) as u64;
        taken.next_byte = Some(next_byte.saturating_sub(cut));
        taken.bytes.truncate(end);
    }
    taken
}

/// Returns a number of an argument; `None` for 0, which clients send for what is left out.
fn read_count(field: &str, value: Option<i64>) -> ToolResult<Option<u64>> {
    let count = u64::try_from(value.unwrap_or_default())
        .map_err(|_| ToolError::arguments(format!("{field} must not be negative")))?;
    Ok(Some(count).filter(|count| *count > 0))
}
