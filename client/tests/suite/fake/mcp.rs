//! MCP servers, made with the same crate's other half: over HTTP in this process, and on stdio as a program, which is
//! this test's own binary.

use std::sync::Arc;

use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, ListToolsResult,
    PaginatedRequestParams, ServerCapabilities, ServerConfig, Tool,
};
use rmcp::service::{RequestContext, RoleServer};
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use rmcp::{ErrorData, ServerHandler, ServiceExt};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Answers with the tool's name and arguments, except where the tool's name says otherwise.
#[derive(Clone)]
struct Handler(Vec<String>);

impl ServerHandler for Handler {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let schema = json!({"type": "object", "properties": {"x": {"type": "number"}}});
        let schema = schema.as_object().expect("an object");
        let tools = self
            .0
            .iter()
            .map(|name| Tool::new(name.clone(), format!("The tool {name}."), schema.clone()));
        Ok(ListToolsResult::with_all_items(tools.collect()))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let said = json!({"tool": request.name, "arguments": request.arguments});
        let result = match request.name.as_ref() {
            "quits" => {
                let own = rustix::process::getpid();
                rustix::process::kill_process(own, rustix::process::Signal::KILL).expect("dies");
                std::future::pending().await
            }
            "hangs" => std::future::pending().await,
            "fails" => CallToolResult::error(vec![ContentBlock::text("it is broken")]),
            "environment" => {
                let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
                CallToolResult::structured(json!(names.collect::<Vec<_>>()))
            }
            "structured" => CallToolResult::structured(said),
            "floods" => CallToolResult::success(vec![ContentBlock::text("x".repeat(2 << 20))]),
            _ => CallToolResult::success(vec![ContentBlock::text(said.to_string())]),
        };
        Ok(result.into())
    }
}

/// A server on loopback; ends with this value.
pub(crate) struct McpServer {
    pub(crate) url: String,
    /// Counts sessions that were made.
    pub(crate) opened: Arc<watch::Sender<u32>>,
    /// Counts sessions that the client ended.
    pub(crate) closed: Arc<watch::Sender<u32>>,
    tasks: JoinSet<()>,
}

impl McpServer {
    pub(crate) async fn start(tools: &[&str]) -> Self {
        let tools: Vec<String> = tools.iter().map(|tool| (*tool).to_owned()).collect();
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}/mcp", listener.local_addr().expect("an address"));
        let service = StreamableHttpService::new(
            move || Ok(Handler(tools.clone())),
            Arc::new(LocalSessionManager::default()),
            StreamableHttpServerConfig::default(),
        );
        let opened = Arc::new(watch::Sender::new(0));
        let closed = Arc::new(watch::Sender::new(0));
        let mut tasks = JoinSet::new();
        let counts = (Arc::clone(&opened), Arc::clone(&closed));
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let (service, counts) = (service.clone(), counts.clone());
                let answer = service_fn(move |request: hyper::Request<Incoming>| {
                    let (service, counts) = (service.clone(), counts.clone());
                    async move {
                        let fresh = !request.headers().contains_key("mcp-session-id");
                        let ends = request.method() == hyper::Method::DELETE;
                        let response = service.handle(request).await;
                        match (fresh, ends) {
                            (_, true) => counts.1.send_modify(|count| *count += 1),
                            (true, false) => counts.0.send_modify(|count| *count += 1),
                            (false, false) => {}
                        }
                        Ok::<_, std::convert::Infallible>(response)
                    }
                });
                let server = hyper::server::conn::http1::Builder::new();
                let served = server.serve_connection(TokioIo::new(stream), answer);
                connections.spawn(async move { drop(served.await) });
            }
        });
        Self {
            url,
            opened,
            closed,
            tasks,
        }
    }

    pub(crate) fn opened(&self) -> u32 {
        *self.opened.borrow()
    }

    /// Returns when the client has ended so many sessions.
    pub(crate) async fn has_closed(&self, count: u32) {
        let mut closed = self.closed.subscribe();
        closed
            .wait_for(|closed| *closed >= count)
            .await
            .expect("is kept");
    }

    /// Nobody listens any more, and every connection breaks.
    pub(crate) fn end(&mut self) {
        self.tasks.abort_all();
    }

    /// An entry of a card's `mcps`.
    pub(crate) fn entry(&self) -> Value {
        json!({"id": "remote", "url": self.url, "transport": "streamable-http"})
    }
}

/// Of the server on stdio.
pub(crate) const ON_STDIO_TOOLS: [&str; 3] = ["local_echo", "environment", "quits"];
const ON_STDIO: &str = "fake::mcp::serves_on_stdio";

/// The command of a server on stdio, whose tools are `local_echo`, `environment` and `quits`.
pub(crate) fn on_stdio() -> Vec<String> {
    let program = std::env::current_exe().expect("a path");
    let program = program.to_str().expect("utf-8").to_owned();
    [&program, "-q", "--nocapture", "--exact", ON_STDIO]
        .map(str::to_owned)
        .to_vec()
}

/// Is the server when it is started as one, and else nothing. What the harness prints is no JSON, which clients skip.
#[tokio::test]
async fn serves_on_stdio() {
    if !std::env::args().any(|argument| argument == ON_STDIO) {
        return;
    }
    let served = Handler(ON_STDIO_TOOLS.map(str::to_owned).to_vec())
        .serve(rmcp::transport::stdio())
        .await;
    drop(served.expect("a client").waiting().await);
}
