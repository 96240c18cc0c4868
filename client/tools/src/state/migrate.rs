//! Migration of states of older versions: a key that names no agent becomes the key of the agent that loaded the skill.

use std::collections::HashSet;

use serde_json::Value;

use super::state_keys::{self, KeyKind, LoadScope};
use super::{SessionState, StateDelta, selection};

/// Moves keys that name no agent to their owner: the agent that `owner` returns for the skill (see
/// [`owners`](crate::prompt::skill_load_history::owners), which reads it from the history), else the current agent.
/// Without an owner they stay. If the owner already has the key, only the old key is removed. Old and new keys are
/// those of `scope`'s load mode: for `session` those without `temp:`, and those with it, too. A second migration
/// changes nothing.
#[must_use]
pub fn migrate(
    state: &SessionState,
    scope: LoadScope<'_>,
    owner: impl Fn(&str) -> Option<String>,
) -> StateDelta {
    let owner = |skill: &str| {
        let named = owner(skill).filter(|agent| !agent.trim().is_empty());
        let agent = named.unwrap_or_else(|| scope.agent.to_owned());
        (!agent.trim().is_empty()).then(|| agent.trim().to_owned())
    };
    let mut delta = StateDelta::new();
    let ownerless = LoadScope::new("", scope.mode);
    for kind in KeyKind::ALL {
        // The first of two spellings counts.
        let mut seen = HashSet::new();
        for prefix in state_keys::prefixes(ownerless, kind) {
            for (key, value) in state.iter() {
                let Some(skill) = key.strip_prefix(&prefix).map(str::trim) else {
                    continue;
                };
                let Some(agent) = Some(skill)
                    .filter(|skill| !skill.is_empty())
                    .and_then(owner)
                else {
                    continue;
                };
                let target = LoadScope::new(&agent, scope.mode);
                let known = state_keys::keys(target, kind, skill);
                let is_known = known.iter().any(|key| state.get(key).is_some());
                if seen.insert(skill) && is_worth(kind, value) && !is_known {
                    delta.set(state_keys::key(target, kind, skill), value.clone());
                }
                delta.remove(key);
            }
        }
    }
    delta.then(migrate_order(state, scope, owner));
    delta
}

/// Splits the order of all agents into one for each: its names come before those that the agent has touched since.
fn migrate_order(
    state: &SessionState,
    scope: LoadScope<'_>,
    owner: impl Fn(&str) -> Option<String>,
) -> StateDelta {
    let mut delta = StateDelta::new();
    let ownerless = LoadScope::new("", scope.mode);
    let owned: Vec<(String, String)> = super::skill_loads::order(state, ownerless)
        .into_iter()
        .filter_map(|skill| Some((owner(&skill)?, skill)))
        .collect();
    if owned.is_empty() {
        return delta;
    }
    let unique: HashSet<&String> = owned.iter().map(|(agent, _)| agent).collect();
    let mut agents: Vec<&String> = unique.into_iter().collect();
    agents.sort();
    for agent in agents {
        let target = LoadScope::new(agent, scope.mode);
        let since = super::skill_loads::order(state, target);
        let later: HashSet<&String> = since.iter().collect();
        let theirs = owned.iter().filter(|(owner, _)| owner == agent);
        let mut names: Vec<String> = theirs.map(|(_, skill)| skill.clone()).collect();
        names.retain(|name| !later.contains(name));
        names.extend(since.iter().cloned());
        if let Some(key) = state_keys::order_keys(target).into_iter().next() {
            delta.set(key, selection::list(&names));
        }
    }
    for key in state_keys::order_keys(ownerless) {
        if state.get(&key).is_some() {
            delta.remove(key);
        }
    }
    delta
}

