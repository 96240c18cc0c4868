//! Skills and their files as the tools look them up: the daemon finds, what it does not find is said in the words of
//! the tools.

use skilld_proto::v1::{
    ListSkillFilesRequest, ListSkillsRequest, ReadSkillFileRequest, Reason, Skill, SkillFile,
    SkillState,
};

use crate::names::short_id;
use crate::tools::{Inner, ToolError};
use crate::{Client, Error};

/// Skills that one list shows at most; a catalogue of more is for searching.
const SKILLS_MAX: usize = 10_000;
/// Skills of one page.
const PAGE_SKILLS: i32 = 1000;
/// Files of one skill that are listed.
const FILES_MAX: i32 = 10_000;

/// How a skill is asked for: a name, with a version or a digest where one is meant. `*` and `latest` mean no other than
/// no version at all: the current one of the first root that has the name.
pub(crate) fn reference(name: &str, version: &str) -> String {
    let name = name.trim();
    match version.trim() {
        "" | "*" | "latest" => name.to_owned(),
        version => format!("{name}@{version}"),
    }
}

/// A skill that can be used and that this agent may see.
pub(crate) async fn skill(tools: &Inner, reference: &str) -> Result<Skill, ToolError> {
    let skill = tools
        .client
        .get_skill(reference)
        .await
        .map_err(|error| unknown_skill(error, reference))?;
    if !tools.options.shows(id(&skill).as_str()) {
        return Err(ToolError::UnknownSkill {
            skill: reference.to_owned(),
            nearest_names: Vec::new(),
        });
    }
    match unusable(&skill) {
        None => Ok(skill),
        Some(problem) => Err(ToolError::SkillUnusable {
            skill: id(&skill),
            problem,
        }),
    }
}

/// Its id, without a version.
pub(crate) fn id(skill: &Skill) -> String {
    short_id(&skill.name)
}

/// Exactly this content of it.
pub(crate) fn pinned(skill: &Skill) -> String {
    if skill.digest.is_empty() {
        return id(skill);
    }
    format!("{}@{}", id(skill), skill.digest)
}

/// Why a skill cannot be used, if it cannot.
pub(crate) fn unusable(skill: &Skill) -> Option<String> {
    match skill.state() {
        SkillState::Rejected => {
            let problems = skill.problems.iter().map(|problem| problem.message.clone());
            let problems: Vec<String> = problems.collect();
            Some(match problems.is_empty() {
                true => "it was rejected".to_owned(),
                false => problems.join("; "),
            })
        }
        SkillState::Shadowed => Some("an earlier root has one of the same name".to_owned()),
        SkillState::Unspecified | SkillState::Loaded | SkillState::LoadedWithWarnings => None,
    }
}

/// All skills that this agent may see, those that cannot be used among them, in order of their names.
pub(crate) async fn skills(tools: &Inner) -> Result<Vec<Skill>, ToolError> {
    let mut request = ListSkillsRequest {
        page_size: PAGE_SKILLS,
        ..ListSkillsRequest::default()
    };
    let mut skills = Vec::new();
    loop {
        let page = tools.client.list_skills(request.clone()).await?;
        let shown = page.skills.into_iter();
        skills.extend(shown.filter(|skill| tools.options.shows(&id(skill))));
        if page.next_page_token.is_empty() || skills.len() >= SKILLS_MAX {
            return Ok(skills);
        }
        request.page_token = page.next_page_token;
    }
}

/// The files of a skill beneath a folder, sorted; none where it has no such folder.
pub(crate) async fn files(
    client: &Client,
    reference: &str,
    folder: &str,
) -> Result<Vec<SkillFile>, ToolError> {
    let request = ListSkillFilesRequest {
        name: reference.to_owned(),
        page_size: FILES_MAX,
        path: folder.to_owned(),
        ..ListSkillFilesRequest::default()
    };
    match client.list_skill_files(request).await {
        Ok(page) => Ok(page.files),
        Err(error) if error.reason() == Some(Reason::FileNotFound) => Ok(Vec::new()),
        Err(error) => Err(unknown_skill(error, reference)),
    }
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
    client: &Client,
    reference: &str,
    path: &str,
    offset: u64,
    bytes_max: usize,
) -> Result<Read, ToolError> {
    let request = ReadSkillFileRequest {
        name: reference.to_owned(),
        path: path.to_owned(),
        offset: i64::try_from(offset).unwrap_or(i64::MAX),
        // With room for a character that the cut would fall into.
        length: i64::try_from(bytes_max.saturating_add(4)).unwrap_or(i64::MAX),
    };
    let mut reader = client
        .read_skill_file(request)
        .await
        .map_err(|error| unknown_file(error, reference, path))?;
    let file = reader.file().clone();
    if !file.is_text {
        return Ok(Read {
            file,
            text: None,
            next_offset: None,
        });
    }
    let mut bytes = Vec::new();
    while let Some(chunk) = reader.next().await? {
        bytes.extend_from_slice(&chunk);
    }
    let size = u64::try_from(file.size).unwrap_or_default();
    let cut = whole_characters(&bytes, bytes_max);
    bytes.truncate(cut);
    let next = offset + cut as u64;
    if bytes.contains(&0) {
        return Ok(Read {
            file,
            text: None,
            next_offset: None,
        });
    }
    Ok(Read {
        file,
        text: Some(String::from_utf8_lossy(&bytes).into_owned()),
        next_offset: (next < size).then_some(next),
    })
}

/// The most bytes up to `max` that end with a character.
fn whole_characters(bytes: &[u8], max: usize) -> usize {
    if bytes.len() <= max {
        return bytes.len();
    }
    let begins = |at: usize| bytes.get(at).is_some_and(|byte| byte & 0xc0 != 0x80);
    let cut = (max.saturating_sub(3)..=max).rev().find(|at| begins(*at));
    cut.filter(|cut| *cut > 0).unwrap_or(max)
}

/// In the tools' words, if it is about a skill.
pub(crate) fn unknown_skill(error: Error, reference: &str) -> ToolError {
    match error.reason() {
        Some(Reason::SkillNotFound) => ToolError::UnknownSkill {
            skill: reference.to_owned(),
            nearest_names: nearest(&error),
        },
        Some(Reason::SkillInvalid) => ToolError::SkillUnusable {
            skill: reference.to_owned(),
            problem: metadata(&error, "problem").unwrap_or_else(|| error.to_string()),
        },
        Some(_) | None => ToolError::Daemon(error),
    }
}

/// In the tools' words, if it is about a file or its skill.
pub(crate) fn unknown_file(error: Error, reference: &str, path: &str) -> ToolError {
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
        Some(_) | None => unknown_skill(error, reference),
    }
}

fn nearest(error: &Error) -> Vec<String> {
    let near = metadata(error, "nearest").unwrap_or_default();
    let near = near.split(',').filter(|name| !name.is_empty());
    near.map(str::to_owned).collect()
}

fn metadata(error: &Error, key: &str) -> Option<String> {
    error.failure()?.metadata.get(key).cloned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn star_and_latest_are_the_current_version() {
        for version in ["", " ", "*", "latest"] {
            assert_eq!(reference(" pdf ", version), "pdf");
        }
        assert_eq!(reference("pdf", " ^1.2 "), "pdf@^1.2");
    }

    #[test]
    fn a_text_is_cut_between_characters() {
        let text = "aé😀".as_bytes();
        for (max, cut) in [(100, 7), (7, 7), (6, 3), (4, 3), (3, 3), (2, 1), (1, 1)] {
            assert_eq!(whole_characters(text, max), cut, "{max}");
        }
    }
}
