//! Connections to the MCP servers that loaded skills name: one per session, agent and server, made when it is first
//! needed, made again when it broke, closed when no loaded skill needs it, when it has to make room (`open`), or when the
//! session ends. Their number is bounded, and every wait has an end. Which servers may be connected at all is the host's
//! decision: `policy`.

mod connection;
mod open;
mod policy;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::future::{join, join_all};
use serde_json::Value;

pub(crate) use connection::Connection;
use open::{Cell, Key, Limits, Open};

pub(crate) use crate::state::sherma::{Place, Server};
use crate::tools::{Mcp, Options, Session, ToolError};

/// Each is a session at a server, or a program and its descriptors.
const LIMITS: Limits = Limits {
    of_session: 16,
    of_toolset: 256,
};
/// Of one call of a server's tool, where the options say nothing.
const CALL_TIMEOUT: Duration = Duration::from_secs(300);

/// Of what is said of a failure, which may be a server's own words: a model reads all of it.
const PROBLEM_BYTES_MAX: usize = 4096;

impl Server {
    pub(crate) fn failed(&self, problem: impl Into<String>) -> ToolError {
        ToolError::Mcp {
            server: self.label.clone(),
            problem: cut(problem.into()),
        }
    }
}

fn cut(mut problem: String) -> String {
    if problem.len() > PROBLEM_BYTES_MAX {
        problem.truncate(problem.floor_char_boundary(PROBLEM_BYTES_MAX));
        problem.push_str("… (cut)");
    }
    problem
}

/// All connections of a toolset.
#[derive(Debug)]
pub(crate) struct Connections {
    options: Mcp,
    call_timeout: Duration,
    http: policy::Http,
    open: Mutex<Open<Connection>>,
}

impl Connections {
    pub(crate) fn new(options: &Options) -> Self {
        Self {
            options: options.mcp.clone(),
            call_timeout: options.timeout.unwrap_or(CALL_TIMEOUT),
            http: policy::Http::default(),
            open: Mutex::new(Open::new(LIMITS)),
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
        let taken = self.lock().cell(&key, Connection::is_closed);
        let (cell, gives_way) = taken.map_err(|problem| server.failed(problem))?;
        let mut made = false;
        let connecting = cell.get_or_try_init(|| {
            made = true;
            async {
                Connection::open(server, target, &self.http)
                    .await
                    .map(Arc::new)
            }
        });
        let (connected, ()) = join(connecting, closed(gives_way)).await;
        match connected.map(Arc::clone) {
            Ok(connection) => Ok((connection, made)),
            Err(error) => {
                self.lock().forget(&key);
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
        let closing = self.lock().take(which);
        closed(closing).await;
    }

    fn lock(&self) -> MutexGuard<'_, Open<Connection>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn closed(cells: impl IntoIterator<Item = Cell<Connection>>) {
    join_all(cells.into_iter().map(|cell| async move {
        if let Some(connection) = cell.get() {
            connection.close().await;
        }
    }))
    .await;
}

fn key(session: &Session, at: &Place) -> Key {
    (session.workspace_id(), session.agent.clone(), at.clone())
}
