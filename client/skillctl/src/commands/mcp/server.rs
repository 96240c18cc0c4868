//! MCP server over one session of the skill tools.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use rmcp::model::{
    CallToolRequestParams, CallToolResponse, ContentBlock, Implementation,
    ListResourceTemplatesResult, ListResourcesResult, ListToolsResult, PaginatedRequestParams,
    ProgressNotificationParam, ReadResourceRequestParams, ReadResourceResponse, ServerCapabilities,
    ServerConfig, SubscriptionFilter, Tool,
};
use rmcp::service::{NotificationContext, RequestContext, SubscriptionContext};
use rmcp::{ErrorData, RoleServer, ServerHandler};
use serde_json::Value;
use skilld_client::{Client, new_exec_id};
use skilld_tools::state::SessionState;
use skilld_tools::{
    CancelOutcome, Family, Session, ToolAnswer, ToolCall, ToolDefinition, ToolError, ToolOptions,
    Toolset,
};
use tokio::sync::{Mutex, OwnedSemaphorePermit};
use tokio::time::{Instant, MissedTickBehavior, interval_at, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::commands::mcp::content::ContentRules;
use crate::commands::mcp::resources::{self, ResourceScope};
use crate::commands::mcp::tool_change_listeners::{ToolChangeListener, ToolChangeListeners};
use crate::commands::mcp::{annotations, content, write_file_tool};
use crate::commands::tool::{self, SessionFile};
use crate::output;
use crate::output::event_follower::poll_optional;
use crate::terminal::interrupt::InterruptSignals;

/// Maximum size of the tools in one message, in bytes of JSON; more are on the next page.
const TOOLS_BYTES_MAX: usize = 2 * 1024 * 1024;

/// Interval between two progress notifications to a client that asked for them.
const PROGRESS_EVERY: Duration = Duration::from_secs(1);

/// MCP server over one session's tools and state. Clones share the session.
#[derive(Clone, Debug)]
pub(crate) struct Server {
    tools: Toolset,
    client: Client,
    kept: Arc<Mutex<SessionFile>>,
    listeners: Arc<ToolChangeListeners>,
    /// Calls under way, which are cancelled when the server ends.
    calls: TaskTracker,
    stop: CancellationToken,
    /// `true` if results may link to files.
    wants_links: bool,
    /// Permit of this handler among the maximum number of handlers.
    _place: Option<Arc<OwnedSemaphorePermit>>,
}

impl Server {
    pub(crate) fn new(
        tools: Toolset,
        client: Client,
        kept: SessionFile,
        wants_links: bool,
    ) -> Self {
        Self {
            tools,
            client,
            kept: Arc::new(Mutex::new(kept)),
            listeners: Arc::default(),
            calls: TaskTracker::new(),
            stop: CancellationToken::new(),
            wants_links,
            _place: None,
        }
    }

    /// Returns a clone for one handler, which holds the permit `place` as long as it lives.
    pub(crate) fn at(&self, place: OwnedSemaphorePermit) -> Self {
        Self {
            _place: Some(Arc::new(place)),
            ..self.clone()
        }
    }

    /// Cancels the calls under way and ends the session, unless a file keeps it. A signal stops the wait.
    pub(crate) async fn end(&self, interrupt: &mut InterruptSignals) -> anyhow::Result<()> {
        self.stop.cancel();
        self.calls.close();
        let waiting = timeout(tool::END_TIMEOUT, self.calls.wait());
        if interrupt.race(waiting).await?.is_err() {
            output::note!("what some calls started may go on");
        }
        let kept = self.kept.lock().await;
        tool::end_session(&self.tools, &kept, interrupt).await
    }

    async fn definitions(&self) -> Result<Vec<ToolDefinition>, ToolError> {
        let (session, state) = self.snapshot().await;
        self.tools.definitions(&session, &state).await
    }

    /// Returns the scope of the resources that the client of a session sees.
    fn scope<'a>(&'a self, session: &'a Session) -> ResourceScope<'a> {
        ResourceScope {
            client: &self.client,
            options: self.tools.options(),
            session,
            has_workspace: self.tools.options().runs_commands(),
        }
    }

    /// Returns what a request's results may hold.
    fn rules(&self, context: &RequestContext<RoleServer>) -> ContentRules {
        ContentRules::new(context.protocol_version().as_ref(), self.wants_links)
    }

    async fn snapshot(&self) -> (Session, SessionState) {
        let kept = self.kept.lock().await;
        (kept.session.clone(), kept.state().clone())
    }

    /// Calls a tool and sends progress notifications. Ends what the call started if the client cancels it or
    /// disconnects.
    async fn make(
        &self,
        call: ToolCall,
        (session, state): (&Session, &SessionState),
        context: &RequestContext<RoleServer>,
    ) -> CancelOutcome {
        let name = call.name.clone();
        let cancelled = async {
            tokio::select! {
                () = context.ct.cancelled() => {}
                () = self.stop.cancelled() => {}
            }
        };
        let calling = self.tools.call_cancellable(session, state, call, cancelled);
        let mut calling = pin!(calling);
        let began = Instant::now();
        let mut ticks = interval_at(began + PROGRESS_EVERY, PROGRESS_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let token = context.meta.get_progress_token();
        let mut telling = None;
        loop {
            tokio::select! {
                biased;
                ended = &mut calling => return ended,
                // A closed connection gets no notification, and a slow one does not hold up the others.
                _ = poll_optional(&mut telling) => telling = None,
                _ = ticks.tick(), if telling.is_none() && !context.ct.is_cancelled() => {
                    let Some(token) = token.clone() else { continue };
                    let seconds = began.elapsed().as_secs_f64();
                    let told = ProgressNotificationParam::new(token, seconds)
                        .with_message(format!("{name} runs for {seconds:.0} s"));
                    telling = Some(Box::pin(context.peer.notify_progress(told)));
                }
            }
        }
    }

    /// Stores the state that a call changed, and notifies clients if other tools are offered now.
    async fn keep(&self, base: &SessionState, answer: &ToolAnswer) -> anyhow::Result<()> {
        if answer.delta.is_empty() {
            return Ok(());
        }
        let mut kept = self.kept.lock().await;
        let changed = kept.merge_delta(&self.tools, base, &answer.delta).await;
        drop(kept);
        self.listeners.notify_changes(self.definitions()).await;
        changed
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
            .with_instructions(server_instructions(self.tools.options()))
    }

    async fn on_initialized(&self, context: NotificationContext<RoleServer>) {
        self.listeners
            .add(ToolChangeListener::Peer(context.peer))
            .await;
    }

    fn accepted_subscription_filter(&self, _: &SubscriptionFilter) -> Option<SubscriptionFilter> {
        Some(SubscriptionFilter::builder().tools_list_changed().build())
    }

    async fn listen(&self, context: SubscriptionContext) -> Result<(), ErrorData> {
        let (sink, open) = (context.sink().clone(), Arc::new(()));
        let listener = ToolChangeListener::Subscription(sink, Arc::downgrade(&open));
        self.listeners.add(listener).await;
        tokio::select! {
            () = context.cancelled() => {}
            () = self.stop.cancelled() => {}
        }
        drop(open);
        Ok(())
    }

    async fn list_tools(
        &self,
        request: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let listed = self.listeners.list(self.definitions()).await;
        let mut definitions = listed.map_err(|error| internal_error(&error))?;
        let family = self.tools.family();
        if self.tools.options().runs_commands() {
            // A tool of that name that a skill brings cannot be called.
            definitions.retain(|definition| definition.name != write_file_tool::NAME);
            definitions.push(write_file_tool::tool_definition());
        }
        let rules = self.rules(&context);
        let tools = definitions
            .into_iter()
            .map(|definition| mcp_tool(family, rules, definition))
            .collect();
        tools_page(tools, request.and_then(|request| request.cursor))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let _under_way = self.calls.token();
        if self.stop.is_cancelled() {
            return Err(ErrorData::internal_error("the server ends", None));
        }
        let call = ToolCall {
            id: new_exec_id(),
            name: request.name.into_owned(),
            arguments: Value::Object(request.arguments.unwrap_or_default()),
        };
        let (session, state) = self.snapshot().await;
        let (scope, rules) = (self.scope(&session), self.rules(&context));
        let family = self.tools.family();
        if scope.has_workspace && call.name == write_file_tool::NAME {
            let written = write_file_tool::call_tool(&self.tools, &session, call.arguments).await;
            return Ok(match written {
                Ok(result) => rules.success_result(Family::Trpc, result).into(),
                Err(error) => content::error_result(&error.to_json()).into(),
            });
        }
        let arguments = call.arguments.clone();
        let mut answer = match self.make(call, (&session, &state), &context).await {
            CancelOutcome::Finished(Ok(answer)) => answer,
            CancelOutcome::Finished(Err(mut error)) => {
                if scope.has_workspace {
                    write_file_tool::name_in_error(&mut error);
                }
                if let ToolError::UnknownTool { .. } = error {
                    let error = error.to_json();
                    return Err(ErrorData::invalid_params(message(&error), Some(error)));
                }
                let file = if let ToolError::NotText { path, .. } = &error {
                    rules.binary_file(scope, path).await
                } else {
                    None
                };
                return Ok(file
                    .unwrap_or_else(|| content::error_result(&error.to_json()))
                    .into());
            }
            CancelOutcome::Cancelled(Ok(())) => {
                return Err(ErrorData::invalid_request("the call was cancelled", None));
            }
            CancelOutcome::Cancelled(Err(error)) => return Err(internal_error(&error)),
        };
        let kept = self.keep(&state, &answer).await;
        let file = rules
            .described_file(scope, &arguments, &mut answer.result)
            .await;
        let mut notes = Vec::new();
        if !self.kept.lock().await.is_kept() {
            notes.extend(tool::saved_artifacts_note(&session, &answer.result));
        }
        if let Err(error) = kept {
            // What was done is said in any case.
            let fault = format!("The session's state could not be kept: {error:#}");
            output::print_note(&fault);
            notes.push(fault);
        }
        // Agent Zero's models read the text of a result, which has no warnings.
        notes.retain(|note| !answer.add_warning(note.clone()) || family == Family::AgentZero);
        let mut result = rules.success_result(family, answer.result);
        let note_blocks = notes.into_iter().map(ContentBlock::text);
        result.content.extend(file.into_iter().chain(note_blocks));
        Ok(result.into())
    }

    async fn list_resources(
        &self,
        request: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        let cursor = request.and_then(|request| request.cursor);
        let (session, _) = self.snapshot().await;
        resources::list_resources(self.scope(&session), cursor).await
    }

    async fn list_resource_templates(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        Ok(resources::resource_templates(
            self.tools.options().runs_commands(),
        ))
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        let (session, _) = self.snapshot().await;
        resources::read_resource(self.scope(&session), &request.uri).await
    }
}

fn internal_error(error: &ToolError) -> ErrorData {
    let error = error.to_json();
    ErrorData::internal_error(message(&error), Some(error))
}

/// Returns the message of an error as the model gets it.
fn message(error: &Value) -> String {
    let message = error.get("message").and_then(Value::as_str);
    message.unwrap_or_default().to_owned()
}

/// Returns the tools from a cursor on that one message has room for.
fn tools_page(tools: Vec<Tool>, cursor: Option<String>) -> Result<ListToolsResult, ErrorData> {
    let first = cursor
        .map_or(Ok(0), |cursor| cursor.parse::<usize>())
        .map_err(|_| ErrorData::invalid_params("the cursor is of no list", None))?;
    let total = tools.len();
    let mut bytes = 0;
    let page: Vec<Tool> = tools
        .into_iter()
        .skip(first)
        .take_while(|tool| {
            // One tool at least, however large: what a server brings is bounded.
            let is_first = bytes == 0;
            bytes += resources::json_bytes(tool);
            is_first || bytes <= TOOLS_BYTES_MAX
        })
        .collect();
    let next = first.saturating_add(page.len());
    let mut listed = ListToolsResult::with_all_items(page);
    listed.next_cursor = (next < total).then(|| next.to_string());
    Ok(listed)
}

/// Returns the instructions that a client may give its model about the tools.
fn server_instructions(options: &ToolOptions) -> &'static str {
    if options.runs_commands() {
        "Skills are folders with instructions and scripts. List them, load the one that fits the task, read what it says, \
         then run its scripts. They run in a sandbox without network; files are kept between calls. \
         workspace_write_file puts files of yours there."
    } else {
        "Skills are folders with instructions. List them, load the one that fits the task, and read what it says."
    }
}

/// Converts a tool's definition to MCP. Only a result that is an object has a schema: any other is wrapped in one.
fn mcp_tool(family: Family, rules: ContentRules, definition: ToolDefinition) -> Tool {
    let object = |schema: Value| schema.as_object().cloned().unwrap_or_default();
    let annotations = annotations::of_tool(family, &definition.name);
    let mut tool = Tool::new(
        definition.name,
        definition.description,
        Arc::new(object(definition.parameters)),
    );
    if rules.has_annotations {
        tool.annotations.clone_from(&annotations);
    }
    if !rules.has_structure {
        return tool;
    }
    tool.title = annotations.and_then(|known| known.title);
    match definition.returns.get("type").and_then(Value::as_str) {
        Some("object") => tool.with_raw_output_schema(Arc::new(object(definition.returns))),
        Some(_) | None => tool,
    }
}

#[cfg(test)]
mod tests {
    use rmcp::model::ErrorCode;
    use serde_json::Map;

    use super::*;

    /// Returns the number of tools on each page of a list of tools with descriptions of these sizes.
    fn pages(sizes: &[usize]) -> Vec<usize> {
        let tools: Vec<Tool> = sizes
            .iter()
            .map(|size| {
                let description = "x".repeat(*size);
                Tool::new("t", description, Arc::new(Map::new()))
            })
            .collect();
        let (mut pages, mut cursor) = (Vec::new(), None);
        loop {
            let page = tools_page(tools.clone(), cursor).expect("a page");
            pages.push(page.tools.len());
            cursor = page.next_cursor;
            if cursor.is_none() {
                return pages;
            }
        }
    }

    #[test]
    fn pages_of_tools_fit_into_messages_and_have_each_tool_once() {
        assert_eq!(pages(&[]), [0]);
        assert_eq!(pages(&[900 * 1024; 5]), [2, 2, 1]);
        // A tool that is larger than a page is alone on one.
        assert_eq!(pages(&[1, 3 << 20, 1]), [1, 1, 1]);
        let wrong = tools_page(Vec::new(), Some("x".into())).expect_err("no cursor");
        assert_eq!(wrong.code, ErrorCode::INVALID_PARAMS);
    }
}
