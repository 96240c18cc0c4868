//! Selects the tools of the host that a model is offered: those that the loaded skills declare or that were selected.
//! Only tools that the host registered are offered: registration is an allow-list, whatever skills and models write.
//! Its order is the order of the offer.

use std::collections::{BTreeMap, HashSet};

use serde::Serialize;

use crate::call_context::SessionContext;
use crate::skill_lookup;
use crate::state::{LoadScope, Selection, SessionState, skill_loads};
use crate::tool_error::ToolResult;

/// Tools that a skill declares.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SkillToolDeclaration {
    /// Name of the skill.
    pub skill: String,
    /// Tools of its `Tools:` section.
    pub tools: Vec<String>,
}

/// Tools of the host that a model is offered.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct HostToolOffer {
    /// Names of the pool, in its order, each once.
    pub names: Vec<String>,
    /// Tools that loaded skills ask for and the host did not register, in the order of the skills' names.
    pub unknown: Vec<UnknownTool>,
}

/// Tool that is not in the pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct UnknownTool {
    /// The skill that asks for it.
    pub skill: String,
    /// Name of the tool.
    pub tool: String,
}

/// Returns the tools of all skills that this agent has loaded. A skill's declaration counts unless something was
/// selected of it; a selection may also name tools of the pool that the skill does not declare. Skills that are not
/// loaded bring nothing, even with a selection, nor do those that are not in `declared`: hidden ones, or gone.
/// `declared` may be in any order and may have more skills than are loaded.
pub fn select_host_tools<'a>(
    state: &SessionState,
    scope: LoadScope<'_>,
    declared: &[SkillToolDeclaration],
    pool: impl IntoIterator<Item = &'a str>,
) -> HostToolOffer {
    let mut wanted: Vec<UnknownTool> = Vec::new();
    // Sorted by the skills' names, and of each but one.
    let declared: BTreeMap<&str, &SkillToolDeclaration> = declared
        .iter()
        .rev()
        .map(|own| (own.skill.as_str(), own))
        .collect();
    for (skill, own) in declared {
        if !skill_loads::is_loaded(state, scope, skill) {
            continue;
        }
        let tools = match skill_loads::tools(state, scope, skill) {
            None | Some(Selection::All) => own.tools.clone(),
            Some(Selection::These(tools)) => tools,
        };
        let mut known = HashSet::new();
        let unique = tools.into_iter().filter(|tool| known.insert(tool.clone()));
        wanted.extend(unique.map(|tool| UnknownTool {
            skill: skill.to_owned(),
            tool,
        }));
    }
    let names: HashSet<&str> = wanted.iter().map(|want| want.tool.as_str()).collect();
    let mut offer = HostToolOffer::default();
    let mut known: HashSet<&str> = HashSet::new();
    for name in pool {
        if known.insert(name) && names.contains(name) {
            offer.names.push(name.to_owned());
        }
    }
    wanted.retain(|want| !known.contains(want.tool.as_str()));
    offer.unknown = wanted;
    offer
}

/// Returns the names of the host's tools that are offered in a session.
pub(crate) async fn list_offered_tools(context: SessionContext<'_>) -> ToolResult<Vec<String>> {
    let tools = context.tools;
    if !tools.options.only_active_skills {
        return Ok(tools.host.names().map(str::to_owned).collect());
    }
    let mut loaded = context.active_skills();
    if tools.host.is_empty() || loaded.is_empty() {
        return Ok(Vec::new());
    }
    // A state may name any number of skills that do not exist; they cost no call.
    let known = skill_lookup::list_skill_names(context).await?;
    loaded.retain(|name| known.contains(name));
    let declared = find_declarations(context, loaded).await?;
    let pool = tools.host.names();
    Ok(select_host_tools(context.state, context.scope(), &declared, pool).names)
}

