//! Looks up, searches and stages skills for every tool family, without those that the host hides. Their files are in
//! `files`.

mod files;

use std::collections::BTreeSet;

use futures::{StreamExt, TryStreamExt};
use skilld_client::v1::{
    GetSkillRequest, ListSkillsRequest, Reason, SearchSkillsRequest, Skill, SkillMatch, SkillState,
    StageSkillsRequest, StagedSkill,
};
use skilld_client::{Error, short_id};

pub(crate) use files::{
    FileContent, list_documents, list_files, read_file, read_requested_file, translate_file_error,
};

use crate::call_context::{SessionContext, ToolsetContext};
use crate::tool_error::{ToolError, ToolResult};
use crate::tool_options::ToolOptions;

/// Number of skills of one page; the server's maximum.
const PAGE_SIZE: i32 = 1000;
/// Maximum number of skills that a search finds; the server's maximum.
pub(crate) const FOUND_MAX: usize = 100;
/// Maximum number of concurrent requests when many skills or files are read.
const REQUESTS_MAX: usize = 8;

/// Returns the reference of a skill for the daemon: its name, with a version or digest if the caller names one. `*` and
/// `latest` mean no version: the current one of the first root that has the name.
pub(crate) fn skill_reference(name: &str, version: &str) -> String {
    let name = name.trim();
    match version.trim() {
        "" | "*" | "latest" => name.to_owned(),
        version => format!("{name}@{version}"),
    }
}

/// Finds a skill that can be used and that this agent may see. A hidden skill is unknown, by every name.
pub(crate) async fn find_skill(tools: &ToolsetContext, reference: &str) -> ToolResult<Skill> {
    request_skill(tools, GetSkillRequest::default(), reference).await
}

/// Finds a skill as [`find_skill`] does, with the packages that its commands would miss if the options let any run.
pub(crate) async fn find_skill_to_load(
    tools: &ToolsetContext,
    reference: &str,
) -> ToolResult<Skill> {
    let options = &tools.options;
    let request = GetSkillRequest {
        packages: options.runs_commands(),
        pool: options.pool.clone(),
        ..GetSkillRequest::default()
    };
    request_skill(tools, request, reference).await
}

async fn request_skill(
    tools: &ToolsetContext,
    mut request: GetSkillRequest,
    reference: &str,
) -> ToolResult<Skill> {
    reference.clone_into(&mut request.name);
    let found = tools.client.get_skill_with(request).await;
    let skill = found.map_err(|error| translate_skill_error(&tools.options, error, reference))?;
    if !tools.options.shows(skill_id(&skill).as_str()) {
        return Err(ToolError::UnknownSkill {
            skill: reference.to_owned(),
            nearest_names: Vec::new(),
        });
    }
    match unusable_reason(&skill) {
        None => Ok(skill),
        Some(problem) => Err(ToolError::SkillUnusable {
            skill: skill_id(&skill),
            problem,
        }),
    }
}

/// Finds a skill; `None` instead of [`find_skill`]'s error if it is gone, hidden or cannot be used.
pub(crate) async fn find_usable_skill(
    tools: &ToolsetContext,
    reference: &str,
) -> ToolResult<Option<Skill>> {
    match find_skill(tools, reference).await {
        Ok(skill) => Ok(Some(skill)),
        Err(error) if error.is_of_skill() => Ok(None),
        Err(error) => Err(error),
    }
}

/// Makes requests, a few at a time, and returns what they found in their order.
pub(crate) async fn collect_found<T>(
    requests: impl IntoIterator<Item = impl Future<Output = ToolResult<Option<T>>>>,
) -> ToolResult<Vec<T>> {
    let found = futures::stream::iter(requests).buffered(REQUESTS_MAX);
    found
        .try_filter_map(|found| async move { Ok(found) })
        .try_collect()
        .await
}

