//! Connections to the MCP servers that loaded skills name: one per session, agent and server, made when it is first
//! needed, made again when it broke, closed when no loaded skill needs it or the session ends. Their number is bounded,
//! and every wait has an end. Which servers may be connected at all is the host's decision: `policy`.

mod connection;
mod policy;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::Value;
use tokio::sync::OnceCell;

pub(crate) use connection::Connection;

pub(crate) use crate::state::sherma::{Place, Server};
use crate::tools::{Mcp, Options, Session, ToolError};

/// Connections of one toolset.
const CONNECTIONS_MAX: usize = 256;
/// Connections of one session.
const CONNECTIONS_OF_SESSION_MAX: usize = 16;
/// Of one call of a server's tool, where the options say nothing.
const CALL_TIMEOUT: Duration = Duration::from_secs(300);

impl Server {
    pub(crate) fn failed(&self, problem: impl Into<String>) -> ToolError {
        ToolError::Mcp {
            server: self.label.clone(),
            problem: problem.into(),
        }
    }
}

/// Session, agent and place.
type Key = (String, String, Place);
/// Filled once, by the first who needs it; the others wait for that.
type Cell = Arc<OnceCell<Arc<Connection>>>;

/// All connections of a toolset.
#[derive(Debug)]
pub(crate) struct Connections {
    options: Mcp,
    call_timeout: Duration,
    http: policy::Http,
    open: Mutex<HashMap<Key, Cell>>,
}

impl Connections {
    pub(crate) fn new(options: &Options) -> Self {
        Self {
            options: options.mcp.clone(),
            call_timeout: options.timeout.unwrap_or(CALL_TIMEOUT),
            http: policy::Http::default(),
            open: Mutex::default(),
        }
    }

    /// The connection to a server, and whether it was made by this call.
    pub(crate) async fn connect(
        &self,
        session: &Session,
        server: &Server,
    ) -> Result<(Arc<Connection>, bool), ToolError> {
        let target = policy::target(&self.options, server)?;
        let key = key(session, &server.at);
        let cell = self.cell(&key, server)?;
        let mut made = false;
        let connected = cell.get_or_try_init(|| {
            made = true;
            async {
                Connection::open(server, target, &self.http)
                    .await
                    .map(Arc::new)
            }
        });
        match connected.await.map(Arc::clone) {
            Ok(connection) => Ok((connection, made)),
            Err(error) => {
                let mut open = self.lock();
                if open.get(&key).is_some_and(|cell| !cell.initialized()) {
                    open.remove(&key);
                }
                Err(error)
            }
        }
    }

    /// Calls a tool of a server, which is connected again if that is needed. Never calls twice.
    pub(crate) async fn call(
        &self,
        session: &Session,
        server: &Server,
        tool: &str,
        arguments: Value,
    ) -> Result<Value, ToolError> {
        let (connection, _) = self.connect(session, server).await?;
        connection
            .call(server, tool, arguments, self.call_timeout)
            .await
    }

    /// Closes these connections of a session's agent.
    pub(crate) async fn disconnect(&self, session: &Session, places: &[Place]) {
        self.close(|(of, agent, at)| {
            *of == session.workspace_id() && *agent == session.agent && places.contains(at)
        })
        .await;
    }

    /// Closes all connections of a session, whichever agent they are of.
    pub(crate) async fn disconnect_session(&self, session: &Session) {
        let session = session.workspace_id();
        self.close(|(of, _, _)| *of == session).await;
    }

    async fn close(&self, which: impl Fn(&Key) -> bool) {
        let closing: Vec<Cell> = {
            let mut open = self.lock();
            let keys: Vec<Key> = open.keys().filter(|key| which(key)).cloned().collect();
            keys.iter().filter_map(|key| open.remove(key)).collect()
        };
        let closing = closing.iter().filter_map(|cell| cell.get());
        futures::future::join_all(closing.map(|connection| connection.close())).await;
    }

    fn cell(&self, key: &Key, server: &Server) -> Result<Cell, ToolError> {
        let mut open = self.lock();
        let broken = |cell: &Cell| cell.get().is_some_and(|connection| connection.is_closed());
        match open.get(key) {
            Some(cell) if !broken(cell) => return Ok(Arc::clone(cell)),
            Some(_) => {}
            None => {
                let of_session = open.keys().filter(|(session, _, _)| *session == key.0);
                if of_session.count() >= CONNECTIONS_OF_SESSION_MAX {
                    return Err(server.failed(format!(
                        "this session has {CONNECTIONS_OF_SESSION_MAX} servers connected: unload a skill first"
                    )));
                }
                if open.len() >= CONNECTIONS_MAX {
                    return Err(server.failed(format!(
                        "{CONNECTIONS_MAX} servers are connected, which is all that one toolset holds"
                    )));
                }
            }
        }
        let cell = Cell::default();
        open.insert(key.clone(), Arc::clone(&cell));
        Ok(cell)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Cell>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn key(session: &Session, at: &Place) -> Key {
    (session.workspace_id(), session.agent.clone(), at.clone())
}
