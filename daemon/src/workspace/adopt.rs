//! What a start finds of earlier runs: records on disk, labelled containers, guests that connect again.
//! The same after a crash as after a clean stop.
//!
//! | record | container | guest | becomes |
//! |---|---|---|---|
//! | claimed | runs | answers | the workspace, as it was |
//! | claimed | runs | silent | failed: guest lost |
//! | claimed | gone or ended | – | failed: container lost |
//! | failed | any | – | failed, until its retention is over |
//! | ready, same image and sizes | runs | answers, not configured | warm |
//! | anything else | any | any | removed |
//! | none | ours by label | any | removed |

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::engine::{ContainerState, ContainerSummary};
use crate::error::{Chain, Error, Result};
use crate::guest::{Link, Socket};
use crate::pool::Pool;
use crate::workspace::actor::Adopted;
use crate::workspace::record::{Phase, Record};
use crate::workspace::slot::{self, Context};
use crate::workspace::state::Cause;
use crate::workspace::{Workspace, WorkspaceId};

/// How long a guest of before may take to connect again. It tries every 200 ms at least.
const RECONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Takes over or removes everything there is, all slots at once.
///
/// # Errors
/// When the engine does not answer or the slots cannot be listed.
pub async fn all(context: &Arc<Context>, pools: &BTreeMap<String, Arc<Pool>>) -> Result<()> {
    let containers = context.engine.list(Some(&context.instance)).await?;
    let by_id: HashMap<&str, &ContainerSummary> = containers
        .iter()
        .map(|container| (container.id.as_str(), container))
        .collect();
    let slots_dir = context.slots_dir();
    let records = context.tasks.blocking(move || read_all(&slots_dir)).await?;

    let known: Vec<&str> = records
        .iter()
        .filter_map(|record| record.container_id.as_deref())
        .collect();
    let orphans = containers
        .iter()
        .filter(|container| !known.contains(&container.id.as_str()));
    let removals = orphans.map(|container| async {
        tracing::info!(container_id = %container.id, "removing a container without a record");
        context.engine.remove(&container.id).await
    });
    futures::future::join_all(removals)
        .await
        .into_iter()
        .collect::<Result<Vec<()>>>()?;

    let finds = records.into_iter().map(|record| {
        let running = record
            .container_id
            .as_deref()
            .and_then(|id| by_id.get(id))
            .is_some_and(|found| found.running);
        async move {
            let found = find(context, pools, &record, running).await;
            (record, found)
        }
    });
    let found = futures::future::join_all(finds).await;
    for (record, found) in found {
        take_over(context, pools, record, found);
    }
    Ok(())
}

/// Records of all slots; directories without a usable one are deleted, since nothing points at them. Blocks.
fn read_all(slots_dir: &Path) -> Result<Vec<Record>> {
    let failed = |source| Error::Io {
        operation: format!("list {}", slots_dir.display()),
        source,
    };
    let mut records = Vec::new();
    for entry in std::fs::read_dir(slots_dir).map_err(failed)? {
        let dir = entry.map_err(failed)?.path();
        match Record::read(&dir) {
            Some(record) if dir.ends_with(record.number.to_string()) => records.push(record),
            _ => {
                tracing::warn!(dir = %dir.display(), "deleting a slot directory without a usable record");
                slot::erase(&dir)?;
            }
        }
    }
    Ok(records)
}

async fn find(
    context: &Arc<Context>,
    pools: &BTreeMap<String, Arc<Pool>>,
    record: &Record,
    running: bool,
) -> Adopted {
    let gone = || {
        Adopted::Lost(
            Cause::ContainerLost,
            "the container ended while skilld was away".into(),
        )
    };
    let usable = pools.get(&record.pool).is_some_and(|pool| {
        let config = pool.config();
        record.image_id == pool.image().id
            && record.limits == config.limits
            && record.oci_runtime == config.oci_runtime
    });
    match (record.phase, &record.claim) {
        (Phase::Claimed, Some(_)) if !running => gone(),
        (Phase::Claimed, Some(claim)) => match connect(context, record).await {
            Ok(link) => resume(context, link, &claim.workspace).await,
            Err(error) => Adopted::Lost(Cause::GuestLost, error.to_string()),
        },
        (Phase::Failed { cause, .. }, Some(_)) => {
            Adopted::Lost(cause, "lost before skilld was started again".into())
        }
        (Phase::Ready, None) if running && usable => match connect(context, record).await {
            // A guest that was configured belongs to a claim whose answer nobody got.
            Ok(link) if link.workspace.is_empty() => Adopted::Warm(link),
            Ok(_) => Adopted::Garbage,
            Err(error) => {
                tracing::info!(slot = record.number, error = %Chain(&error), "warm slot is not kept");
                Adopted::Garbage
            }
        },
        (
            Phase::Booting | Phase::Ready | Phase::Closing | Phase::Claimed | Phase::Failed { .. },
            _,
        ) => Adopted::Garbage,
    }
}

async fn connect(context: &Arc<Context>, record: &Record) -> Result<Link> {
    let id = record.container_id.as_deref().unwrap_or_default();
    let socket = Socket::bind(&context.slot_dir(record.number).join("run"))?;
    let pid = match context.engine.inspect(id).await? {
        Some(ContainerState {
            running: true, pid, ..
        }) => pid,
        _ => return Err(lost(record, "its container has ended")),
    };
    let expected = context.expected(record, pid);
    match tokio::time::timeout(RECONNECT_TIMEOUT, socket.accept(&expected)).await {
        Ok(link) => link,
        Err(_) => Err(lost(record, "it did not connect again")),
    }
}

/// The record may have been written and the guest not told: telling it again changes nothing.
async fn resume(context: &Context, link: Link, workspace: &str) -> Adopted {
    let mut guest = link.client.clone();
    match guest
        .configure(slot::configure_request(context, workspace))
        .await
    {
        Ok(_) => Adopted::Workspace(link),
        Err(status) => Adopted::Lost(Cause::GuestLost, status.message().to_owned()),
    }
}

fn take_over(
    context: &Context,
    pools: &BTreeMap<String, Arc<Pool>>,
    record: Record,
    found: Adopted,
) {
    // A pool that is not configured any more keeps what it has under the default pool's roof.
    let Some(pool) = pools
        .get(&record.pool)
        .or_else(|| pools.get(&context.config.default_pool))
    else {
        return;
    };
    if !context.with_numbers(|numbers| numbers.adopt(record.number)) {
        tracing::error!(
            slot = record.number,
            "slot number is out of range (engine.uid_count); not taken over"
        );
        return;
    }
    let visible = matches!(found, Adopted::Workspace(_) | Adopted::Lost(..));
    let claim = record.claim.clone().filter(|_| visible);
    tracing::info!(slot = record.number, phase = ?record.phase, visible, "taking over a slot");
    let slot = pool.adopt(record, found);
    if let Some(claim) = claim {
        let workspace = Workspace {
            id: WorkspaceId::new(claim.workspace),
            slot,
        };
        context.directory.adopt(claim.request, workspace);
    }
}

fn lost(record: &Record, why: &str) -> Error {
    Error::GuestLost {
        workspace: format!("slot {}", record.number),
        why: why.to_owned(),
    }
}
