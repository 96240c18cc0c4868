//! Who runs, and how it ends: one tracker that owns every task, and two tokens.
//!
//! `drain` means: nothing new. `stop` means: open streams end, tasks return. Workspaces, containers and
//! running execs stay: stopping is how a daemon is upgraded.

use std::future::Future;
use std::sync::Arc;

use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::error::{Error, Result};

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
    pub async fn blocking<F, T>(&self, work: F) -> Result<T>
    where
        F: FnOnce() -> Result<T> + Send + 'static,
        T: Send + 'static,
    {
        self.tracker
            .spawn_blocking(work)
            .await
            .map_err(|error| Error::Internal(format!("blocking work: {error}")))?
    }

    /// The same for work of which no more is done at once than there are places: who waits for one holds no thread, and a
    /// file system that hangs keeps no more threads than that.
    ///
    /// # Errors
    /// As [`Self::blocking`]; `Draining` when the daemon stops first.
    pub async fn blocking_in<F, T>(&self, places: &Arc<Semaphore>, work: F) -> Result<T>
    where
        F: FnOnce() -> Result<T> + Send + 'static,
        T: Send + 'static,
    {
        let place = tokio::select! {
            biased;
            place = Arc::clone(places).acquire_owned() => place.map_err(|_| Error::Draining)?,
            () = self.stop.cancelled() => return Err(Error::Draining),
        };
        let work = move || {
            let _place = place;
            work()
        };
        self.blocking(work).await
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
