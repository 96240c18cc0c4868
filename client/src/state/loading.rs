//! Which skills an agent has loaded, and what changes that. Each change is a function from the state to a [`Delta`];
//! it clears older spellings of what it writes, so that no key speaks against another.
//!
//! ```text
//! load ──► loaded ──┬─ unload ──────────► gone
//!          │  ▲     ├─ begin_turn (turn)─► all gone
//!  select, touch    ├─ after_prompt (once)► what was shown is gone
//!                   └─ evict ───────────► the longest untouched are gone
//! ```

use std::collections::{HashMap, HashSet};

use serde_json::Value;

use super::keys::{self, Kind, Scope};
use super::selection::{self, Change, Selection};
use super::{Delta, SessionState};
use crate::tools::LoadMode;

/// As the published documents have it; every reference system reads it.
const LOADED: &str = "1";

/// What `evict` did.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Evicted {
    /// Skills that are no longer loaded, the longest untouched first.
    pub names: Vec<String>,
    /// The change.
    pub delta: Delta,
}

/// What `select_docs` and `select_tools` did.
#[derive(Clone, Debug, PartialEq)]
pub struct Selected {
    /// What is selected now.
    pub selection: Selection,
    /// The change.
    pub delta: Delta,
}

/// The loaded skills, the longest untouched first. Those of which no touch is known come before the others, by name.
#[must_use]
pub fn loaded(state: &SessionState, scope: Scope<'_>) -> Vec<String> {
    let mut names = Vec::new();
    for prefix in keys::prefixes(scope, Kind::Loaded) {
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

/// Whether a skill is loaded.
#[must_use]
pub fn is_loaded(state: &SessionState, scope: Scope<'_>, skill: &str) -> bool {
    first(state, &keys::keys(scope, Kind::Loaded, skill)).is_some_and(selection::is_set)
}

/// The docs that were chosen; none if nothing was.
#[must_use]
pub fn docs(state: &SessionState, scope: Scope<'_>, skill: &str) -> Option<Selection> {
    selected(state, scope, Kind::Docs, skill)
}

/// The tools that were chosen; none if nothing was, and then those that the skill declares count.
#[must_use]
pub fn tools(state: &SessionState, scope: Scope<'_>, skill: &str) -> Option<Selection> {
    selected(state, scope, Kind::Tools, skill)
}

/// Loads a skill, or loads it again: what was selected of it stays unless something else is given.
#[must_use]
pub fn load(
    state: &SessionState,
    scope: Scope<'_>,
    skill: &str,
    docs: Option<&Selection>,
    tools: Option<&Selection>,
) -> Delta {
    let mut delta = Delta::new();
    write(
        &mut delta,
        state,
        scope,
        (Kind::Loaded, skill),
        Value::from(LOADED),
    );
    for (kind, selection) in [(Kind::Docs, docs), (Kind::Tools, tools)] {
        if let Some(selection) = selection {
            write(
                &mut delta,
                state,
                scope,
                (kind, skill),
                selection.to_value(),
            );
        }
    }
    delta.then(touch(state, scope, &[skill]));
    delta
}

/// Unloads a skill and forgets what was selected of it. Empty if there is nothing to forget.
#[must_use]
pub fn unload(state: &SessionState, scope: Scope<'_>, skill: &str) -> Delta {
    drop_all(state, scope, &[skill])
}

/// Chooses docs of a skill, loaded or not.
#[must_use]
pub fn select_docs(
    state: &SessionState,
    scope: Scope<'_>,
    skill: &str,
    change: Change,
    names: &[String],
    all: bool,
) -> Selected {
    let selection = change.apply(docs(state, scope, skill).as_ref(), names, all);
    select(state, scope, (Kind::Docs, skill), selection)
}

/// Chooses tools of a skill, loaded or not. `declared` is what it declares: that is what is added to when nothing was
/// chosen yet.
#[must_use]
pub fn select_tools(
    state: &SessionState,
    scope: Scope<'_>,
    (skill, declared): (&str, &[String]),
    change: Change,
    names: &[String],
    all: bool,
) -> Selected {
    let before = match tools(state, scope, skill) {
        // What is added beside all of its own is not one of them.
        Some(Selection::All) if names.iter().any(|name| !declared.contains(name)) => None,
        before => before,
    };
    let before = before.unwrap_or_else(|| Selection::these(declared));
    let selection = change.apply(Some(&before), names, all);
    select(state, scope, (Kind::Tools, skill), selection)
}

/// Moves skills to the end of the order, in the order given.
#[must_use]
pub fn touch(state: &SessionState, scope: Scope<'_>, skills: &[&str]) -> Delta {
    let mut names = order(state, scope);
    for skill in skills.iter().map(|skill| skill.trim()) {
        names.retain(|name| name != skill);
        if !skill.is_empty() {
            names.push(skill.to_owned());
        }
    }
    let mut delta = Delta::new();
    write_order(&mut delta, state, scope, &names);
    delta
}

/// Before the first prompt of a turn: where skills are loaded for a turn, this agent's go.
#[must_use]
pub fn begin_turn(state: &SessionState, scope: Scope<'_>) -> Delta {
    match scope.mode {
        LoadMode::Turn => clear(state, scope),
        LoadMode::Once | LoadMode::Session => Delta::new(),
    }
}

/// After a prompt that showed these skills: where skills are loaded for one prompt, they go.
#[must_use]
pub fn after_prompt(state: &SessionState, scope: Scope<'_>, shown: &[String]) -> Delta {
    match scope.mode {
        LoadMode::Once => drop_all(state, scope, shown),
        LoadMode::Turn | LoadMode::Session => Delta::new(),
    }
}

/// Keeps the `max` skills that were touched last; 0 keeps all.
#[must_use]
pub fn evict(state: &SessionState, scope: Scope<'_>, max: usize) -> Evicted {
    let mut names = loaded(state, scope);
    if max == 0 || names.len() <= max {
        return Evicted::default();
    }
    names.truncate(names.len() - max);
    Evicted {
        delta: drop_all(state, scope, &names),
        names,
    }
}

/// Everything of this agent goes, in every spelling.
#[must_use]
pub fn clear(state: &SessionState, scope: Scope<'_>) -> Delta {
    let prefixes: Vec<String> = Kind::ALL
        .iter()
        .flat_map(|kind| keys::prefixes(scope, *kind))
        .collect();
    let order = keys::order_keys(scope);
    let mut delta = Delta::new();
    for (key, _) in state.iter() {
        if order.iter().any(|own| own == key) || prefixes.iter().any(|own| key.starts_with(own)) {
            delta.remove(key);
        }
    }
    delta
}

/// The order of touches, the oldest first.
pub(crate) fn order(state: &SessionState, scope: Scope<'_>) -> Vec<String> {
    first(state, &keys::order_keys(scope))
        .map(selection::names)
        .unwrap_or_default()
}

fn drop_all<S: AsRef<str>>(state: &SessionState, scope: Scope<'_>, skills: &[S]) -> Delta {
    let mut delta = Delta::new();
    let skills: Vec<&str> = skills.iter().map(|skill| skill.as_ref().trim()).collect();
    for skill in &skills {
        for key in Kind::ALL
            .iter()
            .flat_map(|kind| keys::keys(scope, *kind, skill))
        {
            if state.get(&key).is_some() {
                delta.remove(key);
            }
        }
    }
    let gone: HashSet<&str> = skills.into_iter().collect();
    let before = order(state, scope);
    let kept = before.iter().filter(|name| !gone.contains(name.as_str()));
    let kept: Vec<String> = kept.cloned().collect();
    if kept.len() < before.len() {
        write_order(&mut delta, state, scope, &kept);
    }
    delta
}

fn select(
    state: &SessionState,
    scope: Scope<'_>,
    key: (Kind, &str),
    selection: Selection,
) -> Selected {
    let mut delta = Delta::new();
    write(&mut delta, state, scope, key, selection.to_value());
    delta.then(touch(state, scope, &[key.1]));
    Selected { selection, delta }
}

fn selected(state: &SessionState, scope: Scope<'_>, kind: Kind, skill: &str) -> Option<Selection> {
    first(state, &keys::keys(scope, kind, skill)).and_then(Selection::read)
}

fn first<'a>(state: &'a SessionState, keys: &[String]) -> Option<&'a Value> {
    keys.iter().find_map(|key| state.get(key))
}

fn write(
    delta: &mut Delta,
    state: &SessionState,
    scope: Scope<'_>,
    (kind, skill): (Kind, &str),
    value: Value,
) {
    write_first(delta, state, keys::keys(scope, kind, skill), value);
}

fn write_order(delta: &mut Delta, state: &SessionState, scope: Scope<'_>, names: &[String]) {
    let value = if names.is_empty() {
        Value::Null
    } else {
        selection::list(names).into()
    };
    write_first(delta, state, keys::order_keys(scope), value);
}

fn write_first(delta: &mut Delta, state: &SessionState, keys: Vec<String>, value: Value) {
    let mut keys = keys.into_iter();
    if let Some(key) = keys.next() {
        delta.set(key, value);
    }
    for old in keys.filter(|key| state.get(key).is_some()) {
        delta.remove(old);
    }
}

#[cfg(test)]
mod tests;
