//! Options of skills' environments, from section `[skills]`: when they are built, and where packages come from.

use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;

/// Occasion on which the environment of a skill is built.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EnvironmentBuilds {
    /// When the skill is staged and its environment is missing, and on PrepareSkill.
    Stage,
    /// On PrepareSkill only.
    Prepare,
    /// Never; containers have no environments.
    Never,
}

/// Options of skills' environments.
#[derive(Debug, Clone)]
pub struct EnvironmentOptions {
    /// Occasion on which an environment is built.
    pub builds: EnvironmentBuilds,
    /// Directory of wheels from which Python packages are installed.
    pub wheelhouse: Option<PathBuf>,
    /// URL of an index of Python packages (PEP 503).
    pub package_index: Option<String>,
    /// URL of a registry of Node.js packages.
    pub node_package_index: Option<String>,
    /// Hosts that a build may reach besides those of the two indexes.
    pub package_hosts: Vec<String>,
    /// `true` if a build may compile source distributions, which runs code of the packages.
    pub source_builds: bool,
    /// Maximum number of builds at the same time in one pool.
    pub builds_max: usize,
    /// Maximum duration of one build.
    pub build_timeout: Duration,
    /// Memory of a build's container, in bytes.
    pub build_memory_bytes: u64,
    /// Size of a build's workspace, in bytes. It counts towards the memory.
    pub build_disk_bytes: u64,
}

impl EnvironmentOptions {
    /// Returns `true` if containers have environments.
    #[must_use]
    pub fn is_enabled(&self) -> bool {
        self.builds != EnvironmentBuilds::Never
    }

    /// Returns `true` if containers have the operator's wheels.
    #[must_use]
    pub fn has_wheelhouse(&self) -> bool {
        self.is_enabled() && self.wheelhouse.is_some()
    }
}
