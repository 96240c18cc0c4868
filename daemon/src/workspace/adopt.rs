//! Adoption of the slots of an earlier daemon: records on disk, labelled containers, guests that connect again. A start
//! does the same after a crash as after a clean stop.
//!
//! | record | container | guest | result |
//! |---|---|---|---|
//! | claimed | runs | answers | the workspace, as it was |
//! | claimed | runs | silent | failed: guest lost |
//! | claimed | paused | – | the workspace; its guest is awaited for as long as a pause may last |
//! | claimed | runs | its socket cannot be bound on this host now | the workspace; its guest is awaited |
//! | claimed | gone or ended | – | failed: container lost |
//! | failed | any | – | failed, until its retention ends |
//! | quarantined | any | – | quarantined; the reconciler frees it once the container is gone |
//! | ready, same image and sizes | runs | answers, not configured | warm |
//! | ready | runs | its socket cannot be bound on this host now | removed |
//! | anything else | any | any | removed |
//! | none | labelled with this instance | any | removed |
//!
//! The socket of a guest cannot be bound on a disk without inodes or that is read-only, or without file descriptors.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use skilld_common::unix_time::from_unix_ms;

use crate::engine::{ContainerState, ContainerSummary, ImageInfo};
use crate::error::{Chain, Error, HostFault, Result};
use crate::exec::ImageEnvironment;
use crate::guest::{GuestClient, GuestLink, GuestSocket};
use crate::pool::Pool;
use crate::skills::measure_staged_bytes;
use crate::workspace::Workspace;
use crate::workspace::actor::{AdoptedSlot, RECONNECT_TIMEOUT};
use crate::workspace::exec_adoption::adopt_execs;
use crate::workspace::launcher;
use crate::workspace::record::{SlotPhase, SlotRecord};
use crate::workspace::shared_slot_context::SharedSlotContext;
use crate::workspace::slot_disk;
use crate::workspace::slot_provisioning;
use crate::workspace::slot_state_machine::LossCause;

/// Longest time until a container whose creation an earlier daemon requested can be removed. Docker lists it before it
/// is complete, and answers its removal with 404 until then.
const VANISH_TIMEOUT: Duration = Duration::from_secs(5);
const VANISH_INTERVAL: Duration = Duration::from_millis(20);
/// Pause between two listings while the reconciler removes the same containers.
const BUSY_INTERVAL: Duration = Duration::from_millis(200);

/// Adopts or removes every slot, all at the same time.
///
/// # Errors
/// When the engine does not answer or the slots cannot be listed.
pub async fn adopt_slots(
    context: &Arc<SharedSlotContext>,
    pools: &BTreeMap<String, Arc<Pool>>,
) -> Result<()> {
    slot_disk::release_left_devices(context).await;
    let containers = context.engine.list(Some(&context.instance)).await?;
    let by_id: HashMap<&str, &ContainerSummary> = containers
        .iter()
        .map(|container| (container.id.as_str(), container))
        .collect();
    let slots_dir = context.slots_dir();
    let records = context
        .tasks
        .blocking(move || read_records(&slots_dir))
        .await?;

    let known: Vec<&str> = records
        .iter()
        .filter_map(|record| record.container_id.as_deref())
        .collect();
    if let Err(error) = remove_orphans(context, &known).await {
        tracing::warn!(error = %Chain(&error), "containers without a record are removed later");
    }

    let finds = records.into_iter().map(|record| {
        let running = record
            .container_id
            .as_deref()
            .and_then(|id| by_id.get(id))
            .is_some_and(|found| found.running);
        async move {
            let found = inspect_slot(context, pools, &record, running).await?;
            Ok((record, found))
        }
    });
    // A slot that could not be inspected is not removed: the start fails and can be repeated.
    let found: Vec<(SlotRecord, AdoptedSlot)> = futures::future::join_all(finds)
        .await
        .into_iter()
        .collect::<Result<_>>()?;
    let mut adopted = Vec::new();
    for (record, found) in found {
        adopted.extend(adopt_slot(context, pools, record, found).await?);
    }
    // Requests are served only afterwards. Execs of a guest that does not answer within 5 s are counted as soon as it
    // does.
    let counts = adopted
        .iter()
        .map(|(workspace, guest)| adopt_execs(context, workspace, guest.clone()));
    futures::future::join_all(counts).await;
    Ok(())
}

