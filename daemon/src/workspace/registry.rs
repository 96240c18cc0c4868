//! The front of pools and workspaces: what the rpcs call. Creates, finds, lists and ends workspaces, and
//! listens to what the engine says about containers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use tokio::sync::watch;

use crate::config::PoolConfig;
use crate::engine::{ContainerEventKind, EngineInfo, LABEL_INSTANCE, LABEL_UID};
use crate::error::{Chain, Error, Result};
use crate::pool::Pool;
use crate::workspace::slot::Context;
use crate::workspace::state::State;
use crate::workspace::{Slot, Workspace, WorkspaceId, adopt, problems, reconcile};

/// Between tries to hear the engine's events again.
const EVENTS_RETRY: Duration = Duration::from_secs(1);

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
            let config = with_runtime(config.clone(), &context.info)?;
            let image = context.engine.image(&config.image).await?;
            let name = config.name.clone();
            pools.insert(name, Pool::new(Arc::clone(&context), config, image));
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
        context.tasks.spawn(reconcile::run(registry.clone()));
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
    /// The first that could not be removed, quarantined ones included.
    pub async fn remove_all(&self) -> Result<(usize, usize)> {
        let slots: Vec<Slot> = self.pools.values().flat_map(|pool| pool.close()).collect();
        let claimed = slots
            .iter()
            .filter(|slot| slot.view().record.claim.is_some())
            .count();
        let removals = slots.iter().map(Slot::delete);
        let results = futures::future::join_all(removals).await;
        results.into_iter().collect::<Result<Vec<()>>>()?;
        let stuck = problems::quarantined(self);
        if !stuck.is_empty() {
            let names: Vec<String> = stuck.into_iter().map(|problem| problem.subject).collect();
            let names = names.join(", ");
            let message =
                format!("it does not remove {names}; `skillctl problems` says what to do");
            return Err(Error::EngineUnavailable { message });
        }
        adopt::remove_others(&self.context, &[]).await?;
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
        for slot in self.slots() {
            let view = slot.view();
            let id = view.record.container_id.as_ref();
            // A slot that boots has its own eye on its container.
            let settled = matches!(
                view.state,
                State::Ready | State::Claimed | State::Quarantined
            );
            let Some(id) = id.filter(|_| settled) else {
                continue;
            };
            match running.get(id) {
                None => self.look(slot, id.clone()),
                Some(paused) => slot.container_paused(*paused),
            }
        }
        for pool in self.pools.values() {
            pool.retry_now();
        }
        self.context.reconcile.notify_one();
        while let Some(event) = events.next().await {
            let event = event?;
            let member = self.slots().find(|slot| {
                slot.view().record.container_id.as_deref() == Some(event.container_id.as_str())
            });
            match (member, event.kind) {
                (Some(slot), ContainerEventKind::Died | ContainerEventKind::Removed) => {
                    self.look(slot, event.container_id);
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

    /// Asks the engine how a container is, in a task of its own: the slot's task serves requests meanwhile.
    fn look(&self, slot: Slot, container_id: String) {
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
                Err(error) => tracing::debug!(error = %Chain(&error), "engine does not say how a container is"),
            }
        });
    }

    /// Every slot of every pool.
    pub(super) fn slots(&self) -> impl Iterator<Item = Slot> {
        self.pools.values().flat_map(|pool| pool.slots())
    }
}

/// Names the runtime that a pool leaves to the engine, unless that is runc: what is expected of a container differs, and
/// the engine's default may change while one lives. A pool whose runtime the engine does not have would try in vain for
/// ever.
fn with_runtime(mut config: PoolConfig, info: &EngineInfo) -> Result<PoolConfig> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_engine_wide_default_runtime_is_the_pools() {
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
            with_runtime(pool, &info).map(|pool| pool.oci_runtime)
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
