//! A conversation with skills in four calls: open a `session`, `prepare` a request, `answer` the model's reply, and
//! `end`. The calls keep the session's state in memory; hosts that store sessions elsewhere use [`Toolset`] and
//! [`crate::prompt`] themselves.
//!
//! ```no_run
//! # async fn llm(_: &serde_json::Value) -> Result<serde_json::Value, std::io::Error> { unimplemented!() }
//! # async fn chat(question: &str) -> Result<(), Box<dyn std::error::Error>> {
//! use serde_json::json;
//! use skilld_tools::Skills;
//! use skilld_tools::prompt::Provider::OpenAiChat;
//!
//! let skills = Skills::connect_default().await?.session("chat-42");
//! let mut messages = vec![json!({"role": "user", "content": question})];
//! loop {
//!     let mut body = json!({"model": "…", "messages": messages});
//!     skills.prepare(OpenAiChat, &mut body).await?;
//!     let reply = llm(&body).await?;
//!     messages.push(reply.clone());
//!     let results = skills.answer(OpenAiChat, &reply).await?;
//!     if results.is_empty() {
//!         break;
//!     }
//!     messages.extend(results);
//! }
//! skills.end().await?;
//! # Ok(())
//! # }
//! ```

use std::collections::BTreeSet;

use serde_json::{Value, json};
use skilld_client::{Client, ConnectOptions};
use tokio::sync::Mutex;

use crate::host_tools::HostTools;
use crate::prompt::{Guidance, MalformedRequest, PromptOptions, Provider, find_uploads, inject};
use crate::session::Session;
use crate::staged_uploads::StagedUploads;
use crate::state::{SessionState, skill_loads};
use crate::tool_definition::{Family, ToolCall, ToolDefinition};
use crate::tool_error::ToolError;
use crate::tool_options::ToolOptions;
use crate::toolset::Toolset;

/// The skills of one daemon, for any number of conversations.
#[derive(Clone, Debug)]
pub struct Skills {
    tools: Toolset,
}

/// Conversation with skills. Its state lives as long as this value; its workspace until [`end`](Self::end).
#[derive(Debug)]
pub struct SkillSession {
    tools: Toolset,
    session: Session,
    /// State of the conversation; the lock serialises calls.
    memory: Mutex<SessionMemory>,
}

/// State that a conversation keeps between calls.
#[derive(Debug, Default)]
struct SessionMemory {
    state: SessionState,
    /// Names of tools in the last request that the host answers itself.
    host_tools: BTreeSet<String>,
    /// Files of the user in the workspace.
    uploads: StagedUploads,
    /// Keys of the files that were staged last.
    upload_keys: BTreeSet<String>,
    /// `true` if a preload has begun the turn of the next request.
    has_begun_turn: bool,
}

impl Skills {
    /// Connects to the daemon that the environment names (see [`ConnectOptions::from_environment`]), with the default
    /// options and no tools of the host.
    ///
    /// # Errors
    ///
    /// [`ToolError::Daemon`] if no connection is made within 5 s.
    pub async fn connect_default() -> Result<Self, ToolError> {
        let client = Client::connect_with(&ConnectOptions::from_environment()).await?;
        Ok(Self::new(Toolset::new(
            client,
            ToolOptions::default(),
            HostTools::new(),
        )?))
    }

    /// Returns the skills of a toolset, with its options, host tools and hooks.
    #[must_use]
    pub fn new(tools: Toolset) -> Self {
        Self { tools }
    }

    /// Starts or continues the conversation with this name. The same name leads to the same workspace.
    #[must_use]
    pub fn session(&self, name: &str) -> SkillSession {
        self.session_of(Session {
            app: "skilld-tools".to_owned(),
            user: "default".to_owned(),
            session: name.to_owned(),
            ..Session::default()
        })
    }

    /// Starts or continues a conversation of a certain app, user and agent.
    #[must_use]
    pub fn session_of(&self, session: Session) -> SkillSession {
        SkillSession {
            tools: self.tools.clone(),
            session,
            memory: Mutex::default(),
        }
    }
}

