//! Loads, unloads, who owns which tool, and how a state says it.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::state::merge::{merge, merge_all};
use crate::state::{SessionState, StateDelta};

fn skill(version: &str, tools: &[&str], at: &str) -> LoadedSkill {
    LoadedSkill {
        version: version.into(),
        digest: format!("sha256:{version}"),
        tools: tools.iter().map(|tool| (*tool).to_owned()).collect(),
        loaded_at: at.into(),
        ..LoadedSkill::default()
    }
}

fn state_of(value: Value) -> SessionState {
    serde_json::from_value(value).expect("a map")
}

fn read(state: &SessionState) -> LoadedSkills {
    LoadedSkills::read(state, "")
}

fn ids(state: &SessionState) -> Vec<String> {
    let loaded = read(state);
    loaded.iter().map(|(id, _)| id.to_owned()).collect()
}

fn load(state: &SessionState, id: &str, skill: LoadedSkill) -> StateDelta {
    let before = read(state);
    before.with(id, skill).delta(&before, "")
}

fn unload(state: &SessionState, id: &str) -> StateDelta {
    let before = read(state);
    before.without(id).delta(&before, "")
}

fn two() -> SessionState {
    let mut state = SessionState::new();
    for (id, tools, at) in [("b", ["x", "y"], "1"), ("a", ["y", "z"], "2")] {
        state.apply(&load(&state, id, skill("1.0.0", &tools, at)));
    }
    state
}

#[test]
fn the_view_is_what_sherma_reads() {
    let state = two();
    let digest = "sha256:1.0.0";
    assert_eq!(
        state.get("__sherma__"),
        Some(&json!({
            "loaded_skills": {
                "b": {"version": "1.0.0", "tools": ["x", "y"], "digest": digest},
                "a": {"version": "1.0.0", "tools": ["y", "z"], "digest": digest},
            },
            "loaded_tools_from_skills": ["x", "y", "z"],
        }))
    );
    assert_eq!(
        state.get("__sherma__/a"),
        Some(&json!({
            "resolved_version": "1.0.0", "digest": digest, "tools": ["y", "z"], "order": 2, "loaded_at": "2",
        }))
    );
}

#[test]
fn the_order_of_loads_survives_a_store_that_sorts_keys() {
    let state = two();
    assert_eq!(ids(&state), ["b", "a"]);
    let sorted: std::collections::BTreeMap<&str, &Value> = state.iter().collect();
    assert_eq!(ids(&state_of(json!(sorted))), ["b", "a"]);
}

#[test]
fn skills_loaded_by_sherma_are_read_and_unloaded_like_ours() {
    let theirs = json!({"__sherma__": {
        "loaded_skills": {"old": {"version": "==1.0.0", "tools": ["x"]}, "odd": 7},
        "loaded_tools_from_skills": ["x"],
    }});
    let mut state = state_of(theirs);
    assert_eq!(ids(&state), ["old", "odd"]);
    assert_eq!(
        read(&state).get("old").map(|skill| skill.version.as_str()),
        Some("1.0.0")
    );
    let delta = load(&state, "new", skill("1.0.0", &["x", "y"], "1"));
    let keys: Vec<&str> = delta.iter().map(|(key, _)| key).collect();
    assert_eq!(keys, ["__sherma__/new", "__sherma__"]);
    state.apply(&delta);
    assert_eq!(ids(&state), ["old", "odd", "new"]);
    state.apply(&unload(&state, "old"));
    assert_eq!(ids(&state), ["odd", "new"]);
    // Loaded once more it is ours.
    state.apply(&load(&state, "odd", skill("1.0.0", &[], "2")));
    assert_eq!(ids(&state), ["new", "odd"]);
    assert!(state.get("__sherma__/odd").is_some());
}

#[test]
fn a_tool_goes_with_its_last_owner() {
    let mut state = two();
    let both = read(&state);
    assert_eq!(both.owners("y").collect::<Vec<_>>(), ["b", "a"]);
    let left = both.without("b");
    assert_eq!(both.tools_not_in(&left), ["x"]);
    state.apply(&left.delta(&both, ""));
    assert_eq!(read(&state).tools(), ["y", "z"]);
    state.apply(&unload(&state, "a"));
    assert_eq!(state, SessionState::new());
}

#[test]
fn unloading_what_is_not_loaded_changes_nothing() {
    let state = two();
    assert_eq!(unload(&state, "c"), StateDelta::new());
    let other = LoadedSkills::read(&state, "other");
    assert_eq!(other.without("a").delta(&other, "other"), StateDelta::new());
}

#[test]
fn another_version_replaces_the_first_and_is_the_latest() {
    let mut state = two();
    let before = read(&state);
    let after = before.with("b", skill("2.0.0", &["w"], "3"));
    // `y` is also a's.
    assert_eq!(before.tools_not_in(&after), ["x"]);
    state.apply(&after.delta(&before, ""));
    assert_eq!(read(&state), after);
    assert_eq!(ids(&state), ["a", "b"]);
    assert_eq!(after.tools(), ["y", "z", "w"]);
}

#[test]
fn skills_over_the_limit_are_those_loaded_first() {
    let loaded = read(&two());
    for (max, over) in [(0, vec![]), (1, vec!["b"]), (2, vec![]), (7, vec![])] {
        let ids: Vec<&str> = loaded.over(max).map(|(id, _)| id).collect();
        assert_eq!(ids, over, "{max}");
    }
}

