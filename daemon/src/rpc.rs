//! The services: one file each, decode → call → encode and nothing else. All request validation is in
//! `convert.rs` and beneath it; what is wrong with a request is said completely, all fields at once.

use std::sync::Arc;
use std::time::SystemTime;

use tokio::sync::{Notify, Semaphore};
use tokio::time::Instant;

use crate::artifacts::Artifacts;
use crate::collect::exit::OnExit;
use crate::config::Config;
use crate::engine::{Engine, EngineInfo};
use crate::inputs::Inputs;
use crate::shutdown::Tasks;
use crate::skills::Skills;
use crate::workspace::registry::Registry;

pub mod admin;
pub mod artifact;
pub mod budget;
pub mod convert;
pub mod exec;
pub mod file;
pub mod publish;
pub mod relay;
pub mod server;
pub mod skill;
mod sweep;
pub mod upload;
pub mod workspace;

/// What the services work with.
#[derive(Debug)]
pub struct Services {
    /// As loaded.
    pub config: Arc<Config>,
    /// What makes containers.
    pub engine: Arc<dyn Engine>,
    /// What the engine said it is.
    pub info: EngineInfo,
    /// Owner of all tasks.
    pub tasks: Tasks,
    /// Id of this instance.
    pub instance: String,
    /// Pools and workspaces.
    pub registry: Registry,
    /// Memory for what streams' readers do not take.
    pub relays: budget::Budget,
    /// What can be staged.
    pub skills: Skills,
    /// What was saved.
    pub artifacts: Artifacts,
    /// Collects when execs end.
    pub on_exit: OnExit,
    /// What stages inputs.
    pub inputs: Inputs,
    /// Archives of skills that may be taken in at once.
    pub publishes: Arc<Semaphore>,
    /// Wakes what removes unused skills from the store.
    pub sweep: Notify,
    /// When the daemon started.
    pub start_time: SystemTime,
}

/// When a call has to be answered, by its client's deadline or ours; among the extensions of its request.
#[derive(Debug, Clone, Copy)]
pub struct AnswerBy {
    received: Instant,
    deadline: Instant,
}

impl AnswerBy {
    /// Of a call that was received now.
    #[must_use]
    pub fn new(deadline: Instant) -> Self {
        Self {
            received: Instant::now(),
            deadline,
        }
    }

    /// How long it may wait for others: a quarter of the time is left to make the answer.
    fn nearly(&self) -> Instant {
        self.received + (self.deadline - self.received) * 3 / 4
    }
}

/// Services are shared by all connections.
pub type Shared = Arc<Services>;
