//! References to files: parses what a call gives, and opens the file in the workspace, in the artifact store or in a
//! skill. A skill's files are read from the skill store, so they can be read before anything is staged, and
//! placeholders in them are replaced. Those of a writable copy are read in the workspace, because commands change them.

use bytes::Bytes;
use futures::stream::BoxStream;
use skilld_client::v1::{
    ErrorReason, LoadArtifactRequest, ReadFileRequest, ReadSkillFileRequest, WorkspaceSkill,
};
use skilld_client::{Error, short_id, split_version, workspace_name};

use crate::call_context::SessionContext;
use crate::skill_file_path::SkillFilePath;
use crate::skill_lookup;
use crate::tool_error::{ToolError, ToolResult};
use crate::workspace_path::relative_to_workspace;

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
    /// Name of a skill and a path in a folder of it in the workspace, where the skill need not be staged yet.
    StagedSkill(String, SkillFolder, String),
    /// Path in a folder of a loaded skill.
    LoadedSkill(SkillFolder, String),
    /// Path relative to the workspace, or else to the folder of a loaded skill.
    Relative(String),
}

/// Folder to which the path of a skill's file is relative.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SkillFolder {
    /// Folder of the skill.
    Skill,
    /// Plugin of the skill; the skill itself if it belongs to none.
    Plugin,
}

impl SkillFolder {
    /// Returns the path that a file has in the workspace.
    fn workspace_path(self, skill: &str, path: &str) -> String {
        match self {
            Self::Skill => format!("skills/{skill}/{path}"),
            Self::Plugin => format!("skills/.plugins/{skill}/{path}"),
        }
    }
}

