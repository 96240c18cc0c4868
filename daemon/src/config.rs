//! Configuration as the daemon uses it: typed and checked. Each part takes its own small struct.
//!
//! Every key, its default and its reason stand in `default.toml`.

use std::path::PathBuf;
use std::time::Duration;

use crate::engine::Limits;

/// Everything that is configured.
#[derive(Debug, Clone)]
pub struct Config {
    /// Private to the daemon's user (0700); see ARCHITECTURE.md for what is in it.
    pub state_dir: PathBuf,
    /// Path of the Unix socket that clients connect to.
    pub socket: PathBuf,
    /// Front door.
    pub server: ServerConfig,
    /// What makes containers.
    pub engine: EngineConfig,
    /// Pools, sorted by name; at least one.
    pub pools: Vec<PoolConfig>,
    /// Name of the pool for requests that name none.
    pub default_pool: String,
    /// Workspaces.
    pub workspaces: WorkspaceConfig,
    /// Execs.
    pub execs: ExecConfig,
    /// Staging, reading and collecting.
    pub files: FileConfig,
    /// Skills.
    pub skills: SkillsConfig,
    /// Log filter, as tracing-subscriber's EnvFilter takes it.
    pub log: String,
    /// One JSON object per line instead of text.
    pub log_json: bool,
}

/// Limits of the front door.
#[derive(Debug, Clone)]
pub struct ServerConfig {
    /// Mode bits of the socket (0660).
    pub socket_mode: u32,
    /// Largest message in either direction, bytes.
    pub message_bytes_max: usize,
    /// Largest header list, bytes.
    pub header_bytes_max: u32,
    /// Streams at once on one connection.
    pub streams_max: u32,
    /// Connections at once.
    pub connections_max: usize,
    /// Unary calls are answered with DEADLINE after this long; the wait for a claim and a delete included.
    pub unary_timeout: Duration,
    /// How long a drain waits for what is running.
    pub drain_timeout: Duration,
    /// How long a stop waits for tasks.
    pub stop_timeout: Duration,
    /// Serve reflection.
    pub reflection: bool,
}

/// How containers are made.
#[derive(Debug, Clone)]
pub struct EngineConfig {
    /// `unix:///var/run/docker.sock`, or what DOCKER_HOST says if empty.
    pub docker_host: String,
    /// Deadline of each call to the engine.
    pub timeout: Duration,
    /// The guest's binary on the host.
    pub guest_path: PathBuf,
    /// First uid of the range that slots use.
    pub uid_base: u32,
    /// Size of the range, and so the number of slots there can be.
    pub uid_count: u32,
    /// How long a uid rests before another slot gets it.
    pub uid_quarantine: Duration,
    /// How long a container may take from create to the guest's answer.
    pub boot_timeout: Duration,
    /// Containers that are created and started at once.
    pub boots_max: usize,
}

/// A named recipe.
#[derive(Debug, Clone)]
pub struct PoolConfig {
    /// `[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?`.
    pub name: String,
    /// Image reference.
    pub image: String,
    /// OCI runtime; `None` means the engine's default.
    pub oci_runtime: Option<String>,
    /// Warm containers to keep.
    pub warm: usize,
    /// Containers at most, warm and claimed.
    pub max: usize,
    /// Requests that may wait for a container.
    pub queue_max: usize,
    /// How long a request may wait for one.
    pub claim_timeout: Duration,
    /// Sizes.
    pub limits: Limits,
    /// Size of /tmp, bytes.
    pub tmp_bytes: u64,
    /// Size of /dev/shm, bytes.
    pub shm_bytes: u64,
}

/// Life of workspaces.
#[derive(Debug, Clone)]
pub struct WorkspaceConfig {
    /// Workspaces at once.
    pub workspaces_max: usize,
    /// Without rpc or running exec.
    pub idle_timeout_default: Duration,
    /// Largest that a request may ask for.
    pub idle_timeout_max: Duration,
    /// From creation to removal.
    pub lifetime_default: Duration,
    /// Largest that a request may ask for.
    pub lifetime_max: Duration,
    /// How long a failed workspace stays listed.
    pub failed_retention: Duration,
}

/// Bounds of execs.
#[derive(Debug, Clone)]
pub struct ExecConfig {
    /// Running at once in one workspace.
    pub execs_max: u32,
    /// Kept after their end in one workspace; the oldest go first.
    pub retained_max: u32,
    /// Where a request does not say.
    pub timeout_default: Duration,
    /// A longer one is cut down to this.
    pub timeout_max: Duration,
    /// Window of each stream where a request does not say, bytes.
    pub retain_bytes_default: u64,
    /// Largest window, bytes.
    pub retain_bytes_max: u64,
    /// Retained output of all execs of a workspace, bytes.
    pub retain_bytes_total: u64,
    /// How long an exec is kept after its end where a request does not say.
    pub retain_after_exit_default: Duration,
    /// Longest.
    pub retain_after_exit_max: Duration,
    /// Between TERM and KILL where a request does not say.
    pub kill_grace: Duration,
    /// From the leader's end until what holds its pipes is let go.
    pub leak_grace: Duration,
    /// Between heartbeats on a silent stream.
    pub heartbeat: Duration,
}

/// Bounds of staging and collecting.
#[derive(Debug, Clone)]
pub struct FileConfig {
    /// Entries of one staged archive.
    pub archive_entries_max: u64,
    /// Bytes of one staged stream, after decompression.
    pub stage_bytes_max: u64,
    /// Files of one collect where a request does not say.
    pub collect_files_default: u64,
    /// Most.
    pub collect_files_max: u64,
    /// Bytes of one collected file where a request does not say.
    pub collect_file_bytes_default: u64,
    /// Most.
    pub collect_file_bytes_max: u64,
    /// Bytes of one collect where a request does not say.
    pub collect_total_bytes_default: u64,
    /// Most.
    pub collect_total_bytes_max: u64,
}

/// Where skills come from.
#[derive(Debug, Clone)]
pub struct SkillsConfig {
    /// Directories with a folder per skill; the first one that has a name wins.
    pub roots: Vec<PathBuf>,
    /// Files of one skill.
    pub files_max: u64,
    /// Bytes of one skill.
    pub bytes_max: u64,
    /// Largest SKILL.md, bytes.
    pub skill_md_bytes_max: u64,
    /// Skills in all.
    pub skills_max: usize,
}
