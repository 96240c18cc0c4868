//! What the fake engine knows: its containers, the script of its faults, and who listens.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::broadcast;
use tokio_util::sync::CancellationToken;

use super::Operation;
use crate::engine::{ContainerEvent, ContainerEventKind, ContainerSpec, LABEL_INSTANCE};
use crate::error::Error;

/// Events that a reader may be behind; one that is further behind has to list again.
const EVENTS_MAX: usize = 1024;

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) state: Mutex<State>,
    pub(super) signals: broadcast::Sender<Signal>,
}

#[derive(Debug, Default)]
pub(super) struct State {
    /// By id; ids grow, so that lists are in the order of creation.
    pub(super) containers: BTreeMap<String, Container>,
    pub(super) created: u64,
    pub(super) calls: HashMap<Operation, usize>,
    pub(super) faults: HashMap<Operation, VecDeque<Error>>,
    pub(super) delays: HashMap<Operation, Duration>,
    pub(super) in_flight: HashMap<Operation, InFlightCalls>,
    pub(super) unavailable: bool,
    pub(super) without_guest: bool,
    pub(super) creations_to_lose: usize,
    pub(super) lost_creations: Vec<ContainerSpec>,
}

impl State {
    /// Adds a container that does not run, and returns its id.
    pub(super) fn add(&mut self, spec: ContainerSpec) -> String {
        self.created += 1;
        let id = format!("{:064x}", self.created);
        let life = Life::Created;
        self.containers.insert(id.clone(), Container { spec, life });
        id
    }
}

/// Calls of one kind that have begun and not ended.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct InFlightCalls {
    pub(super) now: usize,
    pub(super) max: usize,
}

/// Counts a call as in flight until it is dropped.
#[derive(Debug)]
pub(super) struct CallGuard<'a> {
    shared: &'a Shared,
    operation: Operation,
}

impl Drop for CallGuard<'_> {
    fn drop(&mut self) {
        let mut state = self.shared.state();
        if let Some(calls) = state.in_flight.get_mut(&self.operation) {
            calls.now -= 1;
        }
    }
}

#[derive(Debug)]
pub(super) struct Container {
    pub(super) spec: ContainerSpec,
    pub(super) life: Life,
}

#[derive(Debug, Clone)]
pub(super) enum Life {
    Created,
    /// `pid` is 0 for a container without a guest. `ended` is cancelled once the process was reaped.
    Running {
        pid: i32,
        ended: CancellationToken,
    },
    Ended {
        exit_code: i64,
    },
}

#[derive(Debug, Clone)]
pub(super) enum Signal {
    Event {
        instance: String,
        event: ContainerEvent,
    },
    Gone,
}

impl Shared {
    pub(super) fn new() -> Self {
        Self {
            state: Mutex::default(),
            signals: broadcast::channel(EVENTS_MAX).0,
        }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn begin_call(&self, operation: Operation) -> CallGuard<'_> {
        let mut state = self.state();
        let calls = state.in_flight.entry(operation).or_default();
        calls.now += 1;
        calls.max = calls.max.max(calls.now);
        CallGuard {
            shared: self,
            operation,
        }
    }

    /// Nobody may be listening.
    pub(super) fn send(&self, signal: Signal) {
        drop(self.signals.send(signal));
    }

    pub(super) fn tell(&self, container_id: &str, spec: &ContainerSpec, kind: ContainerEventKind) {
        if let Some(instance) = spec.labels.get(LABEL_INSTANCE).cloned() {
            let container_id = container_id.to_owned();
            self.send(Signal::Event {
                instance,
                event: ContainerEvent { container_id, kind },
            });
        }
    }

    /// A container's process has ended.
    pub(super) fn ended(&self, container_id: &str, exit_code: i64) {
        let mut state = self.state();
        if let Some(container) = state.containers.get_mut(container_id) {
            container.life = Life::Ended { exit_code };
            self.tell(container_id, &container.spec, ContainerEventKind::Died);
        }
    }
}
