//! Registry of pools and workspaces, which the RPCs call. Finds, lists and ends workspaces, and follows the engine's
//! events about containers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use tokio::sync::{Mutex, watch};

use crate::access::{BoundWorkspace, Caller, TenantName};
use crate::config::{PoolConfig, PullPolicy};
use crate::engine::{ContainerEventKind, Engine, EngineInfo, ImageInfo, LABEL_INSTANCE, LABEL_UID};
use crate::error::{Chain, Error, Result};
use crate::pool::{Pool, image_supply};
use crate::skills::preflight::ImageInventory;
use crate::telemetry::trace_span;
use crate::workspace::launcher::WorkspaceLauncher;
use crate::workspace::shared_slot_context::SharedSlotContext;
use crate::workspace::slot_state_machine::SlotState;
use crate::workspace::{Slot, Workspace, WorkspaceId, adopt, host_problems, reconcile};

/// Pause before the daemon subscribes to the engine's events again.
const EVENTS_RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Registry of pools and workspaces. Clones share it.
#[derive(Debug, Clone)]
pub struct WorkspaceRegistry {
    /// State that slots share.
    pub(crate) context: Arc<SharedSlotContext>,
    /// Pools by name.
    pub(crate) pools: Arc<BTreeMap<String, Arc<Pool>>>,
    /// Held while pools are closed for a removal, or opened again after it.
    drains: Arc<Mutex<()>>,
}

impl WorkspaceRegistry {
    /// Adopts or removes the slots of an earlier daemon and starts the pools. When this returns, every earlier
    /// workspace is usable or listed as failed.
    ///
    /// # Errors
    /// When the engine does not answer or the default pool's image cannot be used.
    pub async fn boot(context: Arc<SharedSlotContext>) -> Result<Self> {
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
        context.slots.avoid_uids(uids);

        let mut pools = BTreeMap::new();
        for config in &context.config.pools {
            let config = resolve_runtime(config.clone(), &context.info)?;
            let name = config.name.clone();
            pools.insert(name, start_pool(&context, config).await?);
        }
        let registry = Self {
            context: Arc::clone(&context),
            pools: Arc::new(pools),
            drains: Arc::default(),
        };
        adopt::adopt_slots(&context, &registry.pools).await?;
        registry.open_pools().await;
        let (watcher, stop) = (registry.clone(), context.tasks.stop.clone());
        let watch = async move { watcher.watch_engine().await };
        context.tasks.spawn(stop.run_until_cancelled_owned(watch));
        context
            .tasks
            .spawn(reconcile::run_reconciler(Arc::clone(&context)));
        Ok(registry)
    }

    /// Finds a pool by name; `None` means the default pool.
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

    /// Finds a pool that a caller's tenant may use; `None` means the default pool.
    ///
    /// # Errors
    /// [`Error::PoolNotFound`], also for a pool that the tenant may not use.
    pub fn granted_pool(&self, caller: &Caller, name: Option<&str>) -> Result<&Arc<Pool>> {
        let name = name.unwrap_or(&self.context.config.default_pool);
        let found = self.pools.get(name).filter(|_| caller.may_use_pool(name));
        found.ok_or_else(|| {
            let granted = self.granted_pools(caller);
            Error::PoolNotFound {
                name: name.to_owned(),
                pools: granted.map(|pool| pool.config.name.clone()).collect(),
            }
        })
    }

    /// Lists the pools that a caller's tenant may use, sorted by name.
    pub fn granted_pools(&self, caller: &Caller) -> impl Iterator<Item = &Arc<Pool>> {
        self.pools
            .values()
            .filter(|pool| caller.may_use_pool(&pool.config.name))
    }

