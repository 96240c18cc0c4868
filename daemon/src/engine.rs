//! The container engine: creates, starts, inspects, lists and removes containers, and reports their events. It is never
//! on the path of a command, a file or a byte of output.
//!
//! Two implementations: [`docker`], also for Podman, and, for tests without either, `fake` (feature `test-util`).

use std::collections::HashMap;
use std::fmt::Debug;
use std::path::{Path, PathBuf};

use futures::stream::BoxStream;
use tokio::sync::watch;

use crate::error::{Error, Result};
use image_reference::ImageReference;

pub mod cgroup;
pub mod docker;
// A module of this crate and not a crate of its own, because the unit tests of the pool and of slots use it too.
#[cfg(feature = "test-util")]
#[path = "../tests/fake_engine/engine.rs"]
pub mod fake;
pub mod image_reference;
pub mod oci_runtime;
pub mod seccomp;
pub mod workspace_disk;

/// Host name of every container.
pub const HOST_NAME: &str = "sandbox";
/// Container label that holds the id of the daemon instance that owns the container.
pub const LABEL_INSTANCE: &str = "io.skilld.instance";
/// Container label that holds the name of the slot.
pub const LABEL_SLOT: &str = "io.skilld.slot";
/// Container label that holds the name of the pool.
pub const LABEL_POOL: &str = "io.skilld.pool";
/// Container label that holds the generation of the guest protocol.
pub const LABEL_GENERATION: &str = "io.skilld.generation";
/// Container label that holds the slot's uid. Other daemons on the host read it and do not use the same uid.
pub const LABEL_UID: &str = "io.skilld.uid";

/// Container engine that creates and removes containers.
///
/// # Errors
///
/// Every call has its own deadline (30 s by default). It returns `Error::EngineUnavailable` if the engine does not
/// answer, and `Error::Engine` if the engine refuses the call.
#[tonic::async_trait]
pub trait Engine: Send + Sync + Debug {
    /// Returns the container engine's name, version and features.
    async fn describe(&self) -> Result<EngineInfo>;
    /// Writes what the engine needs into the daemon's state directory. The daemon calls this once at its start, before it
    /// creates a container; a repetition repairs what has changed.
    ///
    /// # Errors
    ///
    /// `Error::Io` if a file can't be written.
    async fn prepare(&self, _state_dir: &Path) -> Result<()> {
        Ok(())
    }
    /// Checks that the engine answers. This call is cheap: the health service uses it.
    async fn ping(&self) -> Result<()>;
    /// Describes an image; `None` if the engine does not have it.
    async fn find_image(&self, reference: &ImageReference) -> Result<Option<ImageInfo>>;
    /// Pulls an image from its registry and reports progress. Takes as long as the registry sends something; dropping
    /// the future ends the pull.
    ///
    /// # Errors
    ///
    /// `Error::Engine` with the engine's or the registry's message, which contains no credentials.
    async fn pull_image(
        &self,
        reference: &ImageReference,
        progress: &watch::Sender<PullProgress>,
    ) -> Result<()>;
    /// Finds an image and checks that containers can be made from it.
    ///
    /// # Errors
    ///
    /// `Error::ImageMissing` if the engine has no such image; `Error::Image` if containers can't be made from it.
    async fn check_image(&self, reference: &str) -> Result<ImageInfo> {
        let parsed = ImageReference::parse(reference)
            .map_err(|why| Error::image(reference, format!("it {why}")))?;
        let missing = || Error::ImageMissing {
            image: reference.to_owned(),
        };
        let image = self.find_image(&parsed).await?.ok_or_else(missing)?;
        match image.fault(&parsed) {
            None => Ok(image),
            Some(why) => Err(Error::image(reference, why)),
        }
    }
    /// Creates a container with the restrictions of docs/security.md, and returns its id. Does not start it.
    async fn create(&self, spec: &ContainerSpec) -> Result<String>;
    /// Starts a created container.
    async fn start(&self, container_id: &str) -> Result<()>;
    /// Returns the state of a container, or `None` if the engine has no such container.
    async fn inspect(&self, container_id: &str) -> Result<Option<ContainerState>>;
    /// Kills and removes a container with its anonymous volumes, and returns once it is gone. Succeeds if the engine
    /// has no such container.
    async fn remove(&self, container_id: &str) -> Result<()>;
    /// Removes the anonymous volumes of one instance that no container uses. The engine leaves them behind if the removal
    /// of a volume fails after its container is gone.
    async fn remove_unused_volumes(&self, instance: &str) -> Result<()>;
    /// Lists containers that have [`LABEL_INSTANCE`], also stopped ones. `None` lists the containers of all instances.
    async fn list(&self, instance: Option<&str>) -> Result<Vec<ContainerSummary>>;
    /// Subscribes to the container events of one instance, beginning with this call. The stream ends with an error if the
    /// connection to the engine is lost. The caller then lists the containers again and subscribes again.
    async fn events(&self, instance: &str) -> Result<BoxStream<'static, Result<ContainerEvent>>>;
}