/// Looks up the tools that skills declare, if the host has tools at all. A skill that is hidden or gone declares
/// nothing.
pub(crate) async fn find_declarations(
    context: SessionContext<'_>,
    skills: Vec<String>,
) -> ToolResult<Vec<SkillToolDeclaration>> {
    if context.tools.host.is_empty() {
        return Ok(Vec::new());
    }
    let found = skills.into_iter().map(|name| async move {
        let found = skill_lookup::find_usable_skill(context, &name).await?;
        Ok(found.map(|skill| SkillToolDeclaration {
            skill: name,
            tools: skill.tools,
        }))
    });
    skill_lookup::collect_found(found).await
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::state::SelectionMode;
    use crate::tool_definition::LoadMode;

    const SCOPE: LoadScope<'static> = LoadScope {
        agent: "a",
        mode: LoadMode::Turn,
    };
    const POOL: [&str; 5] = ["a", "b", "c", "d", "a"];

    fn declared(skill: &str, tools: &[&str]) -> SkillToolDeclaration {
        SkillToolDeclaration {
            skill: skill.into(),
            tools: tools.iter().map(|tool| (*tool).to_owned()).collect(),
        }
    }

    fn skills() -> Vec<SkillToolDeclaration> {
        vec![
            declared("one", &["c", "a", "secret"]),
            declared("two", &["a", "b"]),
        ]
    }

    fn load(state: &mut SessionState, skill: &str) {
        state.apply(&skill_loads::load(state, SCOPE, skill, None, None));
    }

    fn select(state: &mut SessionState, skill: &str, change: SelectionMode, tools: &[&str]) {
        let tools: Vec<String> = tools.iter().map(|tool| (*tool).to_owned()).collect();
        let own = skills()
            .into_iter()
            .find(|own| own.skill == skill)
            .map(|own| own.tools)
            .unwrap_or_default();
        state.apply(
            &skill_loads::select_tools(state, SCOPE, (skill, &own), change, &tools, false).delta,
        );
    }

    fn names(state: &SessionState) -> Vec<String> {
        select_host_tools(state, SCOPE, &skills(), POOL).names
    }

    #[test]
    fn the_pool_is_an_allow_list() {
        let mut state = SessionState::new();
        load(&mut state, "one");
        let now = select_host_tools(&state, SCOPE, &skills(), POOL);
        assert_eq!(now.names, ["a", "c"]);
        let secret = |skill: &str| UnknownTool {
            skill: skill.into(),
            tool: "secret".into(),
        };
        assert_eq!(now.unknown, [secret("one")]);
        select(&mut state, "one", SelectionMode::Replace, &["secret", "d"]);
        assert_eq!(names(&state), ["d"]);
    }

    #[test]
    fn loading_a_second_skill_hides_nothing_of_the_first() {
        let mut state = SessionState::new();
        load(&mut state, "one");
        load(&mut state, "two");
        assert_eq!(names(&state), ["a", "b", "c"]);
        select(&mut state, "one", SelectionMode::Clear, &[]);
        assert_eq!(names(&state), ["a", "b"]);
    }

    #[test]
    fn a_skill_that_is_not_loaded_or_was_cleared_brings_nothing() {
        let mut state = SessionState::new();
        select(&mut state, "one", SelectionMode::Add, &["d"]);
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
    fn an_undeclared_skill_brings_no_tools_even_if_some_are_chosen() {
        let mut state = SessionState::new();
        load(&mut state, "hidden");
        select(&mut state, "hidden", SelectionMode::Replace, &["d"]);
        let now = select_host_tools(&state, SCOPE, &skills(), POOL);
        assert_eq!(now, HostToolOffer::default());
    }

    proptest! {
        #[test]
        fn the_order_of_loads_and_declarations_does_not_show(
            loads in Just(["one", "two", "three"]).prop_shuffle(),
            order in Just([0_usize, 1, 2]).prop_shuffle(),
        ) {
            let mut all = skills();
            all.push(declared("three", &["d", "b", "nothing"]));
            let all: Vec<SkillToolDeclaration> = order.iter().filter_map(|at| all.get(*at).cloned()).collect();
            let mut state = SessionState::new();
            for skill in loads {
                load(&mut state, skill);
            }
            let now = select_host_tools(&state, SCOPE, &all, POOL);
            prop_assert_eq!(now.names, ["a", "b", "c", "d"]);
            let unknown: Vec<String> = now.unknown.into_iter().map(|unknown| unknown.tool).collect();
            prop_assert_eq!(unknown, ["secret", "nothing"]);
        }
    }
}
