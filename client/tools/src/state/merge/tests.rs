//! Two branches by example, any number of them by property.

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::state::selection::SelectionMode;
use crate::state::skill_loads::{docs, is_loaded, load, loaded, select_docs, touch, unload};
use crate::state::state_keys::LoadScope;
use crate::tool_definition::LoadMode;

const SCOPE: LoadScope<'static> = LoadScope {
    agent: "a",
    mode: LoadMode::Turn,
};

fn base() -> SessionState {
    let mut state = SessionState::new();
    for skill in ["one", "two"] {
        state.apply(&load(
            &state,
            SCOPE,
            skill,
            Some(&Selection::these(["x", "y"])),
            None,
        ));
    }
    state
}

fn select(state: &SessionState, change: SelectionMode, names: &[&str]) -> StateDelta {
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    select_docs(state, SCOPE, "one", change, &names, false).delta
}

#[test]
fn an_unload_wins_only_over_an_older_load() {
    let base = base();
    let gone = unload(&base, SCOPE, "one");
    let other = load(&base, SCOPE, "three", None, None);
    let merged = base.with(&merge(&base, &gone, &other));
    assert_eq!(loaded(&merged, SCOPE), ["two", "three"]);
    let again = load(&base, SCOPE, "one", None, None);
    let merged = base.with(&merge(&base, &gone, &again));
    assert_eq!(loaded(&merged, SCOPE), ["two", "one"]);
    assert_eq!(
        docs(&merged, SCOPE, "one"),
        Some(Selection::these(["x", "y"]))
    );
}

#[test]
fn the_only_skill_unloaded_in_one_branch_stays_unloaded() {
    let empty = SessionState::new();
    let base = empty.with(&load(&empty, SCOPE, "one", None, None));
    let gone = unload(&base, SCOPE, "one");
    let merged = base.with(&merge(&base, &gone, &load(&base, SCOPE, "two", None, None)));
    assert_eq!(loaded(&merged, SCOPE), ["two"]);
    assert_eq!(
        merged.get("temp:skill:loaded_order_by_agent:a"),
        Some(&json!("[\"two\"]"))
    );
    let again = base.with(&merge(&base, &gone, &load(&base, SCOPE, "one", None, None)));
    assert_eq!(again, base);
}

#[test]
fn the_last_skills_unloaded_in_two_branches_leave_nothing() {
    let base = base();
    let (one, two) = (unload(&base, SCOPE, "one"), unload(&base, SCOPE, "two"));
    let merged = base.with(&merge(&base, &one, &two));
    assert_eq!(merged, SessionState::new());
}

#[test]
fn selections_are_merged_name_by_name() {
    let base = base();
    let narrowed = select(&base, SelectionMode::Replace, &["y"]);
    let widened = select(&base, SelectionMode::Add, &["z"]);
    let merged = base.with(&merge(&base, &narrowed, &widened));
    assert_eq!(
        docs(&merged, SCOPE, "one"),
        Some(Selection::these(["y", "z"]))
    );
    let all = select_docs(&base, SCOPE, "one", SelectionMode::Add, &[], true).delta;
    let merged = base.with(&merge(&base, &all, &narrowed));
    assert_eq!(docs(&merged, SCOPE, "one"), Some(Selection::All));
}

#[test]
fn parallel_runs_keep_each_others_artifacts() {
    let run = |id: &str, name: &str| {
        let mut delta = StateDelta::new();
        delta.set(
            ARTIFACTS,
            json!({"tool_call_id": id, "artifacts": [{"name": name, "version": 1}]}),
        );
        delta
    };
    let merged = merge(&SessionState::new(), &run("1", "b.csv"), &run("2", "a.csv"));
    assert_eq!(
        serde_json::to_value(merged).expect("JSON"),
        json!({ARTIFACTS: {"tool_call_id": "2", "artifacts": [
            {"name": "a.csv", "version": 1}, {"name": "b.csv", "version": 1},
        ]}})
    );
}

#[test]
fn a_key_of_somebody_else_that_one_branch_changed_is_taken_over() {
    let mut delta = StateDelta::new();
    delta.set("app:counter", 3);
    assert_eq!(merge(&base(), &StateDelta::new(), &delta), delta);
    let mut other = StateDelta::new();
    other.remove("app:counter");
    assert_eq!(merge(&base(), &other, &delta), delta);
}

/// Steps of a branch: load, unload, select or touch a skill.
fn branch() -> impl Strategy<Value = Vec<(u8, String, String)>> {
    prop::collection::vec(
        (
            0_u8..5,
            "[a-d]".prop_map(String::from),
            "[x-z]".prop_map(String::from),
        ),
        0..6,
    )
}

fn run(base: &SessionState, steps: &[(u8, String, String)]) -> StateDelta {
    let mut delta = StateDelta::new();
    for (what, skill, doc) in steps {
        let now = base.with(&delta);
        let doc = std::slice::from_ref(doc);
        delta.then(match what {
            0 | 1 => load(&now, SCOPE, skill, None, None),
            2 => unload(&now, SCOPE, skill),
            3 => select_docs(&now, SCOPE, skill, SelectionMode::Add, doc, false).delta,
            _ => touch(&now, SCOPE, &[skill]),
        });
    }
    delta
}

fn bytes(delta: &StateDelta) -> String {
    serde_json::to_string(delta).expect("JSON")
}

proptest! {
    #[test]
    fn branches_merge_in_any_order_and_lose_no_concurrent_load(
        before in branch(),
        branches in prop::collection::vec(branch(), 1..4),
        turn in 0_usize..4,
    ) {
        let base = SessionState::new().with(&run(&SessionState::new(), &before));
        let deltas: Vec<StateDelta> = branches.iter().map(|steps| run(&base, steps)).collect();
        let refs: Vec<&StateDelta> = deltas.iter().collect();
        let merged = merge_all(&base, &refs);
        let mut turned = refs.clone();
        turned.rotate_left(turn % refs.len());
        turned.reverse();
        prop_assert_eq!(bytes(&merged), bytes(&merge_all(&base, &turned)));
        // Idempotent: a branch seen twice, and the merge with itself.
        turned.extend(&refs);
        prop_assert_eq!(bytes(&merged), bytes(&merge_all(&base, &turned)));
        prop_assert_eq!(bytes(&merged), bytes(&merge(&base, &merged, &merged)));
        let after = base.with(&merged);
        for (delta, steps) in deltas.iter().zip(&branches) {
            let own = base.with(delta);
            for (what, skill, _) in steps {
                if *what < 2 && is_loaded(&own, SCOPE, skill) {
                    prop_assert!(is_loaded(&after, SCOPE, skill), "{} was lost", skill);
                }
            }
        }
        // What is loaded was loaded before or by a branch, and what all unloaded is gone.
        for skill in loaded(&after, SCOPE) {
            let in_any = deltas.iter().any(|delta| is_loaded(&base.with(delta), SCOPE, &skill));
            prop_assert!(in_any, "{} came from nowhere", skill);
        }
    }
}
