//! Which skill a name means, as models write names: with the markup of the list that they have it from, in other case,
//! with blanks or underscores for hyphens. A name that is exactly right counts before all that are only like it.

use skilld_proto::v1::{Reason, Skill, SkillState};

use crate::state::agent_zero::unwrap_name;
use crate::tools::{Inner, ToolError, lookup};

/// The skill that is meant.
pub(super) async fn find(tools: &Inner, asked: &str) -> Result<Skill, ToolError> {
    let (name, version) = match asked.split_once('@') {
        Some((name, version)) => (unwrap_name(name), unwrap_name(version)),
        None => (unwrap_name(asked), ""),
    };
    if name.is_empty() {
        return Err(ToolError::arguments(
            "skill_name is empty: use one that the method list shows",
        ));
    }
    let exact = lookup::skill(tools, &lookup::reference(name, version)).await;
    let exact = match exact {
        Err(ToolError::UnknownSkill { nearest_names, .. }) => nearest_names,
        // It cannot be a name: blanks, for instance.
        Err(ToolError::Daemon(error)) if error.reason() == Some(Reason::InvalidRequest) => {
            Vec::new()
        }
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
