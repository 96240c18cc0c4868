//! Transitions one by one, and any sequence of them.

use proptest::prelude::*;
use serde_json::json;

use super::*;

fn state(value: Value) -> SessionState {
    serde_json::from_value(value).expect("a map")
}

fn turn(agent: &str) -> LoadScope<'_> {
    LoadScope::new(agent, LoadMode::Turn)
}

fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

#[test]
fn loading_again_keeps_what_was_selected() {
    let scope = turn("a");
    let mut state = SessionState::new();
    let docs_chosen = Selection::these(["x.md"]);
    state.apply(&load(&state, scope, " csv ", Some(&docs_chosen), None));
    state.apply(
        &select_tools(
            &state,
            scope,
            ("csv", &[]),
            SelectionMode::Replace,
            &names(&["t"]),
            false,
        )
        .delta,
    );
    state.apply(&load(&state, scope, "csv", None, None));
    assert_eq!(docs(&state, scope, "csv"), Some(docs_chosen));
    assert_eq!(tools(&state, scope, "csv"), Some(Selection::these(["t"])));
    state.apply(&load(&state, scope, "csv", Some(&Selection::All), None));
    assert_eq!(docs(&state, scope, "csv"), Some(Selection::All));
    assert_eq!(
        serde_json::to_value(&state).expect("JSON"),
        json!({
            "temp:skill:loaded_by_agent:a/csv": "1",
            "temp:skill:docs_by_agent:a/csv": "*",
            "temp:skill:loaded_order_by_agent:a": "[\"csv\"]",
            "temp:skill:tools_by_agent:a/csv": "[\"t\"]",
        })
    );
}

#[test]
fn a_state_with_very_many_loads_is_no_burden() {
    let scope = turn("a");
    let skills: Vec<String> = (0..20_000).map(|n| format!("skill-{n:05}")).collect();
    let mut map = serde_json::Map::new();
    for skill in &skills {
        map.insert(format!("temp:skill:loaded_by_agent:a/{skill}"), json!("1"));
    }
    let order = json!(skills).to_string();
    map.insert("temp:skill:loaded_order_by_agent:a".into(), json!(order));
    let mut state = state(Value::Object(map));
    // This would take hours if each name were looked for among all others.
    let evicted = evict(&state, scope, 5);
    assert_eq!(evicted.names.len(), skills.len() - 5);
    state.apply(&evicted.delta);
    assert_eq!(Some(loaded(&state, scope).as_slice()), skills.get(19_995..));
}

#[test]
fn agents_of_one_session_do_not_see_each_others_skills() {
    let mut state = SessionState::new();
    for (agent, skill) in [
        ("a", "one"),
        ("a/b", "two"),
        ("a%2Fb", "three"),
        ("", "four"),
    ] {
        state.apply(&load(&state, turn(agent), skill, None, None));
    }
    for (agent, skill) in [
        ("a", "one"),
        ("a/b", "two"),
        ("a%2Fb", "three"),
        ("", "four"),
    ] {
        assert_eq!(loaded(&state, turn(agent)), [skill], "{agent}");
    }
    state.apply(&begin_turn(&state, turn("a")));
    assert_eq!(loaded(&state, turn("a")), Vec::<String>::new());
    assert_eq!(loaded(&state, turn("a/b")), ["two"]);
}

#[test]
fn an_old_spelling_is_read_and_goes_with_the_next_change() {
    let scope = turn("50%");
    let mut state = state(json!({
        "temp:skill:loaded_by_agent:50%/csv": true,
        "temp:skill:docs_by_agent:50%/csv": "[\"x.md\"]",
        "temp:skill:loaded_order_by_agent:50%": "[\"csv\"]",
    }));
    assert_eq!(loaded(&state, scope), ["csv"]);
    assert_eq!(docs(&state, scope, "csv"), Some(Selection::these(["x.md"])));
    let delta = load(&state, scope, "csv", None, None);
    state.apply(&delta);
    assert_eq!(state.get("temp:skill:loaded_by_agent:50%/csv"), None);
    assert_eq!(loaded(&state, scope), ["csv"]);
    state.apply(&unload(&state, scope, "csv"));
    assert_eq!(state, SessionState::new());
}

#[test]
fn null_is_not_active() {
    let state = state(
        json!({"temp:skill:loaded_by_agent:a/csv": null, "temp:skill:tools_by_agent:a/csv": null}),
    );
    assert_eq!(loaded(&state, turn("a")), Vec::<String>::new());
    assert_eq!(tools(&state, turn("a"), "csv"), None);
}

#[test]
fn eviction_goes_by_the_last_touch_and_names_who_went() {
    let scope = turn("a");
    // Of `old` no touch is known.
    let mut state = state(json!({"temp:skill:loaded_by_agent:a/old": "1"}));
    for skill in ["one", "two", "three"] {
        state.apply(&load(&state, scope, skill, None, None));
    }
    state.apply(&select_docs(&state, scope, "one", SelectionMode::Clear, &[], false).delta);
    assert_eq!(loaded(&state, scope), ["old", "two", "three", "one"]);
    let evicted = evict(&state, scope, 2);
    assert_eq!(evicted.names, ["old", "two"]);
    state.apply(&evicted.delta);
    assert_eq!(loaded(&state, scope), ["three", "one"]);
    assert_eq!(evict(&state, scope, 2), Eviction::default());
    assert_eq!(evict(&state, scope, 0), Eviction::default());
}