/// Stages a skill in the session's workspace. Returns the workspace's name and the skill as it is staged there.
pub(crate) async fn stage_skill(
    context: SessionContext<'_>,
    reference: &str,
) -> ToolResult<(String, StagedSkill)> {
    let tools = context.tools;
    let staged = context.in_workspace(|workspace| async move {
        let request = StageSkillsRequest {
            workspace: workspace.clone(),
            skills: vec![reference.to_owned()],
            writable: tools.options.writable_skills,
        };
        let staged = tools.client.stage_skills_with(request).await;
        let staged =
            staged.map_err(|error| translate_skill_error(&tools.options, error, reference))?;
        let staged = staged.into_iter().next().ok_or_else(|| Error::Protocol {
            problem: "it staged no skill".into(),
        })?;
        Ok((workspace, staged))
    });
    staged.await
}

/// Searches skills by words and returns at most `wanted` of those that the options show, best first. `compat` scores as
/// Agent Zero does.
pub(crate) async fn search_skills(
    tools: &ToolsetContext,
    query: &str,
    wanted: usize,
    compat: bool,
) -> ToolResult<Vec<(Skill, SkillMatch)>> {
    let wanted = wanted.min(FOUND_MAX);
    // Hidden skills are found too, and must not take up the room of others.
    let limit = match tools.options.skills {
        None => wanted,
        Some(_) => FOUND_MAX,
    };
    let request = SearchSkillsRequest {
        query: query.to_owned(),
        limit: i32::try_from(limit).unwrap_or_default(),
        compat,
    };
    let found = tools.client.search_skills(request).await;
    let found = found.map_err(|error| translate_skill_error(&tools.options, error, query))?;
    let found = found.matches;
    let shown = found.into_iter().filter_map(|mut found| {
        let skill = found.skill.take()?;
        let is_shown = tools.options.shows(&skill_id(&skill));
        is_shown.then_some((skill, found))
    });
    Ok(shown.take(wanted).collect())
}

/// Returns the reference for reading a skill's files or staging it. If the options show some skills only, other names
/// are looked up first: a version or an alias may lead to a hidden skill.
pub(crate) async fn visible_reference(tools: &ToolsetContext, name: &str) -> ToolResult<String> {
    if tools.options.skills.is_none() || (tools.options.shows(name) && !name.contains('/')) {
        return Ok(name.to_owned());
    }
    let skill = find_skill(tools, name).await?;
    Ok(pinned_reference(&skill))
}

/// Returns the id of a skill, without a version.
pub(crate) fn skill_id(skill: &Skill) -> String {
    short_id(&skill.name)
}

/// Returns the reference of exactly this content of a skill.
pub(crate) fn pinned_reference(skill: &Skill) -> String {
    if skill.digest.is_empty() {
        return skill_id(skill);
    }
    format!("{}@{}", skill_id(skill), skill.digest)
}

/// Returns the reason why a skill cannot be used; `None` if it can.
pub(crate) fn unusable_reason(skill: &Skill) -> Option<String> {
    match skill.state() {
        SkillState::Rejected if skill.problems.is_empty() => Some("it was rejected".to_owned()),
        SkillState::Rejected => {
            let problems = skill
                .problems
                .iter()
                .map(|problem| problem.message.as_str());
            Some(problems.collect::<Vec<_>>().join("; "))
        }
        SkillState::Shadowed => Some("an earlier root has one of the same name".to_owned()),
        SkillState::Unspecified | SkillState::Loaded | SkillState::LoadedWithWarnings => None,
    }
}

/// Lists all skills that this agent may see, each version of them, in the order of their names; skills that cannot be
/// used are among them.
pub(crate) async fn list_skills(tools: &ToolsetContext) -> ToolResult<Vec<Skill>> {
    let mut request = ListSkillsRequest {
        page_size: PAGE_SIZE,
        ..ListSkillsRequest::default()
    };
    let mut skills = Vec::new();
    loop {
        let page = tools.client.list_skills(request.clone()).await?;
        let shown = page.skills.into_iter();
        skills.extend(shown.filter(|skill| tools.options.shows(&skill_id(skill))));
        if page.next_page_token.is_empty() {
            return Ok(skills);
        }
        request.page_token = page.next_page_token;
    }
}

