//! Context of every call, and the answer that a call gives. The context is the client, the options and tools of the
//! host, workspaces, hooks, MCP connections and the session of the call.

use std::ops::Deref;

use serde::Serialize;
use serde_json::{Value, json};
use skilld_client::v1::Skill;
use skilld_client::{Client, short_id};

use crate::hooks::{Hooks, LoadedSkill, SkillChoice, UnloadedSkill};
use crate::host_tools::HostTools;
use crate::mcp_client::McpConnections;
use crate::result_budget::{add_warnings, fit_result};
use crate::run_secrets::RunSecrets;
use crate::session::Session;
use crate::state::{self, LoadScope, SessionState, StateDelta, skill_loads};
use crate::tool_error::{ToolError, ToolResult};
use crate::tool_options::ToolOptions;
use crate::workspaces::SessionWorkspaces;

/// Answer to a call.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ToolAnswer {
    /// Result for the model.
    pub result: Value,
    /// Change of the caller's session state.
    pub delta: StateDelta,
}

/// Answer of a tool's handler.
pub(crate) type CallResult = ToolResult<ToolAnswer>;

impl ToolAnswer {
    /// Creates an answer that changes no state.
    #[must_use]
    pub fn of(result: impl Into<Value>) -> Self {
        Self {
            result: result.into(),
            delta: StateDelta::new(),
        }
    }

    /// Adds a warning to a result that is an object, within the budget of results. Returns `false` if the result has no
    /// place for one: it is no object, or its `warnings` are no list.
    pub fn add_warning(&mut self, warning: String) -> bool {
        let is_added = self.result.is_object() && add_warnings(&mut self.result, vec![warning]);
        if is_added {
            self.result = fit_result(self.result.take());
        }
        is_added
    }

    /// Masks the secrets of the session and cuts the result to the budget of results, in this order: of a value that is
    /// cut a part would stay.
    pub(crate) fn fitting(mut self, context: SessionContext<'_>) -> Self {
        let mask = context.tools.secrets.mask(context.session);
        mask.mask_json(&mut self.result);
        Self {
            result: fit_result(self.result),
            ..self
        }
    }

    /// Creates an answer from a typed result and a change of state.
    pub(crate) fn with(result: &impl Serialize, delta: StateDelta) -> Self {
        Self {
            result: json!(result),
            delta,
        }
    }
}

/// Client, options, host tools, workspaces, hooks and MCP connections that all calls of a toolset share.
#[derive(Debug)]
pub(crate) struct ToolsetContext {
    pub(crate) client: Client,
    pub(crate) options: ToolOptions,
    pub(crate) host: HostTools,
    pub(crate) workspaces: SessionWorkspaces,
    pub(crate) hooks: Box<dyn Hooks>,
    pub(crate) mcp: McpConnections,
    pub(crate) secrets: RunSecrets,
    /// Names of the family's tools that the options offer.
    pub(crate) offered: Vec<&'static str>,
}

impl ToolsetContext {
    /// Returns `true` if the host or the family has a tool of this name to offer.
    pub(crate) fn has_tool(&self, name: &str) -> bool {
        self.host.definition(name).is_some() || self.offered.contains(&name)
    }
}

/// Session in which tools are offered and called, with its present state.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SessionContext<'a> {
    pub(crate) tools: &'a ToolsetContext,
    pub(crate) session: &'a Session,
    pub(crate) state: &'a SessionState,
    /// `true` if the host acts for the user, who may start skills that no model may start.
    pub(crate) for_user: bool,
}

/// Call of a tool in a session.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallContext<'a> {
    pub(crate) context: SessionContext<'a>,
    /// Name of the called tool.
    pub(crate) tool: &'static str,
    /// Id that the model gave the call; empty for none.
    pub(crate) id: &'a str,
}

impl<'a> Deref for CallContext<'a> {
    type Target = SessionContext<'a>;

    fn deref(&self) -> &Self::Target {
        &self.context
    }
}

impl CallContext<'_> {
    /// Returns the id of the exec that the call starts. A repeated call finds the exec of the first one.
    pub(crate) fn exec_id(self) -> String {
        self.session.exec_id(self.tool, self.id)
    }
}

impl<'a> SessionContext<'a> {
    /// Returns the agent and the load mode of the session's skills.
    pub(crate) fn scope(self) -> LoadScope<'a> {
        self.tools.options.scope(&self.session.agent)
    }

    /// Returns `true` if a skill may be used here: not one that only the user may start, unless the host has loaded it
    /// for the user.
    pub(crate) fn permits(self, skill: &Skill) -> bool {
        !skill.disable_model_invocation || self.for_user || self.has_loaded(&short_id(&skill.name))
    }

    /// Returns `true` if the session's state has the skill of this name loaded.
    pub(crate) fn has_loaded(self, name: &str) -> bool {
        let loaded = state::loaded(self.state, self.tools.options.family, self.scope());
        loaded.iter().any(|loaded| loaded == name)
    }

    /// Returns the loaded skills that count, least recently used first: no more than the options permit at once,
    /// however many are in a state that was merged or comes from elsewhere.
    pub(crate) fn active_skills(self) -> Vec<String> {
        let options = &self.tools.options;
        let mut names = skill_loads::loaded(self.state, self.scope());
        // A hidden skill does not count towards the limit.
        names.retain(|name| options.shows(name));
        match options.loaded_max() {
            0 => names,
            max => names.split_off(names.len().saturating_sub(max)),
        }
    }

    /// Acts in the session's workspace: see [`SessionWorkspaces::in_workspace`].
    pub(crate) async fn in_workspace<T, F>(self, act: impl FnMut(String) -> F) -> ToolResult<T>
    where
        F: Future<Output = ToolResult<T>>,
    {
        self.tools.workspaces.in_workspace(self.session, act).await
    }

    /// Lets the host's hook change which skill is loaded.
    pub(crate) async fn before_load(self, choice: &mut SkillChoice) -> ToolResult<()> {
        let hook = self.tools.hooks.before_skill_load(self.session, choice);
        hook.await.map_err(hook_error)
    }

    /// Lets the host's hook change which skill is unloaded.
    pub(crate) async fn before_unload(self, choice: &mut SkillChoice) -> ToolResult<()> {
        let hook = self.tools.hooks.before_skill_unload(self.session, choice);
        hook.await.map_err(hook_error)
    }

    /// Reports an unload to the host's hook.
    pub(crate) async fn after_unload(self, unloaded: &UnloadedSkill) -> ToolResult<()> {
        let hook = self.tools.hooks.after_skill_unload(self.session, unloaded);
        hook.await.map_err(hook_error)
    }

    /// Calls the hooks of a load when every other step has succeeded: first whether each of the skills that leave for
    /// it may go, then the load itself, then each unload.
    pub(crate) async fn complete_load(
        self,
        loaded: &mut LoadedSkill,
        leaving: &[UnloadedSkill],
    ) -> ToolResult<()> {
        for skill in leaving {
            // The host decides; which skill leaves is not its choice here.
            let mut choice = SkillChoice {
                skill_id: skill.skill_id.clone(),
                version: skill.version.clone(),
            };
            self.before_unload(&mut choice).await?;
        }
        let hook = self.tools.hooks.after_skill_load(self.session, loaded);
        hook.await.map_err(hook_error)?;
        for skill in leaving {
            self.after_unload(skill).await?;
        }
        Ok(())
    }
}

/// Converts the message of a hook that refused.
pub(crate) fn hook_error(problem: String) -> ToolError {
    ToolError::Hook { problem }
}
