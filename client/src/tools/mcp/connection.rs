//! One connection to an MCP server: opened with a deadline, its tools listed once, closed as the protocol says.

use std::borrow::Cow;
use std::process::Stdio;
use std::time::Duration;

use rmcp::ServiceExt;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, PaginatedRequestParams,
    Tool,
};
use rmcp::service::{Peer, RoleClient, RunningService, ServiceError};
use rmcp::transport::streamable_http_client::StreamableHttpClientTransportConfig;
use rmcp::transport::{StreamableHttpClientTransport, TokioChildProcess};
use serde_json::Value;
use tokio::process::Command;
use tokio::sync::Mutex;
use tokio::time::timeout;

use super::policy::{Http, Target};
use super::{Server, cut};
use crate::tools::{Definition, ToolError};

/// For the handshake and for listing the tools, together.
const OPEN_TIMEOUT: Duration = Duration::from_secs(20);
/// For a server to take its leave; then its program is killed, and its connection dropped.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);
/// Tools of one server.
const TOOLS_MAX: usize = 128;
/// Pages that a server may cut its list into.
const PAGES_MAX: usize = 32;
/// Of all definitions of one server, as JSON: every prompt carries them.
const DEFINITIONS_BYTES_MAX: usize = 256 * 1024;
/// Of one result, as JSON.
const RESULT_BYTES_MAX: usize = 1024 * 1024;
/// What a tool's name may have, and how long it may be, for any model to call it.
const NAME_BYTES_MAX: usize = 64;
/// What a program gets of this process's environment: nothing that is a secret.
const ENVIRONMENT: [&str; 6] = ["HOME", "LANG", "LC_ALL", "PATH", "TMPDIR", "USER"];

/// An open connection and the tools behind it.
#[derive(Debug)]
pub(crate) struct Connection {
    peer: Peer<RoleClient>,
    tools: Vec<Definition>,
    /// None once it is closed.
    service: Mutex<Option<RunningService<RoleClient, ()>>>,
}

impl Connection {
    /// Connects and asks for the tools.
    pub(super) async fn open(
        server: &Server,
        target: Target,
        http: &Http,
    ) -> Result<Self, ToolError> {
        let opening = async {
            let service = serve(server, target, http).await?;
            let peer = service.peer().clone();
            let tools = tools(server, &peer).await?;
            Ok(Self {
                peer,
                tools,
                service: Mutex::new(Some(service)),
            })
        };
        let late = || {
            server.failed(format!(
                "it did not answer for {} s",
                OPEN_TIMEOUT.as_secs()
            ))
        };
        timeout(OPEN_TIMEOUT, opening)
            .await
            .unwrap_or_else(|_| Err(late()))
    }

    /// Its tools under their own names, in the server's order.
    pub(crate) fn tools(&self) -> &[Definition] {
        &self.tools
    }

    pub(super) fn is_closed(&self) -> bool {
        self.peer.is_transport_closed()
    }

    /// Calls a tool. What the tool calls an error is one.
    pub(super) async fn call(
        &self,
        server: &Server,
        tool: &str,
        arguments: Value,
        within: Duration,
    ) -> Result<Value, ToolError> {
        let mut params = CallToolRequestParams::new(Cow::Owned(tool.to_owned()));
        if let Value::Object(arguments) = arguments {
            params = params.with_arguments(arguments);
        }
        let called = timeout(within, self.peer.call_tool_once(params)).await;
        let called = called.map_err(|_| {
            server.failed(format!("{tool} did not answer for {} s", within.as_secs()))
        })?;
        let CallToolResponse::Complete(result) = called.map_err(|error| failed(server, &error))?
        else {
            return Err(server.failed(format!(
                "{tool} wants to ask back, which is not possible here"
            )));
        };
        answer(server, tool, result)
    }

    /// Ends it, and waits until it has ended.
    pub(super) async fn close(&self) {
        if let Some(mut service) = self.service.lock().await.take() {
            // It goes with its value if it did not end in time.
            drop(service.close_with_timeout(CLOSE_TIMEOUT).await);
        }
    }
}

async fn serve(
    server: &Server,
    target: Target,
    http: &Http,
) -> Result<RunningService<RoleClient, ()>, ToolError> {
    let served = match target {
        Target::Url(url) => {
            let client = http.client().map_err(|problem| server.failed(problem))?;
            let config = StreamableHttpClientTransportConfig::with_uri(url.as_str());
            ().serve(StreamableHttpClientTransport::with_client(client, config))
                .await
        }
        Target::Program(command) => {
            let process = start(&command).map_err(|error| {
                let program = command.first().map(String::as_str).unwrap_or_default();
                server.failed(format!("cannot start {program}: {error}"))
            })?;
            ().serve(process).await
        }
    };
    served.map_err(|error| server.failed(format!("cannot connect: {error}")))
}

