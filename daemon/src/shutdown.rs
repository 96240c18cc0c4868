//! Tasks of the daemon and their end: one tracker that owns every task, and two tokens.
//!
//! `drain` refuses new work. `stop` ends open streams and makes tasks return. Workspaces, containers and running execs
//! stay, because stopping is part of upgrading a daemon.

use std::future::Future;

use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::error::Result;

/// Tracker of all tasks of a daemon. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Tasks {
    tracker: TaskTracker,
    /// Cancelled when the daemon no longer accepts new work.
    pub drain: CancellationToken,
    /// Cancelled when every task has to return.
    pub stop: CancellationToken,
    /// Work that an operator had refused, without ending the daemon.
    refused: watch::Sender<RefusedWork>,
}

/// Work that the daemon refuses at an operator's request. Each value includes the ones before it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum RefusedWork {
    /// Accepts all work.
    #[default]
    None,
    /// Refuses new workspaces.
    Workspaces,
    /// Refuses new execs, too.
    Execs,
}

impl Tasks {
    /// Spawns a task that the daemon awaits at its end. The task must watch [`Tasks::stop`].
    pub fn spawn<F>(&self, task: F) -> JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        self.tracker.spawn(task)
    }

    /// Refuses work of this kind, besides what is refused already.
    pub fn refuse(&self, work: RefusedWork) {
        self.refused
            .send_modify(|refused| *refused = (*refused).max(work));
    }

    /// Accepts all work again.
    pub fn accept_all(&self) {
        self.refused.send_replace(RefusedWork::None);
    }

    /// Returns `true` if new work of this kind is refused, because the daemon ends or an operator wants it.
    #[must_use]
    pub fn refuses(&self, work: RefusedWork) -> bool {
        self.drain.is_cancelled() || *self.refused.borrow() >= work
    }

    /// Returns a receiver of what operators had refused.
    pub fn watch_refused(&self) -> watch::Receiver<RefusedWork> {
        self.refused.subscribe()
    }

    /// Runs blocking work, such as file access, on a thread for blocking work.
    ///
    /// # Errors
    /// The error of the work; `Internal` when it panicked or the runtime shuts down.
    pub async fn blocking<F, T>(&self, work: F) -> Result<T>
    where
        F: FnOnce() -> Result<T> + Send + 'static,
        T: Send + 'static,
    {
        self.for_skills().blocking(work).await
    }

    /// Tracker and stop token for the crate skilld-skills.
    pub fn for_skills(&self) -> skilld_skills::TaskSpawner {
        skilld_skills::TaskSpawner {
            tracker: self.tracker.clone(),
            stop: self.stop.clone(),
        }
    }

    /// Waits until every task has returned. Call after cancelling [`Tasks::stop`].
    pub async fn finished(&self) {
        self.tracker.close();
        self.tracker.wait().await;
    }

    /// Returns the number of tasks that have not returned.
    pub fn running(&self) -> usize {
        self.tracker.len()
    }
}
