//! What the tools remember of a session: a plain map that the caller keeps, as JSON, wherever it keeps its sessions.
//! Nothing here does I/O, knows a clock or holds a lock. Every change is a [`Delta`], so that a caller can store it with
//! the message that it belongs to, apply it later, or drop it when the call failed.
//!
//! In reading order: `keys` (how things are spelt), `selection` (which docs or tools), [`loading`] (loads, unloads, turns,
//! eviction), [`migrate()`] (keys of older versions), [`merge()`] (branches that ran side by side; of commands: `execs`), [`sherma`] and
//! [`agent_zero`] (what these families remember beside or instead).

pub mod agent_zero;
mod execs;
mod keys;
pub mod loading;
mod merge;
mod migrate;
mod selection;
pub mod sherma;

pub(crate) use execs::EXEC;
pub use keys::{ARTIFACTS, Scope, escape_agent};
pub use merge::{merge, merge_all};
pub use migrate::migrate;
pub use selection::{Change, Selection};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::tools::Family;

/// The loaded skills, the longest untouched first, where a family's tools keep them.
#[must_use]
pub fn loaded(state: &SessionState, family: Family, scope: Scope<'_>) -> Vec<String> {
    match family {
        Family::Trpc | Family::AgentZero => loading::loaded(state, scope),
        Family::Sherma => {
            let loaded = sherma::Loaded::read(state, scope.agent);
            loaded.iter().map(|(id, _)| id.to_owned()).collect()
        }
    }
}

/// A session's state: keys to JSON values. A value of null is the same as none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SessionState(Map<String, Value>);

impl SessionState {
    /// An empty one.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The value of a key; none where it is null.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.0.get(key).filter(|value| !value.is_null())
    }

    /// All keys that have a value, and their values.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.0
            .iter()
            .filter(|(_, value)| !value.is_null())
            .map(|(key, value)| (key.as_str(), value))
    }

    /// Changes what the delta says.
    pub fn apply(&mut self, delta: &Delta) {
        let removed = |key: &str| delta.0.get(key).is_some_and(Value::is_null);
        // All at once: the others keep their order, and moving them for each one that goes takes time.
        self.0.retain(|key, _| !removed(key));
        for (key, value) in delta.0.iter().filter(|(_, value)| !value.is_null()) {
            self.0.insert(key.clone(), value.clone());
        }
    }

    /// The same with a delta applied.
    #[must_use]
    pub fn with(&self, delta: &Delta) -> Self {
        let mut state = self.clone();
        state.apply(delta);
        state
    }
}

/// What changes: keys to their new values, null to remove one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Delta(Map<String, Value>);

impl Delta {
    /// One that changes nothing.
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

    /// Adds what a later delta changes; where both change a key the later one counts.
    pub fn then(&mut self, later: Self) {
        self.0.extend(later.0);
    }

    /// Nothing changes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Each key that changes, and its new value; null removes it.
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
        let mut delta = Delta::new();
        delta.set("a", 2);
        delta.remove("c");
        let mut later = Delta::new();
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
