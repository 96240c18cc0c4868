//! Configuration as the daemon uses it: typed and checked. Each part takes its own small struct.
//!
//! Every key, its default and its reason stand in `default.toml`, which is embedded. Order of sources:
//! `default.toml` < one file < `SKILLD_SECTION__KEY` < flags. Nothing else in the daemon reads the environment.
//!
//! | file | does |
//! |---|---|
//! | `sources.rs` | merges the sources, knows where each value came from |
//! | `raw.rs` | the keys as written |
//! | `check.rs`, `fetch.rs`, `pools.rs`, `roots.rs` | units, ranges, relations: `RawConfig` → [`Config`] |

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use crate::engine::Limits;

mod artifacts;
mod check;
mod fetch;
mod pools;
mod raw;
mod roots;
mod sources;

pub use artifacts::Credentials;
pub use pools::POLL_WAIT_MAX;
pub use roots::SkillRoot;
pub use sources::{DEFAULT_TOML, Flags};

/// Longest name of a slot (its number), bytes: the state directory's length is checked against it, because the guests'
/// sockets lie beneath it and a socket's path ends at 107 bytes.
pub const SLOT_NAME_MAX: usize = 10;

/// What is wrong with a configuration: one line per fault, each with its key and its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Faults(pub Vec<String>);

/// A configuration that may be used.
#[derive(Debug, Clone)]
pub struct Loaded {
    /// To be used.
    pub config: Config,
    /// The same as TOML with every key, for people; it loads to the same configuration.
    pub effective: String,
}

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
    /// What is fetched by URL.
    pub fetch: crate::fetch::Bounds,
    /// Skills.
    pub skills: SkillsConfig,
    /// Artifacts.
    pub artifacts: ArtifactsConfig,
    /// Log filter, as tracing-subscriber's EnvFilter takes it.
    pub log: String,
    /// One JSON object per line instead of text.
    pub log_json: bool,
    /// Lines that one place in the code may log within [`crate::telemetry::LOG_INTERVAL`].
    pub log_lines_max: u64,
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
    /// Maximum number of connections.
    pub connections_max: usize,
    /// Maximum number of connections of one user.
    pub connections_per_user_max: usize,
    /// Memory for output that readers do not take, over all streams, bytes.
    pub relay_bytes_max: u64,
    /// A connection without the preface of HTTP/2 is closed after this long.
    pub handshake_timeout: Duration,
    /// Between two questions whether the peer is alive.
    pub keepalive_interval: Duration,
    /// How long its answer may take.
    pub keepalive_timeout: Duration,
    /// Unary calls are answered with DEADLINE after this long; the wait for a claim and a delete included.
    pub unary_timeout: Duration,
    /// A client's stream of files that is silent for this long is ended.
    pub upload_timeout: Duration,
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
    /// `unix:///PATH`; resolved, never empty.
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
    /// How long an engine that answers may take to remove a container before its slot is quarantined.
    pub remove_timeout: Duration,
    /// Between two comparisons of the engine's containers with the slots.
    pub reconcile_interval: Duration,
    /// How long a container may take from create to the guest's answer.
    pub boot_timeout: Duration,
    /// How long a container may be paused before its workspace counts as lost.
    pub pause_timeout: Duration,
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
    /// Program and arguments that are run once in each container before it is warm; none if empty.
    pub warm_up: Vec<String>,
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
    /// From the last stream's break until an exec with `on_disconnect: KILL` is killed.
    pub disconnect_grace: Duration,
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
    /// Folders of the host that inputs may come from; absolute.
    pub host_roots: Vec<PathBuf>,
    /// Inputs may come from URLs.
    pub input_urls: bool,
    /// These may lead to addresses that are not public.
    pub input_private_addresses: bool,
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
    /// From an exec's end until what its outputs are collected for is given up, and how long a workspace's end waits.
    pub collect_on_exit_timeout: Duration,
}

/// Where skills come from.
#[derive(Debug, Clone)]
pub struct SkillsConfig {
    /// Where folders of skills are; the first one that has a name wins.
    pub roots: Vec<SkillRoot>,
    /// Folders below a root that are looked into.
    pub depth_max: usize,
    /// Directories of one root that are looked into.
    pub dirs_max: usize,
    /// Entries of one root that are looked at.
    pub entries_max: usize,
    /// Directories that are watched for changes.
    pub watches_max: usize,
    /// Files of one skill.
    pub files_max: u64,
    /// Bytes of one skill.
    pub bytes_max: u64,
    /// Largest SKILL.md, bytes.
    pub skill_md_bytes_max: u64,
    /// Skills in all.
    pub skills_max: usize,
    /// Bytes of a published archive.
    pub publish_bytes_max: u64,
    /// Archives that are taken in at once.
    pub publishes_max: usize,
    /// How long what nothing refers to stays in the store after its last use.
    pub keep_unused: Duration,
    /// Roots that are URLs.
    pub remote: RemoteConfig,
}

/// Roots that are fetched from servers.
#[derive(Debug, Clone)]
pub struct RemoteConfig {
    /// Where what was fetched is kept; absolute.
    pub cache_dir: PathBuf,
    /// Between two questions to a server whether it has something new.
    pub refresh_interval: Duration,
    /// Of one attempt with all that it fetches.
    pub refresh_timeout: Duration,
    /// Whether they may be fetched from addresses that are not public.
    pub allow_private_addresses: bool,
    /// Of one download.
    pub download_bytes_max: u64,
    /// Of all files of a root, unpacked.
    pub archive_bytes_max: u64,
    /// Of one file, unpacked.
    pub archive_file_bytes_max: u64,
    /// Files, links and directories.
    pub archive_entries_max: u64,
    /// Names in a path.
    pub archive_depth_max: usize,
    /// Unpacked bytes for each packed one.
    pub archive_ratio_max: u64,
    /// How it is fetched.
    pub fetch: crate::fetch::Bounds,
}