    /// Returns the programs and packages of a pool's image if a guest has examined it, or if a warm container can be
    /// asked.
    ///
    /// # Errors
    /// As [`Self::image_inventory`].
    pub async fn image_inventory_at_once(
        &self,
        pool: &Pool,
    ) -> Result<Option<Arc<ImageInventory>>> {
        match self.context.inventories.find(pool) {
            None if pool.snapshot().warm > 0 => self.image_inventory(pool).await.map(Some),
            known => Ok(known),
        }
    }

    /// Returns the programs and packages of a pool's image.
    ///
    /// # Errors
    /// As [`crate::workspace::software_inventory_cache::SoftwareInventoryCache::find_or_ask`].
    pub async fn image_inventory(&self, pool: &Pool) -> Result<Arc<ImageInventory>> {
        let inventories = &self.context.inventories;
        inventories.find_or_ask(pool, &self.context.slots).await
    }

    /// Returns one watch per pool that is `true` while the pool can serve requests.
    pub fn pools_healthy(&self) -> Vec<watch::Receiver<bool>> {
        self.pools
            .values()
            .map(|pool| pool.is_healthy.clone())
            .collect()
    }

    /// Finds a workspace that a caller may use.
    ///
    /// # Errors
    /// [`Error::WorkspaceNotFound`], also for a workspace of another tenant and for one that a token is not bound to.
    pub fn get(&self, caller: &Caller, id: &WorkspaceId) -> Result<Workspace> {
        let found = self.context.workspaces.get(&id.of_tenant(caller.tenant()));
        found
            .filter(|workspace| may_use(caller, workspace))
            .inspect(|workspace| {
                trace_span::set_attribute("skilld.workspace", || workspace.id().name());
            })
            .ok_or_else(|| Error::WorkspaceNotFound { name: id.name() })
    }

    /// Returns `true` if the workspace to which a token of a tenant is bound has not ended.
    pub fn has_bound(&self, tenant: &TenantName, bound: &BoundWorkspace) -> bool {
        let key = WorkspaceId::new(bound.id.clone()).of_tenant(tenant);
        let found = self.context.workspaces.get(&key);
        found.is_some_and(|workspace| is_bound(bound, &workspace))
    }

    /// Lists the workspaces after an id that a caller may use, in order.
    pub fn list_after(&self, caller: &Caller, id: Option<&WorkspaceId>) -> Vec<Workspace> {
        let mut found = self.context.workspaces.list_after(caller.tenant(), id);
        found.retain(|workspace| may_use(caller, workspace));
        found
    }

    /// Lists the workspaces of all tenants, for work of the daemon itself.
    pub fn list_all(&self) -> Vec<Workspace> {
        self.context.workspaces.list_all()
    }

    /// Deletes every workspace and every warm container. Returns the number of each.
    ///
    /// # Errors
    /// The first removal that failed; [`Error::EngineUnavailable`] if a container is quarantined.
    pub async fn remove_all(&self) -> Result<(usize, usize)> {
        let _turn = self.drains.lock().await;
        for pool in self.pools.values() {
            pool.close().await;
        }
        let slots = self.context.slots.list();
        let claimed = slots
            .iter()
            .filter(|slot| slot.snapshot().record.claim.is_some())
            .count();
        let removals = slots.iter().map(Slot::delete);
        let results = futures::future::join_all(removals).await;
        results.into_iter().collect::<Result<Vec<()>>>()?;
        let stuck = host_problems::list_quarantined(&self.context);
        if !stuck.is_empty() {
            let subjects: Vec<String> = stuck.into_iter().map(|problem| problem.subject).collect();
            let names = subjects.join(", ");
            let message =
                format!("it does not remove {names}; `skillctl problems` says what to do");
            return Err(Error::EngineUnavailable { message });
        }
        adopt::remove_orphans(&self.context, &[]).await?;
        let context = &self.context;
        context
            .engine
            .remove_unused_volumes(&context.instance)
            .await?;
        Ok((claimed, slots.len() - claimed))
    }

