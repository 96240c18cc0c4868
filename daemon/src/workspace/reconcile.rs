//! Keeps the engine's containers and the slots in agreement while the daemon runs.
//!
//! A creation whose answer never came may be carried out later, when its slot is long forgotten. So one task lists the
//! containers of this instance, on an interval and after a failed call, and removes the orphans: those that no slot and no
//! running boot knows. It also goes on trying to remove quarantined containers, tells their slots when they are gone, and
//! deletes slot directories that belong to no slot.
//!
//! It never touches a container of a boot in progress: a slot is a member of its pool before its container is created, and
//! a member without a known container may still get one.

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior};

use crate::engine::{ContainerSummary, LABEL_SLOT};
use crate::error::{Chain, Error, Result};
use crate::workspace::registry::Registry;
use crate::workspace::slot::{self, Context};
use crate::workspace::state::State;
use crate::workspace::{Slot, View};

/// Removals at once. Docker removes few containers at a time, and each call may hang until its timeout.
const REMOVALS_MAX: usize = 16;

/// Containers without a slot that are being removed, or whose removal failed. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Removals(Arc<Mutex<HashMap<String, Removal>>>);

/// Removal of one container.
#[derive(Debug, Clone, Copy)]
struct Removal {
    /// Begin of the last try.
    begun: Instant,
    is_running: bool,
}

/// Guard of a removal that runs: its end frees the place, also if the engine panics.
struct RunningRemoval<'a> {
    removals: &'a Removals,
    container_id: &'a str,
}

impl Drop for RunningRemoval<'_> {
    fn drop(&mut self) {
        self.removals.end(self.container_id);
    }
}

/// Relation of a listed container to the slots.
#[derive(Debug, PartialEq, Eq)]
enum Owner {
    /// A slot or a boot in progress has it, or is about to.
    Slot,
    /// A quarantined slot, or a failed workspace, waits for its end.
    Quarantine,
    /// No slot has it.
    Unknown,
}

/// Removes a container, within `limit`.
///
/// # Errors
/// When the engine is away, refuses, or takes longer.
pub async fn remove_within(context: &Context, container: &str, limit: Duration) -> Result<()> {
    let removed = tokio::time::timeout(limit, context.engine.remove(container)).await;
    removed.unwrap_or_else(|_| {
        Err(Error::Engine {
            operation: "remove container",
            message: format!("{container} is not removed within {limit:?}"),
        })
    })
}

/// Reconciles until the daemon stops.
pub async fn run(registry: Registry) {
    let context = Arc::clone(registry.context());
    let mut tick = tokio::time::interval(context.config.engine.reconcile_interval);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let reconcile_for_ever = async {
        loop {
            tokio::select! {
                _ = tick.tick() => {}
                () = context.reconcile.notified() => {}
            }
            if let Err(error) = reconcile(&registry).await {
                // An absent engine has its own line, by the watch of its events.
                tracing::debug!(error = %Chain(&error), "containers were not reconciled");
            }
            if let Err(error) = delete_orphaned_directories(&registry).await {
                tracing::debug!(error = %Chain(&error), "slot directories were not reconciled");
            }
        }
    };
    tokio::select! {
        () = context.tasks.stop.cancelled() => {}
        () = reconcile_for_ever => {}
    }
}

async fn reconcile(registry: &Registry) -> Result<()> {
    let context = registry.context();
    // Before the slots are looked at: what is listed was created for a slot that was a member by then.
    let containers = context.engine.list(Some(&context.instance)).await?;
    let slots: HashMap<u32, Slot> = registry.slots().map(|slot| (slot.number(), slot)).collect();
    let mut quarantined: HashSet<u32> = slots
        .values()
        .filter(|slot| is_left_to_reconciler(&slot.view()))
        .map(Slot::number)
        .collect();
    let mut orphans = Vec::new();
    for container in &containers {
        let number = slot_number(container);
        let slot = number.and_then(|number| slots.get(&number));
        let owner = slot.map_or(Owner::Unknown, |slot| owner(&slot.view(), &container.id));
        if owner != Owner::Unknown {
            // It is there still. Also of a slot whose state has changed since `quarantined` was made.
            quarantined.retain(|other| Some(*other) != number);
        } else if !context.removals.is_known(&container.id) {
            tracing::warn!(
                container_id = container.id,
                slot = number,
                "removing a container that no slot knows"
            );
        }
        if owner == Owner::Slot {
            continue;
        }
        orphans.push(container.id.clone());
    }
    // The next listing shows what became of them.
    drop(context.removals.start(context, orphans));
    for number in quarantined {
        if let Some(slot) = slots.get(&number) {
            slot.container_ended(None).await;
        }
    }
    Ok(())
}

fn slot_number(container: &ContainerSummary) -> Option<u32> {
    container.labels.get(LABEL_SLOT)?.parse().ok()
}

/// Returns `true` if the slot's own task does not try any more to remove its container.
fn is_left_to_reconciler(view: &View) -> bool {
    match view.state {
        State::Quarantined => true,
        State::Failed(_) => view.removal_overdue.is_some(),
        State::Booting | State::Ready | State::Claimed | State::Closing | State::Removed => false,
    }
}

/// Returns who has a container that is labelled with the slot of this view.
fn owner(view: &View, container_id: &str) -> Owner {
    let known = view.record.container_id.as_deref();
    let is_its = known.is_none_or(|known| known == container_id);
    match view.state {
        State::Booting | State::Ready | State::Claimed | State::Closing if is_its => Owner::Slot,
        State::Quarantined if is_its => Owner::Quarantine,
        State::Failed(_) if view.removal_overdue.is_some() && is_its => Owner::Quarantine,
        // Without an id it has removed its container.
        State::Failed(_) if known == Some(container_id) => Owner::Slot,
        State::Booting
        | State::Ready
        | State::Claimed
        | State::Closing
        | State::Failed(_)
        | State::Quarantined
        | State::Removed => Owner::Unknown,
    }
}

