//! Loaded skills of an agent and their transitions. Each transition is a function from the state to a [`StateDelta`];
//! it clears older spellings of the keys that it writes, so that no two keys contradict each other.
//!
//! ```text
//! load ──► loaded ──┬─ unload ──────────► gone
//!          │  ▲     ├─ begin_turn (turn)─► all gone
//!  select, touch    ├─ after_prompt (once)► what was shown is gone
//!                   └─ evict ───────────► the least recently used are gone
//! ```

use std::collections::{HashMap, HashSet};

use serde_json::Value;

use super::selection::{self, Selection, SelectionMode};
use super::state_keys::{self, KeyKind, LoadScope};
use super::{SessionState, StateDelta};
use crate::tool_definition::LoadMode;

/// Value of a loaded skill's key, which every reference system reads.
const LOADED: &str = "1";

/// Outcome of an eviction.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Eviction {
    /// Skills that are no longer loaded, least recently used first.
    pub names: Vec<String>,
    /// Change of the state.
    pub delta: StateDelta,
}

/// Outcome of a selection of docs or tools.
#[derive(Clone, Debug, PartialEq)]
pub struct SelectionOutcome {
    /// Selection after the change.
    pub selection: Selection,
    /// Change of the state.
    pub delta: StateDelta,
}

/// Returns the loaded skills, least recently used first. Skills without a known use come before the others, by name.
#[must_use]
pub fn loaded(state: &SessionState, scope: LoadScope<'_>) -> Vec<String> {
    let mut names = Vec::new();
    for prefix in state_keys::prefixes(scope, KeyKind::Loaded) {
        let found = state
            .iter()
            .filter_map(|(key, _)| key.strip_prefix(&prefix));
        names.extend(found.filter(|name| !name.is_empty()).map(ToOwned::to_owned));
    }
    names.retain(|name: &String| is_loaded(state, scope, name));
    names.sort();
    names.dedup();
    let order = order(state, scope);
    let touched: HashMap<&String, usize> = order.iter().zip(1..).collect();
    // Stable: those that are not in it keep their order.
    names.sort_by_key(|name| touched.get(name).copied());
    names
}

/// Returns `true` if a skill is loaded.
#[must_use]
pub fn is_loaded(state: &SessionState, scope: LoadScope<'_>, skill: &str) -> bool {
    first(state, &state_keys::keys(scope, KeyKind::Loaded, skill)).is_some_and(selection::is_set)
}

/// Returns the selected docs; `None` if none were selected yet.
#[must_use]
pub fn docs(state: &SessionState, scope: LoadScope<'_>, skill: &str) -> Option<Selection> {
    first(state, &state_keys::keys(scope, KeyKind::Docs, skill)).and_then(Selection::read)
}

/// Returns the selected tools; `None` if none were selected yet, and then those that the skill declares count.
#[must_use]
pub fn tools(state: &SessionState, scope: LoadScope<'_>, skill: &str) -> Option<Selection> {
    first(state, &state_keys::keys(scope, KeyKind::Tools, skill)).and_then(Selection::read)
}

/// Loads a skill, also one that is loaded already. Its selections stay unless new ones are given.
#[must_use]
pub fn load(
    state: &SessionState,
    scope: LoadScope<'_>,
    skill: &str,
    docs: Option<&Selection>,
    tools: Option<&Selection>,
) -> StateDelta {
    let values = [
        (KeyKind::Loaded, Some(LOADED.into())),
        (KeyKind::Docs, docs.map(Selection::to_value)),
        (KeyKind::Tools, tools.map(Selection::to_value)),
    ];
    let mut delta = StateDelta::new();
    for (kind, value) in values {
        if let Some(value) = value {
            delta.then(replace_spellings(
                state,
                state_keys::keys(scope, kind, skill),
                value,
            ));
        }
    }
    delta.then(touch(state, scope, &[skill]));
    delta
}

/// Unloads a skill and forgets its selections. Returns an empty delta if there is nothing to forget.
#[must_use]
pub fn unload(state: &SessionState, scope: LoadScope<'_>, skill: &str) -> StateDelta {
    drop_all(state, scope, &[skill])
}

/// Selects docs of a skill, loaded or not.
#[must_use]
pub fn select_docs(
    state: &SessionState,
    scope: LoadScope<'_>,
    skill: &str,
    change: SelectionMode,
    names: &[String],
    all: bool,
) -> SelectionOutcome {
    let selection = change.apply(docs(state, scope, skill).as_ref(), names, all);
    record_selection(state, scope, (KeyKind::Docs, skill), selection)
}

/// Selects tools of a skill, loaded or not. `declared` are the tools that the skill declares; names are added to them
/// if nothing was selected yet.
#[must_use]
pub fn select_tools(
    state: &SessionState,
    scope: LoadScope<'_>,
    (skill, declared): (&str, &[String]),
    change: SelectionMode,
    names: &[String],
    all: bool,
) -> SelectionOutcome {
    let recorded = match tools(state, scope, skill) {
        // The name is not one of the declared tools, which "all" stands for.
        Some(Selection::All) if names.iter().any(|name| !declared.contains(name)) => None,
        recorded => recorded,
    };
    let before = recorded.unwrap_or_else(|| Selection::these(declared));
    let selection = change.apply(Some(&before), names, all);
    record_selection(state, scope, (KeyKind::Tools, skill), selection)
}