    /// Lets all pools fill themselves: at the start, or again once a removal that runs has ended.
    pub async fn open_pools(&self) {
        let _turn = self.drains.lock().await;
        for pool in self.pools.values() {
            pool.open().await;
        }
    }

    /// Follows the engine's events. Each subscription first checks every slot for missed events. Never returns.
    async fn watch_engine(&self) {
        loop {
            if let Err(error) = self.follow_events().await {
                tracing::warn!(error = %Chain(&error), "subscription to the engine's events failed");
            }
            tokio::time::sleep(EVENTS_RETRY_INTERVAL).await;
        }
    }

    async fn follow_events(&self) -> Result<()> {
        let engine = &self.context.engine;
        let mut events = engine.events(&self.context.instance).await?;
        let running: BTreeMap<String, bool> = engine
            .list(Some(&self.context.instance))
            .await?
            .into_iter()
            .filter_map(|container| {
                container
                    .running
                    .then_some((container.id, container.paused))
            })
            .collect();
        for slot in self.context.slots.list() {
            let view = slot.snapshot();
            let id = view.record.container_id.as_ref();
            // The task of a booting slot watches its container itself.
            let settled = matches!(
                view.state,
                SlotState::Ready | SlotState::Claimed | SlotState::Quarantined
            );
            let Some(id) = id.filter(|_| settled) else {
                continue;
            };
            match running.get(id) {
                None => self.inspect_container(slot, id.clone()),
                Some(paused) => slot.container_paused(*paused),
            }
        }
        for pool in self.pools.values() {
            pool.retry_boot().await;
        }
        self.context.reconcile.notify_one();
        while let Some(event) = events.next().await {
            let event = event?;
            let member = self.context.slots.list().into_iter().find(|slot| {
                slot.snapshot().record.container_id.as_deref() == Some(event.container_id.as_str())
            });
            match (member, event.kind) {
                (Some(slot), ContainerEventKind::Died | ContainerEventKind::Removed) => {
                    self.inspect_container(slot, event.container_id);
                }
                (Some(slot), ContainerEventKind::Paused | ContainerEventKind::Unpaused) => {
                    let paused = event.kind == ContainerEventKind::Paused;
                    slot.container_paused(paused);
                }
                (slot, kind) => tracing::debug!(?kind, known = slot.is_some(), "engine event"),
            }
        }
        Ok(())
    }

    /// Inspects a container in a task of its own, because the slot's task has to serve requests meanwhile.
    fn inspect_container(&self, slot: Slot, container_id: String) {
        let engine = Arc::clone(&self.context.engine);
        let stop = self.context.tasks.stop.clone();
        self.context.tasks.spawn(async move {
            let looked = tokio::select! {
                () = stop.cancelled() => return,
                looked = engine.inspect(&container_id) => looked,
            };
            match looked {
                Ok(Some(state)) if state.running => {}
                Ok(state) => slot.container_ended(state).await,
                Err(error) => {
                    tracing::debug!(error = %Chain(&error), "container was not inspected");
                }
            }
        });
    }
}

/// Returns `true` unless the caller is bound to another workspace.
fn may_use(caller: &Caller, workspace: &Workspace) -> bool {
    let bound = caller.principal().workspace.as_ref();
    bound.is_none_or(|bound| is_bound(bound, workspace))
}

/// Returns `true` for the workspace to which a token is bound. A later one of the same name is another.
fn is_bound(bound: &BoundWorkspace, workspace: &Workspace) -> bool {
    let view = workspace.snapshot();
    let claim = view.record.claim.as_ref();
    let create_time_ms = claim.map(|claim| claim.create_time_ms);
    bound.id == workspace.id().as_str() && create_time_ms == Some(bound.create_time_ms)
}

