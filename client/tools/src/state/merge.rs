//! Merge of branches that ran side by side from one state. A branch is the [`StateDelta`] of all its changes: it has
//! the loads of skills that were loaded before, too, which a comparison of two states would not show.
//!
//! No rule depends on the order of the branches. A load in any branch counts more than an unload, which was of the
//! older load. Selections and lists are merged name by name. For a command that continues, the branch that read
//! furthest counts. Of two other values that differ, one is chosen by its JSON. The recency of skills that several
//! branches touched is not known, so they are ordered by name.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use serde_json::{Map, Value};

use super::selection::{self, Selection};
use super::state_keys::ARTIFACTS;
use super::{SessionState, StateDelta, exec_state_merge, sherma};

/// Merges the changes of two branches into one change of the state that both began with.
#[must_use]
pub fn merge(base: &SessionState, left: &StateDelta, right: &StateDelta) -> StateDelta {
    merge_all(base, &[left, right])
}

/// Merges the changes of any number of branches. Any order gives the same bytes; a branch given twice counts once.
#[must_use]
pub fn merge_all(base: &SessionState, branches: &[&StateDelta]) -> StateDelta {
    let mut changes: BTreeMap<&str, Vec<&Value>> = BTreeMap::new();
    for branch in branches {
        for (key, value) in branch.iter() {
            changes.entry(key).or_default().push(value);
        }
    }
    let mut merged = StateDelta::new();
    let (views, changes): (Vec<_>, Vec<_>) = changes
        .into_iter()
        .partition(|(key, _)| sherma::is_view(key));
    for (key, values) in changes {
        let values = counted_values(key, values, branches);
        // Empty if every branch that changed the key unloaded a skill that another branch loaded.
        if !values.is_empty() {
            merged.set(key, merge_values(key, base.get(key), &values));
        }
    }
    // Views are made of the merged values of the other keys.
    for (key, values) in views {
        let view = sherma::merge_view(key, base.get(key), &values, &base.with(&merged));
        merged.set(key, view);
    }
    merged
}

/// Returns the values of the branches that count for a key. If one branch unloaded a skill and another loaded it, the
/// unload does not count, so that the selections stay.
fn counted_values<'a>(
    key: &str,
    values: Vec<&'a Value>,
    branches: &[&'a StateDelta],
) -> Vec<&'a Value> {
    let Some(loaded) = loaded_key(key) else {
        return values;
    };
    let set = |branch: &StateDelta| value(branch, &loaded).is_some_and(selection::is_set);
    if !branches.iter().any(|branch| set(branch)) {
        return values;
    }
    let unloaded = |branch: &StateDelta| value(branch, &loaded).is_some_and(Value::is_null);
    let counted = branches.iter().filter(|branch| !unloaded(branch));
    counted.filter_map(|branch| value(branch, key)).collect()
}

/// Returns the key of the loaded mark for a key of docs or tools.
fn loaded_key(key: &str) -> Option<String> {
    let kinds = ["docs", "tools"].iter();
    let mut pairs =
        kinds.flat_map(|kind| [format!("skill:{kind}_by_agent:"), format!("skill:{kind}:")]);
    let prefix = pairs.find(|prefix| {
        key.strip_prefix("temp:")
            .unwrap_or(key)
            .starts_with(prefix.as_str())
    })?;
    let loaded = prefix.replace("docs", "loaded").replace("tools", "loaded");
    Some(key.replacen(&prefix, &loaded, 1))
}

fn value<'a>(delta: &'a StateDelta, key: &str) -> Option<&'a Value> {
    delta
        .iter()
        .find_map(|(own, value)| (own == key).then_some(value))
}

fn merge_values(key: &str, base: Option<&Value>, values: &[&Value]) -> Value {
    let mut distinct: Vec<&Value> = Vec::new();
    for value in values {
        if !distinct.contains(value) {
            distinct.push(value);
        }
    }
    if let [only] = distinct.as_slice() {
        return (*only).clone();
    }
    // Null is an empty list here.
    let name = key.strip_prefix("temp:").unwrap_or(key);
    if name.starts_with("skill:loaded_order") {
        return merge_orders(base, &distinct);
    }
    // Elsewhere null removes the older value; a branch with a value has set it since.
    distinct.retain(|value| !value.is_null());
    if sherma::is_skill(key) {
        return sherma::latest(&distinct);
    }
    if loaded_key(key).is_some() {
        return merge_selections(base, &distinct);
    }
    if key == ARTIFACTS {
        return merge_artifacts(&distinct);
    }
    if key.starts_with(exec_state_merge::EXEC)
        && let Some(merged) = exec_state_merge::merge_exec(&distinct)
    {
        return merged;
    }
    choose(&distinct)
}

