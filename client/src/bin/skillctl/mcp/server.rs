//! One MCP session over one session of the tools.

use std::sync::Arc;
use std::time::Duration;

use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, Implementation,
    ListResourceTemplatesResult, ListResourcesResult, ListToolsResult, PaginatedRequestParams,
    ProgressNotificationParam, ReadResourceRequestParams, ReadResourceResponse, ServerCapabilities,
    ServerConfig, Tool,
};
use rmcp::service::RequestContext;
use rmcp::{ErrorData, RoleServer, ServerHandler};
use serde_json::{Value, json};
use skilld_client::tools::{Answer, Call, Definition, ToolError, Toolset};
use skilld_client::{Client, new_exec_id};
use tokio::sync::Mutex;
use tokio::time::{Instant, MissedTickBehavior, interval_at};

use crate::mcp::resources;
use crate::tool::Kept;

/// Between two words to a client that asked for progress.
const PROGRESS_EVERY: Duration = Duration::from_secs(1);

/// A session's tools and state. Clones are of the same session.
#[derive(Clone, Debug)]
pub(crate) struct Server {
    tools: Toolset,
    client: Client,
    kept: Arc<Mutex<Kept>>,
    /// As the client was told last; none before it asked.
    told: Arc<Mutex<Option<Vec<Definition>>>>,
}

impl Server {
    pub(crate) fn new(tools: Toolset, client: Client, kept: Kept) -> Self {
        Self {
            tools,
            client,
            kept: Arc::new(Mutex::new(kept)),
            told: Arc::default(),
        }
    }

    /// Ends the session, unless it is kept.
    pub(crate) async fn end(&self) -> Result<(), ToolError> {
        let kept = self.kept.lock().await;
        if kept.is_kept() {
            return Ok(());
        }
        self.tools.end(kept.session()).await
    }

    async fn definitions(&self) -> Result<Vec<Definition>, ErrorData> {
        let (session, state) = self.snapshot().await;
        self.tools
            .definitions(&session, &state)
            .await
            .map_err(|error| internal(&error))
    }

    async fn snapshot(
        &self,
    ) -> (
        skilld_client::tools::Session,
        skilld_client::state::SessionState,
    ) {
        let kept = self.kept.lock().await;
        (kept.session().clone(), kept.state().clone())
    }

    /// Makes a call, telling how long it takes, and ends what it started if the client gives it up.
    async fn make(
        &self,
        call: Call,
        context: &RequestContext<RoleServer>,
    ) -> Result<Result<Answer, ToolError>, ErrorData> {
        let (session, state) = self.snapshot().await;
        let id = call.id.clone();
        let name = call.name.clone();
        let mut running = std::pin::pin!(self.tools.call(&session, &state, call));
        let began = Instant::now();
        let mut ticks = interval_at(began + PROGRESS_EVERY, PROGRESS_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let token = context.meta.get_progress_token();
        loop {
            tokio::select! {
                answered = &mut running => return Ok(answered),
                () = context.ct.cancelled() => break,
                _ = ticks.tick(), if token.is_some() => {
                    let Some(token) = token.clone() else { continue };
                    let seconds = began.elapsed().as_secs_f64();
                    let told = ProgressNotificationParam::new(token, seconds)
                        .with_message(format!("{name} runs for {seconds:.0} s"));
                    // Who does not listen any more is told nothing.
                    drop(context.peer.notify_progress(told).await);
                }
            }
        }
        self.tools
            .cancel(&session, &name, &id)
            .await
            .map_err(|error| internal(&error))?;
        Err(ErrorData::invalid_request("the call was cancelled", None))
    }

    /// Keeps what a call changed, and says so if that changes what is offered.
    async fn keep(
        &self,
        answer: &Answer,
        context: &RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        if answer.delta.is_empty() {
            return Ok(());
        }
        self.kept
            .lock()
            .await
            .change(&answer.delta)
            .map_err(|error| ErrorData::internal_error(format!("{error:#}"), None))?;
        let mut told = self.told.lock().await;
        // To make the definitions all skills are listed: only for one who can have outdated ones.
        if let Some(before) = told.as_mut() {
            let now = self.definitions().await?;
            if now != *before {
                *before = now;
                drop(context.peer.notify_tool_list_changed().await);
            }
        }
        Ok(())
    }
}

impl ServerHandler for Server {
    fn get_info(&self) -> ServerConfig {
        let capabilities = ServerCapabilities::builder()
            .enable_tools()
            .enable_tool_list_changed()
            .enable_resources()
            .build();
        ServerConfig::new(capabilities)
            .with_server_info(Implementation::new("skilld", env!("CARGO_PKG_VERSION")))
            .with_instructions(
                "Skills are folders with instructions and scripts. List them, load the one that fits the task, \
                 read what it says, then run its scripts. They run in a sandbox without network; files are kept \
                 between calls.",
            )
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let definitions = self.definitions().await?;
        *self.told.lock().await = Some(definitions.clone());
        Ok(ListToolsResult::with_all_items(
            definitions.into_iter().map(tool).collect(),
        ))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let call = Call {
            id: new_exec_id(),
            name: request.name.into_owned(),
            arguments: Value::Object(request.arguments.unwrap_or_default()),
        };
        let answer = match self.make(call, &context).await? {
            Ok(answer) => answer,
            Err(error) => return Ok(failed(&error.to_json()).into()),
        };
        self.keep(&answer, &context).await?;
        Ok(succeeded(answer.result).into())
    }

    async fn list_resources(
        &self,
        request: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        let cursor = request.and_then(|request| request.cursor);
        resources::list(&self.client, self.tools.options(), cursor).await
    }

    async fn list_resource_templates(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        Ok(resources::templates())
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        resources::read(&self.client, self.tools.options(), &request.uri).await
    }
}

fn internal(error: &ToolError) -> ErrorData {
    ErrorData::internal_error(error.to_string(), Some(error.to_json()))
}

/// A result must be an object to be structured, and a schema must be one's.
fn tool(definition: Definition) -> Tool {
    let object = |schema: Value| schema.as_object().cloned().unwrap_or_default();
    let returns = if is_object(&definition.returns) {
        object(definition.returns)
    } else {
        object(json!({
            "type": "object",
            "properties": {"result": definition.returns},
            "required": ["result"],
        }))
    };
    Tool::new(
        definition.name,
        definition.description,
        Arc::new(object(definition.parameters)),
    )
    .with_raw_output_schema(Arc::new(returns))
}

fn is_object(schema: &Value) -> bool {
    schema.get("type").and_then(Value::as_str) == Some("object")
}

fn succeeded(result: Value) -> CallToolResult {
    let text = match result.as_str() {
        Some(text) => text.to_owned(),
        None => result.to_string(),
    };
    let structured = if result.is_object() {
        result
    } else {
        json!({"result": result})
    };
    let mut answer = CallToolResult::success(vec![ContentBlock::text(text)]);
    answer.structured_content = Some(structured);
    answer
}

fn failed(error: &Value) -> CallToolResult {
    CallToolResult::error(vec![ContentBlock::text(error.to_string())])
}
