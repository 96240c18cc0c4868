//! The configuration as it is written: one struct per section of `default.toml`, same keys, same order.
//!
//! Values with a unit are strings here. Nothing is checked but names and types; `check.rs` does the rest.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawConfig {
    pub(super) state_dir: String,
    pub(super) listen: String,
    pub(super) default_pool: String,
    pub(super) log: String,
    pub(super) log_format: String,
    pub(super) log_lines_max: u64,
    pub(super) server: RawServer,
    pub(super) engine: RawEngine,
    pub(super) pools: BTreeMap<String, RawPool>,
    pub(super) workspaces: RawWorkspaces,
    pub(super) execs: RawExecs,
    pub(super) files: RawFiles,
    pub(super) fetch: RawFetch,
    pub(super) skills: RawSkills,
    pub(super) artifacts: RawArtifacts,
}

#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawServer {
    pub(super) socket_mode: String,
    pub(super) message_bytes_max: String,
    pub(super) header_bytes_max: String,
    pub(super) streams_max: u64,
    pub(super) connections_max: u64,
    pub(super) connections_per_user_max: u64,
    pub(super) relay_bytes_max: String,
    pub(super) handshake_timeout: String,
    pub(super) keepalive_interval: String,
    pub(super) keepalive_timeout: String,
    pub(super) unary_timeout: String,
    pub(super) upload_timeout: String,
    pub(super) drain_timeout: String,
    pub(super) stop_timeout: String,
    pub(super) reflection: bool,
}

#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawEngine {
    pub(super) docker_host: String,
    pub(super) timeout: String,
    pub(super) guest_path: String,
    pub(super) uid_base: u64,
    pub(super) uid_count: u64,
    pub(super) uid_quarantine: String,
    pub(super) remove_timeout: String,
    pub(super) reconcile_interval: String,
    pub(super) boot_timeout: String,
    pub(super) pause_timeout: String,
    pub(super) boots_max: u64,
}

#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawPool {
    pub(super) image: String,
    pub(super) oci_runtime: String,
    pub(super) warm: u64,
    pub(super) max: u64,
    pub(super) queue_max: u64,
    pub(super) claim_timeout: String,
    pub(super) memory: String,
    pub(super) cpus: f64,
    pub(super) pids: u64,
    pub(super) storage: String,
    pub(super) disk: String,
    pub(super) inodes: u64,
    pub(super) tmp: String,
    pub(super) shm: String,
    pub(super) warm_up: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawWorkspaces {
    pub(super) count_max: u64,
    pub(super) idle_timeout_default: String,
    pub(super) idle_timeout_max: String,
    pub(super) lifetime_default: String,
    pub(super) lifetime_max: String,
    pub(super) failed_retention: String,
}

#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawExecs {
    pub(super) count_max: u64,
    pub(super) retained_max: u64,
    pub(super) timeout_default: String,
    pub(super) timeout_max: String,
    pub(super) retain_bytes_default: String,
    pub(super) retain_bytes_max: String,
    pub(super) retain_bytes_total: String,
    pub(super) retain_after_exit_default: String,
    pub(super) retain_after_exit_max: String,
    pub(super) kill_grace: String,
    pub(super) leak_grace: String,
    pub(super) disconnect_grace: String,
    pub(super) heartbeat: String,
}

#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawFiles {
    pub(super) archive_entries_max: u64,
    pub(super) stage_bytes_max: String,
    pub(super) host_roots: Vec<String>,
    pub(super) input_urls: bool,
    pub(super) input_private_addresses: bool,
    pub(super) collect_files_default: u64,
    pub(super) collect_files_max: u64,
    pub(super) collect_file_bytes_default: String,
    pub(super) collect_file_bytes_max: String,
    pub(super) collect_total_bytes_default: String,
    pub(super) collect_total_bytes_max: String,
    pub(super) collect_on_exit_timeout: String,
}

#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawFetch {
    pub(super) connect_timeout: String,
    pub(super) timeout: String,
    pub(super) proxy: String,
}

#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawSkills {
    pub(super) roots: Vec<String>,
    pub(super) depth_max: u64,
    pub(super) dirs_max: u64,
    pub(super) entries_max: u64,
    pub(super) watches_max: u64,
    pub(super) files_max: u64,
    pub(super) bytes_max: String,
    pub(super) skill_md_bytes_max: String,
    pub(super) count_max: u64,
    pub(super) publish_bytes_max: String,
    pub(super) publishes_max: u64,
    pub(super) keep_unused: String,
    pub(super) cache_dir: String,
    pub(super) refresh_interval: String,
    pub(super) refresh_timeout: String,
    pub(super) allow_private_addresses: bool,
    pub(super) download_bytes_max: String,
    pub(super) archive_bytes_max: String,
    pub(super) archive_file_bytes_max: String,
    pub(super) archive_entries_max: u64,
    pub(super) archive_depth_max: u64,
    pub(super) archive_ratio_max: u64,
}

#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawArtifacts {
    pub(super) url: String,
    pub(super) endpoint: String,
    pub(super) region: String,
    pub(super) allow_http: bool,
    pub(super) credentials_file: String,
    pub(super) timeout: String,
    pub(super) bytes_max: String,
    pub(super) saves_max: u64,
}
