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
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::time::MissedTickBehavior;

use crate::engine::{ContainerSummary, LABEL_SLOT};
use crate::error::{Chain, Error, Result};
use crate::workspace::registry::Registry;
use crate::workspace::slot::{self, Context};
use crate::workspace::state::State;
use crate::workspace::{Slot, View};

/// Ids of containers that are being removed.
#[derive(Debug, Clone, Default)]
struct Removals(Arc<Mutex<HashSet<String>>>);

/// Relation of a listed container to the slots.
#[derive(Debug, PartialEq, Eq)]
enum Owner {
    /// A slot or a boot in progress has it, or is about to.
    Slot,
    /// A quarantined slot waits for its end.
    Quarantine,
    /// Nobody knows it.
    Nobody,
}

/// Removes a container, within `engine.remove_timeout`.
///
/// # Errors
/// When the engine is away, refuses, or takes longer.
pub async fn remove_in_time(context: &Context, container: &str) -> Result<()> {
    let limit = context.config.engine.remove_timeout;
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
    let removals = Removals::default();
    let mut tick = tokio::time::interval(context.config.engine.reconcile_interval);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let reconcile_for_ever = async {
        loop {
            tokio::select! {
                _ = tick.tick() => {}
                () = context.reconcile.notified() => {}
            }
            if let Err(error) = reconcile(&registry, &removals).await {
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

async fn reconcile(registry: &Registry, removals: &Removals) -> Result<()> {
    let context = registry.context();
    // Before the slots are looked at: what is listed was created for a slot that was a member by then.
    let containers = context.engine.list(Some(&context.instance)).await?;
    let slots: HashMap<u32, Slot> = registry.slots().map(|slot| (slot.number(), slot)).collect();
    let mut quarantined: HashSet<u32> = slots
        .values()
        .filter(|slot| slot.view().state == State::Quarantined)
        .map(Slot::number)
        .collect();
    for container in &containers {
        let number = slot_number(container);
        let slot = number.and_then(|number| slots.get(&number));
        match slot.map_or(Owner::Nobody, |slot| owner(&slot.view(), &container.id)) {
            Owner::Slot => continue,
            Owner::Quarantine => quarantined.retain(|other| Some(*other) != number),
            Owner::Nobody if !removals.contains(&container.id) => {
                tracing::warn!(
                    container_id = container.id,
                    slot = number,
                    "removing a container that no slot knows"
                );
            }
            Owner::Nobody => {}
        }
        removals.start(context, container.id.clone());
    }
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

/// Returns who has a container that is labelled with the slot of this view.
fn owner(view: &View, container_id: &str) -> Owner {
    let known = view.record.container_id.as_deref();
    let is_its = known.is_none_or(|known| known == container_id);
    match view.state {
        State::Booting | State::Ready | State::Claimed | State::Closing if is_its => Owner::Slot,
        State::Quarantined if is_its => Owner::Quarantine,
        // Without an id it has removed its container.
        State::Failed(_) if known == Some(container_id) => Owner::Slot,
        State::Booting
        | State::Ready
        | State::Claimed
        | State::Closing
        | State::Failed(_)
        | State::Quarantined
        | State::Removed => Owner::Nobody,
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
    dirs.retain(|dir| !known.contains(dir));
    if dirs.is_empty() {
        return Ok(());
    }
    let erase = move || {
        for dir in &dirs {
            slot::erase(dir)?;
            tracing::info!(dir = %dir.display(), "deleted a slot directory without a slot");
        }
        Ok(())
    };
    context.tasks.blocking(erase).await
}

// === impl Removals ===

impl Removals {
    /// Removes a container in a task of its own, unless one is at it: the next listing does not wait for it.
    fn start(&self, context: &Arc<Context>, container_id: String) {
        if !self.ids().insert(container_id.clone()) {
            return;
        }
        let (removals, context) = (self.clone(), Arc::clone(context));
        let tasks = context.tasks.clone();
        tasks.spawn(async move {
            let removed = tokio::select! {
                () = context.tasks.stop.cancelled() => return,
                removed = remove_in_time(&context, &container_id) => removed,
            };
            match removed {
                Ok(()) => tracing::info!(container_id, "removed"),
                Err(error) => tracing::debug!(container_id, error = %Chain(&error), "not removed"),
            }
            removals.ids().remove(&container_id);
        });
    }

    fn contains(&self, container_id: &str) -> bool {
        self.ids().contains(container_id)
    }

    fn ids(&self) -> MutexGuard<'_, HashSet<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
