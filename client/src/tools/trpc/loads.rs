//! What is loaded and chosen, in the words of this family's options: the state's transitions, with the agent and the load
//! mode filled in.

use std::collections::BTreeSet;

use futures::{StreamExt, TryStreamExt};
use skilld_proto::v1::Skill;

use crate::state::loading::{self, Selected};
use crate::state::{Change, Delta, Scope, Selection, SessionState};
use crate::tools::dynamic::{self, Declared};
use crate::tools::{Inner, Options, Session, ToolError, lookup, material};

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

/// What a load does.
pub(super) struct Load {
    /// Before anything goes for it.
    pub(super) with: SessionState,
    pub(super) delta: Delta,
    /// Skills that must go for it, the longest untouched first.
    pub(super) evicted: Vec<String>,
}

/// Loads a skill. What was chosen of it earlier stays unless something new is given.
pub(super) fn load(
    state: &SessionState,
    scope: Scope<'_>,
    options: &Options,
    skill: &str,
    docs: Option<&Selection>,
) -> Load {
    let mut delta = loading::load(state, scope, skill, docs, None);
    let with = state.with(&delta);
    let evicted = loading::evict(&with, scope, options.loaded_max());
    delta.then(evicted.delta);
    Load {
        with,
        delta,
        evicted: evicted.names,
    }
}

/// Chooses of a skill, loaded or not. Where nothing is there of what was asked for, nothing changes.
pub(super) fn select(
    state: &SessionState,
    scope: Scope<'_>,
    of: Of,
    skill: &Skill,
    choice: &Choice,
) -> Selected {
    let name = lookup::id(skill);
    let name = name.as_str();
    let Choice {
        change,
        all,
        items,
        unknown,
    } = choice;
    let is_asked = *change == Change::Clear || *all || !items.is_empty();
    if !is_asked && !unknown.is_empty() {
        let before = match of {
            Of::Docs => loading::docs(state, scope, name),
            Of::Tools => loading::tools(state, scope, name),
        };
        let own = match of {
            Of::Docs => [].as_slice(),
            Of::Tools => skill.tools.as_slice(),
        };
        return Selected {
            selection: before.unwrap_or_else(|| Selection::these(own)),
            delta: Delta::new(),
        };
    }
    match of {
        Of::Docs => loading::select_docs(state, scope, name, *change, items, *all),
        Of::Tools => {
            let declared = (name, skill.tools.as_slice());
            loading::select_tools(state, scope, declared, *change, items, *all)
        }
    }
}

/// How to stage a skill that a command is to run in. Where the host wants it loaded, what counts is the skill, by whatever
/// name it is asked for, in the version that is loaded: the current one.
pub(super) async fn to_run(
    tools: &Inner,
    session: &Session,
    state: &SessionState,
    tool: &'static str,
    asked: &str,
) -> Result<String, ToolError> {
    let loaded = active(session, state, &tools.options);
    if !tools.options.require_loaded || loaded.iter().any(|name| name == asked) {
        return lookup::address(tools, asked).await;
    }
    let found = lookup::skill(tools, asked).await?;
    let id = lookup::id(&found);
    let is_current = match asked.contains('@') {
        true => lookup::skill(tools, &id).await?.digest == found.digest,
        false => true,
    };
    if is_current && loaded.contains(&id) {
        return Ok(lookup::pinned(&found));
    }
    Err(ToolError::NotLoaded {
        tool,
        skill: asked.to_owned(),
    })
}

fn active(session: &Session, state: &SessionState, options: &Options) -> Vec<String> {
    material::active(state, options.scope(&session.agent), options)
}

/// Names of the host's tools that are offered. Who has the names of the skills that there are spares the daemon being asked
/// for others that a state may have.
pub(super) async fn offered(
    tools: &Inner,
    session: &Session,
    state: &SessionState,
    known: Option<&BTreeSet<String>>,
) -> Result<Vec<String>, ToolError> {
    if !tools.options.only_active_skills {
        return Ok(tools.host.names().map(str::to_owned).collect());
    }
    let mut loaded = active(session, state, &tools.options);
    loaded.retain(|name| known.is_none_or(|known| known.contains(name)));
    let declared = declared(tools, loaded).await?;
    let scope = tools.options.scope(&session.agent);
    Ok(dynamic::offered(state, scope, &declared, tools.host.names()).names)
}

/// What loaded skills declare, where the host has tools at all. Those that the model may not see, or that are not there,
/// declare nothing.
pub(super) async fn declared(
    tools: &Inner,
    loaded: Vec<String>,
) -> Result<Vec<Declared>, ToolError> {
    if tools.host.names().next().is_none() {
        return Ok(Vec::new());
    }
    let declared = loaded.into_iter().map(|name| async move {
        match lookup::skill(tools, &name).await {
            Ok(skill) => Ok(Some(Declared {
                skill: name,
                tools: skill.tools,
            })),
            Err(error) if error.is_of_skill() => Ok(None),
            Err(error) => Err(error),
        }
    });
    let declared = futures::stream::iter(declared).buffered(lookup::REQUESTS);
    declared
        .try_filter_map(|skill| async move { Ok(skill) })
        .try_collect()
        .await
}