/// Name, version and features of a container engine.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EngineInfo {
    /// Name of the engine: `docker`, `podman` or, in tests, `fake`.
    pub name: String,
    /// Version of the container engine, for example `20.10.24`.
    pub version: String,
    /// Version of the container engine's API, for example `1.41`.
    pub api_version: String,
    /// Version of the host's control groups: 1 or 2.
    pub cgroup_version: u32,
    /// Names of the OCI runtimes that the engine can use, sorted.
    pub oci_runtimes: Vec<String>,
    /// Name of the OCI runtime for containers that request none.
    pub default_runtime: String,
    /// `true` if AppArmor is enabled. Containers then get the engine's profile for containers.
    pub apparmor: bool,
    /// `true` if the engine maps container uids to other uids on the host (userns-remap).
    pub userns_remap: bool,
    /// `true` if the engine runs as an unprivileged user. The daemon refuses such an engine.
    pub rootless: bool,
    /// `true` if the kernel enforces CPU quotas.
    pub cpu_quota: bool,
    /// Number of processor cores of the host; 0 if the engine does not report it.
    pub cores: u64,
}

impl EngineInfo {
    /// Returns as much of a limit on CPU time as the host has, both in thousandths of a core.
    pub fn usable_cpu_millis(&self, limit: u64) -> u64 {
        match self.cores {
            0 => limit,
            cores => limit.min(cores.saturating_mul(1000)),
        }
    }
}

/// Container image, as the engine describes it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ImageInfo {
    /// Reference of the image as the operator configured it.
    pub reference: String,
    /// Digest of the image, `sha256:…`. Containers are made from it, so a tag that moves changes nothing until a restart.
    pub id: String,
    /// Digests under which registries know the image, as `NAME@sha256:…`; empty for an image that was built here.
    pub repo_digests: Vec<String>,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Processor architecture, for instance `amd64`; empty if the engine does not report it.
    pub architecture: String,
    /// Paths that the image declares as VOLUME.
    pub volumes: Vec<String>,
    /// Variables of the image as `NAME=value`. Values may be secrets.
    pub env: Vec<String>,
    /// `true` if the image has an ENTRYPOINT, which containers ignore.
    pub has_entrypoint: bool,
}

/// Progress of the pull of an image.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PullProgress {
    /// Number of bytes that were downloaded.
    pub bytes: u64,
    /// Number of bytes of all layers whose size is known; 0 at the beginning.
    pub bytes_total: u64,
}

impl ImageInfo {
    /// Returns the reason why containers can't be made from this image, and what to do; `None` if they can.
    pub fn fault(&self, reference: &ImageReference) -> Option<String> {
        if let Some(pinned) = &reference.digest {
            let digests: Vec<&str> = self.digests().collect();
            if !digests.contains(&pinned.as_str()) {
                let found = match digests.as_slice() {
                    [] => "no digest of a registry".to_owned(),
                    digests => digests.join(", "),
                };
                return Some(format!(
                    "it has {found}, not {pinned} as configured: pull that digest, or correct the configuration"
                ));
            }
        }
        if !self.volumes.is_empty() {
            // The engine creates a writable directory on the host for each volume, and no limit covers it.
            let paths = self.volumes.join(", ");
            return Some(format!(
                "it declares VOLUME {paths}: build it without volumes"
            ));
        }
        None
    }

