//! Looks up and searches skills for every tool family. Skills that the host hides, and those that only the user may
//! start, are left out. Their files are in `files`.

mod files;

use std::collections::BTreeSet;

use futures::{StreamExt, TryStreamExt};
use skilld_client::v1::{
    ErrorReason, GetSkillRequest, ListSkillsRequest, SearchSkillsRequest, Skill, SkillMatch,
    SkillScoring, SkillState,
};
use skilld_client::{Error, short_id};

pub(crate) use files::{
    FileContent, find_shared_files, list_documents, list_files, list_readable_files, read_file,
    read_requested_file, translate_file_error,
};

use crate::call_context::{SessionContext, ToolsetContext};
use crate::tool_error::{ToolError, ToolResult};
use crate::tool_options::ToolOptions;

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
pub(crate) async fn find_skill(context: SessionContext<'_>, reference: &str) -> ToolResult<Skill> {
    let found = request_skill(context, GetSkillRequest::default(), reference).await;
    with_permitted_names(context, found).await
}

/// Finds a skill as [`find_skill`] does, with the packages that its commands would miss if the options let any run.
pub(crate) async fn find_skill_to_load(
    context: SessionContext<'_>,
    reference: &str,
) -> ToolResult<Skill> {
    let options = &context.tools.options;
    let request = GetSkillRequest {
        check_packages: options.runs_commands(),
        pool: options.pool.clone(),
        ..GetSkillRequest::default()
    };
    let found = request_skill(context, request, reference).await;
    with_permitted_names(context, found).await
}

/// Removes the skills that only the user may start from the names that an error suggests.
async fn with_permitted_names(
    context: SessionContext<'_>,
    found: ToolResult<Skill>,
) -> ToolResult<Skill> {
    match found {
        Err(error) => Err(drop_user_only_names(context, error).await),
        found => found,
    }
}