/// Moves skills to the end of the order, in the order given.
#[must_use]
pub fn touch(state: &SessionState, scope: LoadScope<'_>, skills: &[&str]) -> StateDelta {
    let mut names = order(state, scope);
    for skill in skills.iter().map(|skill| skill.trim()) {
        names.retain(|name| name != skill);
        if !skill.is_empty() {
            names.push(skill.to_owned());
        }
    }
    order_delta(state, scope, &names)
}

/// Begins a turn: unloads the agent's skills if they are loaded for one turn.
#[must_use]
pub fn begin_turn(state: &SessionState, scope: LoadScope<'_>) -> StateDelta {
    match scope.mode {
        LoadMode::Turn => clear(state, scope),
        LoadMode::Once | LoadMode::Session => StateDelta::new(),
    }
}

/// Ends a prompt that showed these skills: unloads them if they are loaded for one prompt.
#[must_use]
pub fn after_prompt(state: &SessionState, scope: LoadScope<'_>, shown: &[String]) -> StateDelta {
    match scope.mode {
        LoadMode::Once => drop_all(state, scope, shown),
        LoadMode::Turn | LoadMode::Session => StateDelta::new(),
    }
}

/// Keeps the `max` skills that were touched last; 0 keeps all.
#[must_use]
pub fn evict(state: &SessionState, scope: LoadScope<'_>, max: usize) -> Eviction {
    let mut names = loaded(state, scope);
    if max == 0 || names.len() <= max {
        return Eviction::default();
    }
    names.truncate(names.len() - max);
    Eviction {
        delta: drop_all(state, scope, &names),
        names,
    }
}

/// Unloads all skills of the agent, in every spelling.
#[must_use]
pub fn clear(state: &SessionState, scope: LoadScope<'_>) -> StateDelta {
    let prefixes: Vec<String> = KeyKind::ALL
        .iter()
        .flat_map(|kind| state_keys::prefixes(scope, *kind))
        .collect();
    let order = state_keys::order_keys(scope);
    let mut delta = StateDelta::new();
    for (key, _) in state.iter() {
        if order.iter().any(|own| own == key) || prefixes.iter().any(|own| key.starts_with(own)) {
            delta.remove(key);
        }
    }
    delta
}

/// Returns the skills in the order of their last use, the least recently used first.
pub(crate) fn order(state: &SessionState, scope: LoadScope<'_>) -> Vec<String> {
    first(state, &state_keys::order_keys(scope))
        .map(selection::names)
        .unwrap_or_default()
}

fn drop_all<S: AsRef<str>>(state: &SessionState, scope: LoadScope<'_>, skills: &[S]) -> StateDelta {
    let mut delta = StateDelta::new();
    let skills: Vec<&str> = skills.iter().map(|skill| skill.as_ref().trim()).collect();
    for skill in &skills {
        for key in KeyKind::ALL
            .iter()
            .flat_map(|kind| state_keys::keys(scope, *kind, skill))
        {
            if state.get(&key).is_some() {
                delta.remove(key);
            }
        }
    }
    let gone: HashSet<&str> = skills.into_iter().collect();
    let before = order(state, scope);
    let kept: Vec<String> = before
        .iter()
        .filter(|name| !gone.contains(name.as_str()))
        .cloned()
        .collect();
    if kept.len() < before.len() {
        delta.then(order_delta(state, scope, &kept));
    }
    delta
}

/// Writes a finished selection under its key and marks the skill as used.
fn record_selection(
    state: &SessionState,
    scope: LoadScope<'_>,
    key: (KeyKind, &str),
    selection: Selection,
) -> SelectionOutcome {
    let keys = state_keys::keys(scope, key.0, key.1);
    let mut delta = replace_spellings(state, keys, selection.to_value());
    delta.then(touch(state, scope, &[key.1]));
    SelectionOutcome { selection, delta }
}

fn first<'a>(state: &'a SessionState, keys: &[String]) -> Option<&'a Value> {
    keys.iter().find_map(|key| state.get(key))
}

/// Returns the change that records an order of skills; an empty order has no key.
fn order_delta(state: &SessionState, scope: LoadScope<'_>, names: &[String]) -> StateDelta {
    let value = match names.is_empty() {
        true => Value::Null,
        false => selection::list(names).into(),
    };
    replace_spellings(state, state_keys::order_keys(scope), value)
}

/// Returns the change that sets the first of several spellings of a key and removes the others.
fn replace_spellings(state: &SessionState, keys: Vec<String>, value: Value) -> StateDelta {
    let mut keys = keys.into_iter();
    let mut delta = StateDelta::new();
    if let Some(key) = keys.next() {
        delta.set(key, value);
    }
    for old in keys.filter(|key| state.get(key).is_some()) {
        delta.remove(old);
    }
    delta
}

#[cfg(test)]
mod tests;
