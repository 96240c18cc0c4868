//! Creation of workspaces from requests.
//!
//! Of a request and its retries one creates the workspace and the others wait for it. The creation runs in a task of
//! its own: a caller that goes away ends the wait for a slot, but cannot leave a slot half claimed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use skilld_common::unix_time::unix_ms;
use tokio::sync::oneshot;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::access::{TenantLimits, TenantName};
use crate::config::{PoolConfig, WorkspaceStorage};
use crate::engine::ContainerLimits;
use crate::engine::workspace_disk::{self, DiskGeometry};
use crate::error::{Chain, Error, Result};
use crate::fault;
use crate::pool::{Pool, TenantShare};
use crate::shutdown::RefusedWork;
use crate::telemetry::trace_span::{in_child_span, set_attribute, with_current_trace};
use crate::workspace::record::{SetupRecord, WorkspaceClaim};
use crate::workspace::registry::WorkspaceRegistry;
use crate::workspace::slot_disk;
use crate::workspace::slot_state_machine::SlotState;
use crate::workspace::slot_table::SlotTable;
use crate::workspace::workspace_table::{EntryOutcome, NewEntry, NewEntryGuard};
use crate::workspace::{Workspace, WorkspaceId};

/// Validated request for a workspace.
#[derive(Debug, Clone)]
pub struct WorkspaceRequest {
    /// Tenant of the workspace.
    pub tenant: TenantName,
    /// Id of the principal that creates it.
    pub creator: String,
    /// Quotas of the tenant.
    pub quotas: TenantLimits,
    /// Id, chosen by the client or by the daemon.
    pub id: WorkspaceId,
    /// The client chose the id, so it can find the workspace after a lost answer.
    pub named: bool,
    /// Digest that a request shares with its retries and with no other request.
    pub request: String,
    /// Name of the pool; `None` means the default one.
    pub pool: Option<String>,
    /// Labels of the workspace.
    pub labels: BTreeMap<String, String>,
    /// Environment variables of every exec.
    pub env: BTreeMap<String, String>,
    /// Effective idle timeout.
    pub idle_timeout: Duration,
    /// Effective lifetime, counted from now.
    pub lifetime: Duration,
    /// Requested limits; zero means the pool's.
    pub limits: ContainerLimits,
    /// Returns an existing workspace with this id, even if another request created it.
    pub allow_existing: bool,
}

impl WorkspaceRegistry {
    /// Claims a warm slot of a pool, or finds the workspace that an earlier try of this request created.
    ///
    /// # Errors
    /// The errors of the RPC CreateWorkspace.
    pub async fn create(&self, pool: Arc<Pool>, create: WorkspaceRequest) -> Result<Workspace> {
        let limits = effective_limits(create.limits, &pool.config)?;
        let context = &self.context;
        let max = context.config.workspaces.workspaces_max;
        let key = create.id.of_tenant(&create.tenant);
        set_attribute("skilld.workspace", || create.id.name());
        loop {
            if context.tasks.refuses(RefusedWork::Workspaces) {
                return Err(Error::Draining);
            }
            let new = NewEntry {
                request: &create.request,
                limits,
                quotas: &create.quotas,
            };
            let entry = match context.workspaces.enter(&key, new, max)? {
                EntryOutcome::New(creation) => {
                    let claim = self.start(pool, create, limits, creation);
                    return in_child_span("claim", claim).await;
                }
                EntryOutcome::Existing(entry) => entry,
            };
            let ending = entry.workspace().filter(|there| {
                matches!(
                    there.snapshot().state,
                    SlotState::Closing | SlotState::Quarantined | SlotState::Removed
                )
            });
            if let Some(there) = ending {
                // The name becomes free in a moment, unless the engine is away.
                let timeout = pool.config.claim_timeout;
                if tokio::time::timeout(timeout, there.wait_until_removed())
                    .await
                    .is_err()
                {
                    let (name, state) = (create.id.name(), "closing".to_owned());
                    return Err(Error::WorkspaceNotReady { name, state });
                }
                continue;
            }
            if entry.request != create.request && !create.allow_existing {
                return Err(Error::IdTaken {
                    name: create.id.name(),
                });
            }
            if let Some(made) = entry.wait_until_created().await {
                return Ok(made);
            }
            // The other request gave up, so this one tries.
        }
    }

    async fn start(
        &self,
        pool: Arc<Pool>,
        create: WorkspaceRequest,
        limits: ContainerLimits,
        creation: NewEntryGuard,
    ) -> Result<Workspace> {
        let (answer, result) = oneshot::channel();
        let (id, pool_name) = (create.id.clone(), pool.config.name.clone());
        let gone = CancellationToken::new();
        let caller = gone.clone().drop_guard();
        let context = Arc::clone(&self.context);
        self.context.tasks.spawn(with_current_trace(async move {
            fault::reach("claim.entered");
            let made = claim_slot(&context.slots, &pool, &create, limits, &gone).await;
            if let Ok(workspace) = &made {
                creation.finish(workspace);
                fault::reach("claim.listed");
            } else {
                drop(creation);
            }
            if let Err(Ok(workspace)) = answer.send(made)
                && !create.named
            {
                // The client did not learn the name, so no call can reach the workspace.
                tracing::info!(workspace_id = %workspace.id(), "deleting a workspace whose caller went away");
                if let Err(error) = workspace.delete().await {
                    tracing::warn!(error = %Chain(&error), "workspace is removed later");
                }
            }
        }));
        let made = result
            .await
            .map_err(|_| Error::Internal("creation ended without an answer".into()))?;
        drop(caller);
        match &made {
            Ok(_) => tracing::info!(workspace_id = %id, pool = pool_name, "workspace created"),
            Err(error) => {
                tracing::info!(workspace_id = %id, pool = pool_name, error = %Chain(error), "workspace not created");
            }
        }
        made
    }
}

