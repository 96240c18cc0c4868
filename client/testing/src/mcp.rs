//! MCP servers for tests, made with the same crate's other half. Over HTTP they run in this process, and on stdio as a
//! program, which is this test's own binary.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, ListToolsResult,
    PaginatedRequestParams, ResourceContents, ServerCapabilities, ServerConfig, Tool,
};
use rmcp::service::{RequestContext, RoleServer};
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use rmcp::{ErrorData, ServerHandler, ServiceExt};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;

/// MCP server whose tools answer with their name and arguments, unless the tool's name says otherwise.
#[derive(Clone, Default)]
struct Handler {
    tools: Vec<String>,
    /// Counts calls of tools.
    calls: Arc<AtomicU32>,
}

impl ServerHandler for Handler {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        // As FastMCP writes it.
        let schema_json = json!({
            "type": "object",
            "title": "toolArguments",
            "properties": {
                "x": {"type": "number", "title": "X"},
                "note": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": null},
            },
        });
        let schema = schema_json.as_object().expect("an object");
        let tools = self.tools.iter().map(|name| {
            let mut description = format!("The tool {name}.");
            if name == "verbose" {
                description = "x".repeat(300 << 10);
            }
            Tool::new(name.clone(), description, schema.clone())
                .with_raw_output_schema(Arc::new(schema.clone()))
        });
        let mut page = ListToolsResult::with_all_items(tools.collect());
        if self.tools.iter().any(|name| name == "endless") {
            page.tools.clear();
            page.next_cursor = Some("more".into());
        }
        Ok(page)
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        let said = json!({"tool": request.name, "arguments": request.arguments});
        let result = match request.name.as_ref() {
            "quits" => {
                let own = rustix::process::getpid();
                rustix::process::kill_process(own, rustix::process::Signal::KILL).expect("dies");
                std::future::pending().await
            }
            "hangs" => std::future::pending().await,
            "fails" => {
                let red = "\u{1b}[31mit is broken\u{1b}[0m";
                CallToolResult::error(vec![ContentBlock::text(red)])
            }
            "colours" => {
                CallToolResult::structured(json!({"log": "\u{1b}[32m10%\r100%\u{1b}[0m\nok"}))
            }
            "fails-floods" => CallToolResult::error(vec![ContentBlock::text("é".repeat(1 << 20))]),
            "refuses-floods" => return Err(ErrorData::internal_error("é".repeat(1 << 20), None)),
            "environment" => {
                let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
                CallToolResult::structured(json!(names.collect::<Vec<_>>()))
            }
            "pid" => CallToolResult::structured(json!(std::process::id())),
            "structured" => CallToolResult::structured(said),
            "pictures" => CallToolResult::success(vec![
                ContentBlock::text("Before and after:"),
                ContentBlock::image("AQID".repeat(16 << 10), "image/png"),
                ContentBlock::resource(
                    ResourceContents::blob("AQID".repeat(512 << 10) + "AQ==", "file:///a.zip")
                        .with_mime_type("application/zip"),
                ),
            ]),
            "picture" => CallToolResult::success(vec![ContentBlock::image("AQID", "image/png")]),
            "floods" => CallToolResult::success(vec![ContentBlock::text("x".repeat(2 << 20))]),
            _ => CallToolResult::success(vec![ContentBlock::text(said.to_string())]),
        };
        Ok(result.into())
    }
}

/// MCP server on loopback, which ends when this value is dropped.
pub struct McpServer {
    pub url: String,
    /// Counts sessions that were made.
    pub opened: Arc<watch::Sender<u32>>,
    /// Counts sessions that the client ended.
    pub closed: Arc<watch::Sender<u32>>,
    calls: Arc<AtomicU32>,
    tasks: JoinSet<()>,
}

impl McpServer {
    pub async fn start(tools: &[&str]) -> Self {
        let tools: Vec<String> = tools.iter().map(|tool| (*tool).to_owned()).collect();
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}/mcp", listener.local_addr().expect("an address"));
        let calls = Arc::default();
        let handler = Handler {
            tools,
            calls: Arc::clone(&calls),
        };
        let service = StreamableHttpService::new(
            move || Ok(handler.clone()),
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
            calls,
            tasks,
        }
    }

    pub fn opened(&self) -> u32 {
        *self.opened.borrow()
    }

    /// Returns the number of calls of the server's tools.
    pub fn calls(&self) -> u32 {
        self.calls.load(Ordering::Relaxed)
    }

    /// Returns when the client has ended so many sessions.
    pub async fn has_closed(&self, count: u32) {
        let mut closed = self.closed.subscribe();
        closed
            .wait_for(|closed| *closed >= count)
            .await
            .expect("is kept");
    }

    /// Stops the server and breaks every connection.
    pub fn end(&mut self) {
        self.tasks.abort_all();
    }

    /// Returns the entry for this server in a card's `mcps`.
    pub fn entry(&self) -> Value {
        json!({"id": "remote", "url": self.url, "transport": "streamable-http"})
    }
}

/// Names of the tools of the server on stdio.
pub const ON_STDIO_TOOLS: [&str; 3] = ["local_echo", "environment", "quits"];
const ON_STDIO: &str = "stdio_servers::the_test_server_serves_on_stdio";
const STAYING: &str = "stdio_servers::the_test_server_stays_when_its_client_goes";

/// Returns the command of an MCP server on stdio with the tools `local_echo`, `environment` and `quits`.
pub fn on_stdio() -> Vec<String> {
    own_test(ON_STDIO)
}

/// Returns the command of an MCP server on stdio that outlives its client. Its tool is `pid`.
pub fn staying_on_stdio() -> Vec<String> {
    own_test(STAYING)
}

fn own_test(name: &str) -> Vec<String> {
    let program = std::env::current_exe()
        .expect("a path")
        .to_str()
        .expect("utf-8")
        .to_owned();
    [&program, "-q", "--nocapture", "--exact", name]
        .map(str::to_owned)
        .to_vec()
}

/// Starts an HTTP server that redirects every request to `to`; returns its URL and its task.
pub async fn redirecting(to: String) -> (String, JoinSet<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}/mcp", listener.local_addr().expect("an address"));
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut head = [0; 4096];
            drop(stream.read(&mut head).await);
            let answer = format!(
                "HTTP/1.1 307 Temporary Redirect\r\nLocation: {to}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
            );
            drop(stream.write_all(answer.as_bytes()).await);
        }
    });
    (url, tasks)
}

/// Serves on stdio if this process was started by [`on_stdio`]; returns at once in an ordinary test run. What the test
/// harness prints is no JSON, so clients skip it.
pub async fn serve_on_stdio() {
    serve_if_started_as(ON_STDIO, &ON_STDIO_TOOLS).await;
}

/// Serves on stdio if this process was started by [`staying_on_stdio`], and never returns then.
pub async fn serve_on_stdio_and_stay() {
    if serve_if_started_as(STAYING, &["pid"]).await {
        std::future::pending::<()>().await;
    }
}

async fn serve_if_started_as(name: &str, tools: &[&str]) -> bool {
    if !std::env::args().any(|argument| argument == name) {
        return false;
    }
    let handler = Handler {
        tools: tools.iter().map(|tool| (*tool).to_owned()).collect(),
        ..Handler::default()
    };
    let served = handler.serve(rmcp::transport::stdio()).await;
    drop(served.expect("a client").waiting().await);
    true
}
