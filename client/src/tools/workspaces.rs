//! The workspace of a session: made when it is first needed, known from then on, made again when it has gone.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use skilld_proto::v1::{CreateWorkspaceRequest, Reason, WorkspaceState};

use crate::tools::{Options, Session, ToolError};
use crate::{Client, Error, workspace_name};

/// Workspaces known to be there, so that a call on a warm session need not ask for its workspace again.
#[derive(Debug)]
pub(crate) struct Workspaces {
    request: CreateWorkspaceRequest,
    known: Mutex<HashSet<String>>,
    /// Those that took the place of one that was gone, until somebody is told.
    replaced: Mutex<HashSet<String>>,
    /// Whose workspaces are being replaced.
    replacing: Mutex<HashMap<String, Turn>>,
}

/// Whose turn it is to replace one workspace.
type Turn = Arc<tokio::sync::Mutex<()>>;

/// Said once where a command runs in another workspace than those before it.
const IS_NEW: &str = "the workspace is a new one, since the one before has gone: files of earlier commands and uploads are not there";

/// Sessions remembered at most. One that was forgotten costs one more call.
const KNOWN_MAX: usize = 65_536;

impl Workspaces {
    pub(crate) fn new(options: &Options) -> Self {
        Self {
            request: CreateWorkspaceRequest {
                pool: options.pool.clone(),
                idle_timeout: options
                    .idle_timeout
                    .and_then(|timeout| timeout.try_into().ok()),
                allow_existing: true,
                ..CreateWorkspaceRequest::default()
            },
            known: Mutex::new(HashSet::new()),
            replaced: Mutex::new(HashSet::new()),
            replacing: Mutex::new(HashMap::new()),
        }
    }

    /// The full name of the session's workspace, which is made if this toolset has not seen it yet.
    pub(crate) async fn of(&self, client: &Client, session: &Session) -> Result<String, ToolError> {
        let name = workspace_name(&session.workspace_id());
        if lock(&self.known).contains(&name) {
            return Ok(name);
        }
        self.make(client, &name).await?;
        Ok(name)
    }

    /// Does something in the session's workspace, and once more in a new one if the daemon has none of that name any
    /// more, or has lost its container. The daemon says so before it does anything.
    pub(crate) async fn within<T, F>(
        &self,
        client: &Client,
        session: &Session,
        mut act: impl FnMut(String) -> F,
    ) -> Result<T, ToolError>
    where
        F: Future<Output = Result<T, ToolError>>,
    {
        let name = self.of(client, session).await?;
        match act(name.clone()).await {
            Err(ToolError::Daemon(error)) if is_gone(&error) => {
                self.replace(client, &name).await?;
                act(name).await
            }
            other => other,
        }
    }

    /// Makes a workspace in the place of one that is gone. One of a name at a time: who comes later finds the new one.
    async fn replace(&self, client: &Client, name: &str) -> Result<(), ToolError> {
        let turn = {
            let mut replacing = lock(&self.replacing);
            // Nobody waits for these any more.
            replacing.retain(|_, turn| Arc::strong_count(turn) > 1);
            Arc::clone(replacing.entry(name.to_owned()).or_default())
        };
        let _turn = turn.lock().await;
        let is_lost = match client.get_workspace(name).await {
            Ok(workspace) => workspace.state() == WorkspaceState::Failed,
            Err(_) => false,
        };
        if is_lost {
            client.delete_workspace_if_exists(name).await?;
        }
        self.make(client, name).await?;
        remember(&self.replaced, name);
        Ok(())
    }

    /// What a command's result is to say where the session's workspace has taken the place of another one; said once.
    pub(crate) fn warning(&self, session: &Session) -> Option<&'static str> {
        let name = workspace_name(&session.workspace_id());
        lock(&self.replaced).remove(&name).then_some(IS_NEW)
    }

    /// Deletes the session's workspace; OK if there is none.
    pub(crate) async fn delete(&self, client: &Client, session: &Session) -> Result<(), ToolError> {
        let name = workspace_name(&session.workspace_id());
        lock(&self.known).remove(&name);
        lock(&self.replaced).remove(&name);
        client.delete_workspace_if_exists(&name).await?;
        Ok(())
    }

    async fn make(&self, client: &Client, name: &str) -> Result<(), ToolError> {
        let mut request = self.request.clone();
        request.name = name.to_owned();
        client.create_workspace(request).await?;
        remember(&self.known, name);
        Ok(())
    }
}

fn remember(names: &Mutex<HashSet<String>>, name: &str) {
    let mut names = lock(names);
    if names.len() >= KNOWN_MAX {
        names.clear();
    }
    names.insert(name.to_owned());
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether there is nothing left of a workspace but, for a while, its name.
fn is_gone(error: &Error) -> bool {
    let state = error
        .failure()
        .and_then(|failure| failure.metadata.get("state"));
    match error.reason() {
        Some(Reason::WorkspaceNotFound) => true,
        Some(Reason::WorkspaceNotReady) => state.is_some_and(|state| state == "failed"),
        _ => false,
    }
}
