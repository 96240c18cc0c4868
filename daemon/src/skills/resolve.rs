//! Which skill a request means, and what it may have meant where there is none.

use std::sync::Arc;

use super::{Catalogue, Select, Skill, SkillRef, SkillState};
use crate::error::{Error, Result};

/// The skill that a reference stands for; of a digest only the name is looked at.
pub(super) fn find<'a>(catalogue: &'a Catalogue, wanted: &SkillRef) -> Result<&'a Skill> {
    let named = catalogue
        .skills
        .iter()
        .map(Arc::as_ref)
        .find(|skill| skill.name == wanted.name && skill.state != SkillState::Shadowed);
    named
        .filter(|skill| match &wanted.select {
            Select::Version(specifier) => specifier.accepts(&skill.front_matter.version),
            Select::Current | Select::Digest(_) => true,
        })
        .ok_or_else(|| not_found(catalogue, wanted))
}

pub(super) fn not_found(catalogue: &Catalogue, wanted: &SkillRef) -> Error {
    let usable = catalogue
        .skills
        .iter()
        .filter(|skill| !matches!(skill.state, SkillState::Rejected | SkillState::Shadowed));
    let mut scored: Vec<(f64, String)> = usable
        .map(|skill| {
            if skill.name == wanted.name && !skill.front_matter.version.is_empty() {
                return (
                    2.0,
                    format!("{}@{}", skill.name, skill.front_matter.version),
                );
            }
            let (a, b) = (skill.name.to_lowercase(), wanted.name.to_lowercase());
            let contained = if a.contains(&b) || b.contains(&a) {
                0.5
            } else {
                0.0
            };
            (
                contained + strsim::normalized_damerau_levenshtein(&a, &b),
                skill.name.clone(),
            )
        })
        .filter(|(score, _)| *score >= 0.5)
        .collect();
    scored.sort_by(|a, b| b.0.total_cmp(&a.0).then_with(|| a.1.cmp(&b.1)));
    Error::SkillNotFound {
        name: wanted.to_string(),
        nearest: scored.into_iter().take(3).map(|(_, name)| name).collect(),
    }
}
