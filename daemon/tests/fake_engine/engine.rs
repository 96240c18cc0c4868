//! Container engine in memory, for tests without Docker, with faults that tests can inject.
//!
//! A started container is a real guest process of the test's user, with its files in the slot's directory. The engine
//! keeps the promises about states, labels and events, but isolates nothing. Containers live as long as the
//! [`FakeEngine`]: a test that starts a second daemon over the same engine sees what a restarted daemon sees.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::{self, BoxStream};
use tokio::sync::{broadcast, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::image_reference::ImageReference;
use super::{
    ContainerEvent, ContainerEventKind, ContainerSpec, ContainerState, ContainerSummary, Engine,
    EngineInfo, ImageInfo, LABEL_INSTANCE, PullProgress,
};
use crate::error::{Error, Result};
use state::{ContainerLife, FakeContainer, SharedState, SubscriberMessage};

mod images;
mod process;
mod state;

pub use images::HELD_PULL_PROGRESS;

/// Kind of engine call that tests can delay, count or let fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EngineOperation {
    /// Call of [`Engine::describe`].
    Describe,
    /// Call of [`Engine::ping`].
    Ping,
    /// Call of [`Engine::find_image`].
    FindImage,
    /// Call of [`Engine::pull_image`].
    PullImage,
    /// Call of [`Engine::create`].
    Create,
    /// Call of [`Engine::start`].
    Start,
    /// Call of [`Engine::inspect`].
    Inspect,
    /// Call of [`Engine::remove`].
    Remove,
    /// Call of [`Engine::list`].
    List,
    /// Call of [`Engine::events`].
    Events,
}

/// Container engine for tests, whose containers are plain guest processes. Dropping it kills all processes that it
/// started and waits until they are dead.
#[derive(Debug)]
pub struct FakeEngine {
    shared: Arc<SharedState>,
    tasks: TaskTracker,
}

// === impl FakeEngine ===

impl Default for FakeEngine {
    fn default() -> Self {
        Self::new()
    }
}

impl FakeEngine {
    /// Creates an engine that has every image and no container. See [`Self::remove_image`].
    #[must_use]
    pub fn new() -> Self {
        Self {
            shared: Arc::new(SharedState::new()),
            tasks: TaskTracker::new(),
        }
    }

    /// Lets the next call of this kind return `error` and do nothing. Repeated calls queue further errors.
    pub fn fail_next(&self, operation: EngineOperation, error: Error) {
        self.shared
            .state()
            .faults
            .entry(operation)
            .or_default()
            .push_back(error);
    }

    /// Makes the engine unavailable or available again. While it is unavailable, every call returns
    /// `EngineUnavailable`; open event streams end with that error. Containers keep running, as they do when Docker
    /// restarts with live-restore.
    pub fn set_unavailable(&self, unavailable: bool) {
        self.shared.state().unavailable = unavailable;
        if unavailable {
            self.shared.send(SubscriberMessage::Unavailable);
        }
    }

    /// Delays every later call of this kind by `delay` before it takes effect; zero removes the delay.
    pub fn set_delay(&self, operation: EngineOperation, delay: Duration) {
        self.shared.state().delays.insert(operation, delay);
    }

    /// Lets the next `count` calls of `create` return `EngineUnavailable`. [`Self::carry_out_lost_creations`] creates
    /// their containers.
    pub fn lose_next_creations(&self, count: usize) {
        self.shared.state().creations_to_lose = count;
    }

    /// Returns the number of lost creations that were not carried out yet.
    #[must_use]
    pub fn lost_creations(&self) -> usize {
        self.shared.state().lost_creations.len()
    }

    /// Creates the containers of lost creations, as a Docker that was hanging does. Returns their ids.
    pub fn carry_out_lost_creations(&self) -> Vec<String> {
        let mut state = self.shared.state();
        let lost = std::mem::take(&mut state.lost_creations);
        lost.into_iter()
            .map(|spec| state.add_container(spec))
            .collect()
    }

    /// Starts later containers without a guest: they run, but no guest ever connects to the daemon.
    pub fn start_without_guest(&self) {
        self.shared.state().without_guest = true;
    }

    /// Starts later containers with a guest again, after [`Self::start_without_guest`].
    pub fn start_with_guest(&self) {
        self.shared.state().without_guest = false;
    }

