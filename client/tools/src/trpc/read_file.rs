//! `read_file`: text of a file by reference, in this turn or a later one. No more of the file is read than is requested.

use bytes::Bytes;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use skilld_client::v1::{LoadArtifactRequest, ReadFileRequest, ReadSkillFileRequest, Reason};
use skilld_client::{
    ArtifactReader, Error, FileReader, SkillFileReader, split_version, workspace_name,
};

use super::decode;
use super::line_selection::LineSelection;
use crate::context::{CallContext, CallResult, ToolAnswer};
use crate::error::{ToolError, ToolResult};
use crate::lookup;

/// Bytes that one call gives.
const CONTENT_BYTES_MAX: usize = 256 * 1024;
/// A file that has a zero among its first bytes is no text, whichever lines of it are wanted.
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

/// Reference to a file.
#[derive(Debug, PartialEq, Eq)]
enum FileReference {
    Workspace(String),
    Artifact(String, Option<i64>),
    Skill(String, String),
}

/// Open file of one of the kinds.
enum ReadSource {
    Workspace(FileReader),
    Artifact(ArtifactReader),
    Skill(SkillFileReader),
}

pub(super) async fn read_file(call: CallContext<'_>, arguments: Value) -> CallResult {
    let asked: ReadArguments = decode(arguments)?;
    let start = require_positive("start_line", asked.start_line)?.unwrap_or(1);
    let count = require_positive("num_lines", asked.num_lines)?.unwrap_or(u64::MAX);
    let start_byte = u64::try_from(asked.start_byte.unwrap_or(0))
        .map_err(|_| ToolError::arguments("start_byte must not be negative"))?;
    let reference = FileReference::parse(asked.file_name.trim())?;
    let mut source = open_reference(call, &reference, &asked.file_name).await?;
    let (size_bytes, mime_type) = source.describe();
    // The workspace's files have no known type: readable ones are text, others are binary.
    let mime_type = |unknown: &str| match mime_type.as_str() {
        "" => unknown.to_owned(),
        known => known.to_owned(),
    };
    let not_text = || ToolError::NotText {
        path: asked.file_name.clone(),
        mime_type: mime_type("binary"),
    };
    let mut lines = LineSelection::new(start, count, CONTENT_BYTES_MAX).starting_at(start_byte);
    let mut head = HEAD_BYTES;
    while let Some(data) = source.next().await? {
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
        size_bytes,
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
) -> ToolResult<ReadSource> {
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
            let file = tools.client.read_file(request).await;
            file.map(ReadSource::Workspace).map_err(missing)
        }
        FileReference::Artifact(name, version) => {
            let request = LoadArtifactRequest {
                name: name.clone(),
                scope: Some(session.scope()),
                version: *version,
            };
            let artifact = tools.client.load_artifact(request).await;
            artifact.map(ReadSource::Artifact).map_err(missing)
        }
        FileReference::Skill(skill, path) => {
            let request = ReadSkillFileRequest {
                name: lookup::visible_reference(tools, skill).await?,
                path: path.clone(),
                workspace_paths: true,
                ..ReadSkillFileRequest::default()
            };
            let file = tools.client.read_skill_file(request).await;
            file.map(ReadSource::Skill)
                .map_err(|error| match error.reason() {
                    // As it was asked for, skill and all.
                    Some(Reason::FileNotFound) => missing(error),
                    _ => lookup::translate_file_error(&tools.options, error, skill, path),
                })
        }
    }
}

fn translate_error(error: Error, asked: &str) -> ToolError {
    match error.reason() {
        Some(Reason::FileNotFound | Reason::WorkspaceNotFound | Reason::ArtifactNotFound) => {
            ToolError::FileNotFound {
                path: asked.to_owned(),
                nearest_names: lookup::nearest_names(&error),
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

impl ReadSource {
    fn describe(&self) -> (u64, String) {
        let (size, mime) = match self {
            Self::Workspace(file) => (file.header().size, ""),
            Self::Artifact(file) => (file.header().size, file.header().mime_type.as_str()),
            Self::Skill(file) => (file.header().size, file.header().mime_type.as_str()),
        };
        (u64::try_from(size).unwrap_or_default(), mime.to_owned())
    }

    async fn next(&mut self) -> Result<Option<Bytes>, Error> {
        match self {
            Self::Workspace(file) => file.next().await,
            Self::Artifact(file) => file.next().await,
            Self::Skill(file) => file.next().await,
        }
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
