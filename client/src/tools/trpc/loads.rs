//! What is loaded and chosen, in the words of this family's options: the state's transitions, with the agent and the load
//! mode filled in.

use skilld_proto::v1::Skill;

use crate::state::loading::{self, Selected};
use crate::state::{Change, Delta, Scope, Selection, SessionState};
use crate::tools::dynamic::{self, Declared};
use crate::tools::trpc::skills;
use crate::tools::{Inner, Options, Session};

/// Of what something is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Of {
    Docs,
    /// Of a skill that declares these.
    Tools,
}

/// A new choice.
#[derive(Clone, Debug)]
pub(super) struct Choice {
    pub(super) change: Change,
    pub(super) all: bool,
    pub(super) items: Vec<String>,
    /// What was asked for and is not there.
    pub(super) unknown: Vec<String>,
}

/// The keys of a session's agent.
pub(super) fn scope<'a>(session: &'a Session, options: &Options) -> Scope<'a> {
    Scope::new(&session.agent, options.load_mode)
}

/// Loads a skill. What was chosen of it earlier stays unless something new is given. Those that must go for it come
/// beside the delta.
pub(super) fn load(
    state: &SessionState,
    scope: Scope<'_>,
    options: &Options,
    skill: &str,
    docs: Option<&Selection>,
) -> (Delta, Vec<String>) {
    let mut delta = loading::load(state, scope, skill, docs, None);
    let evicted = loading::evict(&state.with(&delta), scope, options.max_loaded_skills);
    delta.then(evicted.delta);
    (delta, evicted.names)
}

/// Chooses of a skill, loaded or not.
pub(super) fn select(
    state: &SessionState,
    scope: Scope<'_>,
    of: Of,
    skill: &Skill,
    choice: &Choice,
) -> Selected {
    let name = skills::id(&skill.name);
    let Choice {
        change, all, items, ..
    } = choice;
    match of {
        Of::Docs => loading::select_docs(state, scope, name, *change, items, *all),
        Of::Tools => {
            let declared = (name, skill.tools.as_slice());
            loading::select_tools(state, scope, declared, *change, items, *all)
        }
    }
}

/// Names of the host's tools that are offered. Skills that the model may not see bring nothing up.
pub(super) fn offered(
    tools: &Inner,
    session: &Session,
    state: &SessionState,
    known: &[Skill],
) -> Vec<String> {
    if !tools.options.only_active_skills {
        return tools.host.names().map(str::to_owned).collect();
    }
    let declared = known.iter().map(|skill| Declared {
        skill: skills::id(&skill.name).to_owned(),
        tools: skill.tools.clone(),
    });
    let declared: Vec<Declared> = declared.collect();
    let scope = scope(session, &tools.options);
    let mut visible = Delta::new();
    for name in loading::loaded(state, scope) {
        if !declared.iter().any(|own| own.skill == name) {
            visible.then(loading::unload(&state.with(&visible), scope, &name));
        }
    }
    let state = state.with(&visible);
    dynamic::offered(&state, scope, &declared, tools.host.names()).names
}
