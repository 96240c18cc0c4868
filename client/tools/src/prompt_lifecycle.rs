//! Transitions of a session's state around prompts. They are those of [`crate::state::skill_loads`] with the agent, the
//! load mode and the limit of the options. None of them calls the daemon.
//!
//! ```text
//! user's message ─► begin_turn ─► before_prompt ─► material, inject ───────► model ─► after_prompt ─┐
//!                                      ▲                                                           │
//!                                      └───────────────────── its calls ◄──────────────────────────┘
//! ```

use std::cell::LazyCell;

use serde_json::Value;

use crate::prompt::{Placement, PromptOptions, Provider, skill_load_history};
use crate::session::Session;
use crate::state::skill_loads::{self, Eviction};
use crate::state::{LoadScope, SessionState, StateDelta, migrate};
use crate::tool_definition::Family;
use crate::toolset::Toolset;

impl Toolset {
    /// Returns the agent and the load mode of a session's skills. sherma's and Agent Zero's skills stay for the
    /// session, whatever the options say.
    #[must_use]
    pub fn scope<'a>(&self, session: &'a Session) -> LoadScope<'a> {
        self.inner.options.scope(&session.agent)
    }

    /// Returns prompt options for a session: its scope and the family of the tools, without guidance and with the
    /// default budget. Where results hold the text of loaded skills, the prompt does not repeat it.
    #[must_use]
    pub fn prompt_options<'a>(&self, session: &'a Session) -> PromptOptions<'a> {
        let has_text_in_results = self.family() != Family::Trpc || self.options().inline_skills;
        PromptOptions {
            family: self.family(),
            placement: match has_text_in_results {
                true => Placement::ToolResults,
                false => Placement::System,
            },
            ..PromptOptions::new(self.scope(session))
        }
    }

    /// Begins a turn, before the first prompt after a message of the user: unloads what was loaded for one turn, and
    /// does everything that [`before_prompt`](Self::before_prompt) does. `body` is the request with the conversation so
    /// far.
    #[must_use]
    pub fn begin_turn(
        &self,
        session: &Session,
        state: &SessionState,
        provider: Provider,
        body: &Value,
    ) -> Eviction {
        let mut delta = self.migrated(session, state, provider, body);
        let reset = skill_loads::begin_turn(&state.with(&delta), self.scope(session));
        delta.then(reset);
        self.capped(session, state, delta)
    }

    /// Prepares the state for a prompt: converts keys of older versions to those of the agent that loaded the skill, as
    /// the messages say, and evicts the least recently used skills beyond the limit of the options, which merged
    /// branches can exceed. The result names the evicted skills. sherma's skills are evicted with their tools and
    /// servers at the next load.
    #[must_use]
    pub fn before_prompt(
        &self,
        session: &Session,
        state: &SessionState,
        provider: Provider,
        body: &Value,
    ) -> Eviction {
        let delta = self.migrated(session, state, provider, body);
        self.capped(session, state, delta)
    }

    /// Ends a prompt that showed these skills ([`InjectionReport::shown`](crate::prompt::InjectionReport::shown)):
    /// unloads what was loaded for one prompt.
    #[must_use]
    pub fn after_prompt(
        &self,
        session: &Session,
        state: &SessionState,
        shown: &[String],
    ) -> StateDelta {
        skill_loads::after_prompt(state, self.scope(session), shown)
    }

    fn migrated(
        &self,
        session: &Session,
        state: &SessionState,
        provider: Provider,
        body: &Value,
    ) -> StateDelta {
        let owners = LazyCell::new(|| skill_load_history::owners(provider, body));
        migrate(state, self.scope(session), |skill| {
            owners.get(skill).cloned()
        })
    }

    /// Adds the change that evicts skills beyond the limit of the options.
    pub(super) fn capped(
        &self,
        session: &Session,
        state: &SessionState,
        mut delta: StateDelta,
    ) -> Eviction {
        let max = match self.family() {
            // Hooks and servers have a say in these: the next load lets them go.
            Family::Sherma => 0,
            Family::Trpc | Family::AgentZero => self.inner.options.loaded_max(),
        };
        let evicted = skill_loads::evict(&state.with(&delta), self.scope(session), max);
        delta.then(evicted.delta);
        Eviction {
            names: evicted.names,
            delta,
        }
    }
}
