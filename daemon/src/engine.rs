//! What makes containers. The engine is asked to create, start, inspect, remove and list them, and tells
//! when one ends; it is never on the path of an exec, a file or a byte.
//!
//! Two implementations: [`docker`] and, for tests without Docker, `fake` (feature `test-util`).

use std::collections::HashMap;
use std::fmt::Debug;
use std::path::PathBuf;

use futures::stream::BoxStream;

use crate::error::Result;

pub mod cgroup;
pub mod docker;
#[cfg(feature = "test-util")]
pub mod fake;
pub mod runtime;
pub mod seccomp;

/// Label with the id of the daemon instance that owns a container.
pub const LABEL_INSTANCE: &str = "io.skilld.instance";
/// Label with the slot's name.
pub const LABEL_SLOT: &str = "io.skilld.slot";
/// Label with the pool's name.
pub const LABEL_POOL: &str = "io.skilld.pool";
/// Label with the generation of the guest protocol.
pub const LABEL_GENERATION: &str = "io.skilld.generation";
/// Label with the slot's uid: other instances on the host stay clear of it.
pub const LABEL_UID: &str = "io.skilld.uid";

/// What makes containers. Every call has a deadline of its own (30 s by default) and answers
/// `Error::EngineUnavailable` when the engine cannot be reached, `Error::Engine` when it refuses.
#[tonic::async_trait]
pub trait Engine: Send + Sync + Debug {
    /// Asks what the engine is.
    async fn describe(&self) -> Result<EngineInfo>;
    /// Asks whether it answers. Cheap; used by health.
    async fn ping(&self) -> Result<()>;
    /// Finds an image and checks that it may be used: no VOLUME. `Error::Image` if not.
    async fn image(&self, reference: &str) -> Result<ImageInfo>;
    /// Creates a container, configured as docs/security.md says, and returns its id. It does not run yet.
    async fn create(&self, spec: &ContainerSpec) -> Result<String>;
    /// Starts a created container.
    async fn start(&self, container_id: &str) -> Result<()>;
    /// State of a container; `None` if there is no such container.
    async fn inspect(&self, container_id: &str) -> Result<Option<ContainerState>>;
    /// Kills and removes a container with its anonymous volumes, and answers when it is gone. OK if there is none.
    async fn remove(&self, container_id: &str) -> Result<()>;
    /// Lists containers that carry [`LABEL_INSTANCE`], of one instance or of all, stopped ones included.
    async fn list(&self, instance: Option<&str>) -> Result<Vec<ContainerSummary>>;
    /// What happens to containers of one instance from now on. The stream ends with an error when the engine goes away;
    /// the caller lists again and then asks for a new stream.
    async fn events(&self, instance: &str) -> Result<BoxStream<'static, Result<ContainerEvent>>>;
}

/// What an engine is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EngineInfo {
    /// `docker` or `fake`.
    pub name: String,
    /// For instance `20.10.24`.
    pub version: String,
    /// For instance `1.41`.
    pub api_version: String,
    /// 1 or 2.
    pub cgroup_version: u32,
    /// Sorted.
    pub oci_runtimes: Vec<String>,
    /// What makes containers that ask for none.
    pub default_runtime: String,
    /// AppArmor is on, so that containers get its `docker-default` profile.
    pub apparmor: bool,
    /// Containers get uids that are shifted on the host (userns-remap).
    pub userns_remap: bool,
    /// The kernel enforces limits of CPU time.
    pub cpu_quota: bool,
}

/// An image that may be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageInfo {
    /// As configured.
    pub reference: String,
    /// `sha256:…`; containers are made from this, so that a moved tag changes nothing under way.
    pub id: String,
}

/// Sizes of a container. All are enforced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Limits {
    /// Memory and swap together, bytes; the tmpfs of the workspace counts in it.
    pub memory_bytes: u64,
    /// Thousandths of a core.
    pub cpu_millis: u64,
    /// Processes and threads.
    pub pids: u64,
    /// Size of the workspace's tmpfs, bytes.
    pub disk_bytes: u64,
    /// Its inodes.
    pub inodes: u64,
}

/// One container to create. Everything that does not depend on the slot (capabilities, masks, seccomp …) is the
/// engine's business and the same for all.
#[derive(Debug, Clone)]
pub struct ContainerSpec {
    /// `skilld-<instance>-<slot>`.
    pub name: String,
    /// [`LABEL_INSTANCE`] and the others.
    pub labels: HashMap<String, String>,
    /// [`ImageInfo::id`].
    pub image_id: String,
    /// Host directory of the slot: `run/`, `skills/`, `passwd` and `group` in it are bound read-only to
    /// /run/skilld, /workspace/skills, /etc/passwd and /etc/group.
    pub slot_dir: PathBuf,
    /// Owner of the workspace and of all processes, user and group; never 0.
    pub uid: u32,
    /// Sizes.
    pub limits: Limits,
    /// Size of /tmp, bytes.
    pub tmp_bytes: u64,
    /// Size of /dev/shm, bytes.
    pub shm_bytes: u64,
    /// Terminals that can be open at a time, where the container shares the host's kernel.
    pub terminals: usize,
    /// OCI runtime by its name in the engine; `None` means the engine's default.
    pub oci_runtime: Option<String>,
    /// `NAME=value` for the guest; commands do not get it.
    pub env: Vec<String>,
}

/// State of a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ContainerState {
    /// It runs, or is paused.
    pub running: bool,
    /// None of its processes gets any time, until somebody lets it go on.
    pub paused: bool,
    /// Of its first process on the host; 0 if it does not run or the engine does not say.
    pub pid: i32,
    /// The kernel killed something in it for its memory, as the engine saw.
    pub oom_killed: bool,
    /// Of its first process, once ended.
    pub exit_code: i64,
}

/// A container in a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerSummary {
    /// Its id.
    pub id: String,
    /// It runs, or is paused.
    pub running: bool,
    /// It is paused.
    pub paused: bool,
    /// All of its labels.
    pub labels: HashMap<String, String>,
}

/// Something happened to a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerEvent {
    /// Its id.
    pub container_id: String,
    /// What happened to it.
    pub kind: ContainerEventKind,
}

/// What happened to a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContainerEventKind {
    /// Its first process ended.
    Died,
    /// It was removed.
    Removed,
    /// It ran out of memory; it may live on.
    OutOfMemory,
    /// Somebody paused it.
    Paused,
    /// Somebody let it go on.
    Unpaused,
}
