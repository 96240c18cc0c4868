//! Removal of containers that no slot knows.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::engine::Engine;
use crate::error::{Chain, Error, Result};
use crate::shutdown::Tasks;

/// Maximum number of removals at the same time. Docker removes few containers at a time, and each call may hang until
/// its timeout.
const REMOVALS_MAX: usize = 16;

/// Containers without a slot that are being removed, or whose removal failed. Clones share them.
#[derive(Debug, Clone)]
pub struct OrphanRemovals {
    engine: Arc<dyn Engine>,
    tasks: Tasks,
    /// Time for one removal.
    timeout: Duration,
    known: Arc<Mutex<HashMap<String, OrphanRemoval>>>,
}

/// Removal of one container.
#[derive(Debug, Clone, Copy)]
struct OrphanRemoval {
    /// Start of the latest attempt.
    begun: Instant,
    is_running: bool,
}

/// Guard of a running removal. Dropping it marks the removal as ended, also after a panic.
struct RunningRemoval<'a> {
    removals: &'a OrphanRemovals,
    container_id: &'a str,
}

impl Drop for RunningRemoval<'_> {
    fn drop(&mut self) {
        self.removals.end(self.container_id);
    }
}

/// Removes a container, or fails after `limit`.
///
/// # Errors
/// When the engine is away, refuses the removal or takes longer.
pub async fn remove_within(engine: &dyn Engine, container: &str, limit: Duration) -> Result<()> {
    let removed = tokio::time::timeout(limit, engine.remove(container)).await;
    removed.unwrap_or_else(|_| {
        let message = format!("{container} is not removed within {limit:?}");
        Err(Error::engine("remove container", message))
    })
}

// === impl OrphanRemovals ===

impl OrphanRemovals {
    /// Creates the removals of a daemon. `timeout` is the time for one removal.
    pub fn new(engine: Arc<dyn Engine>, tasks: Tasks, timeout: Duration) -> Self {
        Self {
            engine,
            tasks,
            timeout,
            known: Arc::default(),
        }
    }

    /// Starts to remove orphans, each in a task of its own, so that the next listing need not wait. At most
    /// [`REMOVALS_MAX`] run at the same time. Containers whose last attempt is longest ago come first, and the rest
    /// follows after the next listing, so a container that cannot be removed does not block others. Returns the chosen
    /// containers with their tasks.
    pub(super) fn start(&self, orphans: Vec<String>) -> Vec<(String, JoinHandle<Result<()>>)> {
        let chosen = self.choose(orphans, Instant::now()).into_iter();
        let remove = |container_id: String| {
            let (removals, id) = (self.clone(), container_id.clone());
            let removal = self.tasks.spawn(async move { removals.remove(&id).await });
            (container_id, removal)
        };
        chosen.map(remove).collect()
    }

    async fn remove(&self, container_id: &str) -> Result<()> {
        let _running = RunningRemoval {
            removals: self,
            container_id,
        };
        let removed = tokio::select! {
            () = self.tasks.stop.cancelled() => return Err(Error::Draining),
            removed = remove_within(&*self.engine, container_id, self.timeout) => removed,
        };
        match &removed {
            Ok(()) => tracing::info!(container_id, "removed"),
            Err(error) => {
                tracing::debug!(container_id, error = %Chain(error), "not removed");
            }
        }
        removed
    }

    /// Chooses the containers whose removal starts now, and forgets those that are no longer listed.
    fn choose(&self, mut orphans: Vec<String>, now: Instant) -> Vec<String> {
        let mut known = self.known.lock();
        let listed: HashSet<&String> = orphans.iter().collect();
        known.retain(|id, removal| removal.is_running || listed.contains(id));
        let running = known.values().filter(|removal| removal.is_running).count();
        orphans.retain(|id| known.get(id).is_none_or(|removal| !removal.is_running));
        orphans.sort_by_key(|id| known.get(id).map(|removal| removal.begun));
        orphans.truncate(REMOVALS_MAX.saturating_sub(running));
        for id in &orphans {
            let removal = OrphanRemoval {
                begun: now,
                is_running: true,
            };
            known.insert(id.clone(), removal);
        }
        orphans
    }

    fn end(&self, container_id: &str) {
        if let Some(removal) = self.known.lock().get_mut(container_id) {
            removal.is_running = false;
        }
    }

    /// Returns `true` if the removal of a container has been started before.
    pub(super) fn is_known(&self, container_id: &str) -> bool {
        self.known.lock().contains_key(container_id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::fake::FakeEngine;

    #[test]
    fn every_orphan_gets_its_turn_though_none_can_be_removed() {
        let removals = OrphanRemovals::new(
            Arc::new(FakeEngine::new()),
            Tasks::default(),
            Duration::from_secs(1),
        );
        let orphans: Vec<String> = (0..40).map(|number| format!("c{number:02}")).collect();
        let start = Instant::now();
        let mut tried = HashSet::new();
        for round in 0..3 {
            let now = start + Duration::from_secs(round);
            let chosen = removals.choose(orphans.clone(), now);
            assert_eq!(chosen.len(), REMOVALS_MAX, "never more at once");
            assert!(removals.choose(orphans.clone(), now).is_empty());
            for id in &chosen {
                removals.end(id);
            }
            tried.extend(chosen);
        }
        assert_eq!(tried.len(), orphans.len());
        assert!(removals.choose(Vec::new(), start).is_empty());
        assert!(
            removals.known.lock().is_empty(),
            "what is gone is forgotten"
        );
    }
}
