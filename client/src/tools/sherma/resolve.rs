//! Which version of a skill a call means: the loaded one, unless the call asks for another.

use skilld_proto::v1::Skill;

use super::arguments;
use crate::state::sherma::{Loaded, LoadedSkill};
use crate::tools::{Inner, ToolError, lookup};

/// The skill that a call means. The daemon is asked in any case: what a state says of a skill may be out of date, and
/// only the daemon knows its other names.
pub(super) async fn skill(
    tools: &Inner,
    loads: &Loaded,
    asked: &arguments::Skill,
) -> Result<Skill, ToolError> {
    let id = asked.skill_id.trim();
    if id.is_empty() {
        return Err(ToolError::arguments("skill_id is empty"));
    }
    let wanted = lookup::reference(id, &asked.version);
    let any_version = wanted == id;
    let load = loads.get(id).filter(|_| any_version);
    let wanted = load.map_or(wanted, |load| reference(id, load));
    let found = lookup::skill(tools, &wanted).await?;
    let own = lookup::id(&found);
    match loads.get(&own) {
        // It was asked for by another of its names.
        Some(load) if any_version && own != id => {
            lookup::skill(tools, &reference(&own, load)).await
        }
        Some(_) | None => Ok(found),
    }
}

/// How the daemon is asked for what is loaded: by its digest; by its version where sherma itself loaded it.
pub(super) fn reference(id: &str, load: &LoadedSkill) -> String {
    match load.digest.as_str() {
        "" => lookup::reference(id, &load.version),
        digest => format!("{id}@{digest}"),
    }
}

/// Whether this content of a skill is the one that is loaded.
pub(super) fn is_loaded(loads: &Loaded, skill: &Skill) -> bool {
    loads
        .get(&lookup::id(skill))
        .is_some_and(|load| match load.digest.as_str() {
            "" => load.version == skill.version,
            digest => digest == skill.digest,
        })
}
