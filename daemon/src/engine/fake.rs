//! An engine without containers, for tests without Docker: one honest engine in memory, with faults on demand.
//!
//! A started container is a real guest process of the test's own user, beneath the slot's directory. It keeps the
//! engine's promises about states, labels and events; it keeps nobody in. Containers live as long as the
//! [`FakeEngine`], so a test that drops its daemon and makes another one over the same engine sees what a restart sees.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use data_encoding::HEXLOWER;
use futures::StreamExt;
use futures::stream::{self, BoxStream};
use sha2::{Digest, Sha256};
use tokio::sync::broadcast;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::{
    ContainerEvent, ContainerEventKind, ContainerSpec, ContainerState, ContainerSummary, Engine,
    EngineInfo, ImageInfo, LABEL_INSTANCE,
};
use crate::error::{Error, Result};
use state::{Container, Life, Shared, Signal};

mod process;
mod state;

/// A call to the engine, as tests name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Operation {
    /// [`Engine::describe`].
    Describe,
    /// [`Engine::ping`].
    Ping,
    /// [`Engine::image`].
    Image,
    /// [`Engine::create`].
    Create,
    /// [`Engine::start`].
    Start,
    /// [`Engine::inspect`].
    Inspect,
    /// [`Engine::remove`].
    Remove,
    /// [`Engine::list`].
    List,
    /// [`Engine::events`].
    Events,
}

/// The engine. Dropping it kills every process that it started and waits for their death.
#[derive(Debug)]
pub struct FakeEngine {
    shared: Arc<Shared>,
    tasks: TaskTracker,
}

// === impl FakeEngine ===

impl Default for FakeEngine {
    fn default() -> Self {
        Self::new()
    }
}

impl FakeEngine {
    /// An engine that has every image and no container.
    #[must_use]
    pub fn new() -> Self {
        Self {
            shared: Arc::new(Shared::new()),
            tasks: TaskTracker::new(),
        }
    }

    /// The next call of this kind answers `error` and does nothing. Several are answered one after the other.
    pub fn fail_next(&self, operation: Operation, error: Error) {
        self.shared
            .state()
            .faults
            .entry(operation)
            .or_default()
            .push_back(error);
    }

    /// While true every call answers `EngineUnavailable`; setting it ends the event streams with that error.
    /// Containers go on, as they do when Docker restarts with live-restore.
    pub fn unavailable(&self, unavailable: bool) {
        self.shared.state().unavailable = unavailable;
        if unavailable {
            self.shared.send(Signal::Gone);
        }
    }

    /// Every later call of this kind takes this long before it does anything; zero ends that.
    pub fn delay(&self, operation: Operation, delay: Duration) {
        self.shared.state().delays.insert(operation, delay);
    }

    /// The next creations answer `EngineUnavailable`, and are carried out by [`Self::carry_out_lost_creations`].
    pub fn lose_creations(&self, count: usize) {
        self.shared.state().creations_to_lose = count;
    }

    /// Creations whose answer was lost and that were not carried out yet.
    #[must_use]
    pub fn lost_creations(&self) -> usize {
        self.shared.state().lost_creations.len()
    }

    /// Carries out what was lost, as a Docker does that hung. Answers with the ids of the containers.
    pub fn carry_out_lost_creations(&self) -> Vec<String> {
        let mut state = self.shared.state();
        let lost = std::mem::take(&mut state.lost_creations);
        lost.into_iter().map(|spec| state.add(spec)).collect()
    }

    /// Containers started from now on run but have no guest: nobody ever connects.
    pub fn start_without_guest(&self) {
        self.shared.state().without_guest = true;
    }

    /// Containers started from now on have a guest again.
    pub fn start_with_guest(&self) {
        self.shared.state().without_guest = false;
    }

    /// Calls of this kind so far, failed ones included.
    #[must_use]
    pub fn calls(&self, operation: Operation) -> usize {
        self.shared
            .state()
            .calls
            .get(&operation)
            .copied()
            .unwrap_or(0)
    }

