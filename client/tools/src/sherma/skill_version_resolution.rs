//! Resolution of a call's skill to a version: the loaded one, unless the call names another.

use skilld_client::v1::Skill;

use super::read_loaded;
use crate::call_context::SessionContext;
use crate::skill_lookup::{self, skill_id, skill_reference};
use crate::state::sherma::{LoadedSkill, LoadedSkills};
use crate::tool_error::{ToolError, ToolResult};

/// Finds the skill that a call means by an id and a version. The daemon is asked in any case: the state may be out of
/// date, and only the daemon knows a skill's other names.
pub(super) async fn find_meant_skill(
    context: SessionContext<'_>,
    id: &str,
    version: &str,
) -> ToolResult<Skill> {
    let loaded = read_loaded(context);
    let id = id.trim();
    if id.is_empty() {
        return Err(ToolError::arguments("skill_id is empty"));
    }
    let requested = skill_reference(id, version);
    let any_version = requested == id;
    let load = loaded.get(id).filter(|_| any_version);
    let wanted = load.map_or(requested, |load| loaded_reference(id, load));
    let found = skill_lookup::find_skill(context, &wanted).await?;
    let own = skill_id(&found);
    match loaded.get(&own) {
        // The call used another of its names.
        Some(load) if any_version && own != id => {
            skill_lookup::find_skill(context, &loaded_reference(&own, load)).await
        }
        Some(_) | None => Ok(found),
    }
}

/// Returns the reference of a loaded skill: its digest, or its version if sherma itself loaded it.
pub(super) fn loaded_reference(id: &str, load: &LoadedSkill) -> String {
    match load.digest.as_str() {
        "" => skill_reference(id, &load.version),
        digest => format!("{id}@{digest}"),
    }
}

/// Returns `true` if this content of a skill is the loaded one.
pub(super) fn is_loaded(loaded: &LoadedSkills, skill: &Skill) -> bool {
    loaded
        .get(&skill_id(skill))
        .is_some_and(|load| match load.digest.as_str() {
            "" => load.version == skill.version,
            digest => digest == skill.digest,
        })
}
