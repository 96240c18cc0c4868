//! Workspaces of sessions: each is created when it is first needed, known from then on, and replaced when it is lost.
//! A workspace that the host gave to a session is used as it is.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use parking_lot::Mutex;
use skilld_client::v1::{CreateWorkspaceRequest, ErrorReason, WorkspaceState};

use crate::session::Session;
use crate::tool_error::{ToolError, ToolResult};
use crate::tool_options::ToolOptions;
use skilld_client::{Client, Error, workspace_name};

/// Workspaces known to exist, so that a call on a warm session need not ask for its workspace again.
#[derive(Debug)]
pub(crate) struct SessionWorkspaces {
    client: Client,
    request: CreateWorkspaceRequest,
    known: Mutex<HashSet<String>>,
    /// Sessions whose workspace replaced a lost one and whose next result must say so.
    replaced: Mutex<HashSet<String>>,
    /// Locks of workspaces that are being replaced.
    replacing: Mutex<HashMap<String, ReplacementLock>>,
}

/// Lock for the replacement of one workspace.
type ReplacementLock = Arc<tokio::sync::Mutex<()>>;

/// Warning of the first command in a workspace that replaced a lost one.
const REPLACED_WARNING: &str = "the workspace is a new one, since the one before has gone: files of earlier commands and uploads are not there";

/// Maximum number of remembered sessions. A forgotten session costs one more call.
const KNOWN_MAX: usize = 65_536;

impl SessionWorkspaces {
    pub(crate) fn new(client: Client, options: &ToolOptions) -> Self {
        Self {
            client,
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

    /// Returns the full name of the session's workspace. Creates it if this toolset has not seen it yet.
    async fn find_or_create(&self, session: &Session) -> ToolResult<String> {
        let name = workspace_name(&session.workspace_id());
        if session.workspace.is_empty() && !self.known.lock().contains(&name) {
            self.create(&name).await?;
        }
        Ok(name)
    }

    /// Does something in the session's workspace, and once more in a new one if the daemon has none of that name any
    /// more, or has lost its container. The daemon says so before it does anything.
    pub(crate) async fn in_workspace<T, F>(
        &self,
        session: &Session,
        mut act: impl FnMut(String) -> F,
    ) -> ToolResult<T>
    where
        F: Future<Output = ToolResult<T>>,
    {
        let name = self.find_or_create(session).await?;
        match act(name.clone()).await {
            Err(ToolError::Daemon(error)) if is_lost(&error) && session.workspace.is_empty() => {
                self.replace(&name).await?;
                act(name).await
            }
            other => other,
        }
    }

    /// Creates a workspace in the place of a lost one. Concurrent calls replace it once: later ones find the new one.
    async fn replace(&self, name: &str) -> ToolResult<()> {
        let turn = {
            let mut replacing = self.replacing.lock();
            // No call waits for these locks any more.
            replacing.retain(|_, turn| Arc::strong_count(turn) > 1);
            Arc::clone(replacing.entry(name.to_owned()).or_default())
        };
        let _turn = turn.lock().await;
        let workspace = self.client.get_workspace(name).await;
        if workspace.is_ok_and(|workspace| workspace.state() == WorkspaceState::Failed) {
            self.client.delete_workspace_if_exists(name).await?;
        }
        self.create(name).await?;
        remember(&self.replaced, name);
        Ok(())
    }

    /// Returns the warning that the session's workspace replaced a lost one, once.
    pub(crate) fn take_replacement_warning(&self, session: &Session) -> Option<String> {
        let name = workspace_name(&session.workspace_id());
        let is_new = self.replaced.lock().remove(&name);
        is_new.then(|| REPLACED_WARNING.to_owned())
    }

    /// Deletes the session's own workspace; OK if there is none.
    pub(crate) async fn delete(&self, session: &Session) -> ToolResult<()> {
        if !session.workspace.is_empty() {
            return Ok(());
        }
        let name = workspace_name(&session.workspace_id());
        self.known.lock().remove(&name);
        self.replaced.lock().remove(&name);
        self.client.delete_workspace_if_exists(&name).await?;
        Ok(())
    }

    async fn create(&self, name: &str) -> ToolResult<()> {
        let request = CreateWorkspaceRequest {
            workspace_id: name.to_owned(),
            ..self.request.clone()
        };
        self.client.create_workspace(request).await?;
        remember(&self.known, name);
        Ok(())
    }
}

fn remember(names: &Mutex<HashSet<String>>, name: &str) {
    let mut names = names.lock();
    if names.len() >= KNOWN_MAX {
        names.clear();
    }
    names.insert(name.to_owned());
}

/// Returns `true` if an error means that only the name of a workspace is left.
pub(crate) fn is_lost(error: &Error) -> bool {
    let state = error
        .failure()
        .and_then(|failure| failure.metadata.get("state"));
    match error.reason() {
        Some(ErrorReason::WorkspaceNotFound) => true,
        Some(ErrorReason::WorkspaceNotReady) => state.is_some_and(|state| state == "failed"),
        _ => false,
    }
}
