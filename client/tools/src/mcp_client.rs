//! Connections to the MCP servers that loaded skills name: one per session, agent and server. A connection is made when
//! it is first needed, made again when it broke, and closed when no loaded skill needs it, when it has to make room
//! (`connection_table`), or when the session ends. Their number is bounded, and every wait has an end. The host decides
//! which servers may be connected (`server_policy`).

mod connection;
mod connection_table;
mod server_policy;

use std::sync::Arc;
use std::time::Duration;

use futures::future::{join, join_all};
use parking_lot::Mutex;
use serde_json::Value;

pub(crate) use connection::McpConnection;
use connection_table::{ConnectionCell, ConnectionKey, ConnectionLimits, ConnectionTable};

use crate::session::Session;
pub(crate) use crate::state::sherma::{McpServer, ServerAddress};
use crate::tool_error::{ToolError, cut_message};
use crate::tool_options::{McpOptions, ToolOptions};

/// Limits of open connections. Each connection is a session at a server, or a process and its descriptors.
const LIMITS: ConnectionLimits = ConnectionLimits {
    of_session: 16,
    of_toolset: 256,
};
/// Deadline of one tool call at a server, unless the options set one.
const CALL_TIMEOUT: Duration = Duration::from_secs(300);

/// Maximum size of an error message in bytes. It may be a server's own text, and a model reads all of it.
const PROBLEM_BYTES_MAX: usize = 4096;

impl McpServer {
    pub(crate) fn failed(&self, problem: impl Into<String>) -> ToolError {
        ToolError::Mcp {
            server: self.label.clone(),
            problem: cut_problem(problem.into()),
        }
    }
}

/// Cuts an error message at [`PROBLEM_BYTES_MAX`].
fn cut_problem(problem: String) -> String {
    cut_message(problem, PROBLEM_BYTES_MAX)
}

/// Open connections of a toolset.
#[derive(Debug)]
pub(crate) struct McpConnections {
    options: McpOptions,
    call_timeout: Duration,
    http: server_policy::SharedHttpClient,
    open: Mutex<ConnectionTable<McpConnection>>,
}

impl McpConnections {
    pub(crate) fn new(options: &ToolOptions) -> Self {
        Self {
            options: options.mcp.clone(),
            call_timeout: options.timeout.unwrap_or(CALL_TIMEOUT),
            http: server_policy::SharedHttpClient::default(),
            open: Mutex::new(ConnectionTable::new(LIMITS)),
        }
    }

    /// Connects to a server unless it is connected. Returns the connection, and `true` if this call made it.
    pub(crate) async fn connect(
        &self,
        session: &Session,
        server: &McpServer,
    ) -> Result<(Arc<McpConnection>, bool), ToolError> {
        let target = server_policy::check_target(&self.options, server)?;
        let key = connection_key(session, &server.at);
        let taken = self.open.lock().cell(&key, McpConnection::is_closed);
        let (cell, evicted) = taken.map_err(|problem| server.failed(problem))?;
        let mut made = false;
        let connecting = cell.get_or_try_init(|| {
            made = true;
            async {
                McpConnection::open(server, target, &self.http)
                    .await
                    .map(Arc::new)
            }
        });
        let (connected, ()) = join(connecting, close_all(evicted)).await;
        match connected.map(Arc::clone) {
            Ok(connection) => Ok((connection, made)),
            Err(error) => {
                self.open.lock().forget(&key);
                Err(error)
            }
        }
    }

    /// Calls a tool of a server, and connects to it if that is needed. Never calls twice.
    pub(crate) async fn call(
        &self,
        session: &Session,
        server: &McpServer,
        tool: &str,
        arguments: Value,
    ) -> Result<Value, ToolError> {
        let (connection, _) = self.connect(session, server).await?;
        connection
            .call(server, tool, arguments, self.call_timeout)
            .await
    }

    /// Closes the connections of a session's agent to these servers.
    pub(crate) async fn disconnect(&self, session: &Session, places: &[ServerAddress]) {
        self.close(|(of, agent, at)| {
            *of == session.shared_id() && *agent == session.agent && places.contains(at)
        })
        .await;
    }

    /// Closes all connections of a session, whichever agent they are of.
    pub(crate) async fn disconnect_session(&self, session: &Session) {
        let id = session.shared_id();
        self.close(|(of, _, _)| *of == id).await;
    }

    async fn close(&self, which: impl Fn(&ConnectionKey) -> bool) {
        let closing = self.open.lock().take(which);
        close_all(closing).await;
    }
}

/// Closes connections and waits until they are closed.
async fn close_all(cells: impl IntoIterator<Item = ConnectionCell<McpConnection>>) {
    join_all(cells.into_iter().map(|cell| async move {
        if let Some(connection) = cell.get() {
            connection.close().await;
        }
    }))
    .await;
}

fn connection_key(session: &Session, at: &ServerAddress) -> ConnectionKey {
    (session.shared_id(), session.agent.clone(), at.clone())
}
