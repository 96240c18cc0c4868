//! Loads, unloads, and who owns which tool.

use super::*;
use crate::state::merge::merge as merge_branches;

fn skill(version: &str, tools: &[&str], at: &str) -> LoadedSkill {
    LoadedSkill {
        version: version.into(),
        digest: format!("sha256:{version}"),
        tools: tools.iter().map(|tool| (*tool).to_owned()).collect(),
        loaded_at: at.into(),
        source_range: Value::Null,
    }
}

fn two() -> SessionState {
    let mut state = SessionState::new();
    for (id, tools, at) in [("a", &["x", "y"], "1"), ("b", &["y", "z"], "2")] {
        let (outcome, delta) = load(&state, "", id, skill("1.0.0", tools, at));
        assert_eq!(outcome, LoadOutcome::Loaded);
        state.apply(&delta);
    }
    state
}

#[test]
fn the_view_is_what_sherma_reads() {
    let state = two();
    let view = state.get("__sherma__").expect("its key");
    assert_eq!(
        view["loaded_skills"],
        json!({"a": {"version": "1.0.0", "tools": ["x", "y"]}, "b": {"version": "1.0.0", "tools": ["y", "z"]}})
    );
    assert_eq!(view["loaded_tools_from_skills"], json!(["x", "y", "z"]));
    assert_eq!(view["loaded"]["b"]["loaded_at"], "2");
}

#[test]
fn a_state_that_sherma_made_is_read() {
    let theirs = json!({"__sherma__": {
        "loaded_skills": {"a": {"version": "==1.0.0", "tools": ["x"]}}, "loaded_tools_from_skills": ["x"],
    }});
    let state: SessionState = serde_json::from_value(theirs).expect("a map");
    let loaded = Loaded::read(&state, "");
    assert_eq!(
        loaded.get("a").map(|skill| skill.version.as_str()),
        Some("1.0.0")
    );
    assert_eq!(loaded.tools(), ["x"]);
}

#[test]
fn a_tool_goes_with_its_last_owner() {
    let mut state = two();
    assert_eq!(
        Loaded::read(&state, "").owners("y").collect::<Vec<_>>(),
        ["a", "b"]
    );
    let (outcome, delta) = unload(&state, "", "a");
    assert_eq!(
        outcome,
        UnloadOutcome::Unloaded {
            unbound: vec!["x".into()],
            kept: vec!["y".into()]
        }
    );
    state.apply(&delta);
    assert_eq!(Loaded::read(&state, "").tools(), ["y", "z"]);
    let (_, delta) = unload(&state, "", "b");
    state.apply(&delta);
    assert_eq!(state, SessionState::new());
}

#[test]
fn unloading_what_is_not_loaded_changes_nothing() {
    assert_eq!(
        unload(&two(), "", "c"),
        (UnloadOutcome::NotLoaded, Delta::new())
    );
    assert_eq!(unload(&two(), "other", "a").0, UnloadOutcome::NotLoaded);
}

#[test]
fn another_version_takes_the_place_of_the_first_and_the_same_is_no_news() {
    let state = two();
    let (outcome, _) = load(&state, "", "a", skill("1.0.0", &["x", "y"], "3"));
    assert_eq!(outcome, LoadOutcome::AlreadyLoaded);
    let (outcome, delta) = load(&state, "", "a", skill("2.0.0", &["w"], "3"));
    // `y` is also b's.
    assert_eq!(
        outcome,
        LoadOutcome::Replaced {
            unbound: vec!["x".into()]
        }
    );
    let loaded = Loaded::read(&state.with(&delta), "");
    assert_eq!(
        loaded.iter().map(|(id, _)| id).collect::<Vec<_>>(),
        ["b", "a"]
    );
    assert_eq!(loaded.tools(), ["y", "z", "w"]);
}

#[test]
fn the_oldest_load_is_evicted() {
    let state = two();
    let (ids, delta) = evict(&state, "", 1);
    assert_eq!(ids, ["a"]);
    assert_eq!(Loaded::read(&state.with(&delta), "").tools(), ["y", "z"]);
    assert_eq!(evict(&state, "", 0).1, Delta::new());
}

#[test]
fn parallel_branches_keep_each_others_loads() {
    let base = two();
    let (_, gone) = unload(&base, "", "a");
    let (_, more) = load(&base, "", "c", skill("1.0.0", &["w"], "3"));
    let (_, again) = load(&base, "", "a", skill("1.0.0", &["x", "y"], "4"));
    let ids = |left: &Delta, right: &Delta| {
        let merged = merge_branches(&base, left, right);
        assert_eq!(merged, merge_branches(&base, right, left));
        let loaded = Loaded::read(&base.with(&merged), "");
        loaded
            .iter()
            .map(|(id, _)| id.to_owned())
            .collect::<Vec<_>>()
    };
    let (_, first) = unload(&base, "", "b");
    let all_gone = {
        let (_, rest) = unload(&base.with(&first), "", "a");
        let mut all = first;
        all.then(rest);
        all
    };
    assert_eq!(ids(&all_gone, &more), ["c"]);
    assert_eq!(ids(&gone, &more), ["b", "c"]);
    assert_eq!(ids(&gone, &again), ["b", "a"]);
    assert_eq!(ids(&more, &again), ["b", "c", "a"]);
}