/// Removes all containers of this instance except the `known` ones. The engine lists a container before its creation is
/// complete, when it cannot be removed yet, so this repeats until none is listed. [`OrphanRemovals`] runs the removals,
/// so its limit applies.
///
/// [`OrphanRemovals`]: crate::workspace::orphan_removals::OrphanRemovals
///
/// # Errors
/// When the engine does not answer, when a removal fails (each container was tried once by then), or when one is still
/// listed after `engine.remove_timeout` and [`VANISH_TIMEOUT`]. The reconciler then retries the rest.
pub async fn remove_orphans(context: &Arc<SharedSlotContext>, known: &[&str]) -> Result<()> {
    let limit = context.config.engine.remove_timeout + VANISH_TIMEOUT;
    let removed = tokio::time::timeout(limit, remove_until_none_listed(context, known)).await;
    removed.unwrap_or_else(|_| {
        let message = format!("some are still listed after {limit:?}");
        Err(Error::engine("remove containers", message))
    })
}

async fn remove_until_none_listed(context: &Arc<SharedSlotContext>, known: &[&str]) -> Result<()> {
    let (mut tried, mut first_failure) = (HashSet::new(), None);
    loop {
        let containers = context.engine.list(Some(&context.instance)).await?;
        let others: Vec<String> = containers
            .into_iter()
            .map(|container| container.id)
            .filter(|id| !known.contains(&id.as_str()))
            .collect();
        if others.is_empty() {
            return Ok(());
        }
        if others.iter().all(|id| tried.contains(id))
            && let Some(error) = first_failure.take()
        {
            return Err(error);
        }
        let removals = context.removals.start(others);
        if removals.is_empty() {
            // The reconciler removes them already.
            tokio::time::sleep(BUSY_INTERVAL).await;
            continue;
        }
        tracing::info!(
            count = removals.len(),
            "removing containers without a record"
        );
        for (id, removal) in removals {
            let removed = removal.await.unwrap_or_else(|error| {
                Err(Error::Internal(format!("remove container {id}: {error}")))
            });
            tried.insert(id);
            if let Err(error) = removed {
                first_failure.get_or_insert(error);
            }
        }
        tokio::time::sleep(VANISH_INTERVAL).await;
    }
}

/// Reads the records of all slots. Directories without a usable record are deleted, since no container belongs to them.
/// Blocks.
fn read_records(slots_dir: &Path) -> Result<Vec<SlotRecord>> {
    let failed = |source| Error::io(format!("list {}", slots_dir.display()), source);
    let mut records = Vec::new();
    for entry in std::fs::read_dir(slots_dir).map_err(failed)? {
        let dir = entry.map_err(failed)?.path();
        match SlotRecord::read(&dir)? {
            Some(record) if dir.ends_with(record.number.to_string()) => records.push(record),
            _ => {
                tracing::warn!(dir = %dir.display(), "deleting a slot directory without a usable record");
                slot_provisioning::erase_slot_dir(&dir)?;
            }
        }
    }
    Ok(records)
}

async fn inspect_slot(
    context: &Arc<SharedSlotContext>,
    pools: &BTreeMap<String, Arc<Pool>>,
    record: &SlotRecord,
    running: bool,
) -> Result<AdoptedSlot> {
    let lost = |cause, message: &str| {
        Ok(AdoptedSlot::Lost(
            cause,
            message.to_owned(),
            SystemTime::now(),
        ))
    };
    let usable = pools.get(&record.pool).is_some_and(|pool| {
        let config = &pool.config;
        let mounts = slot_provisioning::shared_mounts(&context.config, config);
        let image = pool.image();
        let is_same = |image: &ImageInfo| {
            image.id == record.image_id && ImageEnvironment::new(&image.env) == record.image_env
        };
        image.is_some_and(is_same)
            && record.limits == config.limits()
            && record.storage == config.storage
            && record.oci_runtime == config.oci_runtime
            && record.shared_dirs == Some(mounts)
    });
    match (record.phase, &record.claim) {
        (SlotPhase::Claimed, Some(_)) => {
            let peer = if running {
                await_guest(context, record).await?
            } else {
                AdoptedGuest::Ended
            };
            match peer {
                AdoptedGuest::Answers(link) => Ok(AdoptedSlot::Workspace(*link)),
                AdoptedGuest::Awaited => Ok(AdoptedSlot::Awaited),
                AdoptedGuest::Silent => {
                    lost(LossCause::GuestLost, "the guest did not connect again")
                }
                AdoptedGuest::Ended => lost(
                    LossCause::ContainerLost,
                    "the container ended while skilld was away",
                ),
            }
        }
        (SlotPhase::Failed { cause, time_ms }, Some(_)) => {
            let message = "lost before skilld was started again".to_owned();
            Ok(AdoptedSlot::Lost(cause, message, from_unix_ms(time_ms)))
        }
        (SlotPhase::Ready, None) if running && usable => {
            match await_guest(context, record).await? {
                // A configured guest belongs to a claim that was never answered.
                AdoptedGuest::Answers(link) if link.workspace.is_empty() => {
                    Ok(AdoptedSlot::Warm(*link))
                }
                AdoptedGuest::Answers(_)
                | AdoptedGuest::Silent
                | AdoptedGuest::Awaited
                | AdoptedGuest::Ended => Ok(AdoptedSlot::Garbage),
            }
        }
        (
            SlotPhase::Booting
            | SlotPhase::Ready
            | SlotPhase::Closing
            | SlotPhase::Claimed
            | SlotPhase::Failed { .. },
            _,
        ) => Ok(AdoptedSlot::Garbage),
        (SlotPhase::Quarantined { .. }, _) => Ok(AdoptedSlot::Quarantined),
    }
}

