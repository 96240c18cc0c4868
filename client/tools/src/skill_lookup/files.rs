//! Files of a skill, listed and read.

use std::collections::HashMap;

use schemars::JsonSchema;
use serde::Serialize;
use skilld_client::Error;
use skilld_client::v1::SkillFileKind;
use skilld_client::v1::{
    ErrorReason, ListSkillFilesRequest, ReadSkillFileRequest, Skill, SkillFile,
};

use super::{nearest_names, pinned_reference, skill_id, translate_skill_error};
use crate::call_context::ToolsetContext;
use crate::output_buffer::whole_end;
use crate::result_budget::{TEXT_BYTES_MAX, json_head};
use crate::skill_file_path::{path_in_plugin, relative_path};
use crate::tool_error::{ToolError, ToolResult};
use crate::tool_options::ToolOptions;

/// Maximum number of a plugin's files that are looked up at once.
const SHARED_FILES_MAX: usize = 64;

/// Lists the files of a skill beneath a folder, sorted; empty if the skill has no such folder.
pub(crate) async fn list_files(
    tools: &ToolsetContext,
    reference: &str,
    folder: &str,
) -> ToolResult<Vec<SkillFile>> {
    let request = ListSkillFilesRequest {
        parent: reference.to_owned(),
        path: folder.to_owned(),
        ..ListSkillFilesRequest::default()
    };
    match tools.client.read_all_pages(request).await {
        Ok(all) => Ok(all.files),
        Err(error) if error.reason() == Some(ErrorReason::FileNotFound) => Ok(Vec::new()),
        Err(error) => Err(translate_skill_error(&tools.options, error, reference)),
    }
}

/// Lists the documents of a skill: texts that are documents or references, other than SKILL.md.
pub(crate) async fn list_documents(
    tools: &ToolsetContext,
    reference: &str,
) -> ToolResult<Vec<SkillFile>> {
    let mut files = list_readable_files(tools, reference).await?;
    files.retain(|file| file.kind() != SkillFileKind::Script);
    Ok(files)
}

/// Lists the files of a skill that a prompt can bring if a call names them: documents and scripts.
pub(crate) async fn list_readable_files(
    tools: &ToolsetContext,
    reference: &str,
) -> ToolResult<Vec<SkillFile>> {
    let mut files = list_files(tools, reference, "").await?;
    files.retain(is_readable);
    Ok(files)
}

fn is_readable(file: &SkillFile) -> bool {
    let name = file.path.rsplit('/').next().unwrap_or_default();
    let kind = matches!(
        file.kind(),
        SkillFileKind::Document | SkillFileKind::Reference | SkillFileKind::Script
    );
    kind && file.is_text && !name.eq_ignore_ascii_case("SKILL.md") && !name.starts_with('.')
}

