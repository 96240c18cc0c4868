//! Sections `[pools.NAME]`: one struct for a pool, and the table of pools as a sorted list.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::de::Deserializer;
use serde::{Deserialize, Serialize};

use super::{environments, values};
use crate::engine::ContainerLimits;

/// Configuration of one container pool.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PoolConfig {
    /// Name of the section: `[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?`.
    #[serde(skip)]
    pub name: String,
    /// Image reference.
    pub image: String,
    /// Handling of an image that the engine does not have.
    pub pull: PullPolicy,
    /// OCI runtime; `None` means the engine's default.
    #[serde(deserialize_with = "values::optional_text")]
    pub oci_runtime: Option<String>,
    /// Number of containers to keep warm.
    pub warm: usize,
    /// Maximum number of containers, warm and claimed; 0 with `warm = 0` switches the pool off.
    pub max: usize,
    /// Maximum number of requests that wait for a container.
    pub queue_max: usize,
    /// Time that a request waits for a container.
    #[serde(deserialize_with = "values::time")]
    pub claim_timeout: Duration,
    /// Memory of one container, in bytes.
    #[serde(rename = "memory", deserialize_with = "values::size")]
    pub memory_bytes: u64,
    /// Processor time of one container, in thousandths of a core.
    #[serde(rename = "cpus", deserialize_with = "values::cpu_millis")]
    pub cpu_millis: u64,
    /// Maximum number of processes and threads in one container.
    pub pids: u64,
    /// File system of the workspace.
    pub storage: WorkspaceStorage,
    /// Size of the workspace, in bytes.
    #[serde(rename = "disk", deserialize_with = "values::size")]
    pub disk_bytes: u64,
    /// Maximum number of files and directories in the workspace.
    pub inodes: u64,
    /// Size of /tmp, in bytes.
    #[serde(rename = "tmp", deserialize_with = "values::size")]
    pub tmp_bytes: u64,
    /// Size of /dev/shm, in bytes.
    #[serde(rename = "shm", deserialize_with = "values::size")]
    pub shm_bytes: u64,
    /// Program and arguments to run once in each container before it is warm; an empty list runs nothing.
    pub warm_up: Vec<String>,
    /// Directory of the host with fonts and OCR languages for the commands of this pool.
    #[serde(deserialize_with = "values::optional_path")]
    pub fonts: Option<PathBuf>,
}

/// Handling of an image that the engine does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub enum PullPolicy {
    /// The daemon waits until the operator makes or pulls the image.
    Never,
    /// The daemon pulls the image from its registry.
    Missing,
}

/// File system that holds the files of a workspace.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(try_from = "String", rename_all = "snake_case")]
pub enum WorkspaceStorage {
    /// Memory with a hard limit of bytes and inodes, removed with the container.
    #[default]
    Tmpfs,
    /// File system of its own on the disk of the state directory, with the same limits.
    Disk,
}

// === impl PoolConfig ===

impl PoolConfig {
    /// Returns the resource limits of one container.
    pub fn limits(&self) -> ContainerLimits {
        ContainerLimits {
            memory_bytes: self.memory_bytes,
            cpu_millis: self.cpu_millis,
            pids: self.pids,
            disk_bytes: self.disk_bytes,
            inodes: self.inodes,
        }
    }

    /// Returns the reason for which containers cannot use the directory of fonts; `None` if they can, or if none is
    /// configured. Blocks.
    pub fn fonts_fault(&self) -> Option<String> {
        let key = format!("pools.{}.fonts", self.name);
        environments::shared_dir_fault(self.fonts.as_deref()?, &key)
    }

    /// Returns the directory of fonts that containers can use. Blocks.
    pub fn usable_fonts(&self) -> Option<&Path> {
        let fonts = self.fonts.as_deref();
        fonts.filter(|_| self.fonts_fault().is_none())
    }
}

// === impl PullPolicy ===

impl TryFrom<String> for PullPolicy {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        match text.as_str() {
            "never" => Ok(Self::Never),
            "missing" => Ok(Self::Missing),
            other => Err(format!(
                "{other:?} is not a policy; use \"never\" or \"missing\""
            )),
        }
    }
}

// === impl WorkspaceStorage ===

impl TryFrom<String> for WorkspaceStorage {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        match text.as_str() {
            "tmpfs" => Ok(Self::Tmpfs),
            "disk" => Ok(Self::Disk),
            other => Err(format!(
                "{other:?} is not a storage; use \"tmpfs\" or \"disk\""
            )),
        }
    }
}

/// Deserializes the table of pools into a list sorted by name, without the pools that are switched off.
pub(super) fn pool_list<'de, D: Deserializer<'de>>(source: D) -> Result<Vec<PoolConfig>, D::Error> {
    let pools = BTreeMap::<String, PoolConfig>::deserialize(source)?;
    let named = pools
        .into_iter()
        .map(|(name, pool)| PoolConfig { name, ..pool });
    Ok(named.filter(|pool| pool.max > 0 || pool.warm > 0).collect())
}
