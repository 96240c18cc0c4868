//! The skill tools: each a name, a description, JSON Schemas, and a call from JSON to JSON, so that any framework can
//! offer them to its model. Three families of them, named as the systems that they come from; all of what they do is the
//! daemon's, what is here is wording, JSON and session state.
//!
//! ```text
//! caller ── definitions(session, state) ──► what to offer the model
//!        ── call(session, state, call) ───► Answer { result for the model, delta of the state }
//! ```
//!
//! A toolset keeps nothing that it could not find again: workspaces are found by the session's name, the rest is in the
//! state that the caller passes in. An error changes no state.

mod agent_zero;
pub mod arguments;
mod collected;
pub mod dynamic;
mod environment;
mod error;
mod follow;
mod giving_up;
pub mod hooks;
pub mod host;
mod lookup;
mod material;
mod mcp;
mod options;
mod scripts;
mod session;
mod sherma;
mod shown;
mod trpc;
mod turn;
mod uploads;
mod wire;
mod workspace_path;
mod workspaces;
mod write;

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use error::ToolError;
pub use giving_up::Ended;
pub use options::{Family, LoadMode, Mcp, Options, Profile};
pub use session::Session;
pub use sherma::{Preloaded, Skipped};
pub use uploads::{StagedUpload, StagedUploads};

use crate::Client;
use crate::prompt::{Material, Upload};
use crate::state::{self, Delta, SessionState};
use hooks::{Hooks, NoHooks};
use host::HostTools;
use mcp::Connections;
use workspaces::Workspaces;

/// Definition of a tool for a model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Definition {
    /// Name of the tool.
    pub name: String,
    /// Description of its effect and of when to use it.
    pub description: String,
    /// JSON Schema of the arguments, an object.
    pub parameters: Value,
    /// JSON Schema of the result.
    pub returns: Value,
}

/// A call that a model makes.
#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    /// The model's id for it, unique in the session; calls repeated with the same id run nothing twice. Empty for none.
    pub id: String,
    /// The tool.
    pub name: String,
    /// Arguments from the model: an object, or a string that holds one.
    pub arguments: Value,
}

/// Answer to a call.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Answer {
    /// Result for the model.
    pub result: Value,
    /// Change of the caller's session state.
    pub delta: Delta,
}

impl Answer {
    /// A result that changes nothing.
    #[must_use]
    pub fn of(result: impl Into<Value>) -> Self {
        Self {
            result: result.into(),
            delta: Delta::new(),
        }
    }
}

/// The tools of one family. Cheap to clone; for any number of sessions at once.
#[derive(Clone, Debug)]
pub struct Toolset {
    inner: Arc<Inner>,
}

/// State that all families share.
pub(crate) struct Inner {
    pub(crate) client: Client,
    pub(crate) options: Options,
    pub(crate) host: HostTools,
    pub(crate) workspaces: Workspaces,
    pub(crate) hooks: Box<dyn Hooks>,
    pub(crate) mcp: Connections,
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inner")
            .field("client", &self.client)
            .field("options", &self.options)
            .field("host", &self.host)
            .field("workspaces", &self.workspaces)
            .field("mcp", &self.mcp)
            .finish_non_exhaustive()
    }
}

impl Toolset {
    /// Tools over a client. Fails when the options contradict each other.
    pub fn new(client: Client, options: Options, host: HostTools) -> Result<Self, ToolError> {
        Self::with_hooks(client, options, host, NoHooks)
    }

    /// Adds hooks, which are called whenever a skill is loaded or unloaded.
    pub fn with_hooks(
        client: Client,
        options: Options,
        host: HostTools,
        hooks: impl Hooks + 'static,
    ) -> Result<Self, ToolError> {
        options.check()?;
        Ok(Self {
            inner: Arc::new(Inner {
                workspaces: Workspaces::new(&options),
                mcp: Connections::new(&options),
                client,
                options,
                host,
                hooks: Box::new(hooks),
            }),
        })
    }

    /// The family.
    #[must_use]
    pub fn family(&self) -> Family {
        self.inner.options.family
    }

    /// Returns the tools to offer the model in this session now, in a fixed order. The host's own tools are among them where
    /// skills that are loaded name them.
    pub async fn definitions(
        &self,
        session: &Session,
        state: &SessionState,
    ) -> Result<Vec<Definition>, ToolError> {
        match self.family() {
            Family::Trpc => trpc::definitions(&self.inner, session, state).await,
            Family::Sherma => sherma::definitions(&self.inner, session, state).await,
            Family::AgentZero => agent_zero::definitions(&self.inner, session, state).await,
        }
    }

    /// Makes one call. An error is the model's to read too: [`ToolError::to_json`].
    pub async fn call(
        &self,
        session: &Session,
        state: &SessionState,
        call: Call,
    ) -> Result<Answer, ToolError> {
        match self.family() {
            Family::Trpc => trpc::call(&self.inner, session, state, call).await,
            Family::Sherma => sherma::call(&self.inner, session, state, call).await,
            Family::AgentZero => agent_zero::call(&self.inner, session, state, call).await,
        }
    }

    /// Returns the material of the next prompt, for [`prompt::materialise`](crate::prompt::materialise): a line for every
    /// skill that the model may see, and the texts of the skills that the state has loaded, at most
    /// [`Options::max_loaded_skills`] of them, the most recently touched. A skill that is gone or cannot be used is left out,
    /// and a document of more than 1 MiB is cut; only a daemon that cannot be asked is an error.
    ///
    /// Results of sherma's and Agent Zero's tools hold the texts themselves: placed in the results of tools they are told of
    /// once more only where the host has cut these results out of the conversation.
    pub async fn material(
        &self,
        session: &Session,
        state: &SessionState,
    ) -> Result<Material, ToolError> {
        material::material(&self.inner, session, state).await
    }

    /// Returns the options of the host.
    #[must_use]
    pub fn options(&self) -> &Options {
        &self.inner.options
    }

    /// Merges the change of a call with those of calls side by side with it into one change of the state `base` that all of
    /// them began with. No more skills stay loaded than the options permit, but sherma's: their evictions are asked of hooks, and
    /// the next load makes them.
    #[must_use]
    pub fn merge(
        &self,
        session: &Session,
        base: &SessionState,
        others: &Delta,
        delta: &Delta,
    ) -> Delta {
        self.capped(session, base, state::merge(base, others, delta))
            .delta
    }

    /// Puts files of the conversation into the session's workspace, beneath `work/inputs/`, in one call to the daemon for
    /// each 3 MiB. The same files again change nothing and large ones are sent once, so each turn can bring all of them.
    /// A file that cannot be had is a warning; it is an error if none can.
    pub async fn stage_uploads(
        &self,
        session: &Session,
        uploads: &[Upload],
    ) -> Result<StagedUploads, ToolError> {
        trpc::uploads(&self.inner, session, uploads).await
    }

    /// Closes the session's connections to MCP servers, of all its agents, and waits until they have ended, 10 s at most. A
    /// caller that goes while its session is kept calls it; whoever goes on with the session connects again.
    pub async fn disconnect(&self, session: &Session) {
        self.inner.mcp.disconnect_session(session).await;
    }

    /// Ends a session: its workspace is deleted, its connections are closed. OK if there is none.
    pub async fn end(&self, session: &Session) -> Result<(), ToolError> {
        self.disconnect(session).await;
        self.inner
            .workspaces
            .delete(&self.inner.client, session)
            .await
    }
}