/// Starts a pool. If the engine does not have its image, or the image cannot be used, a task goes on looking for it.
///
/// # Errors
/// When the engine does not answer, or the image of the default pool is absent and may not be pulled.
async fn start_pool(context: &Arc<SharedSlotContext>, config: PoolConfig) -> Result<Arc<Pool>> {
    let is_default = config.name == context.config.default_pool;
    let tasks = &context.tasks;
    let launcher = Arc::new(WorkspaceLauncher(Arc::clone(context)));
    let metrics = Arc::clone(&context.metrics);
    let found = find_pool_image(context.engine.as_ref(), &config, is_default).await?;
    if let Ok(image) = found {
        return Ok(Pool::start(tasks, config, image, launcher, metrics));
    }
    let pool = Pool::start_without_image(tasks, config, is_default, launcher, metrics);
    let supply = image_supply::supply_image(Arc::clone(&context.engine), Arc::clone(&pool));
    let stop = tasks.stop.clone();
    tasks.spawn(stop.run_until_cancelled_owned(supply));
    Ok(pool)
}

/// Returns the image of a pool, or the error for which the pool starts without it.
///
/// # Errors
/// When the engine does not answer, or the image of the default pool is absent and may not be pulled.
pub(crate) async fn find_pool_image(
    engine: &dyn Engine,
    config: &PoolConfig,
    is_default: bool,
) -> Result<Result<ImageInfo>> {
    match engine.check_image(&config.image).await {
        Err(error @ Error::ImageMissing { .. }) if config.pull == PullPolicy::Missing => {
            Ok(Err(error))
        }
        Err(error @ (Error::ImageMissing { .. } | Error::Image { .. })) if !is_default => {
            Ok(Err(error))
        }
        found => found.map(Ok),
    }
}

/// Sets the OCI runtime of a pool without one to the engine's default, unless that is runc. The check of a guest
/// depends on the runtime, and the engine's default may change while a container lives. An unknown runtime fails the
/// start, because every boot would fail.
///
/// # Errors
/// [`Error::Engine`] that names the registered runtimes.
pub(crate) fn resolve_runtime(mut config: PoolConfig, info: &EngineInfo) -> Result<PoolConfig> {
    let Some(runtime) = &config.oci_runtime else {
        let default = Some(info.default_runtime.as_str());
        config.oci_runtime = default
            .filter(|name| !name.is_empty() && *name != "runc")
            .map(str::to_owned);
        return Ok(config);
    };
    if info.oci_runtimes.contains(runtime) {
        return Ok(config);
    }
    let message = format!(
        "pool {name} wants {runtime}, which is not registered with it (there are {there}); register it, see \
         docs/gvisor.md, or change pools.{name}.oci_runtime",
        name = config.name,
        there = info.oci_runtimes.join(", "),
    );
    Err(Error::engine("find an OCI runtime", message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pool_without_runtime_gets_the_engine_default() {
        let defaults = crate::config::Config::from_toml("").expect("defaults");
        let pool = defaults.config.pools.first().expect("one").clone();
        let runtime = |asked: Option<&str>, default: &str| {
            let info = EngineInfo {
                oci_runtimes: vec!["runc".to_owned(), "runsc".to_owned()],
                default_runtime: default.to_owned(),
                ..EngineInfo::default()
            };
            let oci_runtime = asked.map(str::to_owned);
            let pool = PoolConfig {
                oci_runtime,
                ..pool.clone()
            };
            resolve_runtime(pool, &info).map(|pool| pool.oci_runtime)
        };
        assert_eq!(runtime(None, "runc").expect("usual"), None);
        assert_eq!(runtime(None, "").expect("unsaid"), None);
        let gvisor = Some("runsc".to_owned());
        assert_eq!(runtime(None, "runsc").expect("default"), gvisor);
        assert_eq!(runtime(Some("runsc"), "runc").expect("asked"), gvisor);
        let runc = Some("runc".to_owned());
        assert_eq!(runtime(Some("runc"), "runsc").expect("asked"), runc);
        assert!(runtime(Some("kata"), "runc").is_err());
    }
}
