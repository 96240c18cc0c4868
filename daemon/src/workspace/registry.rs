//! The front of pools and workspaces: what the rpcs call. Creates, finds, lists and ends workspaces, and
//! listens to what the engine says about containers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use futures::StreamExt;
use tokio::sync::watch;

use crate::config::PoolConfig;
use crate::engine::{ContainerEventKind, EngineInfo, LABEL_INSTANCE, LABEL_UID, Limits};
use crate::error::{Chain, Error, Result};
use crate::pool::{Pool, Reserved};
use crate::workspace::lease::unix_ms;
use crate::workspace::record::Claim;
use crate::workspace::slot::Context;
use crate::workspace::state::State;
use crate::workspace::{Slot, Workspace, WorkspaceId, adopt};

/// Between tries to hear the engine's events again.
const EVENTS_RETRY: Duration = Duration::from_secs(1);

/// A checked request for a workspace.
#[derive(Debug, Clone)]
pub struct Create {
    /// Chosen by the client or made by the server.
    pub id: WorkspaceId,
    /// Digest of the request, in hex: equal requests have equal ones.
    pub request: String,
    /// Name of the pool; `None` means the default one.
    pub pool: Option<String>,
    /// As given.
    pub labels: BTreeMap<String, String>,
    /// For every exec.
    pub env: BTreeMap<String, String>,
    /// Effective.
    pub idle_timeout: Duration,
    /// Effective, from now.
    pub lifetime: Duration,
    /// Asked for; zero means the pool's.
    pub limits: Limits,
    /// Return what has this id, whoever made it.
    pub allow_existing: bool,
}

/// Pools and workspaces. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Registry {
    context: Arc<Context>,
    pools: Arc<BTreeMap<String, Arc<Pool>>>,
}

impl Registry {
    /// Finds out what is left of earlier runs, takes it over or removes it, and starts the pools. When this returns,
    /// every workspace of before is either usable or listed as failed.
    ///
    /// # Errors
    /// When the engine does not answer or a pool's image cannot be used.
    pub async fn boot(context: Arc<Context>) -> Result<Self> {
        let all = context.engine.list(None).await?;
        let foreign = all.iter().filter(|container| {
            container
                .labels
                .get(LABEL_INSTANCE)
                .is_none_or(|instance| *instance != context.instance)
        });
        let uids: Vec<u32> = foreign
            .filter_map(|container| container.labels.get(LABEL_UID)?.parse().ok())
            .collect();
        context.with_numbers(|numbers| numbers.avoid(uids));

        let mut pools = BTreeMap::new();
        for config in &context.config.pools {
            check_runtime(config, &context.info)?;
            let image = context.engine.image(&config.image).await?;
            pools.insert(
                config.name.clone(),
                Pool::new(Arc::clone(&context), config.clone(), image),
            );
        }
        let registry = Self {
            context: Arc::clone(&context),
            pools: Arc::new(pools),
        };
        adopt::all(&context, &registry.pools).await?;
        for pool in registry.pools.values() {
            pool.fill();
        }
        let watcher = registry.clone();
        context
            .tasks
            .spawn(async move { watcher.watch_engine().await });
        Ok(registry)
    }

    /// What slots share.
    #[must_use]
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Pools by name.
    #[must_use]
    pub fn pools(&self) -> &BTreeMap<String, Arc<Pool>> {
        &self.pools
    }

    /// One pool; the default one for no name.
    ///
    /// # Errors
    /// [`Error::PoolNotFound`].
    pub fn pool(&self, name: Option<&str>) -> Result<&Arc<Pool>> {
        let name = name.unwrap_or(&self.context.config.default_pool);
        self.pools.get(name).ok_or_else(|| Error::PoolNotFound {
            name: name.to_owned(),
            pools: self.pools.keys().cloned().collect(),
        })
    }

    /// For health: one receiver per pool.
    #[must_use]
    pub fn healthy(&self) -> Vec<watch::Receiver<bool>> {
        self.pools.values().map(|pool| pool.healthy()).collect()
    }

    /// Claims a warm slot, or finds the workspace that an equal request made.
    ///
    /// # Errors
    /// As `CreateWorkspace` says.
    pub async fn create(&self, create: Create) -> Result<Workspace> {
        if self.context.tasks.drain.is_cancelled() {
            return Err(Error::Draining);
        }
        let pool = Arc::clone(self.pool(create.pool.as_deref())?);
        let limits = effective(create.limits, pool.config().limits)?;
        let max = self.context.config.workspaces.workspaces_max;
        loop {
            let entry = self
                .context
                .directory
                .enter(&create.id, &create.request, max)?;
            let ending = entry
                .workspace
                .get()
                .filter(|there| matches!(there.view().state, State::Closing | State::Removed));
            if let Some(there) = ending {
                // Its name is free in a moment.
                there.removed().await;
                continue;
            }
            if entry.request != create.request && !create.allow_existing {
                return Err(Error::IdTaken {
                    name: create.id.name(),
                });
            }
            let made = entry
                .workspace
                .get_or_try_init(|| self.make(Arc::clone(&pool), &create, limits))
                .await
                .cloned();
            if made.is_err() {
                self.context.directory.leave(&create.id, &entry);
            }
            return made;
        }
    }

    /// Claims slots until one was still alive.
    async fn make(&self, pool: Arc<Pool>, create: &Create, limits: Limits) -> Result<Workspace> {
        loop {
            let reserved = if limits == pool.config().limits {
                pool.claim().await?
            } else {
                pool.claim_sized(limits).await?
            };
            match self.commit(reserved, claim(create)).await {
                Err(Error::WorkspaceNotReady { .. } | Error::GuestLost { .. }) => {
                    tracing::info!(workspace_id = %create.id, "warm slot was lost before its claim; taking another");
                }
                other => return other,
            }
        }
    }