    /// Returns the digests under which registries know the image, `sha256:…`.
    pub fn digests(&self) -> impl Iterator<Item = &str> {
        let digests = self.repo_digests.iter();
        digests.filter_map(|digest| digest.split_once('@').map(|(_, digest)| digest))
    }
}

/// Resource limits of one container. The kernel enforces all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct ContainerLimits {
    /// Limit of memory and swap together, in bytes. It includes a workspace in memory.
    pub memory_bytes: u64,
    /// CPU limit of the container, in thousandths of a core.
    pub cpu_millis: u64,
    /// Maximum number of processes and threads in the container.
    pub pids: u64,
    /// Size of the workspace, in bytes.
    pub disk_bytes: u64,
    /// Maximum number of inodes in the workspace.
    pub inodes: u64,
}

/// Settings of one container to create. The engine adds what is the same for all containers: capabilities, masked
/// paths, seccomp profile.
#[derive(Debug, Clone)]
pub struct ContainerSpec {
    /// Container name, `skilld-<instance>-<slot>`.
    pub name: String,
    /// Container labels: [`LABEL_INSTANCE`] and the other `LABEL_` constants.
    pub labels: HashMap<String, String>,
    /// Digest of the image, from [`ImageInfo::id`].
    pub image_id: String,
    /// Directory of the slot on the host. The container gets read-only bind mounts of `run/`, `skills/` and `mnt/` at
    /// /run/skilld, /workspace/skills and /mnt, and of `passwd`, `group` and `hosts` in /etc.
    pub slot_dir: PathBuf,
    /// User and group id of the workspace and of all processes in it; never 0.
    pub uid: u32,
    /// Resource limits of the container.
    pub limits: ContainerLimits,
    /// Block device with the file system of the workspace, which the engine mounts at the container's start; `None` for a
    /// workspace in memory.
    pub workspace_device: Option<PathBuf>,
    /// Directories of the host that containers share, mounted read-only.
    pub shared_dirs: Vec<SharedDirectory>,
    /// Size of the container's /tmp, in bytes.
    pub tmp_bytes: u64,
    /// Size of the container's /dev/shm, in bytes.
    pub shm_bytes: u64,
    /// Maximum number of open terminals. It applies only if the container shares the host's kernel.
    pub terminals: usize,
    /// Name of the OCI runtime in the engine; `None` for the engine's default.
    pub oci_runtime: Option<String>,
    /// Environment of the guest as `NAME=value`. Commands do not get it.
    pub env: Vec<String>,
}

/// Directory of the host that containers share. Each container gets an overlay of its own over it, so that its files are
/// other inodes in every container: a lock or a watch on one does not reach another tenant. The kernel still reads them
/// into memory once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SharedDirectory {
    /// Absolute path on the host, without the characters that separate in the options of an overlay.
    pub source: PathBuf,
    /// Empty directory on the host: an overlay without a writable layer needs two directories.
    pub empty: PathBuf,
    /// Absolute path in the container.
    pub target: String,
}

/// State of one container, as the engine reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ContainerState {
    /// `true` if the container runs or is paused.
    pub running: bool,
    /// `true` if the container is paused: its processes get no CPU time until an operator unpauses it.
    pub paused: bool,
    /// Pid of the container's first process on the host; 0 if it does not run or the engine does not report it.
    pub pid: i32,
    /// `true` if the engine saw an out-of-memory kill in the container.
    pub oom_killed: bool,
    /// Exit code of the container's first process; 0 before it has ended.
    pub exit_code: i64,
}

/// Listing entry for one container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerSummary {
    /// Container id.
    pub id: String,
    /// `true` if the container runs or is paused.
    pub running: bool,
    /// `true` if the container is paused.
    pub paused: bool,
    /// All labels of the container.
    pub labels: HashMap<String, String>,
}

/// Event of one container, as the engine reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerEvent {
    /// Container id.
    pub container_id: String,
    /// Kind of the container's event.
    pub kind: ContainerEventKind,
}

/// Kind of a container event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContainerEventKind {
    /// The container's first process ended.
    Died,
    /// The container was removed.
    Removed,
    /// A process in the container ran out of memory. The container may still run.
    OutOfMemory,
    /// An operator paused the container.
    Paused,
    /// An operator unpaused the container.
    Unpaused,
}
