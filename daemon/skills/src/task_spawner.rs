//! Background work of the crate skilld-skills: tasks and blocking calls, run on the daemon's tracker.

use std::future::Future;

use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::error::Error;
use crate::tenant_permits::TenantPermits;

/// The daemon's task tracker and its stop token. Clones share both.
#[derive(Debug, Clone, Default)]
pub struct TaskSpawner {
    /// Tracks every task, so that the daemon can wait for all of them at its end.
    pub tracker: TaskTracker,
    /// Cancelled when the daemon stops; every task returns soon afterwards.
    pub stop: CancellationToken,
}

impl TaskSpawner {
    /// Spawns a task that the daemon waits for at its end. The task must watch [`TaskSpawner::stop`].
    pub fn spawn<F>(&self, task: F) -> JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        self.tracker.spawn(task)
    }

    /// Runs blocking work on a thread of the blocking pool.
    ///
    /// # Errors
    /// The error of the work itself; `Internal` when it panicked or the runtime is shutting down.
    pub async fn blocking<F, T, E>(&self, work: F) -> Result<T, E>
    where
        F: FnOnce() -> Result<T, E> + Send + 'static,
        T: Send + 'static,
        E: From<Error> + Send + 'static,
    {
        self.tracker
            .spawn_blocking(work)
            .await
            .map_err(|error| Error::Internal(format!("blocking work: {error}")))?
    }

    /// Runs blocking work once its tenant, or the daemon, has a permit, so that a file system that hangs holds at most
    /// as many threads as `permits` has.
    ///
    /// # Errors
    /// As [`Self::blocking`]; `Draining` when the daemon stops first.
    pub async fn blocking_in<F, T, E>(
        &self,
        permits: &TenantPermits,
        tenant: &str,
        work: F,
    ) -> Result<T, E>
    where
        F: FnOnce() -> Result<T, E> + Send + 'static,
        T: Send + 'static,
        E: From<Error> + Send + 'static,
    {
        let permit = tokio::select! {
            biased;
            permit = permits.acquire(tenant) => permit,
            () = self.stop.cancelled() => return Err(Error::Draining.into()),
        };
        let work = move || {
            let _permit = permit;
            work()
        };
        self.blocking(work).await
    }
}
