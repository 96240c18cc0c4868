//! What a start finds of earlier runs: records on disk, labelled containers, guests that connect again.
//! The same after a crash as after a clean stop.
//!
//! | record | container | guest | becomes |
//! |---|---|---|---|
//! | claimed | runs | answers | the workspace, as it was |
//! | claimed | runs | silent | failed: guest lost |
//! | claimed | paused | – | the workspace, whose guest is awaited as long as a pause may last |
//! | claimed | gone or ended | – | failed: container lost |
//! | failed | any | – | failed, until its retention is over |
//! | quarantined | any | – | quarantined; the reconciler frees it once the container is gone |
//! | ready, same image and sizes | runs | answers, not configured | warm |
//! | anything else | any | any | removed |
//! | none | ours by label | any | removed |

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use skilld_proto::guest::GENERATION;

use crate::engine::{ContainerState, ContainerSummary};
use crate::error::{Chain, Error, Result};
use crate::guest::{Link, Socket};
use crate::pool::Pool;
use crate::workspace::actor::{Adopted, RECONNECT_TIMEOUT};
use crate::workspace::lease::from_unix_ms;
use crate::workspace::record::{Phase, Record};
use crate::workspace::slot::{self, Context};
use crate::workspace::state::Cause;
use crate::workspace::{Workspace, WorkspaceId};

/// A container whose making the engine was asked for before our start is complete, and can be removed, within this.
const VANISH_TIMEOUT: Duration = Duration::from_secs(5);
const VANISH_INTERVAL: Duration = Duration::from_millis(20);
/// Pause between two listings while the reconciler's own removals are waited for.
const BUSY_INTERVAL: Duration = Duration::from_millis(200);

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
    if let Err(error) = remove_others(context, &known).await {
        tracing::warn!(error = %Chain(&error), "containers without a record are removed later");
    }

    let finds = records.into_iter().map(|record| {
        let running = record
            .container_id
            .as_deref()
            .and_then(|id| by_id.get(id))
            .is_some_and(|found| found.running);
        async move {
            let found = find(context, pools, &record, running).await?;
            Ok((record, found))
        }
    });
    // One that could not be looked at is no reason to remove it: the start fails, and can be tried again.
    let found: Vec<(Record, Adopted)> = futures::future::join_all(finds)
        .await
        .into_iter()
        .collect::<Result<_>>()?;
    for (record, found) in found {
        take_over(context, pools, record, found)?;
    }
    Ok(())
}

/// Removes the instance's containers but those that are `known`. The engine lists a container that it is still making
/// before it can remove it, so this looks again until none is listed. The removals are the reconciler's, so that no more of
/// them run at once than it lets run.
///
/// # Errors
/// When the engine does not answer, when a removal fails (each container was tried once by then), or when one is still listed
/// after `engine.remove_timeout` and [`VANISH_TIMEOUT`]. The reconciler then goes on with those that are left.
pub async fn remove_others(context: &Arc<Context>, known: &[&str]) -> Result<()> {
    let limit = context.config.engine.remove_timeout + VANISH_TIMEOUT;
    let removed = tokio::time::timeout(limit, remove_until_none_is_listed(context, known)).await;
    removed.unwrap_or_else(|_| {
        Err(Error::Engine {
            operation: "remove containers",
            message: format!("some are still listed after {limit:?}"),
        })
    })
}