/// Fate of the guest of an adopted container.
enum AdoptedGuest {
    Answers(Box<GuestLink>),
    /// The container runs, but the guest does not connect again.
    Silent,
    /// The container is paused, or the host has no room for the guest's socket, so the guest cannot answer.
    Awaited,
    Ended,
}

/// Waits for the guest of a container that ran a moment ago.
async fn await_guest(
    context: &Arc<SharedSlotContext>,
    record: &SlotRecord,
) -> Result<AdoptedGuest> {
    let id = record.container_id.as_deref().unwrap_or_default();
    let socket = match GuestSocket::bind(&context.slot_dir(record.number).join("run")) {
        Err(error) if HostFault::of(&error).is_some() => {
            tracing::warn!(slot = record.number, error = %Chain(&error), "guest cannot connect yet");
            return Ok(AdoptedGuest::Awaited);
        }
        bound => bound?,
    };
    let pid = match context.engine.inspect(id).await? {
        Some(ContainerState { paused: true, .. }) => return Ok(AdoptedGuest::Awaited),
        Some(ContainerState {
            running: true, pid, ..
        }) => pid,
        _ => return Ok(AdoptedGuest::Ended),
    };
    let expected = context.expected(record, pid).await;
    match tokio::time::timeout(RECONNECT_TIMEOUT, socket.accept(&expected)).await {
        Ok(link) => Ok(AdoptedGuest::Answers(Box::new(link?))),
        Err(_) => Ok(AdoptedGuest::Silent),
    }
}

/// Starts the task of an adopted slot. Returns the workspace that it is, with the guest if that answers.
async fn adopt_slot(
    context: &Arc<SharedSlotContext>,
    pools: &BTreeMap<String, Arc<Pool>>,
    record: SlotRecord,
    found: AdoptedSlot,
) -> Result<Option<(Workspace, Option<GuestClient>)>> {
    // Slots of a pool that is no longer configured belong to the default pool.
    let pool = pools
        .get(&record.pool)
        .or_else(|| pools.get(&context.config.default_pool));
    let adopted = context.slots.adopt_number(record.number, record.uid);
    let Some(pool) = pool.filter(|_| adopted) else {
        let why = format!(
            "slot {} of an earlier run lies beyond it; raise it",
            record.number
        );
        return Err(Error::LimitUnsupported {
            field: "engine.uid_count".into(),
            why,
        });
    };
    let visible = matches!(
        found,
        AdoptedSlot::Workspace(_) | AdoptedSlot::Awaited | AdoptedSlot::Lost(..)
    );
    if let Some(tenant) = record.quarantine_tenant.clone() {
        let workspaces = &context.workspaces;
        workspaces.quarantine(record.number, tenant, record.limits);
    }
    let claim = record.claim.clone().filter(|_| visible);
    tracing::info!(slot = record.number, phase = ?record.phase, visible, "taking over a slot");
    let guest = if let AdoptedSlot::Workspace(link) = &found {
        Some(link.client.clone())
    } else {
        None
    };
    let slot = launcher::launch_adopted(context, pool, record, found).await;
    let Some(claim) = claim else {
        return Ok(None);
    };
    let key = claim.key();
    let workspace = Workspace { key, slot };
    let workspaces = &context.workspaces;
    workspaces.adopt(claim.request, workspace.clone());
    if !claim.skills.is_empty() {
        let skills = workspace.skills_dir();
        let measure = move || Ok(measure_staged_bytes(&skills));
        let bytes = context.tasks.blocking(measure).await?;
        workspaces.set_staged(&workspace, bytes);
    }
    Ok(Some((workspace, guest)))
}