    /// Returns the number of calls of this kind so far, including failed ones.
    #[must_use]
    pub fn call_count(&self, operation: EngineOperation) -> usize {
        self.shared
            .state()
            .calls
            .get(&operation)
            .copied()
            .unwrap_or(0)
    }

    /// Returns the largest number of calls of this kind that were delayed at the same time.
    #[must_use]
    pub fn in_flight_calls_max(&self, operation: EngineOperation) -> usize {
        let state = self.shared.state();
        let calls = state.in_flight.get(&operation);
        calls.map_or(0, |calls| calls.max)
    }

    /// Returns the ids of all containers, oldest first.
    #[must_use]
    pub fn container_ids(&self) -> Vec<String> {
        self.shared.state().containers.keys().cloned().collect()
    }

    /// Returns the image id of every container, oldest container first.
    #[must_use]
    pub fn container_images(&self) -> Vec<String> {
        let state = self.shared.state();
        let containers = state.containers.values();
        containers
            .map(|container| container.spec.image_id.clone())
            .collect()
    }

    /// Kills a container's process, as an out-of-memory kill or `docker kill` does, and returns once it has ended. Does
    /// nothing if the container does not run.
    pub async fn kill_container(&self, container_id: &str) {
        let life = self
            .shared
            .state()
            .containers
            .get(container_id)
            .map(|container| container.life.clone());
        let Some(ContainerLife::Running { pid, ended }) = life else {
            return;
        };
        if pid == 0 {
            self.shared.mark_ended(container_id, process::EXIT_KILLED);
        } else {
            process::kill_tree(pid);
            ended.cancelled().await;
        }
    }

    /// Counts a call, waits for its delay, and returns its injected fault. Every call of the engine begins with it.
    async fn begin_operation(&self, operation: EngineOperation) -> Result<()> {
        let delay = {
            let mut state = self.shared.state();
            *state.calls.entry(operation).or_default() += 1;
            state.delays.get(&operation).copied().unwrap_or_default()
        };
        if !delay.is_zero() {
            let _in_flight = self.shared.count_in_flight(operation);
            tokio::time::sleep(delay).await;
        }
        let mut state = self.shared.state();
        if state.unavailable {
            return Err(unavailable_error());
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
                if let ContainerLife::Running { pid, .. } = container.life {
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
            process::wait_until_dead(pid);
        }
    }
}

/// Waits until a guest's process ends, then marks its container as ended.
async fn watch_guest(
    shared: Arc<SharedState>,
    container_id: String,
    mut guest: process::GuestProcess,
    ended: CancellationToken,
) {
    let exit_code = guest.wait_for_end().await;
    shared.mark_ended(&container_id, exit_code);
    ended.cancel();
}

/// Returns the error of every call while the engine is unavailable.
fn unavailable_error() -> Error {
    Error::EngineUnavailable {
        message: "the fake engine is set to be unavailable".to_owned(),
    }
}

/// Returns the error of an engine call that is refused.
fn engine_error(operation: &'static str, message: String) -> Error {
    Error::Engine { operation, message }
}

#[tonic::async_trait]
impl Engine for FakeEngine {
    async fn describe(&self) -> Result<EngineInfo> {
        self.begin_operation(EngineOperation::Describe).await?;
        Ok(EngineInfo {
            name: "fake".to_owned(),
            version: "1".to_owned(),
            api_version: "1".to_owned(),
            cgroup_version: 2,
            oci_runtimes: vec!["runc".to_owned()],
            default_runtime: "runc".to_owned(),
            apparmor: false,
            // The guests have the uid of the test and not that of the container.
            userns_remap: true,
            rootless: false,
            cpu_quota: true,
            cores: 3,
        })
    }

    async fn ping(&self) -> Result<()> {
        self.begin_operation(EngineOperation::Ping).await
    }

    async fn find_image(&self, reference: &ImageReference) -> Result<Option<ImageInfo>> {
        self.look_up_image(reference).await
    }

    async fn pull_image(
        &self,
        reference: &ImageReference,
        progress: &watch::Sender<PullProgress>,
    ) -> Result<()> {
        self.fetch_image(reference, progress).await
    }

