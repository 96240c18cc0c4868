//! State of a session: a plain map that the caller stores as JSON with its sessions. Nothing here does I/O, knows a
//! clock or holds a lock. Every change is a [`StateDelta`], so that a caller can store it with the message that it
//! belongs to, apply it later, or drop it when the call failed.
//!
//! In reading order: `state_keys` (spelling of keys), `selection` (selected docs or tools), [`skill_loads`] (loads,
//! unloads, turns, eviction), [`migrate()`] (keys of older versions), [`merge()`] (branches that ran side by side;
//! `exec_state_merge` merges commands), [`sherma`] and [`agent_zero`] (state of these families).

pub mod agent_zero;
mod exec_state_merge;
mod merge;
mod migrate;
mod selection;
pub mod sherma;
pub mod skill_loads;
mod state_keys;

pub(crate) use exec_state_merge::EXEC;
pub use merge::{merge, merge_all};
pub use migrate::migrate;
pub use selection::{Selection, SelectionMode};
pub use state_keys::{ARTIFACTS, LoadScope, escape_agent};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::tool_definition::Family;

/// Returns the loaded skills, least recently used first, from the place where the family keeps them.
#[must_use]
pub fn loaded(state: &SessionState, family: Family, scope: LoadScope<'_>) -> Vec<String> {
    match family {
        Family::Trpc | Family::AgentZero => skill_loads::loaded(state, scope),
        Family::Sherma => {
            let loaded = sherma::LoadedSkills::read(state, scope.agent);
            loaded.iter().map(|(id, _)| id.to_owned()).collect()
        }
    }
}

/// A session's state: keys to JSON values. A value of null is the same as none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SessionState(Map<String, Value>);

impl SessionState {
    /// Returns an empty state.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the value of a key; `None` where it is null.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.0.get(key).filter(|value| !value.is_null())
    }

    /// Returns the keys that have a value, and their values.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.0
            .iter()
            .filter(|(_, value)| !value.is_null())
            .map(|(key, value)| (key.as_str(), value))
    }

    /// Applies a delta.
    pub fn apply(&mut self, delta: &StateDelta) {
        let removed = |key: &str| delta.0.get(key).is_some_and(Value::is_null);
        // All at once: the others keep their order, and moving them for each removed key takes time.
        self.0.retain(|key, _| !removed(key));
        for (key, value) in delta.0.iter().filter(|(_, value)| !value.is_null()) {
            self.0.insert(key.clone(), value.clone());
        }
    }

    /// Returns the state with a delta applied.
    #[must_use]
    pub fn with(&self, delta: &StateDelta) -> Self {
        let mut state = self.clone();
        state.apply(delta);
        state
    }
}

/// Change of a state: keys to their new values, null to remove one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct StateDelta(Map<String, Value>);

impl StateDelta {
    /// Returns a delta that changes nothing.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets a key.
    pub fn set(&mut self, key: impl Into<String>, value: impl Into<Value>) {
        self.0.insert(key.into(), value.into());
    }

    /// Removes a key.
    pub fn remove(&mut self, key: impl Into<String>) {
        self.0.insert(key.into(), Value::Null);
    }

    /// Returns the results of commands, and the remarks about their output, among the new values. The session's calls
    /// show them and use them for nothing else.
    pub(crate) fn command_texts_mut(&mut self) -> impl Iterator<Item = &mut Value> {
        let commands = self.0.iter_mut().filter(|(key, _)| key.starts_with(EXEC));
        let fields = commands.filter_map(|(_, command)| command.as_object_mut());
        let texts = fields.flat_map(|fields| fields.iter_mut());
        texts
            .filter(|(name, _)| matches!(name.as_str(), "result" | "hints"))
            .map(|(_, text)| text)
    }

    /// Adds the changes of a later delta; where both change a key, the later one counts.
    pub fn then(&mut self, later: Self) {
        self.0.extend(later.0);
    }

    /// Returns `true` if the delta changes nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns each changed key and its new value; null removes it.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.0.iter().map(|(key, value)| (key.as_str(), value))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_delta_sets_removes_and_is_overruled_by_a_later_one() {
        let mut state: SessionState =
            serde_json::from_value(json!({"a": 1, "b": null, "c": "x"})).expect("a map");
        assert_eq!(state.get("b"), None);
        let mut delta = StateDelta::new();
        delta.set("a", 2);
        delta.remove("c");
        let mut later = StateDelta::new();
        later.set("a", 3);
        delta.then(later);
        state.apply(&delta);
        assert_eq!(state.iter().collect::<Vec<_>>(), [("a", &json!(3))]);
        assert_eq!(
            serde_json::to_value(&delta).expect("JSON"),
            json!({"a": 3, "c": null})
        );
    }
}
