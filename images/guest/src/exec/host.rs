//! State that all execs share. It has their registry, the supervisors and the reaper of their processes, and the
//! counters of resources that run out.

use std::collections::HashSet;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nix::unistd::Pid;
use tokio::sync::watch;

use super::Exec;
use super::exhaustion::ExhaustionDetector;
use super::registry::ExecRegistry;
use super::writable_disks::WritableDisks;
use crate::error::Error;
use crate::files::root::WorkspaceRoot;
use crate::reaper::ChildReaper;
use crate::supervisor::SupervisorPool;

/// Mount point of the container's own cgroup.
const CGROUP: &str = "/sys/fs/cgroup";

/// Validated settings from a Configure request.
#[derive(Debug, Clone)]
pub(crate) struct GuestSettings {
    /// Resource name of the workspace, `workspaces/{workspace}`.
    pub(crate) workspace: String,
    pub(crate) execs_max: u32,
    pub(crate) leak_grace: Duration,
    pub(crate) kill_grace: Duration,
    pub(crate) heartbeat: Duration,
    pub(crate) disconnect_grace: Duration,
}

/// Set of pids that tasks share.
#[derive(Debug, Default)]
pub(crate) struct PidSet(Mutex<HashSet<Pid>>);

impl PidSet {
    /// Locks the set.
    pub(crate) fn lock(&self) -> MutexGuard<'_, HashSet<Pid>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// State of the guest that its execs share.
#[derive(Debug)]
pub(crate) struct ExecHost {
    pub(crate) execs: ExecRegistry,
    pub(crate) supervisors: Arc<SupervisorPool>,
    pub(crate) reaper: Arc<ChildReaper>,
    pub(crate) exhaustion: ExhaustionDetector,
    pub(crate) disks: WritableDisks,
    /// Leaders that run. A sweep of orphaned processes spares them.
    pub(crate) leaders: PidSet,
    /// `true` while a daemon is connected and has configured the guest.
    pub(crate) connected: watch::Sender<bool>,
}

impl ExecHost {
    /// Makes the host of a workspace's execs, of which there are none yet.
    pub(crate) fn new(root: &Arc<WorkspaceRoot>, supervisors: SupervisorPool) -> Self {
        Self {
            execs: ExecRegistry::new(Arc::clone(root)),
            disks: WritableDisks::open(root),
            supervisors: Arc::new(supervisors),
            reaper: ChildReaper::new(),
            exhaustion: ExhaustionDetector::open(Path::new(CGROUP)),
            leaders: PidSet::default(),
            connected: watch::Sender::new(false),
        }
    }

    /// Returns the exec with this id.
    pub(crate) fn find_exec(&self, id: &str) -> Result<Arc<Exec>, Error> {
        let exec = self.execs.get(id);
        exec.ok_or_else(|| Error::ExecNotFound {
            id: id.chars().take(64).collect(),
        })
    }
}
