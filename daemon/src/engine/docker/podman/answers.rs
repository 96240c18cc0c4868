//! Podman's answers to create, inspect and list, as far as the daemon uses them.
//!
//! bollard's own types refuse a container in one of Podman's states, and with it the whole list.

use std::collections::HashMap;

use serde::Deserialize;

use crate::engine::{ContainerState, ContainerSummary};

/// Answer to a create request.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct CreateAnswer {
    /// Container id.
    pub(super) id: String,
    /// Settings of the request that Podman did not apply.
    pub(super) warnings: Option<Vec<String>>,
}

/// Answer to an inspect request.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct ContainerAnswer {
    state: StateAnswer,
}

/// State of a container.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
struct StateAnswer {
    status: String,
    pid: i64,
    #[serde(rename = "OOMKilled")]
    oom_killed: bool,
    exit_code: i64,
}

/// Entry of a list of containers.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct ContainerEntry {
    id: String,
    #[serde(default)]
    state: String,
    labels: Option<HashMap<String, String>>,
}

/// Returns `true` if a container in this state has processes. Podman calls a container `stopping` until its processes
/// have ended, and `stopped` until its own clean-up has made it `exited`.
fn is_running(status: &str) -> bool {
    matches!(status, "running" | "paused" | "stopping")
}

// === impl ContainerAnswer ===

impl From<ContainerAnswer> for ContainerState {
    fn from(ContainerAnswer { state }: ContainerAnswer) -> Self {
        Self {
            running: is_running(&state.status),
            paused: state.status == "paused",
            pid: i32::try_from(state.pid).unwrap_or(0),
            oom_killed: state.oom_killed,
            exit_code: state.exit_code,
        }
    }
}

// === impl ContainerEntry ===

impl From<ContainerEntry> for ContainerSummary {
    fn from(entry: ContainerEntry) -> Self {
        Self {
            id: entry.id,
            running: is_running(&entry.state),
            paused: entry.state == "paused",
            labels: entry.labels.unwrap_or_default(),
        }
    }
}
