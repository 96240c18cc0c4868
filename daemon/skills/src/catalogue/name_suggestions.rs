//! Suggests names that a caller may have meant where a reference selects no skill.

use std::collections::HashSet;

use super::catalogue_snapshot::Catalogue;
use crate::error::Error;
use crate::name_similarity::{nearest_names, similarity};
use crate::parse::skill_name::normalise_name;
use crate::parse::skill_ref::SkillRef;

/// Minimum score of a suggested name.
const NEAREST_MIN: f64 = 0.5;

/// Makes the error of a reference that selects no skill, with the names that the caller may have meant.
pub(crate) fn skill_not_found(catalogue: &Catalogue, wanted: &SkillRef) -> Error {
    let asked = normalise_name(&wanted.written).to_lowercase();
    let usable = catalogue.skills.iter().filter(|skill| skill.is_usable());
    let mut scored: Vec<(f64, String)> = Vec::new();
    let mut known = HashSet::new();
    for skill in usable {
        let version = &skill.front_matter.version;
        if skill.name == wanted.name && !version.is_empty() {
            // Skills of the requested name in other versions come first, the highest version at the top.
            scored.push((2.0, format!("{}@{version}", skill.name)));
            continue;
        }
        let score = |name: &str| score_name(&name.to_lowercase(), &asked);
        let title = &skill.front_matter.display_name;
        let titled = (score(title), &skill.name);
        let names = std::iter::once(&skill.name)
            .chain(&skill.aliases)
            .map(|name| (score(name), name));
        for (score, name) in names.chain((!title.is_empty()).then_some(titled)) {
            if score >= NEAREST_MIN && known.insert(name) {
                scored.push((score, name.clone()));
            }
        }
    }
    Error::SkillNotFound {
        name: wanted.to_string(),
        nearest: nearest_names(scored),
    }
}

/// Returns how near a name is to the requested one, from 0 to 1.5.
fn score_name(name: &str, asked: &str) -> f64 {
    let is_contained = name.contains(asked) || asked.contains(name);
    similarity(name, asked) + if is_contained { 0.5 } else { 0.0 }
}
