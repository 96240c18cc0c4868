//! Typed sections `[server]`, `[engine]`, `[workspaces]`, `[execs]` and `[files]`, one struct each. They have a field
//! for each key of `default.toml`, and for the times that only tests shorten.

use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;

use super::values;

/// Retained output of one stream if the request sets none, in bytes, for clients that read late or again.
const RETAIN_BYTES_DEFAULT: u64 = 4 << 20;

/// Section `[server]`: limits and timeouts of the gRPC server.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServerConfig {
    /// Maximum number of concurrent streams on one connection.
    #[serde(deserialize_with = "values::count")]
    pub streams_max: u32,
    /// Maximum number of connections.
    #[serde(deserialize_with = "values::count")]
    pub connections_max: usize,
    /// Memory for output that clients have not read yet, over all streams, in bytes.
    #[serde(deserialize_with = "values::size")]
    pub relay_bytes_max: u64,
    /// Time after which the daemon closes a connection that has not sent the 24 bytes of the HTTP/2 preface. A client
    /// sends them at once, but its machine may stand still for seconds.
    #[serde(skip, default = "values::seconds::<30>")]
    pub handshake_timeout: Duration,
    /// Time that a client has to answer a keep-alive ping.
    #[serde(deserialize_with = "values::time")]
    pub keepalive_timeout: Duration,
    /// Deadline of a unary call, including the wait for a container and the deletion of a workspace.
    #[serde(deserialize_with = "values::time")]
    pub unary_timeout: Duration,
    /// Time after which the daemon ends an upload stream that sends nothing.
    #[serde(deserialize_with = "values::time")]
    pub upload_timeout: Duration,
    /// Time that a shutdown waits for running calls.
    #[serde(deserialize_with = "values::time")]
    pub drain_timeout: Duration,
    /// Time that a shutdown then waits for the daemon's own tasks.
    #[serde(deserialize_with = "values::time")]
    pub stop_timeout: Duration,
    /// `true` if the server offers gRPC reflection.
    pub reflection: bool,
}

impl ServerConfig {
    /// Returns the maximum number of connections of one user (uid) of the host, IPv4 address or IPv6 network of 64 bits:
    /// nine tenths of all, so that none can block all others.
    pub fn connections_per_user_max(&self) -> usize {
        let others = self.connections_max.div_ceil(10);
        (self.connections_max - others).max(1)
    }
}

/// Section `[engine]`: how the daemon makes and removes containers.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EngineConfig {
    /// Address of Docker's API socket, as `unix:///PATH`.
    pub docker_host: String,
    /// Directory of Docker's client configuration, which has the credentials of registries; `None` if there is none.
    #[serde(deserialize_with = "values::optional_path")]
    pub docker_config: Option<PathBuf>,
    /// Deadline of each call to the container engine.
    #[serde(deserialize_with = "values::time")]
    pub timeout: Duration,
    /// Path of the guest binary on the host.
    #[serde(deserialize_with = "values::path")]
    pub guest_path: PathBuf,
    /// First uid of the range that slots use.
    pub uid_base: u32,
    /// Size of the uid range, which limits the number of slots.
    #[serde(deserialize_with = "values::count")]
    pub uid_count: u32,
    /// Time that a responsive engine has to remove a container before its slot is quarantined.
    #[serde(deserialize_with = "values::time")]
    pub remove_timeout: Duration,
    /// Interval between comparisons of the engine's containers with the slots.
    #[serde(deserialize_with = "values::time")]
    pub reconcile_interval: Duration,
    /// Time that a container has from its creation to its guest's first answer.
    #[serde(deserialize_with = "values::time")]
    pub boot_timeout: Duration,
    /// Time that a container may be paused before its workspace counts as lost.
    #[serde(deserialize_with = "values::time")]
    pub pause_timeout: Duration,
}

/// Section `[workspaces]`: number and lifetime of workspaces.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorkspaceConfig {
    /// Maximum number of workspaces over all pools.
    #[serde(rename = "count_max", deserialize_with = "values::count")]
    pub workspaces_max: usize,
    /// Idle timeout of a workspace whose creator requests none.
    #[serde(deserialize_with = "values::time")]
    pub idle_timeout_default: Duration,
    /// Longest idle timeout that a request may set.
    #[serde(deserialize_with = "values::time")]
    pub idle_timeout_max: Duration,
    /// Lifetime of a workspace whose creator requests none.
    #[serde(deserialize_with = "values::time")]
    pub lifetime_default: Duration,
    /// Longest lifetime that a request may set.
    #[serde(deserialize_with = "values::time")]
    pub lifetime_max: Duration,
    /// Time that a failed workspace stays listed with its reason, so that its user can see what happened.
    #[serde(skip, default = "values::seconds::<600>")]
    pub failed_retention: Duration,
    /// Space that workspaces on disk leave free on the disk of the state directory, in bytes.
    #[serde(rename = "disk_reserve", deserialize_with = "values::size")]
    pub disk_reserve_bytes: u64,
}

/// Section `[execs]`: limits and timeouts of execs.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExecConfig {
    /// Maximum number of running execs in one workspace.
    #[serde(rename = "count_max", deserialize_with = "values::count")]
    pub execs_max: u32,
    /// Timeout of an exec whose request sets none.
    #[serde(deserialize_with = "values::time")]
    pub timeout_default: Duration,
    /// Longest timeout; the daemon shortens a longer one to this.
    #[serde(deserialize_with = "values::time")]
    pub timeout_max: Duration,
    /// Maximum retained output of all execs of one workspace, in bytes.
    #[serde(deserialize_with = "values::size")]
    pub retain_bytes_total: u64,
    /// Time between SIGTERM and SIGKILL if KillExec sets none.
    #[serde(deserialize_with = "values::time")]
    pub kill_grace: Duration,
    /// Time between the last stream's break and the kill of an exec with `on_disconnect: KILL`.
    #[serde(deserialize_with = "values::time")]
    pub disconnect_grace: Duration,
}

impl ExecConfig {
    /// Returns the retained output of one stream if the request sets none, in bytes.
    pub fn retain_bytes_default(&self) -> u64 {
        RETAIN_BYTES_DEFAULT.min(self.retain_bytes_max())
    }

    /// Returns the largest retained output of one stream that a request may set, in bytes: an exec has two streams.
    pub fn retain_bytes_max(&self) -> u64 {
        self.retain_bytes_total / 2
    }
}

/// Section `[files]`: limits of staging and collecting.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FilesConfig {
    /// Maximum size of one staged stream after decompression, in bytes.
    #[serde(deserialize_with = "values::size")]
    pub stage_bytes_max: u64,
    /// Absolute directories of the host from which StageInputs may read.
    #[serde(deserialize_with = "values::paths")]
    pub host_roots: Vec<PathBuf>,
    /// `true` if StageInputs may fetch URLs.
    pub input_urls: bool,
    /// `true` if the URLs of inputs may lead to addresses that are not public.
    pub input_private_addresses: bool,
}
