//! Skills as every family of tools looks them up: the daemon finds, only what the host shows is there, and what is not
//! there is said in the words of the tools. Their files are in `files`.

mod files;

use std::collections::BTreeSet;

use futures::{StreamExt, TryStreamExt};
use skilld_proto::v1::{
    ListSkillsRequest, Reason, SearchSkillsRequest, Skill, SkillMatch, SkillState,
};

pub(crate) use files::{docs, files, read, unknown_file};

use crate::Error;
use crate::names::short_id;
use crate::tools::{Inner, Options, ToolError};

/// Skills of one page; the server's maximum.
const PAGE: i32 = 1000;
/// Skills that a search finds; the server's maximum.
const FOUND_MAX: usize = 100;
/// Requests at a time, where one skill after the other is asked for.
pub(crate) const REQUESTS: usize = 8;

/// How a skill is asked for: a name, with a version or a digest where one is meant. `*` and `latest` mean no other than
/// no version at all: the current one of the first root that has the name.
pub(crate) fn reference(name: &str, version: &str) -> String {
    let name = name.trim();
    match version.trim() {
        "" | "*" | "latest" => name.to_owned(),
        version => format!("{name}@{version}"),
    }
}

/// A skill that can be used and that this agent may see. A hidden one is as one that is not there, by every name.
pub(crate) async fn skill(tools: &Inner, reference: &str) -> Result<Skill, ToolError> {
    let found = tools.client.get_skill(reference).await;
    let skill = found.map_err(|error| unknown_skill(&tools.options, error, reference))?;
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

/// The skills that fit some words, best first: `wanted` at most, and none that the host hides. `compat`: scored as Agent
/// Zero does.
pub(crate) async fn search(
    tools: &Inner,
    query: &str,
    wanted: usize,
    compat: bool,
) -> Result<Vec<(Skill, SkillMatch)>, ToolError> {
    let wanted = wanted.min(FOUND_MAX);
    // Those that are hidden are found, too, and take up no room.
    let limit = match tools.options.skills {
        None => wanted,
        Some(_) => FOUND_MAX,
    };
    let request = SearchSkillsRequest {
        query: query.to_owned(),
        limit: i32::try_from(limit).unwrap_or_default(),
        compat,
    };
    let found = tools.client.search_skills(request).await?.matches;
    let shown = found.into_iter().filter_map(|mut found| {
        let skill = found.skill.take()?;
        tools.options.shows(&id(&skill)).then_some((skill, found))
    });
    Ok(shown.take(wanted).collect())
}

/// How to ask for the files of a skill, or to stage it. Where only some skills are shown, what is no name of one of them
/// is looked up first: a version or an alias may lead to a hidden one.
pub(crate) async fn address(tools: &Inner, asked: &str) -> Result<String, ToolError> {
    if tools.options.skills.is_none() || (tools.options.shows(asked) && !asked.contains('/')) {
        return Ok(asked.to_owned());
    }
    skill(tools, asked).await.map(|skill| pinned(&skill))
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

/// All skills that this agent may see, each version of them, those that cannot be used among them, in order of their
/// names. As many as the daemon has.
pub(crate) async fn skills(tools: &Inner) -> Result<Vec<Skill>, ToolError> {
    let mut request = ListSkillsRequest {
        page_size: PAGE,
        ..ListSkillsRequest::default()
    };
    let mut skills = Vec::new();
    loop {
        let page = tools.client.list_skills(request.clone()).await?;
        let shown = page.skills.into_iter();
        skills.extend(shown.filter(|skill| tools.options.shows(&id(skill))));
        if page.next_page_token.is_empty() {
            return Ok(skills);
        }
        request.page_token = page.next_page_token;
    }
}

/// Names of all that can be used.
pub(crate) async fn names(tools: &Inner) -> Result<BTreeSet<String>, ToolError> {
    let skills = skills(tools).await?;
    let usable = skills.iter().filter(|skill| unusable(skill).is_none());
    Ok(usable.map(id).collect())
}

/// All that can be used, each name once: of several versions the one that the bare name means, which the daemon knows.
pub(crate) async fn current(tools: &Inner) -> Result<Vec<Skill>, ToolError> {
    let mut names: Vec<(Skill, bool)> = Vec::new();
    for skill in skills(tools).await? {
        match names.last_mut() {
            _ if unusable(&skill).is_some() => {}
            Some((last, has_versions)) if last.name == skill.name => *has_versions = true,
            Some(_) | None => names.push((skill, false)),
        }
    }
    let each = names.into_iter().map(|(only, has_versions)| async move {
        if !has_versions {
            return Ok(Some(only));
        }
        match skill(tools, &id(&only)).await {
            Ok(skill) => Ok(Some(skill)),
            // Gone since the list was made.
            Err(error) if error.is_of_skill() => Ok(None),
            Err(error) => Err(error),
        }
    });
    let each = futures::stream::iter(each).buffered(REQUESTS);
    each.try_filter_map(|skill| async move { Ok(skill) })
        .try_collect()
        .await
}

/// In the tools' words, if it is about a skill. Names like the one that was asked for are those that the options show.
pub(crate) fn unknown_skill(options: &Options, error: Error, reference: &str) -> ToolError {
    match error.reason() {
        Some(Reason::SkillNotFound) => {
            let mut nearest_names = nearest(&error);
            nearest_names.retain(|near| {
                let name = near.split_once('@').map_or(near.as_str(), |(name, _)| name);
                options.shows(name)
            });
            ToolError::UnknownSkill {
                skill: reference.to_owned(),
                nearest_names,
            }
        }
        Some(Reason::SkillInvalid) => ToolError::SkillUnusable {
            skill: reference.to_owned(),
            problem: metadata(&error, "problem").unwrap_or_else(|| error.to_string()),
        },
        // No skill can have such a name, or no version can be written so.
        Some(Reason::InvalidRequest) => match error.failure().map(|failure| &failure.violations) {
            Some(violations) if !violations.is_empty() => {
                let said = violations
                    .iter()
                    .map(|violation| format!("{} {}", violation.field, violation.description));
                let said: Vec<String> = said.collect();
                ToolError::arguments(format!("{reference:?}: {}", said.join("; ")))
            }
            Some(_) | None => ToolError::Daemon(error),
        },
        Some(_) | None => ToolError::Daemon(error),
    }
}

/// Names like the one that was not found.
pub(crate) fn nearest(error: &Error) -> Vec<String> {
    let near = metadata(error, "nearest").unwrap_or_default();
    let near = near
        .split(',')
        .map(str::trim)
        .filter(|name| !name.is_empty());
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
}