fn is_worth(kind: KeyKind, value: &Value) -> bool {
    kind != KeyKind::Loaded || selection::is_set(value)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::state::skill_loads;
    use crate::tool_definition::LoadMode;

    fn state(value: Value) -> SessionState {
        serde_json::from_value(value).expect("a map")
    }

    #[test]
    fn legacy_keys_move_to_who_loaded_the_skill() {
        let mut state = state(json!({
            "temp:skill:loaded:csv": true,
            "temp:skill:docs:csv": "*",
            "temp:skill:loaded:math": "1",
            "temp:skill:loaded:": "1",
            "temp:skill:loaded_order:": "[\"math\", \"csv\"]",
            "temp:skill:loaded_by_agent:me/math": "1",
            "temp:skill:loaded_order_by_agent:me": "[\"own\"]",
        }));
        let scope = LoadScope::new("me", LoadMode::Turn);
        let owner = |skill: &str| (skill == "csv").then(|| "helper/one".to_owned());
        state.apply(&migrate(&state, scope, owner));
        assert_eq!(
            serde_json::to_value(&state).expect("JSON"),
            json!({
                "temp:skill:loaded:": "1",
                "temp:skill:loaded_by_agent:me/math": "1",
                "temp:skill:loaded_order_by_agent:me": "[\"math\",\"own\"]",
                "temp:skill:loaded_by_agent:helper%2Fone/csv": true,
                "temp:skill:docs_by_agent:helper%2Fone/csv": "*",
                "temp:skill:loaded_order_by_agent:helper%2Fone": "[\"csv\"]",
            })
        );
        assert_eq!(migrate(&state, scope, owner), StateDelta::new());
        assert_eq!(skill_loads::loaded(&state, scope), ["math"]);
    }

    #[test]
    fn skills_loaded_for_the_session_move_from_either_spelling() {
        for prefix in ["", "temp:"] {
            let mut state = state(json!({
                format!("{prefix}skill:loaded:csv"): "1",
                format!("{prefix}skill:docs:csv"): "*",
                format!("{prefix}skill:loaded:math"): "1",
                format!("{prefix}skill:loaded_order:"): "[\"math\", \"csv\"]",
            }));
            let scope = LoadScope::new("me", LoadMode::Session);
            state.apply(&migrate(&state, scope, |_| None));
            assert_eq!(
                serde_json::to_value(&state).expect("JSON"),
                json!({
                    "skill:loaded_by_agent:me/csv": "1",
                    "skill:docs_by_agent:me/csv": "*",
                    "skill:loaded_by_agent:me/math": "1",
                    "skill:loaded_order_by_agent:me": "[\"math\",\"csv\"]",
                }),
                "{prefix:?}"
            );
            assert_eq!(migrate(&state, scope, |_| None), StateDelta::new());
        }
    }

    #[test]
    fn the_first_of_two_spellings_of_an_old_key_counts() {
        let mut state = state(json!({
            "temp:skill:docs:csv": "[\"old.md\"]", "skill:docs:csv": "[\"new.md\"]",
            "temp:skill:loaded:csv": "1", "skill:loaded:csv": false,
        }));
        let scope = LoadScope::new("me", LoadMode::Session);
        state.apply(&migrate(&state, scope, |_| None));
        assert_eq!(
            serde_json::to_value(&state).expect("JSON"),
            json!({"skill:docs_by_agent:me/csv": "[\"new.md\"]"})
        );
    }

    #[test]
    fn a_turn_scope_does_not_migrate_session_loads() {
        let state = state(json!({"skill:loaded:csv": "1"}));
        let scope = LoadScope::new("me", LoadMode::Turn);
        assert_eq!(migrate(&state, scope, |_| None), StateDelta::new());
    }

    #[test]
    fn legacy_keys_without_an_owner_stay() {
        let state =
            state(json!({"temp:skill:loaded:csv": "1", "temp:skill:loaded_order:": "[\"csv\"]"}));
        let scope = LoadScope::new("", LoadMode::Turn);
        assert_eq!(migrate(&state, scope, |_| None), StateDelta::new());
        assert_eq!(skill_loads::loaded(&state, scope), ["csv"]);
    }
}
