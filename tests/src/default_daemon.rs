//! A daemon with the default settings that all tests of one program share while any of them uses it.
//!
//! It is for tests that claim their workspaces with [`DefaultDaemon::workspace`] or delete them, and neither change the
//! daemon's configuration nor end it, nor look at what belongs to all of its clients: its log, its pools, its lists, its
//! artifact store on disk.

use std::ops::Deref;
use std::sync::{Arc, Weak};

use anyhow::{Context, Result};
use skilld_proto::v1::{CreateWorkspaceRequest, WorkspaceLimits};
use tokio::runtime::Runtime;
use tokio::sync::Mutex;

use crate::daemon::{Daemon, Options};

/// Maximum number of containers. The tests that run at the same time claim a few each.
const CONTAINERS_MAX: &str = "64";

/// The daemon, while a test uses it.
static RUNNING: Mutex<Weak<RunningDaemon>> = Mutex::const_new(Weak::new());

/// Runtime that may be dropped within another one, as at the end of a failed test.
#[derive(Debug)]
struct DaemonRuntime(Option<Runtime>);

impl DaemonRuntime {
    fn new() -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()?;
        Ok(Self(Some(runtime)))
    }

    async fn run<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        self.0.as_ref().context("a runtime")?.spawn(work).await?
    }
}

impl Drop for DaemonRuntime {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

/// The daemon on a runtime of its own, which outlives those of single tests.
#[derive(Debug)]
struct RunningDaemon {
    daemon: Daemon,
    runtime: DaemonRuntime,
}

/// A test's share in the default daemon. [`DefaultDaemon::stop`] gives it back.
#[derive(Debug)]
pub struct DefaultDaemon {
    running: Arc<RunningDaemon>,
    /// Names of the workspaces that the test claimed.
    workspaces: std::sync::Mutex<Vec<String>>,
}

impl DefaultDaemon {
    /// Returns a share in the daemon, which is started if no other test uses it.
    ///
    /// # Errors
    /// When the daemon does not serve in time; its log is in the error.
    pub async fn share() -> Result<Self> {
        let mut shared = RUNNING.lock().await;
        let running = match shared.upgrade() {
            Some(running) => running,
            None => Arc::new(start().await?),
        };
        *shared = Arc::downgrade(&running);
        Ok(Self {
            running,
            workspaces: std::sync::Mutex::default(),
        })
    }

    /// Returns a share in the daemon and the name of a workspace that [`DefaultDaemon::workspace`] claims.
    ///
    /// # Errors
    /// When the daemon does not serve in time, or refuses the workspace.
    pub async fn with_workspace() -> Result<(Self, String)> {
        let daemon = Self::share().await?;
        let workspace = daemon.workspace().await?;
        Ok((daemon, workspace))
    }

    /// Claims a workspace of the default pool, and returns its name. It is deleted when the share is given back.
    ///
    /// # Errors
    /// When the daemon refuses the workspace.
    pub async fn workspace(&self) -> Result<String> {
        self.claim(CreateWorkspaceRequest::default()).await
    }

    /// Claims a workspace with other limits than the default pool's.
    ///
    /// # Errors
    /// When the daemon refuses the workspace.
    pub async fn sized(&self, limits: WorkspaceLimits) -> Result<String> {
        self.claim(CreateWorkspaceRequest {
            limits: Some(limits),
            ..CreateWorkspaceRequest::default()
        })
        .await
    }

    /// Claims a workspace as requested.
    ///
    /// # Errors
    /// When the daemon refuses the workspace.
    pub async fn claim(&self, request: CreateWorkspaceRequest) -> Result<String> {
        let name = self.client.create_workspace(request).await?.name;
        let mut workspaces = self.workspaces.lock().ok().context("a poisoned lock")?;
        workspaces.push(name.clone());
        Ok(name)
    }

    /// Deletes those of the test's workspaces that still exist, and gives the share back. The last one ends the daemon
    /// and proves that nothing is left.
    ///
    /// # Errors
    /// When a workspace can't be deleted, something is left, or the daemon did not end well.
    pub async fn stop(self) -> Result<()> {
        let workspaces = self
            .workspaces
            .into_inner()
            .ok()
            .context("a poisoned lock")?;
        let client = &self.running.daemon.client;
        for name in workspaces {
            client.delete_workspace_if_exists(&name).await?;
        }
        // Held, so that no other test starts a daemon while this one ends.
        let _shared = RUNNING.lock().await;
        let Some(running) = Arc::into_inner(self.running) else {
            return Ok(());
        };
        let RunningDaemon { daemon, runtime } = running;
        let stopped = daemon.stop().await;
        // The daemon's process and connections belong to it.
        drop(runtime);
        stopped.context("the daemon that tests share, whose last user this test is")
    }
}

async fn start() -> Result<RunningDaemon> {
    let runtime = DaemonRuntime::new()?;
    let options = Options::default().set("pools.default.max", CONTAINERS_MAX);
    let daemon = runtime.run(Daemon::start_with(options)).await?;
    Ok(RunningDaemon { daemon, runtime })
}

impl Deref for DefaultDaemon {
    type Target = Daemon;

    fn deref(&self) -> &Daemon {
        &self.running.daemon
    }
}