async fn remove_until_none_is_listed(context: &Arc<Context>, known: &[&str]) -> Result<()> {
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
        let removals = context.removals.start(context, others);
        if removals.is_empty() {
            // The reconciler is removing them already.
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

/// Records of all slots; directories without a usable one are deleted, since nothing points at them. Blocks.
fn read_all(slots_dir: &Path) -> Result<Vec<Record>> {
    let failed = |source| Error::Io {
        operation: format!("list {}", slots_dir.display()),
        source,
    };
    let mut records = Vec::new();
    for entry in std::fs::read_dir(slots_dir).map_err(failed)? {
        let dir = entry.map_err(failed)?.path();
        match Record::read(&dir)? {
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
) -> Result<Adopted> {
    let lost =
        |cause, message: &str| Ok(Adopted::Lost(cause, message.to_owned(), SystemTime::now()));
    let usable = pools.get(&record.pool).is_some_and(|pool| {
        let config = pool.config();
        record.image_id == pool.image().id
            && record.limits == config.limits
            && record.oci_runtime == config.oci_runtime
    });
    match (record.phase, &record.claim) {
        (Phase::Claimed, Some(_)) => {
            let peer = if running {
                connect(context, record).await?
            } else {
                Peer::Ended
            };
            match peer {
                Peer::Answers(link) => Ok(Adopted::Workspace(*link)),
                Peer::Paused => Ok(Adopted::Paused),
                Peer::Silent => lost(Cause::GuestLost, "the guest did not connect again"),
                Peer::Ended => lost(
                    Cause::ContainerLost,
                    "the container ended while skilld was away",
                ),
            }
        }
        (Phase::Failed { cause, time_ms }, Some(_)) => {
            let message = "lost before skilld was started again".to_owned();
            Ok(Adopted::Lost(cause, message, from_unix_ms(time_ms)))
        }
        (Phase::Ready, None) if running && usable => match connect(context, record).await? {
            // A guest that was configured belongs to a claim whose answer nobody got.
            // One from before an upgrade is replaced: a new workspace can do all that this daemon can.
            Peer::Answers(link) if link.workspace.is_empty() && link.generation == GENERATION => {
                Ok(Adopted::Warm(*link))
            }
            Peer::Answers(_) | Peer::Silent | Peer::Paused | Peer::Ended => Ok(Adopted::Garbage),
        },
        (
            Phase::Booting | Phase::Ready | Phase::Closing | Phase::Claimed | Phase::Failed { .. },
            _,
        ) => Ok(Adopted::Garbage),
        (Phase::Quarantined { .. }, _) => Ok(Adopted::Quarantined),
    }
}

/// What became of a guest of before.
enum Peer {
    Answers(Box<Link>),
    /// Its container runs, and it does not connect again.
    Silent,
    /// It cannot answer now.
    Paused,
    Ended,
}

/// The guest of a container that ran a moment ago.
async fn connect(context: &Arc<Context>, record: &Record) -> Result<Peer> {
    let id = record.container_id.as_deref().unwrap_or_default();
    let socket = Socket::bind(&context.slot_dir(record.number).join("run"))?;
    let pid = match context.engine.inspect(id).await? {
        Some(ContainerState { paused: true, .. }) => return Ok(Peer::Paused),
        Some(ContainerState {
            running: true, pid, ..
        }) => pid,
        _ => return Ok(Peer::Ended),
    };
    let expected = context.expected(record, pid).await;
    match tokio::time::timeout(RECONNECT_TIMEOUT, socket.accept(&expected)).await {
        Ok(link) => Ok(Peer::Answers(Box::new(link?))),
        Err(_) => Ok(Peer::Silent),
    }
}

fn take_over(
    context: &Context,
    pools: &BTreeMap<String, Arc<Pool>>,
    record: Record,
    found: Adopted,
) -> Result<()> {
    // A pool that is not configured any more keeps what it has under the default pool's roof.
    let pool = pools
        .get(&record.pool)
        .or_else(|| pools.get(&context.config.default_pool));
    let adopted = context.with_numbers(|numbers| {
        if record.uid != numbers.uid(record.number) {
            // From before a change of the range.
            numbers.avoid([record.uid]);
        }
        numbers.adopt(record.number)
    });
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
        Adopted::Workspace(_) | Adopted::Paused | Adopted::Lost(..)
    );
    let claim = record.claim.clone().filter(|_| visible);
    tracing::info!(slot = record.number, phase = ?record.phase, visible, "taking over a slot");
    let slot = pool.adopt(record, found);
    if let Some(claim) = claim {
        let id = WorkspaceId::new(claim.workspace);
        context
            .directory
            .adopt(claim.request, Workspace { id, slot });
    }
    Ok(())
}