/// Open file: its metadata, and its bytes as they arrive.
pub(super) struct OpenFile {
    /// Reference of the file: `skill://name/path` for a skill's, without the workspace's root for one in it, else as the
    /// call gave it.
    pub(super) name: String,
    pub(super) size_bytes: u64,
    /// Media type; empty for the workspace's files, which have none.
    pub(super) mime_type: String,
    /// Encoding of a skill's text that the daemon has decoded; empty for others.
    pub(super) encoding: String,
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
            encoding: String::new(),
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
            ("workspace", path) => Ok(match Self::parse_path(path) {
                staged @ Self::StagedSkill(..) => staged,
                Self::Workspace(_)
                | Self::Artifact(..)
                | Self::Skill(..)
                | Self::LoadedSkill(..)
                | Self::Relative(_) => Self::Workspace(relative_to_workspace(path).into_owned()),
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
        let staged = |skill: &str, folder, path: &str| {
            Self::StagedSkill(skill.to_owned(), folder, path.to_owned())
        };
        match SkillFilePath::parse(path) {
            SkillFilePath::Named(skill, path) => staged(skill, SkillFolder::Skill, path),
            SkillFilePath::NamedPlugin(skill, path) => staged(skill, SkillFolder::Plugin, path),
            SkillFilePath::Own(path) => Self::LoadedSkill(SkillFolder::Skill, path.to_owned()),
            SkillFilePath::OwnPlugin(path) => {
                Self::LoadedSkill(SkillFolder::Plugin, path.to_owned())
            }
            SkillFilePath::Other if path.starts_with(['/', '$']) => {
                Self::Workspace(relative_to_workspace(path).into_owned())
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
        FileReference::Workspace(path) => {
            let mut opened = open_workspace_file(context, path, asked).await?;
            opened.name = match asked.contains("://") {
                true => format!("workspace://{path}"),
                false => path.clone(),
            };
            Ok(opened)
        }
        FileReference::Artifact(name, version) => {
            open_artifact(context, name, *version, asked).await
        }
        FileReference::Skill(skill, path) => {
            let visible = skill_lookup::resolve_reference(context, skill).await?;
            let file = SkillFile::new(skill, SkillFolder::Skill, path);
            let opened = open_skill_file(context, file, &visible, asked).await;
            opened.map(|(opened, _)| opened)
        }
        FileReference::StagedSkill(skill, folder, path) => {
            open_staged_file(context, SkillFile::new(skill, *folder, path), asked).await
        }
        FileReference::LoadedSkill(folder, path) => {
            let loaded = context.active_skills();
            let Some(latest) = loaded.last() else {
                return Err(ToolError::arguments(format!(
                    "{asked:?} is in the folder of a loaded skill, and none is loaded: load it, or use \
                     skill://name/path"
                )));
            };
            let opened = open_loaded_file(context, &loaded, (*folder, path), asked).await;
            let missing = match opened {
                Err(error @ ToolError::FileNotFound { .. }) => error,
                opened => return opened,
            };
            // A file that a command made: out/, work/ and inputs/ of a skill's folder lead to the workspace's.
            let staged = folder.workspace_path(latest, path);
            let opened = open_workspace_file(context, &staged, asked).await;
            opened.map_err(|_| missing)
        }
        FileReference::Relative(path) => {
            let loaded = context.active_skills();
            let similar = match open_workspace_file(context, path, asked).await {
                Err(ToolError::FileNotFound { nearest_names, .. }) => nearest_names,
                // It may lead from the skill's folder to its plugin's.
                Err(ToolError::InvalidArguments { .. })
                    if path.starts_with("../") && !loaded.is_empty() =>
                {
                    Vec::new()
                }
                opened => return opened,
            };
            let file = (SkillFolder::Skill, path.as_str());
            let mut opened = open_loaded_file(context, &loaded, file, asked).await;
            if let Err(ToolError::FileNotFound { nearest_names, .. }) = &mut opened {
                nearest_names.splice(..0, similar);
            }
            opened
        }
    }
}

async fn open_artifact(
    context: SessionContext<'_>,
    name: &str,
    version: Option<i64>,
    asked: &str,
) -> ToolResult<OpenFile> {
    let request = LoadArtifactRequest {
        name: name.to_owned(),
        scope: Some(context.session.scope()),
        version,
    };
    let artifact = context.tools.client.load_artifact(request).await;
    let (header, data) = artifact
        .map_err(|error| translate_error(error, asked))?
        .into_parts();
    let (size, mime_type) = (header.size_bytes, header.mime_type.as_str());
    Ok(OpenFile::new(asked, size, mime_type, data))
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
    Ok(OpenFile::new(asked, header.size_bytes, "", data))
}

/// File of a skill.
#[derive(Clone, Copy)]
struct SkillFile<'a> {
    /// Name of the skill, for the model.
    skill: &'a str,
    folder: SkillFolder,
    path: &'a str,
}

impl<'a> SkillFile<'a> {
    fn new(skill: &'a str, folder: SkillFolder, path: &'a str) -> Self {
        Self {
            skill,
            folder,
            path,
        }
    }

    /// Returns the file that the daemon found, whose path is relative to the skill's folder.
    fn found(self, path: &'a str) -> Self {
        match path.starts_with("../") {
            // All of the plugin's folders above the skill are left out, so the path begins at the plugin's.
            true => Self::new(
                self.skill,
                SkillFolder::Plugin,
                path.trim_start_matches("../"),
            ),
            false => Self::new(self.skill, SkillFolder::Skill, path),
        }
    }

    /// Returns the path of the file in the workspace.
    fn workspace_path(self) -> String {
        self.folder.workspace_path(self.skill, self.path)
    }

    /// Returns the reference by which the model reads the file again.
    fn reference(self) -> String {
        match self.folder {
            SkillFolder::Skill => format!("skill://{}/{}", self.skill, self.path),
            SkillFolder::Plugin => self.workspace_path(),
        }
    }
}

/// Opens a file of a skill in the skill store. `reference` is that of the skill for the daemon. Returns the file and its
/// path in the workspace.
async fn open_skill_file(
    context: SessionContext<'_>,
    file: SkillFile<'_>,
    reference: &str,
    asked: &str,
) -> ToolResult<(OpenFile, String)> {
    let request = ReadSkillFileRequest {
        name: reference.to_owned(),
        path: file.path.to_owned(),
        workspace_paths: true,
        in_plugin: file.folder == SkillFolder::Plugin,
        ..ReadSkillFileRequest::default()
    };
    let tools = context.tools;
    let read = tools
        .client
        .read_skill_file(request)
        .await
        .map_err(|error| match error.reason() {
            // As it was asked for, skill and all.
            Some(ErrorReason::FileNotFound) => translate_error(error, asked),
            _ => skill_lookup::translate_file_error(&tools.options, error, file.skill, file.path),
        });
    let (header, data) = read?.into_parts();
    let found = file.found(&header.path);
    let mut opened = OpenFile::new(
        &found.reference(),
        header.size_bytes,
        &header.mime_type,
        data,
    );
    opened.encoding.clone_from(&header.encoding);
    Ok((opened, found.workspace_path()))
}

/// Opens a file of a skill as the workspace has it: in the version that is staged, or else in the current one.
async fn open_current_file(
    context: SessionContext<'_>,
    file: SkillFile<'_>,
    staged: Option<&WorkspaceSkill>,
    visible: &str,
    asked: &str,
) -> ToolResult<OpenFile> {
    let pinned = staged.map(|staged| format!("{}@{}", file.skill, staged.digest));
    let reference = pinned.as_deref().unwrap_or(visible);
    let (opened, path) = open_skill_file(context, file, reference, asked).await?;
    match staged {
        Some(staged) if staged.writable => open_workspace_file(context, &path, asked).await,
        Some(_) | None => Ok(opened),
    }
}

/// Opens a file in a folder of a skill in the workspace. What the skill does not have may be a file that a command made.
async fn open_staged_file(
    context: SessionContext<'_>,
    file: SkillFile<'_>,
    asked: &str,
) -> ToolResult<OpenFile> {
    let visible = skill_lookup::resolve_reference(context, file.skill).await?;
    let file = match visible.split_once('@') {
        // The call names the skill as its author wrote it, and the folder has the id.
        Some((id, _)) if !file.skill.contains('@') => SkillFile::new(id, file.folder, file.path),
        Some(_) | None => file,
    };
    let all_staged = staged_skills(context).await?;
    let staged = all_staged
        .iter()
        .find(|staged| short_id(&staged.name) == file.skill);
    let opened = open_current_file(context, file, staged, &visible, asked).await;
    match opened {
        Err(error) if staged.is_some() => {
            let made = open_workspace_file(context, &file.workspace_path(), asked).await;
            made.map_err(|_| error)
        }
        opened => opened,
    }
}

/// Returns the staged skills of the session's workspace; none if it does not exist.
async fn staged_skills(context: SessionContext<'_>) -> ToolResult<Vec<WorkspaceSkill>> {
    let name = workspace_name(&context.session.workspace_id());
    match context.tools.client.get_workspace(&name).await {
        Ok(workspace) => Ok(workspace.skills),
        Err(error) if error.reason() == Some(ErrorReason::WorkspaceNotFound) => Ok(Vec::new()),
        Err(error) => Err(error.into()),
    }
}

/// Opens a file of the only loaded skill that has it. Several skills can share one file of their plugin: it is that of
/// the skill that was used most recently.
async fn open_loaded_file(
    context: SessionContext<'_>,
    loaded: &[String],
    (folder, path): (SkillFolder, &str),
    asked: &str,
) -> ToolResult<OpenFile> {
    let all_staged = match loaded {
        [] => Vec::new(),
        _ => staged_skills(context).await?,
    };
    let (mut opened, mut similar) = (Vec::new(), Vec::new());
    for skill in loaded.iter().rev().take(SKILLS_SEARCHED_MAX) {
        let file = SkillFile::new(skill, folder, path);
        let staged = all_staged
            .iter()
            .find(|staged| short_id(&staged.name) == *skill);
        match open_current_file(context, file, staged, skill, asked).await {
            Ok(file) if folder == SkillFolder::Plugin || path.starts_with("../") => {
                return Ok(file);
            }
            Ok(file) => opened.push(file),
            Err(ToolError::FileNotFound { nearest_names, .. }) => {
                let names = nearest_names.iter();
                similar.extend(names.map(|name| SkillFile::new(skill, folder, name).reference()));
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
        Some(
            ErrorReason::FileNotFound
            | ErrorReason::WorkspaceNotFound
            | ErrorReason::ArtifactNotFound,
        ) => ToolError::FileNotFound {
            path: asked.to_owned(),
            nearest_names: skill_lookup::nearest_names(&error),
        },
        Some(ErrorReason::PathEscapes) => {
            ToolError::arguments(format!("{asked:?} leads out of the workspace"))
        }
        Some(ErrorReason::WrongFileType) => {
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
        let file = |path: &str| FileReference::Workspace(path.to_owned());
        for (text, wanted) in [
            ("out/a", FileReference::Relative("out/a".into())),
            ("/out/a", file("out/a")),
            ("/inputs/a", file("work/inputs/a")),
            ("/workspace/out/a", file("out/a")),
            ("workspace:///out/a", file("out/a")),
            ("workspace:///etc/passwd", file("/etc/passwd")),
            ("$OUTPUT_DIR/a", file("$OUTPUT_DIR/a")),
            (
                "{baseDir}/a/b",
                FileReference::LoadedSkill(SkillFolder::Skill, "a/b".into()),
            ),
            (
                "${CLAUDE_PLUGIN_ROOT}/a/b",
                FileReference::LoadedSkill(SkillFolder::Plugin, "a/b".into()),
            ),
            (
                "/mnt/skills/s/a/b",
                FileReference::StagedSkill("s".into(), SkillFolder::Skill, "a/b".into()),
            ),
            (
                "workspace://skills/s/a",
                FileReference::StagedSkill("s".into(), SkillFolder::Skill, "a".into()),
            ),
            (
                "workspace://skills/.plugins/s/a/b",
                FileReference::StagedSkill("s".into(), SkillFolder::Plugin, "a/b".into()),
            ),
            ("workspace://{baseDir}/a", file("{baseDir}/a")),
            ("workspace://out/a", file("out/a")),
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