#[test]
fn parallel_branches_keep_each_others_loads() {
    let base = two();
    let gone = unload(&base, "b");
    let more = load(&base, "c", skill("1.0.0", &["w"], "3"));
    let again = load(&base, "b", skill("1.0.0", &["x", "y"], "4"));
    let merged = |left: &StateDelta, right: &StateDelta| {
        let merged = merge(&base, left, right);
        assert_eq!(merged, merge(&base, right, left));
        let state = base.with(&merged);
        assert_eq!(
            state.get("__sherma__").cloned().unwrap_or_default(),
            read(&state).view()
        );
        ids(&state)
    };
    let mut all_gone = unload(&base, "a");
    all_gone.then(unload(&base.with(&all_gone), "b"));
    assert_eq!(merged(&all_gone, &more), ["c"]);
    assert_eq!(merged(&gone, &more), ["a", "c"]);
    assert_eq!(merged(&gone, &again), ["a", "b"]);
    assert_eq!(merged(&more, &again), ["a", "c", "b"]);
    assert_eq!(merged(&gone, &unload(&base, "a")), Vec::<String>::new());
}

#[test]
fn the_later_load_wins_if_branches_load_two_versions() {
    let base = two();
    let early = load(&base, "c", skill("2.0.0", &["w"], "3"));
    let late = load(&base, "c", skill("1.0.0", &["v"], "4"));
    let state = base.with(&merge(&base, &late, &early));
    let loaded = read(&state);
    assert_eq!(
        loaded.get("c").map(|skill| skill.version.as_str()),
        Some("1.0.0")
    );
    assert_eq!(state.get("__sherma__"), Some(&loaded.view()));
    assert_eq!(loaded.tools(), ["x", "y", "z", "v"]);
}

#[test]
fn branches_merge_unloads_of_sherma_skills_one_by_one() {
    let entry = json!({"version": "==1.0.0", "tools": []});
    let view = json!({"loaded_skills": {"p": entry, "q": entry}, "loaded_tools_from_skills": []});
    let base = state_of(json!({"__sherma__": view}));
    let more = load(&base, "c", skill("1.0.0", &[], "1"));
    let merged = merge_all(&base, &[&unload(&base, "p"), &more]);
    assert_eq!(ids(&base.with(&merged)), ["q", "c"]);
    let merged = merge(&base, &unload(&base, "p"), &unload(&base, "q"));
    assert_eq!(base.with(&merged), SessionState::new());
}

/// Steps of a branch: load or unload one of a few skills.
fn steps() -> impl Strategy<Value = Vec<(bool, String, u8)>> {
    let step = (any::<bool>(), "[a-d]".prop_map(String::from), 0_u8..3);
    prop::collection::vec(step, 0..5)
}

fn run(base: &SessionState, steps: &[(bool, String, u8)]) -> StateDelta {
    let mut delta = StateDelta::new();
    for (loads, id, at) in steps {
        let now = base.with(&delta);
        delta.then(if *loads {
            load(&now, id, skill("1.0.0", &[id, "all"], &at.to_string()))
        } else {
            unload(&now, id)
        });
    }
    delta
}

fn bytes(delta: &StateDelta) -> String {
    serde_json::to_string(delta).expect("JSON")
}

proptest! {
    #[test]
    fn branches_merge_in_any_order_and_lose_no_load(
        before in steps(),
        branches in prop::collection::vec(steps(), 1..4),
    ) {
        let base = SessionState::new().with(&run(&SessionState::new(), &before));
        let deltas: Vec<StateDelta> = branches.iter().map(|steps| run(&base, steps)).collect();
        let mut refs: Vec<&StateDelta> = deltas.iter().collect();
        let merged = merge_all(&base, &refs);
        refs.reverse();
        refs.extend_from_within(..);
        prop_assert_eq!(bytes(&merged), bytes(&merge_all(&base, &refs)));
        prop_assert_eq!(bytes(&merged), bytes(&merge(&base, &merged, &merged)));
        let after = base.with(&merged);
        let view = after.get("__sherma__").cloned().unwrap_or_default();
        prop_assert_eq!(view, read(&after).view());
        // Applied one after the other, without a merge, they lose nothing either but what a later one unloaded.
        let applied = deltas.iter().fold(base, |state, delta| state.with(delta));
        for (at, steps) in branches.iter().enumerate() {
            for (_, id, _) in steps.iter().filter(|(loads, _, _)| *loads) {
                let is_last = |steps: &[(bool, String, u8)]| {
                    steps.iter().rev().find(|(_, other, _)| other == id).map(|(loads, _, _)| *loads)
                };
                if is_last(steps) == Some(true) {
                    prop_assert!(read(&after).get(id).is_some(), "{} was lost", id);
                    let later = branches[at + 1..].iter().any(|steps| is_last(steps) == Some(false));
                    prop_assert!(later || read(&applied).get(id).is_some(), "{} was overwritten", id);
                }
            }
        }
    }

    #[test]
    fn no_two_agents_read_each_others_loads(a in "[ab/%25F:]{0,6}", b in "[ab/%25F:]{0,6}") {
        prop_assume!(a != b);
        let before = LoadedSkills::default();
        let delta = before.with("s", skill("1.0.0", &[], "1")).delta(&before, &a);
        let state = SessionState::new().with(&delta);
        prop_assert!(LoadedSkills::read(&state, &a).get("s").is_some());
        prop_assert_eq!(LoadedSkills::read(&state, &b), LoadedSkills::default());
    }
}
