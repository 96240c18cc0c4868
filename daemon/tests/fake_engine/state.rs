//! State of the fake engine: its containers, injected faults and event subscribers.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::broadcast;
use tokio_util::sync::CancellationToken;

use super::EngineOperation;
use super::images::FakeImages;
use crate::engine::{ContainerEvent, ContainerEventKind, ContainerSpec, LABEL_INSTANCE};
use crate::error::Error;

/// Maximum number of events that a subscriber may lag behind. A slower subscriber gets an error and lists again.
const EVENTS_MAX: usize = 1024;

/// State that the engine shares with the tasks that wait for its guests.
#[derive(Debug)]
pub(super) struct SharedState {
    pub(super) state: Mutex<EngineState>,
    /// Sends events to the subscribers of all instances.
    pub(super) signals: broadcast::Sender<SubscriberMessage>,
}

/// Containers, call counters and injected faults of the fake engine.
#[derive(Debug, Default)]
pub(super) struct EngineState {
    /// Containers by id. Ids increase, so listings are in the order of creation.
    pub(super) containers: BTreeMap<String, FakeContainer>,
    /// Number of containers created so far.
    pub(super) created: u64,
    /// Number of calls so far, by kind.
    pub(super) calls: HashMap<EngineOperation, usize>,
    /// Injected errors for the next calls, by kind and in order.
    pub(super) faults: HashMap<EngineOperation, VecDeque<Error>>,
    /// Injected delay of calls, by kind.
    pub(super) delays: HashMap<EngineOperation, Duration>,
    /// Number of delayed calls, by kind.
    pub(super) in_flight: HashMap<EngineOperation, InFlightCalls>,
    /// `true` while every call fails with `EngineUnavailable`.
    pub(super) unavailable: bool,
    /// `true` while containers start without a guest.
    pub(super) without_guest: bool,
    /// Number of further creations whose response is lost.
    pub(super) creations_to_lose: usize,
    /// Settings of containers that are still to be created.
    pub(super) lost_creations: Vec<ContainerSpec>,
    /// Images that differ from the usual ones, and control of pulls.
    pub(super) images: FakeImages,
}

impl EngineState {
    /// Adds a container in the state `Created` and returns its id.
    pub(super) fn add_container(&mut self, spec: ContainerSpec) -> String {
        self.created += 1;
        let id = format!("{:064x}", self.created);
        let life = ContainerLife::Created;
        self.containers
            .insert(id.clone(), FakeContainer { spec, life });
        id
    }
}

/// Number of engine calls of one kind that have begun and not ended.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct InFlightCalls {
    /// Current number of calls in flight.
    pub(super) now: usize,
    /// Largest number of calls in flight so far.
    pub(super) max: usize,
}

/// Guard that counts a call as in flight until it is dropped.
#[derive(Debug)]
pub(super) struct InFlightGuard<'a> {
    shared: &'a SharedState,
    operation: EngineOperation,
}

impl Drop for InFlightGuard<'_> {
    fn drop(&mut self) {
        let mut state = self.shared.state();
        if let Some(calls) = state.in_flight.get_mut(&self.operation) {
            calls.now -= 1;
        }
    }
}

/// Settings of a container and its position in its lifecycle.
#[derive(Debug)]
pub(super) struct FakeContainer {
    pub(super) spec: ContainerSpec,
    pub(super) life: ContainerLife,
}

/// Position of a container in its lifecycle.
#[derive(Debug, Clone)]
pub(super) enum ContainerLife {
    /// The container is created and not started.
    Created,
    /// Running. `pid` is 0 for a container without a guest. `ended` is cancelled once the process was reaped.
    Running { pid: i32, ended: CancellationToken },
    /// The container's process ended with this exit code.
    Ended { exit_code: i64 },
}

/// Message to the subscribers of container events.
#[derive(Debug, Clone)]
pub(super) enum SubscriberMessage {
    /// Event of a container of this instance.
    Event {
        instance: String,
        event: ContainerEvent,
    },
    /// The engine became unavailable: event streams end.
    Unavailable,
}

impl SharedState {
    pub(super) fn new() -> Self {
        Self {
            state: Mutex::default(),
            signals: broadcast::channel(EVENTS_MAX).0,
        }
    }

    /// Locks the state of the fake engine.
    pub(super) fn state(&self) -> MutexGuard<'_, EngineState> {
        self.state.lock()
    }

    /// Counts a call as in flight while the guard lives.
    pub(super) fn count_in_flight(&self, operation: EngineOperation) -> InFlightGuard<'_> {
        let mut state = self.state();
        let calls = state.in_flight.entry(operation).or_default();
        calls.now += 1;
        calls.max = calls.max.max(calls.now);
        InFlightGuard {
            shared: self,
            operation,
        }
    }

    /// Sends a message to all subscribers; there may be none.
    pub(super) fn send(&self, signal: SubscriberMessage) {
        drop(self.signals.send(signal));
    }

    /// Publishes an event to the subscribers of the container's instance.
    pub(super) fn publish_event(
        &self,
        container_id: &str,
        spec: &ContainerSpec,
        kind: ContainerEventKind,
    ) {
        if let Some(instance) = spec.labels.get(LABEL_INSTANCE).cloned() {
            self.send(SubscriberMessage::Event {
                instance,
                event: ContainerEvent {
                    container_id: container_id.to_owned(),
                    kind,
                },
            });
        }
    }

    /// Records that a container's process has ended, and publishes the event.
    pub(super) fn mark_ended(&self, container_id: &str, exit_code: i64) {
        let mut state = self.state();
        if let Some(container) = state.containers.get_mut(container_id) {
            container.life = ContainerLife::Ended { exit_code };
            self.publish_event(container_id, &container.spec, ContainerEventKind::Died);
        }
    }
}