/// Reserves and claims slots until one of them was still alive.
async fn claim_slot(
    slots: &SlotTable,
    pool: &Arc<Pool>,
    create: &WorkspaceRequest,
    limits: ContainerLimits,
    gone: &CancellationToken,
) -> Result<Workspace> {
    let share = TenantShare {
        tenant: create.tenant.clone(),
        weight: create.quotas.weight,
    };
    let start = Instant::now();
    loop {
        let reservation = tokio::select! {
            reservation = in_child_span("wait for container", pool.claim_for(share.clone(), limits)) => reservation?,
            () = gone.cancelled() => return Err(Error::deadline("waiting for a container")),
        };
        let Ok(slot) = slots.reserved(&reservation) else {
            continue;
        };
        fault::reach("claim.reserved");
        let source = reservation.source;
        let claimed = slot.claim(new_claim(create)).await;
        if claimed.is_err() && slot.snapshot().state == SlotState::Ready {
            // The host's disk failed, not the container: the slot returns to its pool.
            drop(reservation);
        } else {
            reservation.keep();
            if let Err(error) = &claimed {
                tracing::info!(workspace_id = %create.id, error = %Chain(error), "slot was lost at its claim");
                if let Err(error) = slot.delete().await {
                    tracing::warn!(slot = slot.number, error = %Chain(&error), "workspace is removed later");
                }
            }
        }
        match claimed {
            Err(Error::WorkspaceNotReady { .. } | Error::GuestLost { .. }) => {}
            claimed => {
                if claimed.is_ok() {
                    let metrics = &pool.metrics;
                    metrics.observe_claim(&pool.config.name, source, start.elapsed());
                }
                return claimed;
            }
        }
    }
}

fn new_claim(create: &WorkspaceRequest) -> WorkspaceClaim {
    let now = SystemTime::now();
    WorkspaceClaim {
        tenant: create.tenant.clone(),
        creator: create.creator.clone(),
        workspace: create.id.as_str().to_owned(),
        request: create.request.clone(),
        labels: create.labels.clone(),
        env: create.env.clone(),
        create_time_ms: unix_ms(now),
        idle_timeout_ms: u64::try_from(create.idle_timeout.as_millis()).unwrap_or(u64::MAX),
        end_time_ms: unix_ms(now + create.lifetime),
        skills: BTreeMap::new(),
        inputs: Vec::new(),
        setup: SetupRecord::default(),
    }
}

/// Merges requested limits into the pool's. They may only be smaller, because the host was sized for the pool's.
fn effective_limits(asked: ContainerLimits, config: &PoolConfig) -> Result<ContainerLimits> {
    let pool = config.limits();
    let pick = |field: &str, asked: u64, pool: u64| match asked {
        0 => Ok(pool),
        _ if asked <= pool => Ok(asked),
        _ => Err(Error::LimitUnsupported {
            field: format!("limits.{field}"),
            why: format!("the pool's limit is {pool}, asked for is {asked}"),
        }),
    };
    let mut limits = ContainerLimits {
        memory_bytes: pick("memory_bytes", asked.memory_bytes, pool.memory_bytes)?,
        cpu_millis: pick("cpu_millis", asked.cpu_millis, pool.cpu_millis)?,
        pids: pick("pids", asked.pids, pool.pids)?,
        disk_bytes: pick("disk_bytes", asked.disk_bytes, pool.disk_bytes)?,
        inodes: pick("inodes", asked.inodes, pool.inodes)?,
    };
    if config.storage == WorkspaceStorage::Disk {
        if asked.inodes == 0 {
            // Without a number in the request, a smaller disk has as many as fit it.
            limits.inodes = limits
                .inodes
                .min(workspace_disk::inodes_max(limits.disk_bytes));
        }
        let geometry = DiskGeometry::fit(limits.disk_bytes, limits.inodes);
        return geometry
            .map(|_| limits)
            .map_err(|fault| slot_disk::limit_error(&fault));
    }
    if limits.disk_bytes >= limits.memory_bytes {
        // The workspace counts in the memory. A larger one could not be filled without the kernel killing the writer.
        return Err(Error::LimitUnsupported {
            field: "limits.disk_bytes".to_owned(),
            why: format!(
                "the workspace counts in its memory, so {} bytes of disk need more than {} bytes of memory: request \
                 less disk or more memory",
                limits.disk_bytes, limits.memory_bytes
            ),
        });
    }
    Ok(limits)
}
