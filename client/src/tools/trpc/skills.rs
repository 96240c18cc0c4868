//! Skills as the model may see them: those that can be used and that the host shows.

use skilld_proto::v1::{ListSkillsRequest, Reason, Skill, SkillState};

use crate::Error;
use crate::tools::{Inner, Options, ToolError};

/// One page; the server's maximum.
const PAGE: i32 = 1000;

/// A skill's name without its prefix.
pub(super) fn id(name: &str) -> &str {
    name.strip_prefix("skills/").unwrap_or(name)
}

/// A skill's name as it was given, without what is around it.
pub(super) fn required(skill: &str) -> Result<&str, ToolError> {
    match skill.trim() {
        "" => Err(ToolError::arguments("skill is required")),
        skill => Ok(skill),
    }
}

/// One that is there and visible. A hidden one is as one that is not there.
pub(super) async fn one(tools: &Inner, name: &str) -> Result<Skill, ToolError> {
    shown(&tools.options, name)?;
    let found = tools.client.get_skill(name).await;
    let skill = found.map_err(|error| refused(&tools.options, name, error))?;
    if skill.state() == SkillState::Rejected {
        let problems = skill
            .problems
            .iter()
            .map(|problem| problem.message.as_str());
        let problems: Vec<&str> = problems.collect();
        return Err(ToolError::arguments(format!(
            "skill {name:?} cannot be used: {}",
            problems.join("; ")
        )));
    }
    Ok(skill)
}

/// All that can be used and are visible, in order of their names.
pub(super) async fn all(tools: &Inner) -> Result<Vec<Skill>, ToolError> {
    let mut request = ListSkillsRequest {
        page_size: PAGE,
        ..ListSkillsRequest::default()
    };
    let mut skills = Vec::new();
    loop {
        let page = tools.client.list_skills(request.clone()).await?;
        skills.extend(page.skills.into_iter().filter(|skill| {
            let usable = matches!(
                skill.state(),
                SkillState::Loaded | SkillState::LoadedWithWarnings
            );
            usable && tools.options.shows(id(&skill.name))
        }));
        if page.next_page_token.is_empty() {
            return Ok(skills);
        }
        request.page_token = page.next_page_token;
    }
}

/// Whether a name may be asked for at all. Where only some skills are shown they are known by their names alone: an
/// alias or a version could lead to another one.
pub(super) fn shown(options: &Options, name: &str) -> Result<(), ToolError> {
    if options.shows(name) {
        return Ok(());
    }
    Err(ToolError::UnknownSkill {
        skill: name.to_owned(),
        nearest_names: Vec::new(),
    })
}

/// What the daemon says of a skill, in this family's words.
pub(super) fn refused(options: &Options, skill: &str, error: Error) -> ToolError {
    if error.reason() != Some(Reason::SkillNotFound) {
        return error.into();
    }
    let mut nearest_names = nearest(&error);
    nearest_names.retain(|name| options.shows(name));
    ToolError::UnknownSkill {
        skill: skill.to_owned(),
        nearest_names,
    }
}

/// Names like the one that was not found.
pub(super) fn nearest(error: &Error) -> Vec<String> {
    let metadata = error.failure().map(|failure| &failure.metadata);
    let nearest = metadata.and_then(|metadata| metadata.get("nearest"));
    let names = nearest.map_or("", String::as_str).split(',');
    let names = names.map(str::trim).filter(|name| !name.is_empty());
    names.map(str::to_owned).collect()
}