/// Lists the names of all usable skills.
pub(crate) async fn list_skill_names(tools: &ToolsetContext) -> ToolResult<BTreeSet<String>> {
    let skills = list_skills(tools).await?;
    let usable = skills
        .iter()
        .filter(|skill| unusable_reason(skill).is_none());
    Ok(usable.map(skill_id).collect())
}

/// Lists the usable skills, each name once: of several versions the one that the bare name means, which the daemon
/// knows.
pub(crate) async fn list_current_skills(tools: &ToolsetContext) -> ToolResult<Vec<Skill>> {
    let mut names: Vec<(Skill, bool)> = Vec::new();
    for skill in list_skills(tools).await? {
        match names.last_mut() {
            _ if unusable_reason(&skill).is_some() => {}
            Some((last, has_versions)) if last.name == skill.name => *has_versions = true,
            Some(_) | None => names.push((skill, false)),
        }
    }
    let current = names.into_iter().map(|(only, has_versions)| async move {
        match has_versions {
            true => find_usable_skill(tools, &skill_id(&only)).await,
            false => Ok(Some(only)),
        }
    });
    collect_found(current).await
}

/// Searches the usable skills by words, each name once, best first: of several versions the one that matches best.
pub(crate) async fn find_skills_by_words(
    tools: &ToolsetContext,
    query: &str,
) -> ToolResult<Vec<Skill>> {
    let mut found = Vec::new();
    let mut names = BTreeSet::new();
    for (skill, _) in search_skills(tools, query, FOUND_MAX, false).await? {
        if names.insert(skill_id(&skill)) {
            found.push(skill);
        }
    }
    Ok(found)
}

/// Converts the daemon's error about a skill. The names that it suggests are those that the options show.
pub(crate) fn translate_skill_error(
    options: &ToolOptions,
    error: Error,
    reference: &str,
) -> ToolError {
    let skill = reference.to_owned();
    match error.reason() {
        Some(Reason::SkillNotFound) => {
            let mut nearest_names = nearest_names(&error);
            nearest_names.retain(|near| {
                let name = near.split_once('@').map_or(near.as_str(), |(name, _)| name);
                options.shows(name)
            });
            ToolError::UnknownSkill {
                skill,
                nearest_names,
            }
        }
        Some(Reason::SkillInvalid) => ToolError::SkillUnusable {
            skill,
            problem: metadata(&error, "problem").unwrap_or_else(|| error.to_string()),
        },
        // No skill can have such a name, or no version can be written so.
        Some(Reason::InvalidRequest) => match error.failure().map(|failure| &failure.violations) {
            Some(violations) if !violations.is_empty() => {
                let problems = violations
                    .iter()
                    .map(|violation| format!("{} {}", violation.field, violation.description));
                let problems = problems.collect::<Vec<_>>().join("; ");
                ToolError::arguments(format!("{reference:?}: {problems}"))
            }
            Some(_) | None => ToolError::Daemon(error),
        },
        Some(_) | None => ToolError::Daemon(error),
    }
}

/// Returns the names that the daemon suggests in place of an unknown one.
pub(crate) fn nearest_names(error: &Error) -> Vec<String> {
    let names = metadata(error, "nearest").unwrap_or_default();
    let names = names.split(',').map(str::trim);
    let names = names.filter(|name| !name.is_empty());
    names.map(str::to_owned).collect()
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
            assert_eq!(skill_reference(" pdf ", version), "pdf");
        }
        assert_eq!(skill_reference("pdf", " ^1.2 "), "pdf@^1.2");
    }
}