    /// The claim itself runs to its end even if the caller goes away: half a claim would be nobody's.
    async fn commit(&self, reserved: Reserved, claim: Claim) -> Result<Workspace> {
        let slot = reserved.take()?;
        let claiming = self.context.tasks.spawn(async move {
            let claimed = slot.claim(claim).await;
            if claimed.is_err() {
                discard(&slot).await;
            }
            claimed
        });
        claiming
            .await
            .map_err(|error| Error::Internal(format!("claim: {error}")))?
    }

    /// Finds a workspace.
    ///
    /// # Errors
    /// [`Error::WorkspaceNotFound`].
    pub fn get(&self, id: &WorkspaceId) -> Result<Workspace> {
        self.context
            .directory
            .get(id)
            .ok_or_else(|| Error::WorkspaceNotFound { name: id.name() })
    }

    /// All workspaces after an id, in order.
    #[must_use]
    pub fn list_after(&self, id: Option<&WorkspaceId>) -> Vec<Workspace> {
        self.context.directory.after(id)
    }

    /// Deletes every workspace and every warm container, and answers with how many of each there were.
    ///
    /// # Errors
    /// The first that could not be removed.
    pub async fn remove_all(&self) -> Result<(usize, usize)> {
        let slots: Vec<Slot> = self.pools.values().flat_map(|pool| pool.close()).collect();
        let claimed = slots
            .iter()
            .filter(|slot| slot.view().record.claim.is_some())
            .count();
        let removals = slots.iter().map(Slot::delete);
        let results = futures::future::join_all(removals).await;
        results.into_iter().collect::<Result<Vec<()>>>()?;
        Ok((claimed, slots.len() - claimed))
    }

    /// Follows the engine's events for as long as the daemon runs. What happened while nobody listened is found by
    /// looking at every slot.
    async fn watch_engine(&self) {
        let stop = self.context.tasks.stop.clone();
        loop {
            let followed = tokio::select! {
                () = stop.cancelled() => return,
                followed = self.follow_events() => followed,
            };
            if let Err(error) = followed {
                tracing::warn!(error = %Chain(&error), "engine's events are not heard");
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(EVENTS_RETRY) => {}
            }
        }
    }

    async fn follow_events(&self) -> Result<()> {
        let mut events = self.context.engine.events(&self.context.instance).await?;
        for slot in self.slots() {
            slot.check();
        }
        for pool in self.pools.values() {
            pool.retry_now();
        }
        while let Some(event) = events.next().await {
            let event = event?;
            let member = self.slots().find(|slot| {
                slot.view().record.container_id.as_deref() == Some(event.container_id.as_str())
            });
            match (member, event.kind) {
                (Some(slot), ContainerEventKind::Died | ContainerEventKind::Removed) => {
                    slot.check();
                }
                (slot, kind) => tracing::debug!(?kind, known = slot.is_some(), "engine event"),
            }
        }
        Ok(())
    }

    fn slots(&self) -> impl Iterator<Item = Slot> {
        self.pools.values().flat_map(|pool| pool.slots())
    }
}

/// A pool whose runtime the engine does not have would try in vain for ever.
fn check_runtime(config: &PoolConfig, info: &EngineInfo) -> Result<()> {
    let Some(runtime) = &config.oci_runtime else {
        return Ok(());
    };
    if info.oci_runtimes.contains(runtime) {
        return Ok(());
    }
    Err(Error::Engine {
        operation: "find an OCI runtime",
        message: format!(
            "pool {name} wants {runtime}, which is not registered with it (there are {there}); register it, see \
             docs/operations.md, or change pools.{name}.oci_runtime",
            name = config.name,
            there = info.oci_runtimes.join(", "),
        ),
    })
}

/// Removes a slot that was claimed in vain.
async fn discard(slot: &Slot) {
    if let Err(error) = slot.delete().await {
        tracing::warn!(slot = slot.number(), error = %Chain(&error), "slot claimed in vain goes later");
    }
}

fn claim(create: &Create) -> Claim {
    let now = SystemTime::now();
    Claim {
        workspace: create.id.as_str().to_owned(),
        request: create.request.clone(),
        labels: create.labels.clone(),
        env: create.env.clone(),
        create_time_ms: unix_ms(now),
        idle_timeout_ms: u64::try_from(create.idle_timeout.as_millis()).unwrap_or(u64::MAX),
        end_time_ms: unix_ms(now + create.lifetime),
        skills: BTreeMap::new(),
    }
}

/// The pool's limits with those of the request in their place. Only smaller ones can be enforced: the pool's are what
/// the host was planned for.
fn effective(asked: Limits, pool: Limits) -> Result<Limits> {
    let pick = |field: &str, asked: u64, pool: u64| match asked {
        0 => Ok(pool),
        _ if asked <= pool => Ok(asked),
        _ => Err(Error::LimitUnsupported {
            field: format!("limits.{field}"),
            why: format!("the pool's limit is {pool}, asked for is {asked}"),
        }),
    };
    Ok(Limits {
        memory_bytes: pick("memory_bytes", asked.memory_bytes, pool.memory_bytes)?,
        cpu_millis: pick("cpu_millis", asked.cpu_millis, pool.cpu_millis)?,
        pids: pick("pids", asked.pids, pool.pids)?,
        disk_bytes: pick("disk_bytes", asked.disk_bytes, pool.disk_bytes)?,
        inodes: pick("inodes", asked.inodes, pool.inodes)?,
    })
}
