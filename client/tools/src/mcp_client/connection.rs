//! Connection to an MCP server: opened with a deadline, its tools listed once, closed as the protocol requires.

use std::borrow::Cow;
use std::process::Stdio;
use std::time::Duration;

use rmcp::ServiceExt;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, PaginatedRequestParams,
    ResourceContents, Tool,
};
use rmcp::service::{Peer, RoleClient, RunningService, ServiceError};
use rmcp::transport::streamable_http_client::StreamableHttpClientTransportConfig;
use rmcp::transport::{StreamableHttpClientTransport, TokioChildProcess};
use serde_json::Value;
use tokio::process::Command;
use tokio::sync::Mutex;
use tokio::time::timeout;

use super::server_policy::{ConnectTarget, SharedHttpClient};
use super::{McpServer, cut_problem};
use crate::arguments;
use crate::prompt::for_each_text;
use crate::result_budget::{self, json_bytes};
use crate::terminal_output::without_escapes;
use crate::tool_definition::ToolDefinition;
use crate::tool_error::ToolError;

/// Deadline of the handshake and the listing of tools together.
const OPEN_TIMEOUT: Duration = Duration::from_secs(20);
/// Time that a server has to end; then its process is killed and its connection dropped.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum number of tools of one server.
const TOOLS_MAX: usize = 128;
/// Maximum number of pages of a server's list of tools.
const PAGES_MAX: usize = 32;
/// Maximum size of all definitions of one server as JSON, in bytes: every prompt carries them.
const DEFINITIONS_BYTES_MAX: usize = 256 * 1024;
/// Maximum size of one result as JSON, in bytes.
const RESULT_BYTES_MAX: usize = 1024 * 1024;
/// Maximum length of a tool's name in bytes; longer names are refused by some model APIs.
const NAME_BYTES_MAX: usize = 64;
/// Environment variables that a server's process inherits: none of them holds a secret.
const ENVIRONMENT: [&str; 6] = ["HOME", "LANG", "LC_ALL", "PATH", "TMPDIR", "USER"];

/// Open connection to a server, and the server's tools.
#[derive(Debug)]
pub(crate) struct McpConnection {
    peer: Peer<RoleClient>,
    /// The server's tools under their own names, in the server's order.
    pub(crate) tools: Vec<ToolDefinition>,
    /// Running client; `None` once the connection is closed.
    service: Mutex<Option<RunningService<RoleClient, ()>>>,
}

