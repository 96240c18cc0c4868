//! Typed sections `[server]`, `[engine]`, `[workspaces]`, `[execs]` and `[files]`: one struct each, with one field for
//! each key of `default.toml`.

use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;

use super::values;

/// Section `[server]`: limits and timeouts of the gRPC server.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServerConfig {
    /// Permission bits of the listening socket.
    #[serde(deserialize_with = "values::file_mode")]
    pub socket_mode: u32,
    /// Maximum size of one protobuf message in either direction, in bytes.
    #[serde(deserialize_with = "values::size")]
    pub message_bytes_max: usize,
    /// Maximum size of a request's header list, in bytes.
    #[serde(deserialize_with = "values::size")]
    pub header_bytes_max: u32,
    /// Maximum number of concurrent streams on one connection.
    #[serde(deserialize_with = "values::count")]
    pub streams_max: u32,
    /// Maximum number of connections.
    #[serde(deserialize_with = "values::count")]
    pub connections_max: usize,
    /// Maximum number of connections of one user (uid) of the host.
    #[serde(deserialize_with = "values::count")]
    pub connections_per_user_max: usize,
    /// Memory for output that clients have not read yet, over all streams, in bytes.
    #[serde(deserialize_with = "values::size")]
    pub relay_bytes_max: u64,
    /// Time after which the daemon closes a connection that has not sent the HTTP/2 preface.
    #[serde(deserialize_with = "values::time")]
    pub handshake_timeout: Duration,
    /// Interval between keep-alive pings on an idle connection.
    #[serde(deserialize_with = "values::time")]
    pub keepalive_interval: Duration,
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
    /// Time that a uid stays unused before another slot gets it.
    #[serde(deserialize_with = "values::time")]
    pub uid_quarantine: Duration,
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
    /// Maximum number of containers that boot at the same time.
    #[serde(deserialize_with = "values::count")]
    pub boots_max: usize,
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
    /// Time that a failed workspace stays listed.
    #[serde(deserialize_with = "values::time")]
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
    /// Maximum number of ended execs that one workspace keeps; the oldest are removed first.
    #[serde(deserialize_with = "values::count")]
    pub retained_max: u32,
    /// Timeout of an exec whose request sets none.
    #[serde(deserialize_with = "values::time")]
    pub timeout_default: Duration,
    /// Longest timeout; the daemon shortens a longer one to this.
    #[serde(deserialize_with = "values::time")]
    pub timeout_max: Duration,
    /// Retained output of each stream if the request sets none, in bytes.
    #[serde(deserialize_with = "values::size")]
    pub retain_bytes_default: u64,
    /// Largest retained output of one stream that a request may set, in bytes.
    #[serde(deserialize_with = "values::size")]
    pub retain_bytes_max: u64,
    /// Maximum retained output of all execs of one workspace, in bytes.
    #[serde(deserialize_with = "values::size")]
    pub retain_bytes_total: u64,
    /// Time that an ended exec is kept if the request sets none.
    #[serde(deserialize_with = "values::time")]
    pub retain_after_exit_default: Duration,
    /// Longest time that a request may have an ended exec kept.
    #[serde(deserialize_with = "values::time")]
    pub retain_after_exit_max: Duration,
    /// Time between SIGTERM and SIGKILL if KillExec sets none.
    #[serde(deserialize_with = "values::time")]
    pub kill_grace: Duration,
    /// Time after the command's end during which its remaining processes may hold the output open.
    #[serde(deserialize_with = "values::time")]
    pub leak_grace: Duration,
    /// Time between the last stream's break and the kill of an exec with `on_disconnect: KILL`.
    #[serde(deserialize_with = "values::time")]
    pub disconnect_grace: Duration,
    /// Interval between heartbeats on a silent output stream.
    #[serde(deserialize_with = "values::time")]
    pub heartbeat: Duration,
}

/// Section `[files]`: limits of staging and collecting.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FilesConfig {
    /// Maximum number of entries in one staged archive.
    #[serde(deserialize_with = "values::count")]
    pub archive_entries_max: u64,
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
    /// Maximum number of files of a collection whose request sets none.
    #[serde(deserialize_with = "values::count")]
    pub collect_files_default: u64,
    /// Largest number of files that a collection may request.
    #[serde(deserialize_with = "values::count")]
    pub collect_files_max: u64,
    /// Maximum size of one collected file if the request sets none, in bytes.
    #[serde(deserialize_with = "values::size")]
    pub collect_file_bytes_default: u64,
    /// Largest size of one collected file that a request may set, in bytes.
    #[serde(deserialize_with = "values::size")]
    pub collect_file_bytes_max: u64,
    /// Maximum size of all collected files if the request sets none, in bytes.
    #[serde(deserialize_with = "values::size")]
    pub collect_total_bytes_default: u64,
    /// Largest total size that a collection may request, in bytes.
    #[serde(deserialize_with = "values::size")]
    pub collect_total_bytes_max: u64,
}