    /// Largest number of calls of this kind that were delayed at the same time.
    #[must_use]
    pub fn max_calls_in_flight(&self, operation: Operation) -> usize {
        let state = self.shared.state();
        let calls = state.in_flight.get(&operation);
        calls.map_or(0, |calls| calls.max)
    }

    /// Ids of all containers, oldest first.
    #[must_use]
    pub fn containers(&self) -> Vec<String> {
        self.shared.state().containers.keys().cloned().collect()
    }

    /// Kills a container's process, as an out-of-memory kill or `docker kill` would, and answers when it has ended.
    /// Nothing happens to one that does not run.
    pub async fn kill(&self, container_id: &str) {
        let life = self
            .shared
            .state()
            .containers
            .get(container_id)
            .map(|container| container.life.clone());
        let Some(Life::Running { pid, ended }) = life else {
            return;
        };
        if pid == 0 {
            self.shared.ended(container_id, process::EXIT_KILLED);
        } else {
            process::kill_tree(pid);
            ended.cancelled().await;
        }
    }

    /// What every call begins with.
    async fn enter(&self, operation: Operation) -> Result<()> {
        let delay = {
            let mut state = self.shared.state();
            *state.calls.entry(operation).or_default() += 1;
            state.delays.get(&operation).copied().unwrap_or_default()
        };
        if !delay.is_zero() {
            let _in_flight = self.shared.begin_call(operation);
            tokio::time::sleep(delay).await;
        }
        let mut state = self.shared.state();
        if state.unavailable {
            return Err(gone());
        }
        match state
            .faults
            .get_mut(&operation)
            .and_then(VecDeque::pop_front)
        {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }
}

impl Drop for FakeEngine {
    fn drop(&mut self) {
        let running: Vec<i32> = self
            .shared
            .state()
            .containers
            .values()
            .filter_map(|container| {
                if let Life::Running { pid, .. } = container.life {
                    Some(pid).filter(|pid| *pid > 0)
                } else {
                    None
                }
            })
            .collect();
        for pid in &running {
            process::kill_tree(*pid);
        }
        for pid in running {
            process::wait_dead(pid);
        }
    }
}

/// Owns a guest's process until its end.
async fn watch(
    shared: Arc<Shared>,
    container_id: String,
    mut guest: process::Guest,
    ended: CancellationToken,
) {
    let exit_code = guest.ended().await;
    shared.ended(&container_id, exit_code);
    ended.cancel();
}

fn gone() -> Error {
    Error::EngineUnavailable {
        message: "the fake engine was told to be unavailable".to_owned(),
    }
}

fn refuse(operation: &'static str, message: String) -> Error {
    Error::Engine { operation, message }
}

#[tonic::async_trait]
impl Engine for FakeEngine {
    async fn describe(&self) -> Result<EngineInfo> {
        self.enter(Operation::Describe).await?;
        Ok(EngineInfo {
            name: "fake".to_owned(),
            version: "1".to_owned(),
            api_version: "1".to_owned(),
            cgroup_version: 2,
            oci_runtimes: vec!["runc".to_owned()],
            default_runtime: "runc".to_owned(),
            apparmor: false,
            // Its processes have the test's own uid.
            userns_remap: true,
            cpu_quota: true,
        })
    }

    async fn ping(&self) -> Result<()> {
        self.enter(Operation::Ping).await
    }

    async fn image(&self, reference: &str) -> Result<ImageInfo> {
        self.enter(Operation::Image).await?;
        let digest = Sha256::digest(reference);
        let id = format!("sha256:{}", HEXLOWER.encode(&digest));
        Ok(ImageInfo {
            reference: reference.to_owned(),
            id,
        })
    }

    async fn create(&self, spec: &ContainerSpec) -> Result<String> {
        self.enter(Operation::Create).await?;
        for source in ["run", "skills", "passwd", "group"] {
            let path = spec.slot_dir.join(source);
            if !path.exists() {
                let message = format!("bind source path does not exist: {}", path.display());
                return Err(refuse("create container", message));
            }
        }
        let mut state = self.shared.state();
        if state
            .containers
            .values()
            .any(|other| other.spec.name == spec.name)
        {
            let message = format!("the name {} is in use", spec.name);
            return Err(refuse("create container", message));
        }
        if state.creations_to_lose > 0 {
            state.creations_to_lose -= 1;
            state.lost_creations.push(spec.clone());
            return Err(gone());
        }
        Ok(state.add(spec.clone()))
    }