#[test]
fn a_tool_beside_all_declared_ones_is_added_to_them() {
    let scope = turn("a");
    let declared = ["one".to_owned(), "two".to_owned()];
    let select = |state: &SessionState, name: &str, all| {
        let names = [name.to_owned()];
        select_tools(
            state,
            scope,
            ("s", &declared),
            SelectionMode::Add,
            &names,
            all,
        )
    };
    let all = select(&SessionState::new(), "one", true);
    assert_eq!(all.selection, Selection::All);
    let state = SessionState::new().with(&all.delta);
    assert_eq!(select(&state, "two", false).selection, Selection::All);
    let more = select(&state, "three", false).selection;
    assert_eq!(more, Selection::these(["one", "two", "three"]));
}

#[test]
fn each_mode_ends_loads_at_its_own_time() {
    for (mode, after_turn, after_shown) in [
        (LoadMode::Once, 2, 1),
        (LoadMode::Turn, 0, 2),
        (LoadMode::Session, 2, 2),
    ] {
        let scope = LoadScope::new("a", mode);
        let mut state = SessionState::new();
        state.apply(&load(&state, scope, "one", None, None));
        state.apply(&load(&state, scope, "two", Some(&Selection::All), None));
        let turned = state.with(&begin_turn(&state, scope));
        assert_eq!(loaded(&turned, scope).len(), after_turn, "{mode:?}");
        let shown = state.with(&after_prompt(&state, scope, &names(&["two"])));
        assert_eq!(loaded(&shown, scope).len(), after_shown, "{mode:?}");
        let temporary = state.iter().all(|(key, _)| key.starts_with("temp:"));
        assert_eq!(temporary, mode != LoadMode::Session);
    }
}

#[test]
fn adding_a_tool_to_the_declared_ones_keeps_them() {
    let declared = names(&["a", "b"]);
    let chosen = |change| {
        let state = SessionState::new();
        select_tools(
            &state,
            turn("x"),
            ("s", &declared),
            change,
            &names(&["c"]),
            false,
        )
        .selection
    };
    assert_eq!(
        chosen(SelectionMode::Add),
        Selection::these(["a", "b", "c"])
    );
    assert_eq!(chosen(SelectionMode::Replace), Selection::these(["c"]));
}

#[derive(Clone, Debug)]
enum Step {
    Load(String, bool),
    Unload(String),
    Docs(String, SelectionMode, Vec<String>, bool),
    Touch(String),
    Evict(usize),
    Turn,
}

fn step() -> impl Strategy<Value = Step> {
    let skill = || "[abc]".prop_map(String::from);
    let change = prop_oneof![
        Just(SelectionMode::Add),
        Just(SelectionMode::Replace),
        Just(SelectionMode::Clear)
    ];
    prop_oneof![
        4 => (skill(), any::<bool>()).prop_map(|(skill, all)| Step::Load(skill, all)),
        2 => skill().prop_map(Step::Unload),
        3 => (skill(), change, prop::collection::vec("[xyz]", 0..3), any::<bool>())
            .prop_map(|(skill, change, names, all)| Step::Docs(skill, change, names, all)),
        1 => skill().prop_map(Step::Touch),
        1 => (1_usize..3).prop_map(Step::Evict),
        1 => Just(Step::Turn),
    ]
}

fn take(state: &SessionState, scope: LoadScope<'_>, step: &Step) -> StateDelta {
    match step {
        Step::Load(skill, all) => load(state, scope, skill, all.then_some(&Selection::All), None),
        Step::Unload(skill) => unload(state, scope, skill),
        Step::Docs(skill, change, names, all) => {
            select_docs(state, scope, skill, *change, names, *all).delta
        }
        Step::Touch(skill) => touch(state, scope, &[skill]),
        Step::Evict(max) => evict(state, scope, *max).delta,
        Step::Turn => begin_turn(state, scope),
    }
}

proptest! {
    #[test]
    fn no_sequence_of_steps_touches_another_agent_or_leaves_garbage(steps in prop::collection::vec(step(), 0..24)) {
        let (scope, other) = (turn("me/too"), turn("me"));
        let mut state = SessionState::new();
        state.apply(&load(&state, other, "a", Some(&Selection::All), None));
        let others = state.clone();
        for step in &steps {
            let delta = take(&state, scope, step);
            let after = state.with(&delta);
            match step {
                Step::Load(skill, _) => prop_assert!(loaded(&after, scope).ends_with(std::slice::from_ref(skill))),
                Step::Unload(skill) => {
                    prop_assert!(!is_loaded(&after, scope, skill));
                    prop_assert_eq!(docs(&after, scope, skill), None);
                }
                Step::Evict(max) => prop_assert!(loaded(&after, scope).len() <= *max),
                Step::Turn => prop_assert_eq!(&after, &others),
                Step::Docs(..) | Step::Touch(_) => {
                    prop_assert_eq!(loaded(&after, scope).len(), loaded(&state, scope).len());
                }
            }
            prop_assert!(is_loaded(&after, other, "a"));
            state = after;
        }
        state.apply(&clear(&state, scope));
        prop_assert_eq!(state, others);
    }
}
