//! Agent Zero's list of loaded skills: one list per agent, the last loaded at its end, of bounded length. It is the
//! same state as [`skill_loads`]'s, so that prompts are made of it in the same way; there is no unload.

use serde_json::Value;

use super::skill_loads::{self, Eviction};
use super::state_keys::{self, KeyKind, LoadScope};
use super::{SessionState, StateDelta};
use crate::tool_definition::LoadMode;

/// Maximum number of skills that Agent Zero keeps loaded.
pub const LOADED_MAX: usize = 5;

/// Returns the scope of an agent. Agent Zero's skills stay until others replace them.
#[must_use]
pub fn scope(agent: &str) -> LoadScope<'_> {
    LoadScope::new(agent, LoadMode::Session)
}

/// Loads a skill, or moves it to the end, and returns the skills that it evicts. `max` of 0 is [`LOADED_MAX`]. The
/// current version of the skill is loaded, also when another version becomes current.
#[must_use]
pub fn load(state: &SessionState, scope: LoadScope<'_>, skill: &str, max: usize) -> Eviction {
    let mut delta = skill_loads::load(state, scope, skill, None, None);
    let max = if max == 0 { LOADED_MAX } else { max };
    let evicted = skill_loads::evict(&state.with(&delta), scope, max);
    delta.then(evicted.delta);
    Eviction {
        names: evicted.names,
        delta,
    }
}

/// Loads a skill in a certain version, by its digest; it stays the loaded one until the skill is loaded again.
#[must_use]
pub fn load_version(
    state: &SessionState,
    scope: LoadScope<'_>,
    skill: &str,
    digest: &str,
    max: usize,
) -> Eviction {
    let mut loaded = load(state, scope, skill, max);
    // Any value that is not empty marks a loaded skill.
    loaded
        .delta
        .set(state_keys::key(scope, KeyKind::Loaded, skill), digest);
    loaded
}

/// Returns the reference of a loaded skill for the daemon: its name, or `name@digest` if it was loaded in a version.
#[must_use]
pub fn reference(state: &SessionState, scope: LoadScope<'_>, skill: &str) -> String {
    let skill = skill.trim();
    let keys = state_keys::keys(scope, KeyKind::Loaded, skill);
    let value = keys.iter().find_map(|key| state.get(key));
    match value.and_then(Value::as_str) {
        Some(digest) if digest.starts_with("sha256:") => format!("{skill}@{digest}"),
        Some(_) | None => skill.to_owned(),
    }
}

/// Returns a skill's name without blanks and marks of emphasis, code or quotes around it: models copy the catalogue's
/// markup.
#[must_use]
pub fn unwrap_name(name: &str) -> &str {
    let mut name = name.trim();
    loop {
        let bare = name
            .trim_matches(|char| "*`\"'“”‘’«»".contains(char))
            .trim();
        // An underscore may belong to a name; a pair of them does not.
        let bare = match bare
            .strip_prefix('_')
            .and_then(|rest| rest.strip_suffix('_'))
        {
            Some(inner) => inner,
            None => bare,
        };
        if bare == name {
            return name;
        }
        name = bare;
    }
}

/// Returns the names of the loaded skills, the last loaded at the end.
#[must_use]
pub fn list(state: &SessionState, scope: LoadScope<'_>) -> Vec<String> {
    skill_loads::loaded(state, scope)
}

/// Loads the skills of a list that Agent Zero kept.
#[must_use]
pub fn adopt(state: &SessionState, scope: LoadScope<'_>, names: &[String]) -> StateDelta {
    let mut delta = StateDelta::new();
    for name in names {
        let next = skill_loads::load(&state.with(&delta), scope, unwrap_name(name), None, None);
        delta.then(next);
    }
    delta
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sixth_skill_evicts_the_least_recently_loaded_one() {
        let scope = scope("a0");
        let names: Vec<String> = ["a", "b", "c", "d", "**e**"].map(String::from).into();
        let mut state = SessionState::new();
        state.apply(&adopt(&state, scope, &names));
        let again = load(&state, scope, "a", 0);
        assert_eq!(again.names, Vec::<String>::new());
        state.apply(&again.delta);
        let sixth = load(&state, scope, "f", 0);
        assert_eq!(sixth.names, ["b"]);
        state.apply(&sixth.delta);
        assert_eq!(list(&state, scope), ["c", "d", "e", "a", "f"]);
    }

    #[test]
    fn a_requested_version_stays_loaded_until_the_next_load() {
        let scope = scope("a0");
        let mut state = SessionState::new();
        assert_eq!(reference(&state, scope, "a"), "a");
        state.apply(&load_version(&state, scope, "a", "sha256:11", 2).delta);
        state.apply(&load(&state, scope, "b", 2).delta);
        assert_eq!(list(&state, scope), ["a", "b"]);
        assert_eq!(reference(&state, scope, " a "), "a@sha256:11");
        assert_eq!(reference(&state, scope, "b"), "b");
        assert!(skill_loads::is_loaded(&state, scope, "a"));
        // Gone, nothing of it is left.
        let third = load(&state, scope, "c", 2);
        assert_eq!(third.names, ["a"]);
        assert_eq!(reference(&state.with(&third.delta), scope, "a"), "a");
        state.apply(&load(&state, scope, "a", 2).delta);
        assert_eq!(reference(&state, scope, "a"), "a");
    }

    #[test]
    fn markup_around_a_name_is_no_part_of_it() {
        for name in [
            "pdf",
            " pdf ",
            "**pdf**",
            "`pdf`",
            "\"pdf\"",
            "'pdf'",
            "__pdf__",
            "**`pdf`**",
            "“pdf”",
        ] {
            assert_eq!(unwrap_name(name), "pdf", "{name}");
        }
        assert_eq!(unwrap_name("pdf_"), "pdf_");
        assert_eq!(unwrap_name("_"), "_");
        assert_eq!(unwrap_name("** **"), "");
    }
}
