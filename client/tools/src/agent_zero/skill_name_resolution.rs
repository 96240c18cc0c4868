//! Resolves names of skills as models write them. They may have the markup of the list that they come from, other case,
//! and blanks or underscores for hyphens. An exact name takes precedence over similar ones.

use skilld_client::v1::{Skill, SkillState};

use crate::call_context::SessionContext;
use crate::hooks::SkillChoice;
use crate::skill_lookup::{self, skill_id, skill_reference};
use crate::state::agent_zero::{self, unwrap_name};
use crate::tool_error::{ToolError, ToolResult};

/// Splits a name as a model writes it into a skill's name and a version.
pub(super) fn parse_choice(asked: &str) -> SkillChoice {
    let (name, version) = asked.split_once('@').unwrap_or((asked, ""));
    SkillChoice {
        skill_id: unwrap_name(name).to_owned(),
        version: unwrap_name(version).to_owned(),
    }
}

/// Returns `true` if a choice names another version than the current one.
pub(super) fn has_version(choice: &SkillChoice) -> bool {
    !skill_reference("", &choice.version).is_empty()
}

/// Finds the skill that a name means; without a version, the loaded one.
pub(super) async fn find_loaded_skill(
    context: SessionContext<'_>,
    asked: &str,
) -> ToolResult<Skill> {
    let choice = parse_choice(asked);
    let skill = find_skill(context, &choice).await?;
    let id = skill_id(&skill);
    let loaded = agent_zero::reference(context.state, context.scope(), &id);
    if loaded == id || !choice.version.is_empty() {
        return Ok(skill);
    }
    skill_lookup::find_skill(context, &loaded).await
}

/// Finds the skill that a choice means, by its exact name or else by a similar one.
pub(super) async fn find_skill(
    context: SessionContext<'_>,
    choice: &SkillChoice,
) -> ToolResult<Skill> {
    let (name, version) = (choice.skill_id.trim(), choice.version.as_str());
    if name.is_empty() {
        return Err(ToolError::arguments(
            "skill_name is empty: use one that the method list shows",
        ));
    }
    let exact = skill_lookup::find_skill(context, &skill_reference(name, version)).await;
    let nearest_names = match exact {
        Err(ToolError::UnknownSkill { nearest_names, .. }) => nearest_names,
        // The text cannot be a name: it has blanks, for instance.
        Err(ToolError::InvalidArguments { .. }) => Vec::new(),
        other => return other,
    };
    let mut candidates = find_similar(&skill_lookup::list_skills(context).await?, name);
    match candidates.len() {
        0 => Err(ToolError::UnknownSkill {
            skill: name.to_owned(),
            nearest_names,
        }),
        1 => {
            let only = candidates.remove(0);
            skill_lookup::find_skill(context, &skill_reference(&only, version)).await
        }
        _ => Err(ToolError::AmbiguousSkill {
            name: name.to_owned(),
            candidates,
        }),
    }
}

/// Returns the ids of skills with this name, but for the differences that models make.
fn find_similar(skills: &[Skill], name: &str) -> Vec<String> {
    let wanted = normalise(name);
    let there = skills
        .iter()
        .filter(|skill| skill.state() != SkillState::Shadowed);
    let matching = there.filter(|skill| {
        let id = skill_id(skill);
        [id.as_str(), skill.display_name.as_str()]
            .into_iter()
            .chain(skill.aliases.iter().map(String::as_str))
            .any(|name| normalise(name) == wanted)
    });
    let mut ids: Vec<String> = matching.map(skill_id).collect();
    ids.sort();
    ids.dedup();
    ids
}

/// Returns a name in lower case, with each run of blanks, underscores and hyphens as one hyphen.
fn normalise(name: &str) -> String {
    let lower = name.to_lowercase();
    let words: Vec<&str> = lower
        .split(|char: char| char.is_whitespace() || "_-".contains(char))
        .filter(|word| !word.is_empty())
        .collect();
    words.join("-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn case_blanks_and_underscores_do_not_matter() {
        for name in ["PDF Editing", "pdf_editing", " Pdf  editing", "pdf-editing"] {
            assert_eq!(normalise(name), "pdf-editing", "{name}");
        }
        assert_ne!(normalise("pdfediting"), "pdf-editing");
    }

    #[test]
    fn only_what_can_be_meant_is_a_candidate() {
        let skill = |name: &str, state: SkillState, display: &str| Skill {
            name: format!("skills/{name}"),
            state: state.into(),
            display_name: display.into(),
            aliases: vec![format!("kit/{name}")],
            ..Skill::default()
        };
        let skills = [
            skill("pdf-editing", SkillState::Loaded, ""),
            skill("pdf-editing", SkillState::Loaded, ""),
            skill("pdf_editing", SkillState::Shadowed, ""),
            skill("my-notes", SkillState::LoadedWithWarnings, "My Notes!"),
        ];
        assert_eq!(find_similar(&skills, "PDF editing"), ["pdf-editing"]);
        assert_eq!(find_similar(&skills, "my notes!"), ["my-notes"]);
        assert_eq!(find_similar(&skills, "kit/PDF_editing"), ["pdf-editing"]);
        assert!(find_similar(&skills, "notes").is_empty());
    }
}
