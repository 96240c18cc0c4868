//! Which skill a name means, as models write names: with the markup of the list that they have it from, in other case,
//! with blanks or underscores for hyphens. A name that is exactly right counts before all that are only like it.

use skilld_proto::v1::{Skill, SkillState};

use crate::state::agent_zero::{self, unwrap_name};
use crate::state::{Scope, SessionState};
use crate::tools::hooks::SkillChoice;
use crate::tools::{Inner, ToolError, lookup};

/// The skill that is meant, and the version if one is.
pub(super) fn parse(asked: &str) -> SkillChoice {
    let (name, version) = asked.split_once('@').unwrap_or((asked, ""));
    SkillChoice {
        skill_id: unwrap_name(name).to_owned(),
        version: unwrap_name(version).to_owned(),
    }
}

/// Another version may be meant than the current one.
pub(super) fn asks_for_a_version(choice: &SkillChoice) -> bool {
    !lookup::reference("", &choice.version).is_empty()
}

/// The skill that is meant by somebody who may have loaded it: no version means the one that is loaded.
pub(super) async fn find_loaded(
    tools: &Inner,
    state: &SessionState,
    scope: Scope<'_>,
    asked: &str,
) -> Result<Skill, ToolError> {
    let choice = parse(asked);
    let skill = find(tools, &choice).await?;
    let id = lookup::id(&skill);
    let loaded = agent_zero::reference(state, scope, &id);
    if loaded == id || !choice.version.is_empty() {
        return Ok(skill);
    }
    lookup::skill(tools, &loaded).await
}

/// The skill that is meant by its name.
pub(super) async fn find(tools: &Inner, choice: &SkillChoice) -> Result<Skill, ToolError> {
    let (name, version) = (choice.skill_id.trim(), choice.version.as_str());
    if name.is_empty() {
        return Err(ToolError::arguments(
            "skill_name is empty: use one that the method list shows",
        ));
    }
    let exact = lookup::skill(tools, &lookup::reference(name, version)).await;
    let exact = match exact {
        Err(ToolError::UnknownSkill { nearest_names, .. }) => nearest_names,
        // It cannot be a name: blanks, for instance.
        Err(ToolError::InvalidArguments { .. }) => Vec::new(),
        other => return other,
    };
    let mut candidates = like(&lookup::skills(tools).await?, name);
    match candidates.len() {
        0 => Err(ToolError::UnknownSkill {
            skill: name.to_owned(),
            nearest_names: exact,
        }),
        1 => {
            let only = candidates.remove(0);
            lookup::skill(tools, &lookup::reference(&only, version)).await
        }
        _ => Err(ToolError::AmbiguousSkill {
            name: name.to_owned(),
            candidates,
        }),
    }
}

/// Names of skills that are the same but for what models change.
fn like(skills: &[Skill], name: &str) -> Vec<String> {
    let wanted = normal(name);
    let there = skills
        .iter()
        .filter(|skill| skill.state() != SkillState::Shadowed);
    let matching = there.filter(|skill| {
        let id = lookup::id(skill);
        let names = [id.as_str(), skill.display_name.as_str()];
        let names = names
            .into_iter()
            .chain(skill.aliases.iter().map(String::as_str));
        names.into_iter().any(|name| normal(name) == wanted)
    });
    let mut ids: Vec<String> = matching.map(lookup::id).collect();
    ids.sort();
    ids.dedup();
    ids
}

/// In lower case, each run of blanks, underscores and hyphens as one hyphen.
fn normal(name: &str) -> String {
    let lower = name.to_lowercase();
    let words = lower.split(|char: char| char.is_whitespace() || "_-".contains(char));
    let words: Vec<&str> = words.filter(|word| !word.is_empty()).collect();
    words.join("-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn case_blanks_and_underscores_do_not_matter() {
        for name in ["PDF Editing", "pdf_editing", " Pdf  editing", "pdf-editing"] {
            assert_eq!(normal(name), "pdf-editing", "{name}");
        }
        assert_ne!(normal("pdfediting"), "pdf-editing");
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
        assert_eq!(like(&skills, "PDF editing"), ["pdf-editing"]);
        assert_eq!(like(&skills, "my notes!"), ["my-notes"]);
        assert_eq!(like(&skills, "kit/PDF_editing"), ["pdf-editing"]);
        assert!(like(&skills, "notes").is_empty());
    }
}