/// Deletes what a failing disk, or a shortage of descriptors, left of slots that are gone.
async fn delete_orphaned_directories(registry: &Registry) -> Result<()> {
    let context = registry.context();
    let slots_dir = context.slots_dir();
    let list = move || {
        let listed = std::fs::read_dir(&slots_dir)
            .and_then(|entries| entries.map(|entry| Ok(entry?.path())).collect());
        listed.map_err(|source| Error::Io {
            operation: format!("list {}", slots_dir.display()),
            source,
        })
    };
    // Before the slots are looked at, for the same reason as above.
    let mut dirs: Vec<PathBuf> = context.tasks.blocking(list).await?;
    let known: HashSet<PathBuf> = registry
        .slots()
        .map(|slot| context.slot_dir(slot.number()))
        .collect();
    dirs.retain(|dir| is_slot_directory(dir) && !known.contains(dir));
    if dirs.is_empty() {
        return Ok(());
    }
    context.tasks.blocking(move || erase_all(&dirs)).await
}

/// Returns `true` if a directory is named as one of a slot: what an operator put beside it is left alone.
fn is_slot_directory(dir: &Path) -> bool {
    let name = dir.file_name().and_then(OsStr::to_str);
    name.is_some_and(|name| name.parse::<u32>().is_ok())
}

/// Erases every directory that can be erased. Blocks.
///
/// # Errors
/// The first failure, after all directories were tried.
fn erase_all(dirs: &[PathBuf]) -> Result<()> {
    let mut first_failure = None;
    for dir in dirs {
        match slot::erase(dir) {
            Ok(()) => {
                tracing::info!(dir = %dir.display(), "deleted a slot directory without a slot");
            }
            Err(error) => {
                first_failure.get_or_insert(error);
            }
        }
    }
    first_failure.map_or(Ok(()), Err)
}

// === impl Removals ===

impl Removals {
    /// Removes containers that no slot knows, each in a task of its own, so that the next listing does not wait for them. At
    /// most [`REMOVALS_MAX`] run at once; those that were not tried for the longest time come first, and the rest has its
    /// turn after the next listing. One that cannot be removed so keeps no other one from its turn. Returns the containers
    /// whose removal began, with the task of each.
    pub(super) fn start(
        &self,
        context: &Arc<Context>,
        orphans: Vec<String>,
    ) -> Vec<(String, JoinHandle<Result<()>>)> {
        let chosen = self.choose(orphans, Instant::now()).into_iter();
        let remove = |container_id: String| {
            let (removals, context) = (self.clone(), Arc::clone(context));
            let (tasks, id) = (context.tasks.clone(), container_id.clone());
            let removal = tasks.spawn(async move { removals.remove(&context, &id).await });
            (container_id, removal)
        };
        chosen.map(remove).collect()
    }

    async fn remove(&self, context: &Context, container_id: &str) -> Result<()> {
        let _running = RunningRemoval {
            removals: self,
            container_id,
        };
        let limit = context.config.engine.remove_timeout;
        let removed = tokio::select! {
            () = context.tasks.stop.cancelled() => return Err(Error::Draining),
            removed = remove_within(context, container_id, limit) => removed,
        };
        match &removed {
            Ok(()) => tracing::info!(container_id, "removed"),
            Err(error) => {
                tracing::debug!(container_id, error = %Chain(error), "not removed");
            }
        }
        removed
    }

    /// Picks the containers whose removal begins now, and forgets those that are not listed any more.
    fn choose(&self, mut orphans: Vec<String>, now: Instant) -> Vec<String> {
        let mut known = self.known();
        let listed: HashSet<&String> = orphans.iter().collect();
        known.retain(|id, removal| removal.is_running || listed.contains(id));
        let running = known.values().filter(|removal| removal.is_running).count();
        orphans.retain(|id| known.get(id).is_none_or(|removal| !removal.is_running));
        orphans.sort_by_key(|id| known.get(id).map(|removal| removal.begun));
        orphans.truncate(REMOVALS_MAX.saturating_sub(running));
        for id in &orphans {
            let removal = Removal {
                begun: now,
                is_running: true,
            };
            known.insert(id.clone(), removal);
        }
        orphans
    }

    fn end(&self, container_id: &str) {
        if let Some(removal) = self.known().get_mut(container_id) {
            removal.is_running = false;
        }
    }

    /// Returns `true` if the removal of a container was begun before.
    fn is_known(&self, container_id: &str) -> bool {
        self.known().contains_key(container_id)
    }

    fn known(&self) -> MutexGuard<'_, HashMap<String, Removal>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_orphan_has_its_turn_however_many_cannot_be_removed() {
        let removals = Removals::default();
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
        assert!(removals.known().is_empty(), "what is gone is forgotten");
    }

    #[test]
    fn a_directory_that_cannot_be_erased_keeps_no_other_one() {
        let dir = tempfile::tempdir().expect("temporary directory");
        // A name that no system takes.
        let impossible = dir.path().join("x".repeat(300));
        let orphan = dir.path().join("7");
        std::fs::create_dir_all(orphan.join("run")).expect("mkdir");
        let erased = erase_all(&[impossible, orphan.clone()]);
        assert!(erased.is_err(), "the failure is told");
        assert!(!orphan.exists());
    }
}
