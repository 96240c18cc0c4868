//! Reconciles the engine's containers with the slots while the daemon runs.
//!
//! The engine may carry out a creation after its answer was lost, when the slot is long gone. So one task lists the
//! containers of this instance, on an interval and after a failed call, and removes the orphans, which belong to no
//! slot. It also retries the removal of quarantined containers, reports to their slots when they are gone, and deletes
//! slot directories that belong to no slot and volumes that belong to no container.
//!
//! It never removes a container of a boot in progress: a slot is in the slot table before its container is created, and
//! a slot without a known container may still get one.

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::time::MissedTickBehavior;

use crate::engine::{ContainerSummary, LABEL_SLOT};
use crate::error::{Chain, Error, Result};
use crate::workspace::shared_slot_context::SharedSlotContext;
use crate::workspace::slot_provisioning;
use crate::workspace::slot_state_machine::SlotState;
use crate::workspace::{Slot, SlotSnapshot};

/// Owner of a listed container.
#[derive(Debug, PartialEq, Eq)]
enum ContainerOwner {
    /// Slot whose task uses, creates or removes the container.
    Slot,
    /// Quarantined slot or failed workspace that waits for the container's removal.
    Quarantine,
    /// No slot: the container is an orphan.
    Unknown,
}

/// Reconciles on every interval and wake-up, until the daemon stops.
pub async fn run_reconciler(context: Arc<SharedSlotContext>) {
    let mut tick = tokio::time::interval(context.config.engine.reconcile_interval);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let reconcile = async {
        loop {
            tokio::select! {
                _ = tick.tick() => {}
                () = context.reconcile.notified() => {}
            }
            if let Err(error) = remove_orphaned_containers(&context).await {
                // The registry's event subscription logs an absent engine.
                tracing::debug!(error = %Chain(&error), "containers were not reconciled");
            }
            if let Err(error) = delete_orphaned_directories(&context).await {
                tracing::debug!(error = %Chain(&error), "slot directories were not reconciled");
            }
        }
    };
    context.tasks.stop.run_until_cancelled(reconcile).await;
}

/// Starts the removal of containers that no slot uses, reports to quarantined slots whose container is gone, and
/// removes unused volumes.
async fn remove_orphaned_containers(context: &SharedSlotContext) -> Result<()> {
    // Listed before the slots are read: by then every listed container's slot is in the table.
    let containers = context.engine.list(Some(&context.instance)).await?;
    let slots: HashMap<u32, Slot> = context
        .slots
        .list()
        .into_iter()
        .map(|slot| (slot.number, slot))
        .collect();
    let mut quarantined: HashSet<u32> = slots
        .values()
        .filter(|slot| is_left_to_reconciler(&slot.snapshot()))
        .map(|slot| slot.number)
        .collect();
    let mut orphans = Vec::new();
    for container in &containers {
        let number = slot_number(container);
        let slot = number.and_then(|number| slots.get(&number));
        let owner = slot.map_or(ContainerOwner::Unknown, |slot| {
            container_owner(&slot.snapshot(), &container.id)
        });
        if owner != ContainerOwner::Unknown {
            // The container still exists. Its slot's state may have changed since `quarantined` was collected.
            quarantined.retain(|other| Some(*other) != number);
        } else if !context.removals.is_known(&container.id) {
            tracing::warn!(
                container_id = container.id,
                slot = number,
                "removing a container that no slot knows"
            );
        }
        if owner == ContainerOwner::Slot {
            continue;
        }
        orphans.push(container.id.clone());
    }
    // The next listing shows the results.
    drop(context.removals.start(orphans));
    for number in quarantined {
        if let Some(slot) = slots.get(&number) {
            slot.container_ended(None).await;
        }
    }
    context
        .engine
        .remove_unused_volumes(&context.instance)
        .await
}

fn slot_number(container: &ContainerSummary) -> Option<u32> {
    container.labels.get(LABEL_SLOT)?.parse().ok()
}

/// Returns `true` if the slot's task has left the removal of its container to the reconciler.
fn is_left_to_reconciler(view: &SlotSnapshot) -> bool {
    match view.state {
        SlotState::Quarantined => true,
        SlotState::Failed(_) => view.removal_overdue.is_some(),
        SlotState::Booting
        | SlotState::Ready
        | SlotState::Claimed
        | SlotState::Closing
        | SlotState::Removed => false,
    }
}

/// Returns the owner of a container that is labelled with the slot of this snapshot.
fn container_owner(view: &SlotSnapshot, container_id: &str) -> ContainerOwner {
    let known = view.record.container_id.as_deref();
    let is_its = known.is_none_or(|known| known == container_id);
    match view.state {
        SlotState::Booting | SlotState::Ready | SlotState::Claimed | SlotState::Closing
            if is_its =>
        {
            ContainerOwner::Slot
        }
        SlotState::Quarantined if is_its => ContainerOwner::Quarantine,
        SlotState::Failed(_) if view.removal_overdue.is_some() && is_its => {
            ContainerOwner::Quarantine
        }
        // A failed slot without a container id has removed its container.
        SlotState::Failed(_) if known == Some(container_id) => ContainerOwner::Slot,
        SlotState::Booting
        | SlotState::Ready
        | SlotState::Claimed
        | SlotState::Closing
        | SlotState::Failed(_)
        | SlotState::Quarantined
        | SlotState::Removed => ContainerOwner::Unknown,
    }
}

/// Deletes slot directories without a slot, which a failing disk or a shortage of descriptors may leave.
async fn delete_orphaned_directories(context: &SharedSlotContext) -> Result<()> {
    let slots_dir = context.slots_dir();
    let list = move || {
        let listed = std::fs::read_dir(&slots_dir)
            .and_then(|entries| entries.map(|entry| Ok(entry?.path())).collect());
        listed.map_err(|source| Error::io(format!("list {}", slots_dir.display()), source))
    };
    // Listed before the slots are read, for the same reason as the containers.
    let mut dirs: Vec<PathBuf> = context.tasks.blocking(list).await?;
    let slots = context.slots.list();
    let known: HashSet<PathBuf> = slots
        .iter()
        .map(|slot| context.slot_dir(slot.number))
        .collect();
    dirs.retain(|dir| is_slot_directory(dir) && !known.contains(dir));
    if dirs.is_empty() {
        return Ok(());
    }
    context.tasks.blocking(move || erase_slot_dirs(&dirs)).await
}

/// Returns `true` if a directory has the name of a slot directory. Others belong to the operator and are left alone.
fn is_slot_directory(dir: &Path) -> bool {
    let name = dir.file_name().and_then(OsStr::to_str);
    name.is_some_and(|name| name.parse::<u32>().is_ok())
}

/// Deletes all directories that can be deleted. Blocks.
///
/// # Errors
/// The first failure, after all directories were tried.
fn erase_slot_dirs(dirs: &[PathBuf]) -> Result<()> {
    let mut first_failure = None;
    for dir in dirs {
        match slot_provisioning::erase_slot_dir(dir) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_deletion_does_not_stop_the_others() {
        let dir = tempfile::tempdir().expect("temporary directory");
        // A file name that no file system accepts.
        let impossible = dir.path().join("x".repeat(300));
        let orphan = dir.path().join("7");
        std::fs::create_dir_all(orphan.join("run")).expect("mkdir");
        let erased = erase_slot_dirs(&[impossible, orphan.clone()]);
        assert!(erased.is_err(), "the failure is returned");
        assert!(!orphan.exists());
    }
}
