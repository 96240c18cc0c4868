//! The tools of one family over one client. A toolset has the definitions to offer, the calls, prompt material,
//! uploads, and the end of a session. It keeps nothing that it could not find again: workspaces are found by the
//! session's name, the rest is in the state that the caller passes in. An error changes no state.

use std::sync::Arc;

use bytes::Bytes;
use serde_json::Value;
use skilld_client::Client;

use crate::call_context::{SessionContext, ToolAnswer, ToolsetContext};
use crate::hooks::{Hooks, NoHooks};
use crate::host_tools::HostTools;
use crate::mcp_client::McpConnections;
use crate::preload::{self, PreloadOutcome};
use crate::prompt::{PromptMaterial, Upload};
use crate::run_secrets::RunSecrets;
use crate::session::Session;
use crate::staged_uploads::StagedUploads;
use crate::state::{self, SessionState, StateDelta};
use crate::tool_definition::{Family, ToolCall, ToolDefinition};
use crate::tool_error::ToolError;
use crate::tool_options::{ToolOptions, environment_variable};
use crate::workspaces::SessionWorkspaces;
use crate::{agent_zero, prompt_material_reader, sherma, trpc, workspace_path};

/// Directories of the workspace that files may be written to.
const WRITE_AREAS: [&str; 2] = ["work", "out"];
/// Description of these directories for errors.
const WRITE_PLACE: &str = "work/ or out/, for instance work/inputs/data.csv";

/// The tools of one family. Cheap to clone; for any number of sessions at once.
///
/// ```no_run
/// # async fn chat(call: skilld_tools::ToolCall) -> Result<(), skilld_tools::ToolError> {
/// use skilld_client::{Client, DEFAULT_ENDPOINT};
/// use skilld_tools::host_tools::HostTools;
/// use skilld_tools::state::SessionState;
/// use skilld_tools::{Session, ToolOptions, Toolset};
///
/// let client = Client::connect(DEFAULT_ENDPOINT).await?;
/// let tools = Toolset::new(client, ToolOptions::default(), HostTools::new())?;
/// let (session, mut state) = (Session::default(), SessionState::new());
/// let offered = tools.definitions(&session, &state).await?;
/// assert!(offered.iter().any(|tool| tool.name == "skill_run"));
/// let answer = tools.call(&session, &state, call).await?;
/// state.apply(&answer.delta);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Toolset {
    pub(crate) inner: Arc<ToolsetContext>,
}

impl Toolset {
    /// Creates the tools over a client.
    ///
    /// # Errors
    ///
    /// [`ToolError::Options`] if the options contradict each other.
    pub fn new(client: Client, options: ToolOptions, host: HostTools) -> Result<Self, ToolError> {
        Self::with_hooks(client, options, host, NoHooks)
    }

    /// Creates the tools with hooks, which are called whenever a skill is loaded or unloaded and before each run.
    ///
    /// # Errors
    ///
    /// [`ToolError::Options`] if the options contradict each other.
    pub fn with_hooks(
        client: Client,
        options: ToolOptions,
        host: HostTools,
        hooks: impl Hooks + 'static,
    ) -> Result<Self, ToolError> {
        let options = options.complete(environment_variable)?;
        let offered = check_options(&options)?;
        Ok(Self {
            inner: Arc::new(ToolsetContext {
                workspaces: SessionWorkspaces::new(client.clone(), &options),
                mcp: McpConnections::new(&options),
                client,
                options,
                host,
                hooks: Box::new(hooks),
                secrets: RunSecrets::default(),
                offered,
            }),
        })
    }

    /// Returns the family of the tools.
    #[must_use]
    pub fn family(&self) -> Family {
        self.inner.options.family
    }

    /// Returns the tools to offer the model in this session now, in a fixed order. The host's own tools are among them
    /// where skills that are loaded name them.
    ///
    /// # Errors
    ///
    /// [`ToolError::Daemon`] if the daemon refuses or cannot be reached.
    pub async fn definitions(
        &self,
        session: &Session,
        state: &SessionState,
    ) -> Result<Vec<ToolDefinition>, ToolError> {
        let context = self.context(session, state);
        match self.family() {
            Family::Trpc => trpc::definitions(context).await,
            Family::Sherma => Ok(sherma::definitions(context)),
            Family::AgentZero => Ok(agent_zero::definitions(context)),
        }
    }

    /// Makes one call.
    ///
    /// # Errors
    ///
    /// [`ToolError`] for a call that gave no result; the model can read it as [`ToolError::to_json`]. No state changes
    /// then.
    pub async fn call(
        &self,
        session: &Session,
        state: &SessionState,
        call: ToolCall,
    ) -> Result<ToolAnswer, ToolError> {
        let context = self.context(session, state);
        let answer = match self.family() {
            Family::Trpc => trpc::call(context, call).await,
            Family::Sherma => sherma::call(context, call).await,
            Family::AgentZero => agent_zero::call(context, call).await,
        };
        let mask = self.inner.secrets.mask(session);
        let mut answer = answer.map_err(|error| error.masked(&mask))?;
        mask.mask_json(&mut answer.result);
        let texts = answer.delta.command_texts_mut();
        texts.for_each(|text| mask.mask_json(text));
        Ok(answer)
    }