/// Where artifacts are kept, and how many bytes.
#[derive(Debug, Clone)]
pub struct ArtifactsConfig {
    /// Which store.
    pub place: ArtifactsPlace,
    /// Of one request to it.
    pub timeout: Duration,
    /// Of one artifact.
    pub bytes_max: u64,
    /// Saves at once.
    pub saves_max: usize,
}

/// Where artifacts are kept.
#[derive(Debug, Clone)]
pub enum ArtifactsPlace {
    /// `artifacts/` in the state directory, which nobody else uses.
    StateDir,
    /// A directory that other daemons may use too.
    Directory(PathBuf),
    /// A bucket of an S3-compatible server.
    S3 {
        /// Its name.
        bucket: String,
        /// Before all keys; may be empty.
        prefix: String,
        /// The server, unless the environment says.
        endpoint: Option<String>,
        /// Unless the environment says.
        region: Option<String>,
        /// Whether the server may be asked without TLS.
        allow_http: bool,
        /// From a file; what is not there comes from the environment.
        credentials: Credentials,
    },
}

// === impl Config ===

impl Config {
    /// Loads from all sources and checks that what the host must have is there.
    ///
    /// # Errors
    /// All faults together.
    pub fn load(flags: &Flags) -> Result<Loaded, Faults> {
        let sources = sources::Sources::all(flags).map_err(|fault| Faults(vec![fault]))?;
        let loaded = finish(&sources, &Outside::read())?;
        let guest = &loaded.config.engine.guest_path;
        if guest.is_file() {
            return Ok(loaded);
        }
        Err(Faults(vec![format!(
            "engine.guest_path: there is no guest binary at {}; build it with `make guest`, or set the path{}",
            guest.display(),
            sources.place("engine.guest_path"),
        )]))
    }

    /// The defaults with `text` (TOML) over them; neither environment nor flags, and nothing of the host is
    /// looked at. For tests and tools.
    ///
    /// # Errors
    /// All faults together.
    pub fn from_toml(text: &str) -> Result<Loaded, Faults> {
        finish(&sources::Sources::text(text), &Outside::default())
    }
}

fn finish(sources: &sources::Sources, outside: &Outside) -> Result<Loaded, Faults> {
    let (mut raw, faults) = sources.raw().map_err(Faults)?;
    if raw.listen.is_empty() {
        let path = match raw.state_dir.as_str() {
            DEFAULT_STATE_DIR => "/run/skilld/skilld.sock".to_owned(),
            other => format!("{}/skilld.sock", other.trim_end_matches('/')),
        };
        raw.listen = format!("unix:{path}");
    }
    if raw.engine.docker_host.is_empty() {
        let given = outside.docker_host.as_deref();
        raw.engine.docker_host = given.unwrap_or(DEFAULT_DOCKER_HOST).to_owned();
    }
    if let Some(roots) = &outside.skills_root
        && !sources.is_given("skills.roots")
    {
        raw.skills.roots = roots::listed(roots);
    }
    if raw.skills.cache_dir.is_empty() {
        let beneath = format!("{}/cache", raw.state_dir.trim_end_matches('/'));
        raw.skills.cache_dir = outside.skills_cache_dir.clone().unwrap_or(beneath);
    }
    if raw.engine.guest_path.is_empty() {
        raw.engine.guest_path = find_guest().display().to_string();
    }
    let place = |key: &str| sources.place(key);
    let mut check = check::Check {
        faults,
        place: &place,
    };
    let config = check::config(&mut check, &raw);
    if !check.faults.is_empty() {
        return Err(Faults(check.faults));
    }
    let effective = toml::to_string(&raw).map_err(|error| Faults(vec![error.to_string()]))?;
    Ok(Loaded { config, effective })
}

const DEFAULT_STATE_DIR: &str = "/var/lib/skilld";
const DEFAULT_DOCKER_HOST: &str = "unix:///var/run/docker.sock";
const INSTALLED_GUEST: &str = "/usr/lib/skilld/skilld-guest";

/// What other programs' variables say where the configuration says nothing.
#[derive(Debug, Default)]
struct Outside {
    docker_host: Option<String>,
    skills_root: Option<String>,
    skills_cache_dir: Option<String>,
}

impl Outside {
    fn read() -> Self {
        Self {
            docker_host: variable("DOCKER_HOST"),
            skills_root: variable("SKILLS_ROOT"),
            skills_cache_dir: variable("SKILLS_CACHE_DIR"),
        }
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "config.rs is where the environment is read"
)]
fn variable(name: &str) -> Option<String> {
    let text = std::env::var(name).ok();
    text.filter(|text| !text.trim().is_empty())
}

/// The guest's binary: beside our own, installed, or where cargo puts it for a development build; if there is
/// none, the path at which an installation has it.
fn find_guest() -> PathBuf {
    let installed = PathBuf::from(INSTALLED_GUEST);
    let Ok(own) = std::env::current_exe() else {
        return installed;
    };
    let beside = own.parent().map(|dir| dir.join("skilld-guest"));
    let triple = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    // target/<profile>/skilld, and target/<profile>/deps/<test>.
    let built = own.ancestors().skip(2).take(2);
    let built = built.map(|dir| dir.join(&triple).join("guest/skilld-guest"));
    let candidates = beside.into_iter().chain([installed.clone()]).chain(built);
    candidates
        .into_iter()
        .find(|path| path.is_file())
        .unwrap_or(installed)
}

// === impl Faults ===

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join("\n"))
    }
}

impl std::error::Error for Faults {}
