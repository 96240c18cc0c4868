//! gRPC services, one file each: decode the request, call the daemon's modules, encode the answer.
//!
//! All request validation is in `convert.rs` and below; a client gets all violations of a request at once.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::Notify;
use tokio::time::Instant;
use tonic::Code;

use crate::access::{AccessControl, TenantPermits};
use crate::artifacts::Artifacts;
use crate::audit::AuditLog;
use crate::config::Config;
use crate::engine::{Engine, EngineInfo};
use crate::environments::Environments;
use crate::error::Result;
use crate::inputs::InputStager;
use crate::shutdown::Tasks;
use crate::workspace::registry::WorkspaceRegistry;
use crate::workspace::run_table::RunTable;

pub mod access;
mod added_needs;
pub mod admin;
pub mod artifact;
pub mod convert;
pub mod exec;
mod exec_observer;
pub mod file;
mod missing_packages;
mod prepare_skill;
pub mod relay;
mod role_restriction;
mod run_outputs;
mod run_setup;
pub mod server_info;
pub mod skill;
pub mod skill_publish;
mod skill_staging;
mod skills_by_tenant;
mod staging_room;
pub mod tenant;
pub mod upload;
mod whole_run;
pub mod workspace;
mod writable_skills;

pub use skills_by_tenant::SkillsByTenant;

/// Dependencies that all services share.
#[derive(Debug)]
pub struct ServiceDependencies {
    /// Configuration of the daemon.
    pub config: Arc<Config>,
    /// Decides who may do what.
    pub access: Arc<AccessControl>,
    /// Audit log; `None` if the configuration has none.
    pub audit: Option<AuditLog>,
    /// Container engine.
    pub engine: Arc<dyn Engine>,
    /// Name, version and abilities of the engine, read at startup.
    pub info: EngineInfo,
    /// Tracker and cancellation tokens of all tasks.
    pub tasks: Tasks,
    /// Id of this instance.
    pub instance: String,
    /// Registry of pools and workspaces.
    pub registry: WorkspaceRegistry,
    /// Catalogue and store of skills.
    pub skills: SkillsByTenant,
    /// Environments of skills.
    pub environments: Environments,
    /// Artifact store.
    pub artifacts: Artifacts,
    /// Runs with a workspace of their own.
    pub runs: RunTable,
    /// Stager of inputs by reference.
    pub inputs: InputStager,
    /// Permits for archives that are received and unpacked at the same time.
    pub publishes: TenantPermits,
    /// Wakes the task that removes unused skills from the store.
    pub sweep: Notify,
    /// Time at which the daemon started.
    pub start_time: SystemTime,
}

/// Time by which a call must be answered: the earlier of its client's deadline and `server.unary_timeout`.
///
/// The call layer stores it in the extensions of the request.
#[derive(Debug, Clone, Copy)]
pub struct AnswerDeadline {
    received: Instant,
    deadline: Instant,
}

impl AnswerDeadline {
    /// Makes the deadline of a call that was received now.
    pub fn new(deadline: Instant) -> Self {
        Self {
            received: Instant::now(),
            deadline,
        }
    }

    /// Returns the time until which a call may wait for others. Without a deadline, as in tests, it does not wait.
    fn wait_deadline_of<T>(request: &tonic::Request<T>) -> Instant {
        let deadline = request.extensions().get::<Self>();
        deadline.map_or_else(Instant::now, Self::wait_deadline)
    }

    /// Returns the time until which a call without a deadline, a stream, may wait for others before its first message.
    fn stream_wait_deadline_of<T>(request: &tonic::Request<T>, unary_timeout: Duration) -> Instant {
        let deadline = request.extensions().get::<Self>().copied();
        let without = Self::new(Instant::now() + unary_timeout);
        deadline.unwrap_or(without).wait_deadline()
    }

    /// Returns the time until which the call may wait for other calls. A quarter of the time is left for the answer.
    fn wait_deadline(&self) -> Instant {
        self.received + (self.deadline - self.received) * 3 / 4
    }
}

/// Returns success if the object of a deletion does not exist and the request allows that.
fn allow_missing(deleted: Result<()>, is_allowed: bool) -> Result<()> {
    match deleted {
        Err(error) if is_allowed && error.kind().0 == Code::NotFound => Ok(()),
        deleted => deleted,
    }
}

/// Dependencies of the services, shared by all connections.
pub type SharedDependencies = Arc<ServiceDependencies>;
