//! What a session's state goes through around prompts, in the words of a family's options: the transitions of
//! [`crate::state::loading`] with the agent, the load mode and the cap filled in. None of them asks the daemon.
//!
//! ```text
//! user's message ─► begin_turn ─► before_prompt ─► material, materialise ─► model ─► after_prompt ─┐
//!                                      ▲                                                           │
//!                                      └───────────────────── its calls ◄──────────────────────────┘
//! ```

use std::cell::LazyCell;

use crate::prompt::{Message, PromptOptions, history};
use crate::state::loading::{self, Evicted};
use crate::state::{Delta, Scope, SessionState, migrate};
use crate::tools::{Family, Session, Toolset};

impl Toolset {
    /// Whose skills a session's state has, and how long they stay. sherma's and Agent Zero's stay for the session,
    /// whatever the options say.
    #[must_use]
    pub fn scope<'a>(&self, session: &'a Session) -> Scope<'a> {
        self.inner.options.scope(&session.agent)
    }

    /// How prompts of a session are made, as far as the tools know: whose skills, and who loaded them.
    #[must_use]
    pub fn prompt_options<'a>(&self, session: &'a Session) -> PromptOptions<'a> {
        PromptOptions {
            family: self.family(),
            ..PromptOptions::new(self.scope(session))
        }
    }

    /// Before the first prompt after a message of the user's: what was loaded for a turn goes. With that everything that
    /// [`before_prompt`](Self::before_prompt) does.
    #[must_use]
    pub fn begin_turn(
        &self,
        session: &Session,
        state: &SessionState,
        messages: &[Message],
    ) -> Evicted {
        let mut delta = self.migrated(session, state, messages);
        let reset = loading::begin_turn(&state.with(&delta), self.scope(session));
        delta.then(reset);
        self.capped(session, state, delta)
    }

    /// Before each prompt: keys of older versions become those of the agent that loaded the skill, as the messages say,
    /// and of more skills than the options permit, as branches that are merged can leave them, the longest untouched go.
    /// They are named, for the model to be told. sherma's skills go with their tools and servers, at the next load.
    #[must_use]
    pub fn before_prompt(
        &self,
        session: &Session,
        state: &SessionState,
        messages: &[Message],
    ) -> Evicted {
        let delta = self.migrated(session, state, messages);
        self.capped(session, state, delta)
    }

    /// After a prompt that showed these skills ([`Report::shown`](crate::prompt::Report::shown)): what was loaded for one
    /// prompt goes.
    #[must_use]
    pub fn after_prompt(&self, session: &Session, state: &SessionState, shown: &[String]) -> Delta {
        loading::after_prompt(state, self.scope(session), shown)
    }

    fn migrated(&self, session: &Session, state: &SessionState, messages: &[Message]) -> Delta {
        let owners = LazyCell::new(|| history::owners(messages));
        migrate(state, self.scope(session), |skill| {
            owners.get(skill).cloned()
        })
    }

    /// With the change that keeps no more skills than the options permit.
    pub(super) fn capped(
        &self,
        session: &Session,
        state: &SessionState,
        mut delta: Delta,
    ) -> Evicted {
        let max = match self.family() {
            // Hooks and servers have a say in these: the next load lets them go.
            Family::Sherma => 0,
            Family::Trpc | Family::AgentZero => self.inner.options.loaded_max(),
        };
        let evicted = loading::evict(&state.with(&delta), self.scope(session), max);
        delta.then(evicted.delta);
        Evicted {
            names: evicted.names,
            delta,
        }
    }
}
