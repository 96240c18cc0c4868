//! Which of the host's tools a model is offered: those that the loaded skills declare or that were selected, out of the
//! pool that the host registered. The pool is an allow-list, whatever skills and models write; its order is the order of
//! the offer, so that the same skills give the same tools in the same places.

use std::collections::{BTreeMap, HashSet};

use serde::Serialize;

use crate::state::{Scope, Selection, SessionState, loading};

/// A skill's own word on tools.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Declared {
    /// The skill.
    pub skill: String,
    /// Its `Tools:` section.
    pub tools: Vec<String>,
}

/// What is offered.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Offered {
    /// Names of the pool, in its order, each once.
    pub names: Vec<String>,
    /// What skills that are loaded ask for and the pool does not have, in the order of the skills' names.
    pub unknown: Vec<UnknownTool>,
}

/// A tool that is not in the pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct UnknownTool {
    /// The skill that asks for it.
    pub skill: String,
    /// The tool.
    pub tool: String,
}

/// The tools of all skills that this agent has loaded. What a skill declares counts unless something was selected of it;
/// a selection may also name tools of the pool that the skill does not declare. Skills that are not loaded bring nothing,
/// though something be selected of them, nor do those that are not in `declared`: hidden ones, or gone. `declared` may be
/// in any order and may have more skills than are loaded.
pub fn offered<'a>(
    state: &SessionState,
    scope: Scope<'_>,
    declared: &[Declared],
    pool: impl IntoIterator<Item = &'a str>,
) -> Offered {
    let mut wanted: Vec<UnknownTool> = Vec::new();
    // Sorted by the skills' names, and of each but one.
    let declared: BTreeMap<&str, &Declared> = declared
        .iter()
        .rev()
        .map(|own| (own.skill.as_str(), own))
        .collect();
    for (skill, own) in declared {
        if !loading::is_loaded(state, scope, skill) {
            continue;
        }
        let tools = match loading::tools(state, scope, skill) {
            None | Some(Selection::All) => own.tools.clone(),
            Some(Selection::These(tools)) => tools,
        };
        let mut known = HashSet::new();
        let tools = tools.into_iter().filter(|tool| known.insert(tool.clone()));
        wanted.extend(tools.map(|tool| UnknownTool {
            skill: skill.to_owned(),
            tool,
        }));
    }
    let names: HashSet<&str> = wanted.iter().map(|want| want.tool.as_str()).collect();
    let mut offered = Offered::default();
    let mut known: HashSet<&str> = HashSet::new();
    for name in pool {
        if known.insert(name) && names.contains(name) {
            offered.names.push(name.to_owned());
        }
    }
    wanted.retain(|want| !known.contains(want.tool.as_str()));
    offered.unknown = wanted;
    offered
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::state::Change;
    use crate::tools::LoadMode;

    const SCOPE: Scope<'static> = Scope {
        agent: "a",
        mode: LoadMode::Turn,
    };
    const POOL: [&str; 5] = ["a", "b", "c", "d", "a"];

    fn declared(skill: &str, tools: &[&str]) -> Declared {
        Declared {
            skill: skill.into(),
            tools: tools.iter().map(|tool| (*tool).to_owned()).collect(),
        }
    }

    fn skills() -> Vec<Declared> {
        vec![
            declared("one", &["c", "a", "secret"]),
            declared("two", &["a", "b"]),
        ]
    }

    fn load(state: &mut SessionState, skill: &str) {
        state.apply(&loading::load(state, SCOPE, skill, None, None));
    }

    fn select(state: &mut SessionState, skill: &str, change: Change, tools: &[&str]) {
        let tools: Vec<String> = tools.iter().map(|tool| (*tool).to_owned()).collect();
        let own = skills()
            .into_iter()
            .find(|own| own.skill == skill)
            .map(|own| own.tools);
        let own = own.unwrap_or_default();
        state.apply(
            &loading::select_tools(state, SCOPE, (skill, &own), change, &tools, false).delta,
        );
    }

    fn names(state: &SessionState) -> Vec<String> {
        offered(state, SCOPE, &skills(), POOL).names
    }

    #[test]
    fn the_pool_is_an_allow_list() {
        let mut state = SessionState::new();
        load(&mut state, "one");
        let now = offered(&state, SCOPE, &skills(), POOL);
        assert_eq!(now.names, ["a", "c"]);
        let secret = |skill: &str| UnknownTool {
            skill: skill.into(),
            tool: "secret".into(),
        };
        assert_eq!(now.unknown, [secret("one")]);
        select(&mut state, "one", Change::Replace, &["secret", "d"]);
        assert_eq!(names(&state), ["d"]);
    }

    #[test]
    fn loading_a_second_skill_hides_nothing_of_the_first() {
        let mut state = SessionState::new();
        load(&mut state, "one");
        load(&mut state, "two");
        assert_eq!(names(&state), ["a", "b", "c"]);
        select(&mut state, "one", Change::Clear, &[]);
        assert_eq!(names(&state), ["a", "b"]);
    }

    #[test]
    fn a_skill_that_is_not_loaded_or_was_cleared_brings_nothing() {
        let mut state = SessionState::new();
        select(&mut state, "one", Change::Add, &["d"]);
        assert_eq!(names(&state), Vec::<String>::new());
        load(&mut state, "one");
        assert_eq!(names(&state), ["a", "c", "d"]);
        let null = serde_json::json!({
            "temp:skill:loaded_by_agent:a/one": null, "temp:skill:tools_by_agent:a/one": null,
        });
        state.apply(&serde_json::from_value(null).expect("a delta"));
        assert_eq!(names(&state), Vec::<String>::new());
    }

    #[test]
    fn a_skill_that_nobody_declares_brings_nothing_not_even_what_was_chosen_of_it() {
        let mut state = SessionState::new();
        load(&mut state, "hidden");
        select(&mut state, "hidden", Change::Replace, &["d"]);
        let now = offered(&state, SCOPE, &skills(), POOL);
        assert_eq!(now, Offered::default());
    }

    proptest! {
        #[test]
        fn the_order_of_loads_and_declarations_does_not_show(
            loads in Just(["one", "two", "three"]).prop_shuffle(),
            order in Just([0_usize, 1, 2]).prop_shuffle(),
        ) {
            let mut all = skills();
            all.push(declared("three", &["d", "b", "nothing"]));
            let all: Vec<Declared> = order.iter().filter_map(|at| all.get(*at).cloned()).collect();
            let mut state = SessionState::new();
            for skill in loads {
                load(&mut state, skill);
            }
            let now = offered(&state, SCOPE, &all, POOL);
            prop_assert_eq!(now.names, ["a", "b", "c", "d"]);
            let unknown: Vec<String> = now.unknown.into_iter().map(|unknown| unknown.tool).collect();
            prop_assert_eq!(unknown, ["secret", "nothing"]);
        }
    }
}