impl SkillSession {
    /// Loads skills for the next turn before the model asks for them, also those that only the user may start: all of a
    /// list or none, as [`Toolset::preload`] does. Call it before the turn's first request, whose text then has the
    /// skills. Returns the names of skills that had to make room.
    ///
    /// # Errors
    ///
    /// [`ToolError::InvalidArguments`] if the skills are no such list; otherwise the error of the first load that fails.
    pub async fn preload(&self, skills: &Value) -> Result<Vec<String>, ToolError> {
        let mut memory = self.memory.lock().await;
        let mut state = memory.state.clone();
        if !memory.has_begun_turn {
            let scope = self.tools.scope(&self.session);
            state.apply(&skill_loads::begin_turn(&state, scope));
        }
        let preloaded = self.tools.preload(&self.session, &state, skills).await?;
        state.apply(&preloaded.delta);
        memory.state = state;
        memory.has_begun_turn = true;
        Ok(preloaded.evicted)
    }

    /// Prepares a request body: inserts the overview and the text of loaded skills into its messages and adds the skill
    /// tools to its `tools`. The rest of the body stays as it is. A body whose last message is the user's begins a
    /// turn. Files that the user sent are put into the workspace, if a tool that runs commands is offered, and the
    /// request says where they are; a file that cannot be had is named there too.
    ///
    /// # Errors
    ///
    /// [`ToolError::Request`] if the body is no request of this provider, [`ToolError::Daemon`] if the daemon cannot be
    /// asked for the skills.
    pub async fn prepare(&self, provider: Provider, body: &mut Value) -> Result<(), ToolError> {
        provider.check(body)?;
        let mut memory = self.memory.lock().await;
        let (tools, session) = (&self.tools, &self.session);
        let is_turn = provider.ends_with_user_message(body);
        let ready = match is_turn && !memory.has_begun_turn {
            true => tools.begin_turn(session, &memory.state, provider, body),
            false => tools.before_prompt(session, &memory.state, provider, body),
        };
        memory.state.apply(&ready.delta);
        self.stage_user_files(&mut memory, (provider, &*body), is_turn)
            .await?;
        let mut material = tools.material(session, &memory.state).await?;
        material.uploads = memory.uploads.clone();
        let definitions = tools.definitions(session, &memory.state).await?;
        let options = PromptOptions {
            guidance: Guidance::BuiltIn(tools.family(), tools.options().profile),
            ..tools.prompt_options(session)
        };
        let report = inject(provider, body, &material, &memory.state, &options)?;
        let shown = tools.after_prompt(session, &memory.state, &report.shown);
        memory.state.apply(&shown);
        let offered: Vec<Value> = definitions
            .iter()
            .map(|tool| provider.tool_definition(tool))
            .collect();
        memory.host_tools = add_tools(provider, body, offered)?;
        Ok(())
    }

    /// Stages the files that the user sent: all of them at the beginning of a turn, since the workspace may be a new
    /// one, and otherwise only if others came. A fault is a warning, and the next request tries again.
    async fn stage_user_files(
        &self,
        memory: &mut SessionMemory,
        (provider, body): (Provider, &Value),
        is_turn: bool,
    ) -> Result<(), ToolError> {
        if !self.tools.options().runs_commands() {
            return Ok(());
        }
        let found = find_uploads(provider, body)?;
        let keys: BTreeSet<String> = found.files.iter().map(|file| file.key.clone()).collect();
        if !is_turn && keys == memory.upload_keys {
            return Ok(());
        }
        let staged = self.tools.stage_uploads(&self.session, &found.files).await;
        (memory.uploads, memory.upload_keys) = match staged {
            Ok(staged) => (staged, keys),
            Err(error) => {
                let mut uploads = StagedUploads::default();
                let names = found.files.iter().map(|file| &file.name);
                uploads.warnings = names.map(|name| format!("{name}: {error}")).collect();
                (uploads, BTreeSet::new())
            }
        };
        memory.uploads.warnings.extend(found.warnings);
        Ok(())
    }

