//! `read_file`: text of a file by reference, in this turn or a later one. It is read where it is, as far as it is wanted.

use bytes::Bytes;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use skilld_proto::v1::{LoadArtifactRequest, ReadFileRequest, ReadSkillFileRequest, Reason};

use crate::names::split_version;
use crate::tools::trpc::ALIASES;
use crate::tools::trpc::lines::Lines;
use crate::tools::{Answer, Call, Inner, Session, ToolError, arguments, lookup};
use crate::{ArtifactReader, Error, FileReader, SkillFileReader, workspace_name};

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
    /// Of the content; 0 where there is none.
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
    /// Of the whole file.
    size_bytes: u64,
    mime_type: String,
}

/// What a reference names.
#[derive(Debug, PartialEq, Eq)]
enum Reference {
    Workspace(String),
    Artifact(String, Option<i64>),
    Skill(String, String),
}

/// A file as it comes.
enum Source {
    Workspace(FileReader),
    Artifact(ArtifactReader),
    Skill(SkillFileReader),
}

pub(super) async fn read(
    tools: &Inner,
    session: &Session,
    call: Call,
) -> Result<Answer, ToolError> {
    let asked: ReadArguments = arguments::decode(call.arguments, ALIASES)?;
    let start = positive("start_line", asked.start_line)?.unwrap_or(1);
    let count = positive("num_lines", asked.num_lines)?.unwrap_or(u64::MAX);
    let start_byte = u64::try_from(asked.start_byte.unwrap_or(0))
        .map_err(|_| ToolError::arguments("start_byte must not be negative"))?;
    let reference = Reference::parse(asked.file_name.trim())?;
    let mut source = open(tools, session, &reference, &asked.file_name).await?;
    let (size_bytes, mime_type) = source.described();
    // Of the workspace's files nobody knows it: what can be read is text, what cannot is something else.
    let mime_type = |unknown: &str| match mime_type.as_str() {
        "" => unknown.to_owned(),
        known => known.to_owned(),
    };
    let not_text = || ToolError::NotText {
        path: asked.file_name.clone(),
        mime_type: mime_type("binary"),
    };
    let mut lines = Lines::new(start, count, CONTENT_BYTES_MAX).starting_at(start_byte);
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
    Ok(Answer::of(json!(result)))
}

fn positive(field: &str, value: Option<i64>) -> Result<Option<u64>, ToolError> {
    match value.map(u64::try_from) {
        None => Ok(None),
        Some(Ok(value)) if value > 0 => Ok(Some(value)),
        Some(_) => Err(ToolError::arguments(format!(
            "{field} must be greater than 0"
        ))),
    }
}

impl Reference {
    fn parse(text: &str) -> Result<Self, ToolError> {
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
                Self::artifact(name).ok_or_else(|| wrong("has a version that is no number"))
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

    /// A version is what follows the last `@` if that is digits only.
    fn artifact(name: &str) -> Option<Self> {
        let (name, version) = split_version(name);
        let version = version.map(str::parse).transpose().ok()?;
        Some(Self::Artifact(name.to_owned(), version))
    }
}

async fn open(
    tools: &Inner,
    session: &Session,
    reference: &Reference,
    asked: &str,
) -> Result<Source, ToolError> {
    let missing = |error| missing(error, asked);
    match reference {
        Reference::Workspace(path) => {
            // A workspace that is not there has no files: none is made to look.
            let request = ReadFileRequest {
                workspace: workspace_name(&session.workspace_id()),
                path: path.clone(),
                ..ReadFileRequest::default()
            };
            let file = tools.client.read_file(request).await;
            file.map(Source::Workspace).map_err(missing)
        }
        Reference::Artifact(name, version) => {
            let request = LoadArtifactRequest {
                name: name.clone(),
                scope: Some(session.scope()),
                version: *version,
            };
            let artifact = tools.client.load_artifact(request).await;
            artifact.map(Source::Artifact).map_err(missing)
        }
        Reference::Skill(skill, path) => {
            let request = ReadSkillFileRequest {
                name: lookup::address(tools, skill).await?,
                path: path.clone(),
                workspace_paths: true,
                ..ReadSkillFileRequest::default()
            };
            let file = tools.client.read_skill_file(request).await;
            file.map(Source::Skill)
                .map_err(|error| match error.reason() {
                    // As it was asked for, skill and all.
                    Some(Reason::FileNotFound) => missing(error),
                    _ => lookup::unknown_file(&tools.options, error, skill, path),
                })
        }
    }
}

fn missing(error: Error, asked: &str) -> ToolError {
    match error.reason() {
        Some(Reason::FileNotFound | Reason::WorkspaceNotFound | Reason::ArtifactNotFound) => {
            ToolError::FileNotFound {
                path: asked.to_owned(),
                nearest_names: lookup::nearest(&error),
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

impl Source {
    fn described(&self) -> (u64, String) {
        let (size, mime) = match self {
            Self::Workspace(file) => (file.entry().size, ""),
            Self::Artifact(file) => (file.artifact().size, file.artifact().mime_type.as_str()),
            Self::Skill(file) => (file.file().size, file.file().mime_type.as_str()),
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
        let artifact = |name: &str, version| Reference::Artifact(name.to_owned(), version);
        for (text, wanted) in [
            ("out/a", Reference::Workspace("out/a".into())),
            ("workspace://out/a", Reference::Workspace("out/a".into())),
            ("artifact://a", artifact("a", None)),
            ("artifact://a@3", artifact("a", Some(3))),
            ("artifact://a@b@12", artifact("a@b", Some(12))),
            ("artifact://a@", artifact("a@", None)),
            ("artifact://a@v1", artifact("a@v1", None)),
            ("artifact://@1", artifact("@1", None)),
            ("skill://s/a/b", Reference::Skill("s".into(), "a/b".into())),
        ] {
            assert_eq!(Reference::parse(text).ok(), Some(wanted), "{text}");
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
            assert!(Reference::parse(text).is_err(), "{text}");
        }
    }
}
