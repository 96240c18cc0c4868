//! References to files: parses what a call gives, and opens the file in the workspace, in the artifact store or in a
//! skill. A skill's files are read from the skill store, so they can be read before anything is staged, and
//! placeholders in them are replaced.

use bytes::Bytes;
use futures::stream::BoxStream;
use skilld_client::v1::{LoadArtifactRequest, ReadFileRequest, ReadSkillFileRequest, Reason};
use skilld_client::{Error, split_version, workspace_name};

use crate::call_context::SessionContext;
use crate::prompt_material_reader::active_skills;
use crate::skill_file_path::SkillFilePath;
use crate::skill_lookup;
use crate::tool_error::{ToolError, ToolResult};

/// Maximum number of loaded skills in which a path is looked up; the most recently used ones.
const SKILLS_SEARCHED_MAX: usize = 16;
/// Maximum number of similar names that an error lists.
const NAMES_SHOWN_MAX: usize = 5;

/// Parsed reference to a file.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum FileReference {
    /// Path in the workspace.
    Workspace(String),
    /// Name and version of an artifact; `None` is the newest version.
    Artifact(String, Option<i64>),
    /// Name of a skill, with a version or not, and a path in it.
    Skill(String, String),
    /// Name of a skill and a path in its folder in the workspace, where the skill need not be staged yet.
    StagedSkill(String, String),
    /// Path in the folder of a loaded skill.
    LoadedSkill(String),
    /// Path relative to the workspace, or else to the folder of a loaded skill.
    Relative(String),
}

/// Open file: its metadata, and its bytes as they arrive.
pub(super) struct OpenFile {
    /// Reference of the file: `skill://name/path` for a skill's, else as the call gave it.
    pub(super) name: String,
    pub(super) size_bytes: u64,
    /// Media type; empty for the workspace's files, which have none.
    pub(super) mime_type: String,
    pub(super) data: BoxStream<'static, Result<Bytes, Error>>,
}

impl OpenFile {
    fn new(
        name: &str,
        size: i64,
        mime_type: &str,
        data: BoxStream<'static, Result<Bytes, Error>>,
    ) -> Self {
        Self {
            name: name.to_owned(),
            size_bytes: u64::try_from(size).unwrap_or_default(),
            mime_type: mime_type.to_owned(),
            data,
        }
    }
}