    /// Makes the calls of a model's reply and returns the messages that answer them, for the conversation; empty if the
    /// reply makes none. A call that fails is answered with the error, for the model to read. Calls of tools that were
    /// in the request before [`prepare`](Self::prepare) are left to the host.
    ///
    /// `reply` is the assistant's message; for OpenAI Responses the response or its `output`.
    ///
    /// # Errors
    ///
    /// [`ToolError::Request`] if the reply is no message of this provider.
    pub async fn answer(&self, provider: Provider, reply: &Value) -> Result<Vec<Value>, ToolError> {
        let calls = provider.reply_calls(reply)?;
        let mut memory = self.memory.lock().await;
        memory.has_begun_turn = false;
        let mut results = Vec::new();
        for call in calls {
            if memory.host_tools.contains(&call.name) {
                continue;
            }
            let id = call.id.clone();
            let (result, is_error) = self.make_call(&mut memory, call).await;
            results.push((id, result, is_error));
        }
        Ok(provider.result_messages(&results))
    }

    /// Returns the tools to offer the model now, for hosts whose framework makes the requests.
    ///
    /// # Errors
    ///
    /// [`ToolError::Daemon`] if the daemon refuses or cannot be reached.
    pub async fn definitions(&self) -> Result<Vec<ToolDefinition>, ToolError> {
        let memory = self.memory.lock().await;
        self.tools.definitions(&self.session, &memory.state).await
    }

    /// Makes one call and returns the text for the model: the result, or the error if it fails.
    pub async fn call(&self, call: ToolCall) -> String {
        let mut memory = self.memory.lock().await;
        self.make_call(&mut memory, call).await.0
    }

    /// Makes one call. Returns the text for the model, and `true` if it is an error.
    async fn make_call(&self, memory: &mut SessionMemory, call: ToolCall) -> (String, bool) {
        match self.tools.call(&self.session, &memory.state, call).await {
            Ok(answer) => {
                memory.state.apply(&answer.delta);
                (self.model_text(&answer.result), false)
            }
            Err(error) => (error.to_json().to_string(), true),
        }
    }

    /// Returns the text of a result for the model. Agent Zero's models read the field `text`, which the other fields
    /// repeat for programs.
    fn model_text(&self, result: &Value) -> String {
        let text = match self.tools.family() {
            Family::AgentZero => result.get("text").and_then(Value::as_str),
            Family::Trpc | Family::Sherma => None,
        };
        text.map_or_else(|| result.to_string(), str::to_owned)
    }

    /// Returns a copy of the session's state, for a host that stores it.
    pub async fn state(&self) -> SessionState {
        self.memory.lock().await.state.clone()
    }

    /// Replaces the session's state by one that the host stored.
    pub async fn restore(&self, state: SessionState) {
        self.memory.lock().await.state = state;
    }

    /// Ends the conversation: its workspace is deleted and its connections are closed.
    ///
    /// # Errors
    ///
    /// [`ToolError::Daemon`] if the daemon cannot delete the workspace.
    pub async fn end(self) -> Result<(), ToolError> {
        self.tools.end(&self.session).await
    }
}

/// Adds tools to a body; one whose name is there already is not added. Returns the names of the other tools.
fn add_tools(
    provider: Provider,
    body: &mut Value,
    offered: Vec<Value>,
) -> Result<BTreeSet<String>, MalformedRequest> {
    let name = |tool: &Value| {
        let function = match provider {
            Provider::OpenAiChat => tool.get("function")?,
            Provider::OpenAiResponses | Provider::Anthropic => tool,
        };
        Some(function.get("name")?.as_str()?.to_owned())
    };
    let Some(body) = body.as_object_mut() else {
        return Ok(BTreeSet::new());
    };
    let tools = body
        .entry("tools")
        .or_insert_with(|| json!([]))
        .as_array_mut()
        .ok_or(MalformedRequest {
            place: "tools".to_owned(),
            problem: "not a list",
        })?;
    let mut present: BTreeSet<String> = tools.iter().filter_map(name).collect();
    for tool in offered {
        // A prepared body may be prepared again.
        let is_there =
            name(&tool).is_some_and(|name| tools.contains(&tool) && present.remove(&name));
        if !is_there && name(&tool).is_none_or(|name| !present.contains(&name)) {
            tools.push(tool);
        }
    }
    Ok(present)
}