    /// Returns the context of a session in its present state.
    pub(crate) fn context<'a>(
        &'a self,
        session: &'a Session,
        state: &'a SessionState,
    ) -> SessionContext<'a> {
        SessionContext {
            tools: &self.inner,
            session,
            state,
            for_user: false,
        }
    }

    /// Returns the material of the next prompt, for [`prompt::inject`](crate::prompt::inject): a line for every skill
    /// that the model may see, and the texts of the skills that the state has loaded, at most
    /// [`ToolOptions::max_loaded_skills`] of them, the most recently touched. A skill that is gone or cannot be used is
    /// left out, and a document of more than 1 MiB is cut; only a daemon that cannot be asked is an error.
    ///
    /// Results of sherma's and Agent Zero's tools hold the texts themselves: placed in the results of tools they are
    /// told of once more only where the host has cut these results out of the conversation.
    ///
    /// # Errors
    ///
    /// [`ToolError::Daemon`] if the daemon refuses or cannot be reached.
    pub async fn material(
        &self,
        session: &Session,
        state: &SessionState,
    ) -> Result<PromptMaterial, ToolError> {
        prompt_material_reader::read_material(self.context(session, state)).await
    }

    /// Loads skills before the model asks for them, through everything that a call of the family's loading tool goes
    /// through: all of a list, or none. `skills` has names, or maps with `id` and, if it matters, `version` (not trpc)
    /// or `docs` and `include_all_docs` (trpc). It acts for the user: a skill that only the user may start is loaded
    /// too, and the model may use it while it is loaded. In load mode `turn`, call it after
    /// [`begin_turn`](Self::begin_turn).
    ///
    /// # Errors
    ///
    /// [`ToolError::InvalidArguments`] if the skills are no such list; otherwise the error of the first load that
    /// fails. No state changes then.
    pub async fn preload(
        &self,
        session: &Session,
        state: &SessionState,
        skills: &Value,
    ) -> Result<PreloadOutcome, ToolError> {
        let context = SessionContext {
            for_user: true,
            ..self.context(session, state)
        };
        preload::preload_skills(context, skills).await
    }

    /// Returns the options of the host.
    #[must_use]
    pub fn options(&self) -> &ToolOptions {
        &self.inner.options
    }

    /// Merges the change of a call with those of calls side by side with it into one change of the state `base` that
    /// all of them began with. No more skills stay loaded than the options permit, but sherma's: their evictions are
    /// asked of hooks, and the next load makes them.
    #[must_use]
    pub fn merge(
        &self,
        session: &Session,
        base: &SessionState,
        others: &StateDelta,
        delta: &StateDelta,
    ) -> StateDelta {
        self.capped(session, base, state::merge(base, others, delta))
            .delta
    }

    /// Puts files of the conversation into the session's workspace, beneath `work/inputs/`, in one call to the daemon
    /// for each 3 MiB. The same files again change nothing and large ones are sent once, so each turn can bring all of
    /// them. A file that cannot be had is a warning; it is an error if none can.
    ///
    /// # Errors
    ///
    /// [`ToolError::Daemon`] if the daemon refuses or cannot be reached.
    pub async fn stage_uploads(
        &self,
        session: &Session,
        uploads: &[Upload],
    ) -> Result<StagedUploads, ToolError> {
        trpc::stage_uploads(self.context(session, &SessionState::new()), uploads).await
    }

    /// Writes one file into the session's workspace, which is created if it does not exist. A file of the same path is
    /// replaced. Returns the path relative to the workspace.
    ///
    /// # Errors
    ///
    /// [`ToolError::InvalidArguments`] if `path` does not name a file beneath `work/` or `out/`; otherwise the daemon's
    /// error.
    pub async fn write_file(
        &self,
        session: &Session,
        path: &str,
        data: impl Into<Bytes>,
    ) -> Result<String, ToolError> {
        let path = workspace_path::file_path(path, &WRITE_AREAS, WRITE_PLACE)?;
        let data = data.into();
        let (client, path_ref) = (&self.inner.client, path.as_str());
        let written = self.inner.workspaces.in_workspace(session, |workspace| {
            let data = data.clone();
            async move {
                client.upload_bytes(&workspace, path_ref, data).await?;
                Ok(())
            }
        });
        written.await?;
        Ok(path)
    }

    /// Closes the session's connections to MCP servers, of all its agents, and waits until they have ended, 10 s at
    /// most. A caller that goes while its session is kept calls it; whoever goes on with the session connects again.
    pub async fn disconnect(&self, session: &Session) {
        self.inner.mcp.disconnect_session(session).await;
    }

    /// Ends a session: its workspace is deleted, its connections are closed. OK if there is none.
    ///
    /// # Errors
    ///
    /// [`ToolError::Daemon`] if the daemon refuses or cannot be reached.
    pub async fn end(&self, session: &Session) -> Result<(), ToolError> {
        self.disconnect(session).await;
        self.inner.secrets.forget(session);
        self.inner.workspaces.delete(session).await
    }
}

/// Checks that the options do not contradict each other and name tools of their family only. Returns the names of the
/// tools that they offer.
fn check_options(options: &ToolOptions) -> Result<Vec<&'static str>, ToolError> {
    match options.family {
        Family::Trpc => trpc::check(options),
        Family::Sherma => sherma::check(options),
        Family::AgentZero => agent_zero::check(options),
    }
}