impl McpConnection {
    /// Connects to a server and lists its tools.
    pub(super) async fn open(
        server: &McpServer,
        target: ConnectTarget,
        http: &SharedHttpClient,
    ) -> Result<Self, ToolError> {
        let opening = async {
            let service = start_service(server, target, http).await?;
            let peer = service.peer().clone();
            let tools = list_tools(server, &peer).await?;
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

    pub(super) fn is_closed(&self) -> bool {
        self.peer.is_transport_closed()
    }

    /// Calls a tool. A result that the tool marks as an error becomes an error.
    pub(super) async fn call(
        &self,
        server: &McpServer,
        tool: &str,
        arguments: Value,
        within: Duration,
    ) -> Result<Value, ToolError> {
        let mut params = CallToolRequestParams::new(Cow::Owned(tool.to_owned()));
        if let Value::Object(arguments) = arguments {
            params = params.with_arguments(arguments);
        }
        let called = timeout(within, self.peer.call_tool_once(params))
            .await
            .map_err(|_| {
                server.failed(format!("{tool} did not answer for {} s", within.as_secs()))
            })?;
        let CallToolResponse::Complete(result) =
            called.map_err(|error| service_error(server, &error))?
        else {
            return Err(server.failed(format!(
                "{tool} wants to ask back, which is not possible here"
            )));
        };
        result_value(server, tool, result)
    }

    /// Closes the connection and waits until it is closed.
    pub(super) async fn close(&self) {
        if let Some(mut service) = self.service.lock().await.take() {
            // A service that does not end in time ends when it is dropped.
            drop(service.close_with_timeout(CLOSE_TIMEOUT).await);
        }
    }
}

/// Starts the client side of a session with a server.
async fn start_service(
    server: &McpServer,
    target: ConnectTarget,
    http: &SharedHttpClient,
) -> Result<RunningService<RoleClient, ()>, ToolError> {
    let served = match target {
        ConnectTarget::Url(url) => {
            let client = http.client().map_err(|problem| server.failed(problem))?;
            let config = StreamableHttpClientTransportConfig::with_uri(url.as_str());
            ().serve(StreamableHttpClientTransport::with_client(client, config))
                .await
        }
        ConnectTarget::Program(command) => {
            let process = start_program(&command).map_err(|error| {
                let program = command.first().map(String::as_str).unwrap_or_default();
                server.failed(format!("cannot start {program}: {error}"))
            })?;
            ().serve(process).await
        }
    };
    served.map_err(|error| server.failed(format!("cannot connect: {error}")))
}

/// Starts a server's program with a minimal environment.
fn start_program(command: &[String]) -> std::io::Result<TokioChildProcess> {
    let (program, arguments) = command
        .split_first()
        .ok_or(std::io::ErrorKind::InvalidInput)?;
    let mut command = Command::new(program);
    let kept = ENVIRONMENT
        .iter()
        .filter_map(|name| Some((name, std::env::var_os(name)?)));
    command
        .args(arguments)
        .env_clear()
        .envs(kept)
        .kill_on_drop(true);
    let builder = TokioChildProcess::builder(command).stderr(Stdio::null());
    builder.spawn().map(|(process, _)| process)
}

/// Lists the tools of a server, page by page.
async fn list_tools(
    server: &McpServer,
    peer: &Peer<RoleClient>,
) -> Result<Vec<ToolDefinition>, ToolError> {
    let mut definitions = Vec::new();
    let (mut bytes, mut cursor) = (0, None);
    for _ in 0..PAGES_MAX {
        let params = PaginatedRequestParams::default().with_cursor(cursor);
        let page = peer
            .list_tools(Some(params))
            .await
            .map_err(|error| service_error(server, &error))?;
        for tool in page.tools {
            let definition = tool_definition(server, tool)?;
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

/// Checks a tool of a server and returns its definition.
fn tool_definition(server: &McpServer, tool: Tool) -> Result<ToolDefinition, ToolError> {
    let plain = |char: char| char.is_ascii_alphanumeric() || "_-.".contains(char);
    if tool.name.is_empty() || tool.name.len() > NAME_BYTES_MAX || !tool.name.chars().all(plain) {
        return Err(server.failed(format!(
            "its tool {:?} has a name that models cannot call: up to {NAME_BYTES_MAX} of A-Z a-z 0-9 _ - .",
            tool.name.chars().take(NAME_BYTES_MAX).collect::<String>()
        )));
    }
    let schema = Value::Object((*tool.input_schema).clone());
    let mut parameters = arguments::reduce_arguments(schema);
    clean_texts(&mut parameters);
    Ok(ToolDefinition {
        name: tool.name.into_owned(),
        description: without_escapes(tool.description.unwrap_or_default().into_owned()),
        parameters,
        // A long result is cut, and need not fit the server's own schema then.
        returns: Value::Object(serde_json::Map::new()),
    })
}

/// Returns the structured content of a result, else its text, else its content blocks as JSON.
fn result_value(
    server: &McpServer,
    tool: &str,
    mut result: CallToolResult,
) -> Result<Value, ToolError> {
    if json_bytes(&result.content) > result_budget::RESULT_BYTES_MAX {
        // They would be cut within their base64.
        result.content.iter_mut().for_each(name_binary_block);
    }
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
        let unexplained = || "it failed and did not say why".to_owned();
        return Err(ToolError::Host {
            tool: tool.to_owned(),
            problem: cut_problem(text.map_or_else(unexplained, without_escapes)),
        });
    }
    let mut value = match (result.structured_content, text) {
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
    clean_texts(&mut value);
    Ok(value)
}

/// Removes escape sequences from all texts of a value.
fn clean_texts(value: &mut Value) {
    for_each_text(value, &mut |text| {
        *text = without_escapes(std::mem::take(text));
    });
}

/// Replaces an image, a sound or a file that is no text by its name, type and size.
fn name_binary_block(block: &mut ContentBlock) {
    let (name, mime_type, base64) = if let ContentBlock::Image(image) = &*block {
        ("an image", image.mime_type.as_str(), &image.data)
    } else if let ContentBlock::Audio(audio) = &*block {
        ("a sound", audio.mime_type.as_str(), &audio.data)
    } else if let ContentBlock::Resource(embedded) = &*block
        && let ResourceContents::BlobResourceContents {
            uri,
            mime_type,
            blob,
            ..
        } = &embedded.resource
    {
        (
            uri.as_str(),
            mime_type.as_deref().unwrap_or("unknown type"),
            blob,
        )
    } else {
        return;
    };
    let bytes = base64.trim_end_matches('=').len() * 3 / 4;
    let named = format!("[{name}, {mime_type}, {bytes} bytes: too large to show]");
    *block = ContentBlock::text(named);
}

/// Converts an error of the MCP library.
fn service_error(server: &McpServer, error: &ServiceError) -> ToolError {
    server.failed(without_escapes(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mcp_client::ServerAddress;

    #[tokio::test(start_paused = true)]
    async fn a_server_that_says_nothing_is_given_up() {
        let command = vec!["sleep".to_owned(), "600".to_owned()];
        let server = McpServer {
            label: "silent".into(),
            at: ServerAddress::Program(command.clone()),
        };
        let opened = McpConnection::open(
            &server,
            ConnectTarget::Program(command),
            &SharedHttpClient::default(),
        )
        .await;
        let error = opened.expect_err("is silent").to_string();
        assert_eq!(error, "MCP server silent: it did not answer for 20 s");
    }
}