/// Chooses one of several values, always the same one.
fn choose(values: &[&Value]) -> Value {
    let largest = values.iter().max_by_key(|value| value.to_string());
    largest.map_or(Value::Null, |value| (*value).clone())
}

/// Merges selections: the names that every branch kept, and those that any branch added; "all" is an element like a
/// name.
fn merge_selections(base: Option<&Value>, values: &[&Value]) -> Value {
    let read: Vec<Selection> = values
        .iter()
        .filter_map(|value| Selection::read(value))
        .collect();
    match read.as_slice() {
        [] => return choose(values),
        [only] => return only.to_value(),
        _ => {}
    }
    let base = base.and_then(Selection::read);
    let is_all = |selection: &&Selection| **selection == Selection::All;
    let alls = read.iter().filter(is_all).count();
    let was_all = base.as_ref().is_some_and(|base| is_all(&base));
    if alls == read.len() || (alls > 0 && !was_all) {
        return Selection::All.to_value();
    }
    let lists: Vec<&[String]> = read.iter().filter_map(selected_names).collect();
    let before = base.as_ref().and_then(selected_names).unwrap_or_default();
    let known: HashSet<&String> = before.iter().collect();
    let (mut names, mut added) = (names_in_all(before, &lists), BTreeSet::new());
    for list in &lists {
        added.extend(list.iter().filter(|name| !known.contains(name)).cloned());
    }
    names.extend(added);
    Selection::These(names).to_value()
}

fn selected_names(selection: &Selection) -> Option<&[String]> {
    match selection {
        Selection::These(names) => Some(names),
        Selection::All => None,
    }
}

fn names_in_all(before: &[String], lists: &[&[String]]) -> Vec<String> {
    let sets: Vec<HashSet<&String>> = lists.iter().map(|list| list.iter().collect()).collect();
    let kept = before
        .iter()
        .filter(|name| sets.iter().all(|set| set.contains(name)));
    kept.cloned().collect()
}

/// Merges orders of skills: names that no branch touched keep their order and come first.
fn merge_orders(base: Option<&Value>, values: &[&Value]) -> Value {
    let before = base.map(selection::names).unwrap_or_default();
    let orders: Vec<Vec<String>> = values.iter().map(|value| selection::names(value)).collect();
    let touched: BTreeSet<&[String]> = orders
        .iter()
        .map(|order| touched_names(&before, order))
        .filter(|names| !names.is_empty())
        .collect();
    let tail: Vec<String> = match touched.iter().collect::<Vec<_>>().as_slice() {
        [only] => only.to_vec(),
        several => {
            let names: BTreeSet<&String> = several.iter().flat_map(|names| names.iter()).collect();
            names.into_iter().cloned().collect()
        }
    };
    let lists: Vec<&[String]> = orders.iter().map(Vec::as_slice).collect();
    let mut names = names_in_all(&before, &lists);
    let last: HashSet<&String> = tail.iter().collect();
    names.retain(|name| !last.contains(name));
    names.extend(tail.iter().cloned());
    // An empty order has no key, as elsewhere.
    if names.is_empty() {
        return Value::Null;
    }
    selection::list(&names).into()
}

/// Returns the names at the end of an order that were touched; for an order that was written again unchanged, the last
/// name.
fn touched_names<'a>(before: &[String], order: &'a [String]) -> &'a [String] {
    if before == order {
        return order
            .get(order.len().saturating_sub(1)..)
            .unwrap_or_default();
    }
    let mut rest = before.iter();
    let untouched = order
        .iter()
        .take_while(|name| rest.any(|known| known == *name))
        .count();
    order.get(untouched..).unwrap_or_default()
}

/// Merges lists of artifacts: every artifact that any branch saved, each once.
fn merge_artifacts(values: &[&Value]) -> Value {
    let mut merged = Map::new();
    let mut saved: BTreeMap<String, Value> = BTreeMap::new();
    for value in values {
        let artifacts = value.get("artifacts").and_then(Value::as_array);
        for artifact in artifacts.into_iter().flatten() {
            saved.insert(artifact.to_string(), artifact.clone());
        }
    }
    let latest = values
        .iter()
        .filter_map(|value| value.get("tool_call_id"))
        .max_by_key(|id| id.to_string());
    if let Some(id) = latest {
        merged.insert("tool_call_id".into(), id.clone());
    }
    merged.insert("artifacts".into(), saved.into_values().collect());
    Value::Object(merged)
}

#[cfg(test)]
mod tests;