/// Finds the texts that a skill shares within its plugin, by those of the paths that lead there: `../../x.md`, or from a
/// placeholder for the plugin's folder. Returns them by the paths as they are asked for, with their paths from the
/// skill's folder.
pub(crate) async fn find_shared_files(
    tools: &ToolsetContext,
    skill: &Skill,
    asked: &[&str],
) -> ToolResult<HashMap<String, SkillFile>> {
    let id = skill_id(skill);
    let leads_there = |path: &str| path.starts_with("../") || path_in_plugin(&id, path).is_some();
    let shared_paths: Vec<&str> = asked
        .iter()
        .filter(|path| leads_there(path))
        .copied()
        .take(SHARED_FILES_MAX)
        .collect();
    let mut found = HashMap::new();
    for asked in shared_paths {
        match read_requested_file(tools, skill, asked, 0, 1).await {
            Ok(file) if !file.binary && file.path.starts_with("../") => {
                let shared = SkillFile {
                    path: file.path,
                    size_bytes: file.size,
                    is_text: true,
                    ..SkillFile::default()
                };
                found.insert(asked.to_owned(), shared);
            }
            Ok(_) | Err(ToolError::FileNotFound { .. } | ToolError::InvalidArguments { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

/// File of a skill, with its text or a part of it.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct FileContent {
    /// Real path of the file, however it was requested.
    pub(crate) path: String,
    pub(crate) mime_type: String,
    /// Size of the whole file in bytes.
    pub(crate) size: i64,
    /// SHA-256 of the whole file.
    pub(crate) sha256: String,
    /// Encoding of the file if it is text in another one than UTF-8: the text is decoded.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) encoding: String,
    /// `true` if the file is no text: then it has no content.
    pub(crate) binary: bool,
    /// Text of the file; `None` for a binary file.
    #[serde(skip)]
    pub(crate) text: Option<String>,
    /// Offset at which to continue; `None` at the end of the file.
    #[serde(skip)]
    pub(crate) next_offset: Option<u64>,
}

impl FileContent {
    /// Describes a binary file, whose content is not shown.
    pub(crate) fn describe_binary(&self) -> String {
        format!(
            "binary, {} bytes, sha256 {}, {}",
            self.size, self.sha256, self.mime_type
        )
    }

    /// Cuts the text, which begins at `offset`, to the budget of a text in a result.
    fn fitting(mut self, offset: u64) -> Self {
        if let Some(text) = &mut self.text {
            let length = json_head(text, TEXT_BYTES_MAX).len();
            if length < text.len() {
                text.truncate(length);
                // Each stands for one byte at least: none is passed over.
                let replaced = 2 * text.matches(char::REPLACEMENT_CHARACTER).count();
                self.next_offset = Some(offset.saturating_add((length - replaced) as u64));
            }
        }
        self
    }

    /// Describes the part that was read from `offset` on, if more follows.
    pub(crate) fn describe_rest(&self, offset: u64) -> Option<String> {
        let (next, size) = (self.next_offset?, self.size);
        Some(format!(
            "bytes {offset} to {next} of {size}; go on with offset {next}"
        ))
    }
}

/// Reads at most `bytes_max` bytes of a file from `offset` on, cut between characters.
pub(crate) async fn read_file(
    tools: &ToolsetContext,
    reference: &str,
    path: &str,
    offset: u64,
    bytes_max: usize,
) -> ToolResult<FileContent> {
    read_part(tools, reference, (path, false), offset, bytes_max).await
}

/// Reads a file as [`read_file`] does, by its path and `true` if that begins at the plugin of the skill.
async fn read_part(
    tools: &ToolsetContext,
    reference: &str,
    (path, in_plugin): (&str, bool),
    offset: u64,
    bytes_max: usize,
) -> ToolResult<FileContent> {
    let request = ReadSkillFileRequest {
        name: reference.to_owned(),
        path: path.to_owned(),
        offset: i64::try_from(offset).unwrap_or(i64::MAX),
        // One more tells whether there is more; no length at all would be everything.
        length: i64::try_from(bytes_max.saturating_add(1)).unwrap_or(i64::MAX),
        workspace_paths: true,
        in_plugin,
    };
    let mut reader = tools
        .client
        .read_skill_file(request)
        .await
        .map_err(|error| translate_file_error(&tools.options, error, reference, path))?;
    let file = reader.header().clone();
    let mut bytes = Vec::new();
    if file.is_text {
        while let Some(chunk) = reader.next().await? {
            bytes.extend_from_slice(&chunk);
        }
    }
    let is_cut = bytes.len() > bytes_max;
    if is_cut {
        bytes.truncate(bytes_max);
        bytes.truncate(whole_end(&bytes));
    }
    let is_text = file.is_text && !bytes.contains(&0);
    let next = offset.saturating_add(bytes.len() as u64);
    Ok(FileContent {
        path: file.path,
        mime_type: file.mime_type,
        size: file.size_bytes,
        sha256: file.sha256,
        encoding: file.encoding,
        binary: !is_text,
        text: is_text.then(|| String::from_utf8_lossy(&bytes).into_owned()),
        next_offset: (is_text && is_cut).then_some(next),
    })
}

/// Reads a file of a skill as [`read_file`] does, by a path that a model wrote: it may begin with the skill's folder or
/// its plugin's, or with a placeholder for one of them. Of the text no more is kept than fits into a result.
pub(crate) async fn read_requested_file(
    tools: &ToolsetContext,
    skill: &Skill,
    path: &str,
    offset: u64,
    bytes_max: usize,
) -> ToolResult<FileContent> {
    let pinned = pinned_reference(skill);
    let id = skill_id(skill);
    let relative = match path_in_plugin(&id, path) {
        Some(path) => (path, true),
        None => (relative_path(&id, path), false),
    };
    let read = match read_file(tools, &pinned, path, offset, bytes_max).await {
        // Such a path may exist in the skill, too, and counts first.
        Err(ToolError::FileNotFound { .. } | ToolError::InvalidArguments { .. })
            if relative.0 != path =>
        {
            read_part(tools, &pinned, relative, offset, bytes_max).await
        }
        read => read,
    };
    read.map(|file| file.fitting(offset))
}

/// Converts the daemon's error about a file or its skill.
pub(crate) fn translate_file_error(
    options: &ToolOptions,
    error: Error,
    reference: &str,
    path: &str,
) -> ToolError {
    match error.reason() {
        Some(ErrorReason::FileNotFound) => ToolError::FileNotFound {
            path: path.to_owned(),
            nearest_names: nearest_names(&error),
        },
        Some(ErrorReason::PathEscapes) => ToolError::arguments(format!(
            "{path:?} leads out of the skill: paths are relative to its root"
        )),
        Some(ErrorReason::WrongFileType) => {
            ToolError::arguments(format!("{path:?} is a folder, not a file"))
        }
        Some(_) | None => translate_skill_error(options, error, reference),
    }
}