    async fn start(&self, container_id: &str) -> Result<()> {
        self.enter(Operation::Start).await?;
        let missing = || {
            refuse(
                "start container",
                format!("no such container: {container_id}"),
            )
        };
        let (spec, without_guest) = {
            let state = self.shared.state();
            let container = state.containers.get(container_id).ok_or_else(missing)?;
            if matches!(container.life, Life::Running { .. }) {
                return Ok(());
            }
            (container.spec.clone(), state.without_guest)
        };
        let guest = match without_guest {
            true => None,
            false => Some(process::spawn(&spec).await?),
        };
        let pid = guest.as_ref().and_then(process::Guest::pid).unwrap_or(0);
        let ended = CancellationToken::new();
        let mut state = self.shared.state();
        // Removed meanwhile: the guest dies with this call.
        let container = state.containers.get_mut(container_id).ok_or_else(missing)?;
        container.life = Life::Running {
            pid,
            ended: ended.clone(),
        };
        if let Some(guest) = guest {
            let shared = Arc::clone(&self.shared);
            self.tasks
                .spawn(watch(shared, container_id.to_owned(), guest, ended));
        }
        Ok(())
    }

    async fn inspect(&self, container_id: &str) -> Result<Option<ContainerState>> {
        self.enter(Operation::Inspect).await?;
        let state = self.shared.state();
        Ok(state.containers.get(container_id).map(|container| {
            let (running, pid, exit_code) = match container.life {
                Life::Created => (false, 0, 0),
                Life::Running { pid, .. } => (true, pid, 0),
                Life::Ended { exit_code } => (false, 0, exit_code),
            };
            ContainerState {
                running,
                paused: false,
                pid,
                oom_killed: false,
                exit_code,
            }
        }))
    }

    async fn remove(&self, container_id: &str) -> Result<()> {
        self.enter(Operation::Remove).await?;
        self.kill(container_id).await;
        let removed = self.shared.state().containers.remove(container_id);
        if let Some(container) = removed {
            self.shared
                .tell(container_id, &container.spec, ContainerEventKind::Removed);
        }
        Ok(())
    }

    async fn list(&self, instance: Option<&str>) -> Result<Vec<ContainerSummary>> {
        self.enter(Operation::List).await?;
        let state = self.shared.state();
        let owned = |container: &Container| {
            let owner = container.spec.labels.get(LABEL_INSTANCE);
            owner.is_some_and(|owner| instance.is_none_or(|instance| instance == owner))
        };
        Ok(state
            .containers
            .iter()
            .filter(|(_, container)| owned(container))
            .map(|(id, container)| ContainerSummary {
                id: id.clone(),
                running: matches!(container.life, Life::Running { .. }),
                paused: false,
                labels: container.spec.labels.clone(),
            })
            .collect())
    }

    async fn events(&self, instance: &str) -> Result<BoxStream<'static, Result<ContainerEvent>>> {
        // Before the first wait: "from now on" is from the call.
        let signals = self.shared.signals.subscribe();
        self.enter(Operation::Events).await?;
        let instance = instance.to_owned();
        let next = |signals: Option<broadcast::Receiver<Signal>>| async move {
            let mut signals = signals?;
            match signals.recv().await {
                Ok(Signal::Event { instance, event }) => {
                    Some((Ok((instance, event)), Some(signals)))
                }
                Ok(Signal::Gone) | Err(_) => Some((Err(gone()), None)),
            }
        };
        let events = stream::unfold(Some(signals), next).filter_map(move |answer| {
            let mine = match answer {
                Ok((owner, event)) => (owner == instance).then_some(Ok(event)),
                Err(error) => Some(Err(error)),
            };
            futures::future::ready(mine)
        });
        Ok(events.boxed())
    }
}

#[cfg(test)]
mod tests;