fn start(command: &[String]) -> std::io::Result<TokioChildProcess> {
    let (program, arguments) = command
        .split_first()
        .ok_or(std::io::ErrorKind::InvalidInput)?;
    let mut command = Command::new(program);
    let kept = ENVIRONMENT.iter();
    let kept = kept.filter_map(|name| Some((name, std::env::var_os(name)?)));
    command
        .args(arguments)
        .env_clear()
        .envs(kept)
        .kill_on_drop(true);
    let builder = TokioChildProcess::builder(command).stderr(Stdio::null());
    builder.spawn().map(|(process, _)| process)
}

async fn tools(server: &Server, peer: &Peer<RoleClient>) -> Result<Vec<Definition>, ToolError> {
    let mut definitions = Vec::new();
    let (mut bytes, mut cursor) = (0, None);
    for _ in 0..PAGES_MAX {
        let params = PaginatedRequestParams::default().with_cursor(cursor);
        let page = peer.list_tools(Some(params)).await;
        let page = page.map_err(|error| failed(server, &error))?;
        for tool in page.tools {
            let definition = definition(server, tool)?;
            bytes += serde_json::to_string(&definition).map_or(0, |json| json.len());
            definitions.push(definition);
        }
        if definitions.len() > TOOLS_MAX || bytes > DEFINITIONS_BYTES_MAX {
            return Err(server.failed(format!(
                "it has more than {TOOLS_MAX} tools, or more than {DEFINITIONS_BYTES_MAX} bytes of them"
            )));
        }
        match page.next_cursor {
            Some(next) => cursor = Some(next),
            None => return Ok(definitions),
        }
    }
    Err(server.failed(format!("its list of tools has more than {PAGES_MAX} pages")))
}

fn definition(server: &Server, tool: Tool) -> Result<Definition, ToolError> {
    let plain = |char: char| char.is_ascii_alphanumeric() || "_-.".contains(char);
    if tool.name.is_empty() || tool.name.len() > NAME_BYTES_MAX || !tool.name.chars().all(plain) {
        return Err(server.failed(format!(
            "its tool {:?} has a name that models cannot call: up to {NAME_BYTES_MAX} of A-Z a-z 0-9 _ - .",
            tool.name.chars().take(NAME_BYTES_MAX).collect::<String>()
        )));
    }
    let returns = tool
        .output_schema
        .map(|schema| Value::Object((*schema).clone()));
    Ok(Definition {
        name: tool.name.into_owned(),
        description: tool.description.unwrap_or_default().into_owned(),
        parameters: Value::Object((*tool.input_schema).clone()),
        returns: returns.unwrap_or_else(|| Value::Object(serde_json::Map::new())),
    })
}

/// A result's structure, or else its text, or else its contents as they came.
fn answer(server: &Server, tool: &str, result: CallToolResult) -> Result<Value, ToolError> {
    let texts = result.content.iter().map(|content| {
        let ContentBlock::Text(text) = content else {
            return None;
        };
        Some(text.text.as_str())
    });
    let text = texts
        .collect::<Option<Vec<&str>>>()
        .map(|texts| texts.join("\n"));
    if result.is_error == Some(true) {
        return Err(ToolError::Host {
            tool: tool.to_owned(),
            problem: cut(text.unwrap_or_else(|| "it failed and did not say why".into())),
        });
    }
    let value = match (result.structured_content, text) {
        (Some(value), _) => value,
        (None, Some(text)) => Value::String(text),
        (None, None) => serde_json::to_value(&result.content)
            .map_err(|error| server.failed(error.to_string()))?,
    };
    let bytes = serde_json::to_string(&value).map_or(0, |json| json.len());
    if bytes > RESULT_BYTES_MAX {
        return Err(server.failed(format!(
            "the result of {tool} has {bytes} bytes, more than {RESULT_BYTES_MAX}: ask for less of it"
        )));
    }
    Ok(value)
}

fn failed(server: &Server, error: &ServiceError) -> ToolError {
    server.failed(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tools::mcp::Place;

    #[tokio::test(start_paused = true)]
    async fn a_server_that_says_nothing_is_given_up() {
        let command = vec!["sleep".to_owned(), "600".to_owned()];
        let server = Server {
            label: "silent".into(),
            at: Place::Program(command.clone()),
        };
        let opened = Connection::open(&server, Target::Program(command), &Http::default()).await;
        let error = opened.expect_err("is silent").to_string();
        assert_eq!(error, "MCP server silent: it did not answer for 20 s");
    }
}