impl FileReference {
    pub(super) fn parse(text: &str) -> ToolResult<Self> {
        let wrong = |why: &str| ToolError::arguments(format!("file_name {text:?} {why}"));
        let Some((scheme, rest)) = text.split_once("://") else {
            return match text {
                "" => Err(ToolError::arguments("file_name is required")),
                path => Ok(Self::parse_path(path)),
            };
        };
        match (scheme, rest) {
            (_, "") => Err(wrong("names no file")),
            ("workspace", path) if path.starts_with('/') => Err(wrong("must be relative")),
            ("workspace", path) => Ok(match SkillFilePath::parse(path) {
                SkillFilePath::Named(skill, path) => {
                    Self::StagedSkill(skill.to_owned(), path.to_owned())
                }
                SkillFilePath::Own(_) | SkillFilePath::Other => Self::Workspace(path.to_owned()),
            }),
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

    /// Parses a path without a scheme.
    fn parse_path(path: &str) -> Self {
        match SkillFilePath::parse(path) {
            SkillFilePath::Named(skill, path) => {
                Self::StagedSkill(skill.to_owned(), path.to_owned())
            }
            SkillFilePath::Own(path) => Self::LoadedSkill(path.to_owned()),
            SkillFilePath::Other if path.starts_with(['/', '$']) => {
                Self::Workspace(path.to_owned())
            }
            SkillFilePath::Other => Self::Relative(path.to_owned()),
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
pub(super) async fn open_reference(
    context: SessionContext<'_>,
    reference: &FileReference,
    asked: &str,
) -> ToolResult<OpenFile> {
    match reference {
        FileReference::Workspace(path) => open_workspace_file(context, path, asked).await,
        FileReference::Artifact(name, version) => {
            let request = LoadArtifactRequest {
                name: name.clone(),
                scope: Some(context.session.scope()),
                version: *version,
            };
            let artifact = context.tools.client.load_artifact(request).await;
            let artifact = artifact.map_err(|error| translate_error(error, asked))?;
            let (header, data) = artifact.into_parts();
            Ok(OpenFile::new(asked, header.size, &header.mime_type, data))
        }
        FileReference::Skill(skill, path) => {
            let visible = skill_lookup::visible_reference(context.tools, skill).await?;
            open_skill_file(context, (skill, &visible), path, asked).await
        }
        FileReference::StagedSkill(skill, path) => {
            open_staged_file(context, skill, path, asked).await
        }
        FileReference::LoadedSkill(path) => {
            let loaded = active_skills(context);
            let Some(latest) = loaded.last() else {
                return Err(ToolError::arguments(format!(
                    "{asked:?} is in the folder of a loaded skill, and none is loaded: load it, or use \
                     skill://name/path"
                )));
            };
            let missing = match open_loaded_file(context, &loaded, path, asked).await {
                Err(error @ ToolError::FileNotFound { .. }) => error,
                opened => return opened,
            };
            // A file that a command made: out/, work/ and inputs/ of a skill's folder lead to the workspace's.
            let staged = format!("skills/{latest}/{path}");
            let opened = open_workspace_file(context, &staged, asked).await;
            opened.map_err(|_| missing)
        }
        FileReference::Relative(path) => {
            let loaded = active_skills(context);
            let similar = match open_workspace_file(context, path, asked).await {
                Err(ToolError::FileNotFound { nearest_names, .. }) => nearest_names,
                opened => return opened,
            };
            let mut opened = open_loaded_file(context, &loaded, path, asked).await;
            if let Err(ToolError::FileNotFound { nearest_names, .. }) = &mut opened {
                nearest_names.splice(..0, similar);
            }
            opened
        }
    }
}

/// Opens a file of the workspace. A workspace that does not exist has no files: none is created for the look.
async fn open_workspace_file(
    context: SessionContext<'_>,
    path: &str,
    asked: &str,
) -> ToolResult<OpenFile> {
    let request = ReadFileRequest {
        workspace: workspace_name(&context.session.workspace_id()),
        path: path.to_owned(),
        ..ReadFileRequest::default()
    };
    let file = context.tools.client.read_file(request).await;
    let (header, data) = file
        .map_err(|error| translate_error(error, asked))?
        .into_parts();
    Ok(OpenFile::new(asked, header.size, "", data))
}

/// Opens a file of a skill, given by its name for the model and its reference for the daemon.
async fn open_skill_file(
    context: SessionContext<'_>,
    (skill, reference): (&str, &str),
    path: &str,
    asked: &str,
) -> ToolResult<OpenFile> {
    let request = ReadSkillFileRequest {
        name: reference.to_owned(),
        path: path.to_owned(),
        workspace_paths: true,
        ..ReadSkillFileRequest::default()
    };
    let tools = context.tools;
    let file = tools.client.read_skill_file(request).await;
    let file = file.map_err(|error| match error.reason() {
        // As it was asked for, skill and all.
        Some(Reason::FileNotFound) => translate_error(error, asked),
        _ => skill_lookup::translate_file_error(&tools.options, error, skill, path),
    });
    let (header, data) = file?.into_parts();
    let name = format!("skill://{skill}/{}", header.path);
    Ok(OpenFile::new(&name, header.size, &header.mime_type, data))
}

/// Opens a file in the folder of a skill in the workspace: in the content that is staged, or in the current version if
/// the skill is not staged yet. What the skill does not have may be a file that a command made.
async fn open_staged_file(
    context: SessionContext<'_>,
    skill: &str,
    path: &str,
    asked: &str,
) -> ToolResult<OpenFile> {
    let visible = skill_lookup::visible_reference(context.tools, skill).await?;
    let staged = staged_digest(context, skill).await?;
    let reference = staged.as_ref().map(|digest| format!("{skill}@{digest}"));
    let reference = reference.as_ref().unwrap_or(&visible);
    let opened = open_skill_file(context, (skill, reference), path, asked).await;
    match opened {
        Err(error) if staged.is_some() => {
            let staged = format!("skills/{skill}/{path}");
            let made = open_workspace_file(context, &staged, asked).await;
            made.map_err(|_| error)
        }
        opened => opened,
    }
}

/// Returns the digest of the staged content of a skill; `None` if the session's workspace does not exist or does not
/// have the skill.
async fn staged_digest(context: SessionContext<'_>, skill: &str) -> ToolResult<Option<String>> {
    let name = workspace_name(&context.session.workspace_id());
    match context.tools.client.get_workspace(&name).await {
        Ok(workspace) => {
            let mut staged = workspace.skills.into_iter();
            Ok(staged
                .find(|staged| staged.name == skill)
                .map(|staged| staged.digest))
        }
        Err(error) if error.reason() == Some(Reason::WorkspaceNotFound) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Opens a file of the only loaded skill that has it.
async fn open_loaded_file(
    context: SessionContext<'_>,
    loaded: &[String],
    path: &str,
    asked: &str,
) -> ToolResult<OpenFile> {
    let (mut opened, mut similar) = (Vec::new(), Vec::new());
    for skill in loaded.iter().rev().take(SKILLS_SEARCHED_MAX) {
        match open_skill_file(context, (skill, skill), path, asked).await {
            Ok(file) => opened.push(file),
            Err(ToolError::FileNotFound { nearest_names, .. }) => {
                let names = nearest_names.iter();
                similar.extend(names.map(|name| format!("skill://{skill}/{name}")));
            }
            Err(error @ ToolError::Daemon(_)) => return Err(error),
            // The skill is gone, or cannot have such a path.
            Err(_) => {}
        }
    }
    if opened.len() > 1 {
        let names: Vec<&str> = opened.iter().map(|file| file.name.as_str()).collect();
        return Err(ToolError::arguments(format!(
            "{asked:?} is in several loaded skills: use one of {}",
            names.join(", ")
        )));
    }
    similar.truncate(NAMES_SHOWN_MAX);
    opened.pop().ok_or_else(|| ToolError::FileNotFound {
        path: asked.to_owned(),
        nearest_names: similar,
    })
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
            ("out/a", FileReference::Relative("out/a".into())),
            (
                "/workspace/out/a",
                FileReference::Workspace("/workspace/out/a".into()),
            ),
            (
                "$OUTPUT_DIR/a",
                FileReference::Workspace("$OUTPUT_DIR/a".into()),
            ),
            ("{baseDir}/a/b", FileReference::LoadedSkill("a/b".into())),
            (
                "/mnt/skills/s/a/b",
                FileReference::StagedSkill("s".into(), "a/b".into()),
            ),
            (
                "workspace://skills/s/a",
                FileReference::StagedSkill("s".into(), "a".into()),
            ),
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