/// Requests a skill. The names that an error suggests may be of skills that only the user may start.
async fn request_skill(
    context: SessionContext<'_>,
    mut request: GetSkillRequest,
    reference: &str,
) -> ToolResult<Skill> {
    let tools = context.tools;
    reference.clone_into(&mut request.name);
    let found = tools.client.get_skill_with(request).await;
    let skill = found.map_err(|error| translate_skill_error(&tools.options, error, reference))?;
    if !tools.options.shows(skill_id(&skill).as_str()) {
        return Err(ToolError::UnknownSkill {
            skill: reference.to_owned(),
            nearest_names: Vec::new(),
        });
    }
    if !context.permits(&skill) {
        return Err(ToolError::UserOnly {
            skill: skill_id(&skill),
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

/// Removes the skills that only the user may start from the names that an error suggests.
pub(crate) async fn drop_user_only_names(
    context: SessionContext<'_>,
    error: ToolError,
) -> ToolError {
    let ToolError::UnknownSkill {
        skill,
        nearest_names,
    } = error
    else {
        return error;
    };
    let mut permitted = Vec::new();
    for name in nearest_names {
        let found = context.tools.client.get_skill(&name).await;
        if found.is_ok_and(|found| context.permits(&found)) {
            permitted.push(name);
        }
    }
    ToolError::UnknownSkill {
        skill,
        nearest_names: permitted,
    }
}

/// Finds a skill; `None` instead of [`find_skill`]'s error if it is gone, hidden or cannot be used.
pub(crate) async fn find_usable_skill(
    context: SessionContext<'_>,
    reference: &str,
) -> ToolResult<Option<Skill>> {
    match request_skill(context, GetSkillRequest::default(), reference).await {
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

/// Searches skills by words and returns at most `wanted` of those that this agent may see, best first.
pub(crate) async fn search_skills(
    context: SessionContext<'_>,
    query: &str,
    wanted: usize,
    scoring: SkillScoring,
) -> ToolResult<Vec<(Skill, SkillMatch)>> {
    let tools = context.tools;
    let wanted = wanted.min(FOUND_MAX);
    // Hidden skills are found too, and must not take up the room of others.
    let limit = match tools.options.skills {
        None => wanted,
        Some(_) => FOUND_MAX,
    };
    let request = SearchSkillsRequest {
        query: query.to_owned(),
        page_size: i32::try_from(limit).unwrap_or_default(),
        scoring: scoring.into(),
        for_model: true,
        page_token: String::new(),
    };
    let found = tools
        .client
        .search_skills(request)
        .await
        .map_err(|error| translate_skill_error(&tools.options, error, query))?;
    let shown = found.matches.into_iter().filter_map(|mut found| {
        let skill = found.skill.take()?;
        let is_shown = tools.options.shows(&skill_id(&skill)) && context.permits(&skill);
        is_shown.then_some((skill, found))
    });
    Ok(shown.take(wanted).collect())
}

/// Returns the reference for reading a skill's files or staging it, which begins with the skill's id. A name of a
/// loaded skill is known to be permitted; other names are looked up first. If the options show some skills only, a
/// version may lead to a hidden one, so the result names exactly the skill that was found.
pub(crate) async fn resolve_reference(
    context: SessionContext<'_>,
    name: &str,
) -> ToolResult<String> {
    let options = &context.tools.options;
    if options.shows(name) && context.has_loaded(name) {
        return Ok(name.to_owned());
    }
    let skill = find_skill(context, name).await?;
    let is_id = name.split('@').next() == Some(skill_id(&skill).as_str());
    Ok(match options.skills {
        None if is_id => name.to_owned(),
        None | Some(_) => pinned_reference(&skill),
    })
}

/// Returns the id of a skill, without a version.
pub(crate) fn skill_id(skill: &Skill) -> String {
    short_id(&skill.name)
}

/// Returns the description of a skill for a list. The name as its author wrote it comes first if the id differs from it,
/// since the id may not be readable.
pub(crate) fn described(skill: &Skill) -> String {
    match skill.display_name.as_str() {
        "" => skill.description.clone(),
        name => format!("{}: {}", name.trim(), skill.description),
    }
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
pub(crate) async fn list_skills(context: SessionContext<'_>) -> ToolResult<Vec<Skill>> {
    let mut skills = list_shown_skills(context.tools).await?;
    skills.retain(|skill| context.permits(skill));
    Ok(skills)
}

/// Lists all skills that the options show, also those that only the user may start.
async fn list_shown_skills(tools: &ToolsetContext) -> ToolResult<Vec<Skill>> {
    let request = ListSkillsRequest::default();
    let mut skills = tools.client.read_all_pages(request).await?.skills;
    skills.retain(|skill| tools.options.shows(&skill_id(skill)));
    Ok(skills)
}

/// Lists the usable skills that the options show, each name once, as its highest version, with `true` if it has several.
async fn list_usable_names(tools: &ToolsetContext) -> ToolResult<Vec<(Skill, bool)>> {
    let mut names: Vec<(Skill, bool)> = Vec::new();
    for skill in list_shown_skills(tools).await? {
        match names.last_mut() {
            _ if unusable_reason(&skill).is_some() => {}
            Some((last, has_versions)) if last.name == skill.name => *has_versions = true,
            Some(_) | None => names.push((skill, false)),
        }
    }
    Ok(names)
}

/// Lists the names of all usable skills that this agent may see.
pub(crate) async fn list_skill_names(context: SessionContext<'_>) -> ToolResult<BTreeSet<String>> {
    let names = list_usable_names(context.tools).await?;
    let permitted = names.iter().filter(|(skill, _)| context.permits(skill));
    Ok(permitted.map(|(skill, _)| skill_id(skill)).collect())
}

/// Lists the usable skills that this agent may see, each name once: of several versions the one that the bare name
/// means, which the daemon knows.
pub(crate) async fn list_current_skills(context: SessionContext<'_>) -> ToolResult<Vec<Skill>> {
    let names = list_usable_names(context.tools).await?.into_iter();
    let current = names.map(|(only, has_versions)| async move {
        match has_versions {
            true => find_usable_skill(context, &skill_id(&only)).await,
            false => Ok(context.permits(&only).then_some(only)),
        }
    });
    collect_found(current).await
}

/// Searches the usable skills by words, each name once, best first: of several versions the one that matches best.
pub(crate) async fn find_skills_by_words(
    context: SessionContext<'_>,
    query: &str,
) -> ToolResult<Vec<Skill>> {
    let mut found = Vec::new();
    let mut names = BTreeSet::new();
    for (skill, _) in search_skills(context, query, FOUND_MAX, SkillScoring::Relevance).await? {
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
        Some(ErrorReason::SkillNotFound) => {
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
        Some(ErrorReason::SkillInvalid) => ToolError::SkillUnusable {
            skill,
            problem: metadata(&error, "problem").unwrap_or_else(|| error.to_string()),
        },
        // No skill can have such a name, or no version can be written so.
        Some(ErrorReason::InvalidRequest) => {
            match error.failure().map(|failure| &failure.violations) {
                Some(violations) if !violations.is_empty() => {
                    let problems = violations
                        .iter()
                        .map(|violation| format!("{} {}", violation.field, violation.description))
                        .collect::<Vec<_>>()
                        .join("; ");
                    ToolError::arguments(format!("{reference:?}: {problems}"))
                }
                Some(_) | None => ToolError::Daemon(error),
            }
        }
        Some(_) | None => ToolError::Daemon(error),
    }
}

/// Returns the names that the daemon suggests in place of an unknown one.
pub(crate) fn nearest_names(error: &Error) -> Vec<String> {
    let list = metadata(error, "nearest").unwrap_or_default();
    let names = list
        .split(',')
        .map(str::trim)
        .filter(|name| !name.is_empty());
    // Names of skills are full, paths of files are relative.
    let is_skill = error.reason() == Some(ErrorReason::SkillNotFound);
    let shown = |name: &str| match is_skill {
        true => short_id(name),
        false => name.to_owned(),
    };
    names.map(shown).collect()
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
