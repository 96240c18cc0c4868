//! Who runs, and how it ends: one tracker that owns every task, and two tokens.
//!
//! `drain` means: nothing new. `stop` means: open streams end, tasks return. Workspaces, containers and
//! running execs stay: stopping is how a daemon is upgraded.

use std::future::Future;

use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Owner of all tasks of a daemon. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Tasks {
    tracker: TaskTracker,
    /// Nothing new is started once this is cancelled.
    pub drain: CancellationToken,
    /// Every task returns soon after this is cancelled.
    pub stop: CancellationToken,
}

impl Tasks {
    /// Runs a task that the daemon waits for at its end. The task must watch [`Tasks::stop`].
    pub fn spawn<F>(&self, task: F) -> JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        self.tracker.spawn(task)
    }

    /// Runs blocking work (host files) off the runtime's threads.
    ///
    /// # Errors
    /// When the work panicked or the runtime is going down.
    pub async fn blocking<F, T>(&self, work: F) -> crate::error::Result<T>
    where
        F: FnOnce() -> crate::error::Result<T> + Send + 'static,
        T: Send + 'static,
    {
        self.tracker
            .spawn_blocking(work)
            .await
            .map_err(|error| crate::error::Error::Internal(format!("blocking work: {error}")))?
    }

    /// Waits until every task has returned. Call after cancelling [`Tasks::stop`].
    pub async fn finished(&self) {
        self.tracker.close();
        self.tracker.wait().await;
    }

    /// Tasks that have not returned yet.
    #[must_use]
    pub fn running(&self) -> usize {
        self.tracker.len()
    }
}
