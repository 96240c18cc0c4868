//! Which skill a request means, and what it may have meant where there is none.
//!
//! A bare name stands for the highest version in the first root that has the name; a specifier chooses the highest
//! version that fits over all roots.

use std::collections::HashSet;
use std::sync::Arc;

use super::{Catalogue, Select, Skill, SkillRef, SkillState, Specifier};
use crate::error::{Error, Result};
use crate::similar::similarity;

/// Names that an answer suggests.
const NEAREST_MAX: usize = 3;
/// Similarity, of at most 1.5, of what is suggested.
const NEAREST_MIN: f64 = 0.5;

/// The skill that a reference stands for. Of a digest only the name is looked at. One that is rejected stands for its
/// name only where no other does.
pub(super) fn find<'a>(catalogue: &'a Catalogue, wanted: &SkillRef) -> Result<&'a Arc<Skill>> {
    let named = catalogue.named(&wanted.name);
    let usable: Vec<_> = named.iter().filter(|skill| skill.is_usable()).collect();
    let rejected = named
        .iter()
        .filter(|skill| skill.state == SkillState::Rejected);
    let rejected: Vec<_> = rejected.collect();
    let found = match &wanted.select {
        Select::Version(specifier) => {
            choose(&usable, specifier).or_else(|| choose(&rejected, specifier))
        }
        Select::Current | Select::Digest(_) => {
            let first = usable.first().map(|skill| skill.rank);
            let of_first = usable.iter().filter(|skill| Some(skill.rank) == first);
            let of_first: Vec<_> = of_first.copied().collect();
            choose(&of_first, &Specifier::any()).or(rejected.first().copied())
        }
    };
    found.copied().ok_or_else(|| not_found(catalogue, wanted))
}

fn choose<'a, 'b>(
    skills: &[&'b &'a Arc<Skill>],
    specifier: &Specifier,
) -> Option<&'b &'a Arc<Skill>> {
    let versions = skills
        .iter()
        .map(|skill| skill.front_matter.version.as_str());
    skills.get(specifier.choose(versions)?).copied()
}

pub(super) fn not_found(catalogue: &Catalogue, wanted: &SkillRef) -> Error {
    let asked = wanted.name.to_lowercase();
    let usable = catalogue.skills.iter().filter(|skill| skill.is_usable());
    let mut scored: Vec<(f64, String)> = Vec::new();
    let mut known = HashSet::new();
    for skill in usable {
        let version = &skill.front_matter.version;
        if skill.name == wanted.name && !version.is_empty() {
            // They have the name, but not the version: the highest come first.
            scored.push((2.0, format!("{}@{version}", skill.name)));
            continue;
        }
        for name in std::iter::once(&skill.name).chain(&skill.aliases) {
            let score = score(&name.to_lowercase(), &asked);
            if score >= NEAREST_MIN && known.insert(name) {
                scored.push((score, name.clone()));
            }
        }
    }
    // Stable: versions keep their order.
    scored.sort_by(|a, b| b.0.total_cmp(&a.0));
    Error::SkillNotFound {
        name: wanted.to_string(),
        nearest: scored
            .into_iter()
            .take(NEAREST_MAX)
            .map(|(_, name)| name)
            .collect(),
    }
}

fn score(name: &str, asked: &str) -> f64 {
    let contained = if name.contains(asked) || asked.contains(name) {
        0.5
    } else {
        0.0
    };
    contained + similarity(name, asked)
}
