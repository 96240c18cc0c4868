//! Files of a skill, listed and read.

use skilld_proto::v1::skill_file::Kind;
use skilld_proto::v1::{ListSkillFilesRequest, ReadSkillFileRequest, Reason, SkillFile};

use super::{nearest, unknown_skill};
use crate::Error;
use crate::tools::shown::whole_end;
use crate::tools::{Inner, Options, ToolError};

/// Files of one page; the server's maximum.
const PAGE: i32 = 10_000;

/// All files of a skill beneath a folder, sorted; none where it has no such folder.
pub(crate) async fn files(
    tools: &Inner,
    reference: &str,
    folder: &str,
) -> Result<Vec<SkillFile>, ToolError> {
    let mut request = ListSkillFilesRequest {
        name: reference.to_owned(),
        page_size: PAGE,
        path: folder.to_owned(),
        ..ListSkillFilesRequest::default()
    };
    let mut files = Vec::new();
    loop {
        let page = match tools.client.list_skill_files(request.clone()).await {
            Ok(page) => page,
            Err(error) if error.reason() == Some(Reason::FileNotFound) => return Ok(Vec::new()),
            Err(error) => return Err(unknown_skill(&tools.options, error, reference)),
        };
        files.extend(page.files);
        if page.next_page_token.is_empty() {
            return Ok(files);
        }
        request.page_token = page.next_page_token;
    }
}

/// The documents of a skill: texts that are documents, references or scripts, other than SKILL.md.
pub(crate) async fn docs(tools: &Inner, reference: &str) -> Result<Vec<SkillFile>, ToolError> {
    let mut files = files(tools, reference, "").await?;
    files.retain(is_doc);
    Ok(files)
}

fn is_doc(file: &SkillFile) -> bool {
    let name = file.path.rsplit('/').next().unwrap_or_default();
    let kind = matches!(file.kind(), Kind::Document | Kind::Reference | Kind::Script);
    kind && file.is_text && !name.eq_ignore_ascii_case("SKILL.md") && !name.starts_with('.')
}

/// A file of a skill, or of a text the part that was asked for.
#[derive(Debug)]
pub(crate) struct Read {
    /// As the daemon found it; its path is the true one.
    pub(crate) file: SkillFile,
    /// None for a binary file.
    pub(crate) text: Option<String>,
    /// Where to go on, if it is longer.
    pub(crate) next_offset: Option<u64>,
}

/// Reads at most `bytes_max` bytes from `offset` on, cut between characters.
pub(crate) async fn read(
    tools: &Inner,
    reference: &str,
    path: &str,
    offset: u64,
    bytes_max: usize,
) -> Result<Read, ToolError> {
    let request = ReadSkillFileRequest {
        name: reference.to_owned(),
        path: path.to_owned(),
        offset: i64::try_from(offset).unwrap_or(i64::MAX),
        // One more tells whether there is more; no length at all would be everything.
        length: i64::try_from(bytes_max.saturating_add(1)).unwrap_or(i64::MAX),
        workspace_paths: true,
    };
    let mut reader = tools
        .client
        .read_skill_file(request)
        .await
        .map_err(|error| unknown_file(&tools.options, error, reference, path))?;
    let file = reader.file().clone();
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
    Ok(Read {
        file,
        text: is_text.then(|| String::from_utf8_lossy(&bytes).into_owned()),
        next_offset: (is_text && is_cut).then_some(next),
    })
}

/// In the tools' words, if it is about a file or its skill.
pub(crate) fn unknown_file(
    options: &Options,
    error: Error,
    reference: &str,
    path: &str,
) -> ToolError {
    match error.reason() {
        Some(Reason::FileNotFound) => ToolError::FileNotFound {
            path: path.to_owned(),
            nearest_names: nearest(&error),
        },
        Some(Reason::PathEscapes) => ToolError::arguments(format!(
            "{path:?} leads out of the skill: paths are relative to its root"
        )),
        Some(Reason::WrongFileType) => {
            ToolError::arguments(format!("{path:?} is a folder, not a file"))
        }
        Some(_) | None => unknown_skill(options, error, reference),
    }
}
