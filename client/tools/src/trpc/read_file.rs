//! `read_file`: text of a file by reference, in this turn or a later one. No more of the file is read than is
//! requested.

use bytes::Bytes;
use futures::TryStreamExt;
use futures::stream::BoxStream;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use skilld_client::v1::{LoadArtifactRequest, ReadFileRequest, ReadSkillFileRequest, Reason};
use skilld_client::{Error, split_version, workspace_name};

use super::decode;
use super::line_selector::LineSelector;
use crate::call_context::{CallContext, CallResult, ToolAnswer};
use crate::skill_lookup;
use crate::tool_error::{ToolError, ToolResult};

/// Maximum text of one call, in bytes.
const CONTENT_BYTES_MAX: usize = 256 * 1024;
/// Size of the beginning of a file that is searched for NUL bytes, whichever lines the call requests: no text has one.
const HEAD_BYTES: usize = 8 * 1024;

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub(super) struct ReadArguments {
    /// `workspace://path`, `artifact://name[@version]`, `skill://name/path`, or a path in the workspace.
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

/// Parsed reference to a file in the workspace, in the artifact store or in a skill.
#[derive(Debug, PartialEq, Eq)]
enum FileReference {
    Workspace(String),
    Artifact(String, Option<i64>),
    Skill(String, String),
}

/// Open file: its metadata, and its bytes as they arrive.
struct OpenFile {
    size_bytes: u64,
    /// Media type; empty for the workspace's files, which have none.
    mime_type: String,
    data: BoxStream<'static, Result<Bytes, Error>>,
}

impl OpenFile {
    fn new(size: i64, mime_type: &str, data: BoxStream<'static, Result<Bytes, Error>>) -> Self {
        Self {
            size_bytes: u64::try_from(size).unwrap_or_default(),
            mime_type: mime_type.to_owned(),
            data,
        }
    }
}

pub(super) async fn read_file(call: CallContext<'_>, arguments: Value) -> CallResult {
    let asked: ReadArguments = decode(arguments)?;
    let start = require_positive("start_line", asked.start_line)?.unwrap_or(1);
    let count = require_positive("num_lines", asked.num_lines)?.unwrap_or(u64::MAX);
    let start_byte = u64::try_from(asked.start_byte.unwrap_or(0))
        .map_err(|_| ToolError::arguments("start_byte must not be negative"))?;
    let reference = FileReference::parse(asked.file_name.trim())?;
    let mut file = open_reference(call, &reference, &asked.file_name).await?;
    let known_type = std::mem::take(&mut file.mime_type);
    // The workspace's files have no known type: readable ones are text, others are binary.
    let mime_type = |unknown: &str| match known_type.as_str() {
        "" => unknown.to_owned(),
        known => known.to_owned(),
    };
    let not_text = || ToolError::NotText {
        path: asked.file_name.clone(),
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
        file_name: asked.file_name.trim().to_owned(),
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

impl FileReference {
    fn parse(text: &str) -> ToolResult<Self> {
        let wrong = |why: &str| ToolError::arguments(format!("file_name {text:?} {why}"));
        let Some((scheme, rest)) = text.split_once("://") else {
            return match text {
                "" => Err(ToolError::arguments("file_name is required")),
                path => Ok(Self::Workspace(path.to_owned())),
            };
        };
        match (scheme, rest) {
            (_, "") => Err(wrong("names no file")),
            ("workspace", path) if path.starts_with('/') => Err(wrong("must be relative")),
            ("workspace", path) => Ok(Self::Workspace(path.to_owned())),
            ("artifact", name) => {
                Self::parse_artifact(name).ok_or_else(|| wrong("has a version that is no number"))
            }
            ("skill", path) => match path.split_once('/') {
                Some((skill, path)) if !(skill.is_empty() || path.is_empty()) => {
                    Ok(Self::Skill(skill.to_owned(), path.to_owned()))
                }
                _ => Err(wrong("is not skill://name/path")),
            },
            _ => Err(wrong("is none of workspace://, artifact://, skill://")),
        }
    }

    /// Parses the name of an artifact. A version follows the last `@` and has digits only.
    fn parse_artifact(name: &str) -> Option<Self> {
        let (name, version) = split_version(name);
        let version = version.map(str::parse).transpose().ok()?;
        Some(Self::Artifact(name.to_owned(), version))
    }
}

/// Opens a file for reading. `asked` is the reference as the call gave it.
async fn open_reference(
    call: CallContext<'_>,
    reference: &FileReference,
    asked: &str,
) -> ToolResult<OpenFile> {
    let (tools, session) = (call.tools, call.session);
    let missing = |error| translate_error(error, asked);
    match reference {
        FileReference::Workspace(path) => {
            // A workspace that does not exist has no files: none is created for the look.
            let request = ReadFileRequest {
                workspace: workspace_name(&session.workspace_id()),
                path: path.clone(),
                ..ReadFileRequest::default()
            };
            let file = tools.client.read_file(request).await.map_err(missing)?;
            let (header, data) = file.into_parts();
            Ok(OpenFile::new(header.size, "", data))
        }
        FileReference::Artifact(name, version) => {
            let request = LoadArtifactRequest {
                name: name.clone(),
                scope: Some(session.scope()),
                version: *version,
            };
            let artifact = tools.client.load_artifact(request).await;
            let (header, data) = artifact.map_err(missing)?.into_parts();
            Ok(OpenFile::new(header.size, &header.mime_type, data))
        }
        FileReference::Skill(skill, path) => {
            let request = ReadSkillFileRequest {
                name: skill_lookup::visible_reference(tools, skill).await?,
                path: path.clone(),
                workspace_paths: true,
                ..ReadSkillFileRequest::default()
            };
            let file = tools.client.read_skill_file(request).await;
            let file = file.map_err(|error| match error.reason() {
                // As it was asked for, skill and all.
                Some(Reason::FileNotFound) => missing(error),
                _ => skill_lookup::translate_file_error(&tools.options, error, skill, path),
            });
            let (header, data) = file?.into_parts();
            Ok(OpenFile::new(header.size, &header.mime_type, data))
        }
    }
}

fn translate_error(error: Error, asked: &str) -> ToolError {
    match error.reason() {
        Some(Reason::FileNotFound | Reason::WorkspaceNotFound | Reason::ArtifactNotFound) => {
            ToolError::FileNotFound {
                path: asked.to_owned(),
                nearest_names: skill_lookup::nearest_names(&error),
            }
        }
        Some(Reason::PathEscapes) => {
            ToolError::arguments(format!("{asked:?} leads out of the workspace"))
        }
        Some(Reason::WrongFileType) => {
            ToolError::arguments(format!("{asked:?} is a folder, not a file"))
        }
        _ => error.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reference_says_where_a_file_is() {
        let artifact = |name: &str, version| FileReference::Artifact(name.to_owned(), version);
        for (text, wanted) in [
            ("out/a", FileReference::Workspace("out/a".into())),
            (
                "workspace://out/a",
                FileReference::Workspace("out/a".into()),
            ),
            ("artifact://a", artifact("a", None)),
            ("artifact://a@3", artifact("a", Some(3))),
            ("artifact://a@b@12", artifact("a@b", Some(12))),
            ("artifact://a@", artifact("a@", None)),
            ("artifact://a@v1", artifact("a@v1", None)),
            ("artifact://@1", artifact("@1", None)),
            (
                "skill://s/a/b",
                FileReference::Skill("s".into(), "a/b".into()),
            ),
        ] {
            assert_eq!(FileReference::parse(text).ok(), Some(wanted), "{text}");
        }
        for text in [
            "",
            "workspace://",
            "workspace:///etc/passwd",
            "artifact://",
            // No version at all is the latest, which is not what this asks for.
            "artifact://a@99999999999999999999",
            "skill://s",
            "skill:///a",
            "host:///a",
            "https://a/b",
        ] {
            assert!(FileReference::parse(text).is_err(), "{text}");
        }
    }
}