    async fn create(&self, spec: &ContainerSpec) -> Result<String> {
        self.begin_operation(EngineOperation::Create).await?;
        for source in ["run", "skills", "passwd", "group"] {
            let path = spec.slot_dir.join(source);
            if !path.exists() {
                let message = format!("bind source path does not exist: {}", path.display());
                return Err(engine_error("create container", message));
            }
        }
        let mut state = self.shared.state();
        if state
            .containers
            .values()
            .any(|other| other.spec.name == spec.name)
        {
            let message = format!("the name {} is in use", spec.name);
            return Err(engine_error("create container", message));
        }
        if state.creations_to_lose > 0 {
            state.creations_to_lose -= 1;
            state.lost_creations.push(spec.clone());
            return Err(unavailable_error());
        }
        Ok(state.add_container(spec.clone()))
    }

    async fn start(&self, container_id: &str) -> Result<()> {
        self.begin_operation(EngineOperation::Start).await?;
        let missing = || {
            engine_error(
                "start container",
                format!("no such container: {container_id}"),
            )
        };
        let (spec, without_guest) = {
            let state = self.shared.state();
            let container = state.containers.get(container_id).ok_or_else(missing)?;
            if matches!(container.life, ContainerLife::Running { .. }) {
                return Ok(());
            }
            (container.spec.clone(), state.without_guest)
        };
        let guest = match without_guest {
            true => None,
            false => Some(process::spawn_guest(&spec).await?),
        };
        let pid = guest
            .as_ref()
            .and_then(process::GuestProcess::pid)
            .unwrap_or(0);
        let ended = CancellationToken::new();
        let mut state = self.shared.state();
        // The container may have been removed in the meantime. Then dropping `guest` kills its process.
        let container = state.containers.get_mut(container_id).ok_or_else(missing)?;
        container.life = ContainerLife::Running {
            pid,
            ended: ended.clone(),
        };
        if let Some(guest) = guest {
            let shared = Arc::clone(&self.shared);
            self.tasks
                .spawn(watch_guest(shared, container_id.to_owned(), guest, ended));
        }
        Ok(())
    }

    async fn inspect(&self, container_id: &str) -> Result<Option<ContainerState>> {
        self.begin_operation(EngineOperation::Inspect).await?;
        let state = self.shared.state();
        Ok(state.containers.get(container_id).map(|container| {
            let (running, pid, exit_code) = match container.life {
                ContainerLife::Created => (false, 0, 0),
                ContainerLife::Running { pid, .. } => (true, pid, 0),
                ContainerLife::Ended { exit_code } => (false, 0, exit_code),
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
        self.begin_operation(EngineOperation::Remove).await?;
        self.kill_container(container_id).await;
        let removed = self.shared.state().containers.remove(container_id);
        if let Some(container) = removed {
            self.shared
                .publish_event(container_id, &container.spec, ContainerEventKind::Removed);
        }
        Ok(())
    }

    async fn remove_unused_volumes(&self, _instance: &str) -> Result<()> {
        Ok(())
    }

    async fn list(&self, instance: Option<&str>) -> Result<Vec<ContainerSummary>> {
        self.begin_operation(EngineOperation::List).await?;
        let state = self.shared.state();
        let owned = |container: &FakeContainer| {
            let owner = container.spec.labels.get(LABEL_INSTANCE);
            owner.is_some_and(|owner| instance.is_none_or(|instance| instance == owner))
        };
        Ok(state
            .containers
            .iter()
            .filter(|(_, container)| owned(container))
            .map(|(id, container)| ContainerSummary {
                id: id.clone(),
                running: matches!(container.life, ContainerLife::Running { .. }),
                paused: false,
                labels: container.spec.labels.clone(),
            })
            .collect())
    }

    async fn events(&self, instance: &str) -> Result<BoxStream<'static, Result<ContainerEvent>>> {
        // Subscribe before the first await, so that events after the call are not missed.
        let signals = self.shared.signals.subscribe();
        self.begin_operation(EngineOperation::Events).await?;
        let instance = instance.to_owned();
        let next = |signals: Option<broadcast::Receiver<SubscriberMessage>>| async move {
            let mut signals = signals?;
            match signals.recv().await {
                Ok(SubscriberMessage::Event { instance, event }) => {
                    Some((Ok((instance, event)), Some(signals)))
                }
                Ok(SubscriberMessage::Unavailable) | Err(_) => {
                    Some((Err(unavailable_error()), None))
                }
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
