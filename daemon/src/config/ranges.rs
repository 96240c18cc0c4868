//! Range checks of the whole configuration, in one list: lengths, ranges and relations between keys.
//!
//! Checks of a single value that every key of its type shares (a time is over zero, a count is at least 1) are in
//! `values.rs`.

use std::path::Path;
use std::time::Duration;

use bytesize::ByteSize;
use skilld_common::names::is_resource_id;

use super::artifacts::ArtifactStorage;
use super::fault_list::FaultList;
use super::{AuditDelivery, Config, PoolConfig, SLOT_NAME_BYTES_MAX, WorkspaceStorage, listeners};
use crate::engine::image_reference::ImageReference;
use crate::engine::workspace_disk::{DiskGeometry, GeometryFault};

/// Longest wait of one PollExec. `server.unary_timeout` must be longer.
pub const POLL_WAIT_MAX: Duration = Duration::from_secs(60);
/// Largest `execs.count_max`. The daemon waits for each running exec with a call to the guest, which serves a limited
/// number of calls.
pub const EXECS_MAX: u32 = 512;
/// Longest path of a Unix socket, in bytes: 108 in the kernel, including the NUL at the end.
const SOCKET_PATH_BYTES_MAX: usize = 107;
/// Length of what follows the state directory in the path of a guest's socket, with the longest slot name.
const GUEST_SOCKET_TAIL_BYTES: usize =
    "/slots/".len() + SLOT_NAME_BYTES_MAX + "/run/guest.sock".len();
/// Smallest uid that containers may use: distributions give smaller ones to system accounts.
const UID_MIN: u32 = 1000;
/// Smallest `execs.retain_bytes_total` in bytes: each stream of an exec then retains a pipe of the kernel.
const RETAIN_BYTES_MIN: u64 = 128 << 10;

/// Longest time for which the audit log may wait with a sync.
const AUDIT_SYNC_INTERVAL_MAX: Duration = Duration::from_secs(10);
/// Maximum length of the host's name in the audit log, in bytes: that of a DNS name.
const NODE_BYTES_MAX: usize = 253;
/// Names in the state directory that are not free for the audit log.
const STATE_FILES: [&str; 11] = [
    "instance",
    "audit-key",
    "audit-chain",
    "slots",
    "skills",
    "environments",
    "artifacts",
    "skilld.sock",
    "workspace_token.key",
    "usage.json",
    "podman",
];

/// Requires `key` ≤ `other` for each pair of fields of the configuration; with a reason after it, `key` < `other`.
macro_rules! require_orders {
    ($faults:ident, $config:ident { $($a:ident.$b:ident => $c:ident.$d:ident $(, $why:literal)?;)* }) => {
        $($faults.require_order(
            (concat!(stringify!($a), ".", stringify!($b)), $config.$a.$b),
            (concat!(stringify!($c), ".", stringify!($d)), $config.$c.$d),
            !concat!($($why)?).is_empty(),
            concat!($($why)?),
        );)*
    };
}

/// Checks all ranges and relations of a configuration and adds every fault.
pub(super) fn check_ranges(faults: &mut FaultList<'_>, config: &Config) {
    check_paths_and_texts(faults, config);
    check_numbers(faults, config);
    listeners::check_listeners(faults, config);

    require_orders!(faults, config {
        workspaces.idle_timeout_default => workspaces.idle_timeout_max;
        workspaces.lifetime_default => workspaces.lifetime_max;
        execs.timeout_default => execs.timeout_max;
        engine.remove_timeout => server.unary_timeout, ": DeleteWorkspace waits for it";
    });
    check_environments(faults, config);
    check_audit(faults, config);
    check_traces(faults, config);

    for pool in &config.pools {
        check_pool(faults, config, pool);
    }
    check_pool_relations(faults, config);
}

/// Advice about a path that Docker cannot mount.
const MOUNT_ADVICE: &str = "must not contain a comma, a colon, a backslash or a quotation mark: Docker can't mount such a path";

/// Returns `true` for a path that Docker can mount as an overlay: it hands the paths to the kernel in one text, in which
/// these characters separate.
fn is_mountable(path: &Path) -> bool {
    !path.to_string_lossy().contains([',', ':', '\\', '"'])
}

/// Checks the options of skills' environments.
fn check_environments(faults: &mut FaultList<'_>, config: &Config) {
    let environments = &config.skills.environments;
    if !environments.is_enabled() {
        return;
    }
    let state_dir = format!("{MOUNT_ADVICE}; or set skills.environment_builds = \"never\"");
    faults.require("state_dir", is_mountable(&config.state_dir), state_dir);
    let wheelhouse = environments.wheelhouse.as_deref();
    let is_plain = wheelhouse.is_none_or(is_mountable);
    faults.require("skills.wheelhouse", is_plain, MOUNT_ADVICE);
    faults.require_order(
        ("skills.build_disk", environments.build_disk_bytes),
        ("skills.environments_disk", environments.disk_bytes),
        false,
        "",
    );
}

/// Checks the path of the audit log, and the relation of its other keys.
fn check_audit(faults: &mut FaultList<'_>, config: &Config) {
    let audit = &config.audit;
    faults.require(
        "audit.sync_interval",
        audit.sync_interval <= AUDIT_SYNC_INTERVAL_MAX,
        format_args!(
            "must not be over {AUDIT_SYNC_INTERVAL_MAX:?}: a power cut can lose that much"
        ),
    );
    faults.require(
        "audit.sync_interval",
        !audit.sync_interval.is_zero() || audit.delivery == AuditDelivery::Enforced,
        "must be over zero with delivery = \"best_effort\", with which no call waits for the disk",
    );
    let node = audit.node.as_deref().unwrap_or_default();
    faults.require(
        "audit.node",
        node.len() <= NODE_BYTES_MAX,
        format_args!(
            "must have at most {NODE_BYTES_MAX} bytes, has {}",
            node.len()
        ),
    );
    let Some(file) = &audit.file else { return };
    let own = file.strip_prefix(&config.state_dir).ok();
    let is_free = own.is_none_or(|name| {
        name.components().count() == 1 && !STATE_FILES.iter().any(|taken| name == Path::new(taken))
    });
    faults.require(
        "audit.file",
        is_free && *file != config.socket,
        "is a path that skilld uses for something else: use a directory of its own, such as /var/log/skilld, or \
         STATE_DIR/audit.log",
    );
    let root = config
        .files
        .host_roots
        .iter()
        .find(|root| file.starts_with(root));
    if let Some(root) = root {
        let message = format_args!(
            "lies in {}, whose files every client can read (files.host_roots)",
            root.display()
        );
        faults.require("audit.file", false, message);
    }
}

/// Checks the relations of keys of the export of spans.
fn check_traces(faults: &mut FaultList<'_>, config: &Config) {
    let traces = &config.traces;
    faults.require(
        "traces.headers_file",
        traces.headers_file.is_none() || traces.is_private(),
        "would be sent unencrypted: use an https:// endpoint, or a collector on this host",
    );
    faults.require(
        "traces.ca_file",
        traces.ca_file.is_none() || traces.uses_tls(),
        "needs an https:// endpoint",
    );
}

fn check_paths_and_texts(faults: &mut FaultList<'_>, config: &Config) {
    let most = SOCKET_PATH_BYTES_MAX - GUEST_SOCKET_TAIL_BYTES;
    faults.require(
        "state_dir",
        config.state_dir.as_os_str().len() <= most,
        format_args!(
            "{} is too long: at most {most} bytes, so that the guests' sockets in it stay below 108",
            config.state_dir.display()
        ),
    );
    let length = config.socket.as_os_str().len();
    faults.require(
        "listen",
        length <= SOCKET_PATH_BYTES_MAX,
        format_args!(
            "the path of a Unix socket has at most {SOCKET_PATH_BYTES_MAX} bytes; {} has {length}: choose a shorter one",
            config.socket.display()
        ),
    );
    if let Err(error) = tracing_subscriber::EnvFilter::try_new(&config.log) {
        faults.add(
            "log",
            format_args!("{:?} is not a filter: {error}", config.log),
        );
    }
    let docker_host = &config.engine.docker_host;
    faults.require(
        "engine.docker_host",
        docker_host.starts_with("unix:///"),
        format_args!("{docker_host:?} is not of the form unix:///PATH"),
    );
    let artifacts = &config.artifacts;
    let is_bucket = matches!(artifacts.storage, ArtifactStorage::Bucket { .. });
    let is_plain_http = artifacts
        .endpoint
        .as_deref()
        .is_some_and(|endpoint| endpoint.to_ascii_lowercase().starts_with("http:"));
    faults.require(
        "artifacts.endpoint",
        !is_bucket || !is_plain_http || artifacts.allow_http,
        "must be https://HOST[:PORT], or http:// with artifacts.allow_http",
    );
}

fn check_numbers(faults: &mut FaultList<'_>, config: &Config) {
    let (server, engine) = (&config.server, &config.engine);
    // Below 16 MiB a handful of slow readers would end each other's streams.
    faults.require_size(
        "server.relay_bytes_max",
        server.relay_bytes_max,
        ByteSize::mib(16),
        ByteSize::tib(1),
    );
    faults.require_size(
        "artifacts.bytes_max",
        config.artifacts.bytes_max,
        ByteSize::b(1),
        ByteSize::gib(64),
    );
    faults.require(
        "server.unary_timeout",
        server.unary_timeout > POLL_WAIT_MAX,
        "must be over the 60s that PollExec may wait",
    );
    faults.require(
        "engine.uid_base",
        engine.uid_base >= UID_MIN,
        format_args!("must be at least {UID_MIN}, is {}", engine.uid_base),
    );
    faults.require(
        "execs.count_max",
        config.execs.execs_max <= EXECS_MAX,
        format_args!("must be at most {EXECS_MAX}, is {}", config.execs.execs_max),
    );
    // The largest u32 means "no uid" to the kernel.
    let end = u32::checked_add(engine.uid_base, engine.uid_count);
    faults.require(
        "engine.uid_count",
        end.is_some_and(|end| end != u32::MAX),
        "uid_base + uid_count is over what a uid can be",
    );
    faults.require(
        "execs.retain_bytes_total",
        config.execs.retain_bytes_total >= RETAIN_BYTES_MIN,
        format_args!(
            "must be at least {}: an exec has two streams",
            ByteSize::b(RETAIN_BYTES_MIN)
        ),
    );
}

fn check_pool(faults: &mut FaultList<'_>, config: &Config, pool: &PoolConfig) {
    let key = |field: &str| format!("pools.{}.{field}", pool.name);
    let limits = pool.limits();
    faults.require(
        &format!("pools.{}", pool.name),
        is_resource_id(&pool.name),
        "is not a pool name: 1 to 63 of a-z, 0-9, and inside also . _ -",
    );
    if let Err(why) = ImageReference::parse(&pool.image) {
        faults.add(&key("image"), why);
    }
    faults.require_order(
        (&key("warm"), pool.warm),
        (&key("max"), pool.max),
        false,
        "",
    );
    for (field, value, least) in [("pids", limits.pids, 48), ("inodes", limits.inodes, 64)] {
        let message = format_args!("must be at least {least}, is {value}");
        faults.require(&key(field), value >= least, message);
    }
    let memory = (key("memory"), limits.memory_bytes);
    // A guest and a shell do not start with less.
    let least = ByteSize::mib(32).as_u64();
    faults.require(&memory.0, memory.1 >= least, "must be at least 32MiB");
    let in_memory = match pool.storage {
        WorkspaceStorage::Tmpfs => Some(("disk", limits.disk_bytes)),
        WorkspaceStorage::Disk => {
            check_disk(faults, pool);
            None
        }
    };
    let other = [("tmp", pool.tmp_bytes), ("shm", pool.shm_bytes)];
    for (field, bytes) in in_memory.into_iter().chain(other) {
        let why = ": it counts in it";
        faults.require_order((&key(field), bytes), (&memory.0, memory.1), true, why);
    }
    faults.require_order(
        ("execs.retain_bytes_total", config.execs.retain_bytes_total),
        (&memory.0, memory.1),
        true,
        ": the guest holds it",
    );
    check_fonts(faults, config, pool);
    faults.require_order(
        (&key("claim_timeout"), pool.claim_timeout),
        ("server.unary_timeout", config.server.unary_timeout),
        true,
        "",
    );
}

/// Checks that containers can mount the directory of fonts, and that none of the daemon's own files are in it.
fn check_fonts(faults: &mut FaultList<'_>, config: &Config, pool: &PoolConfig) {
    let Some(fonts) = &pool.fonts else { return };
    let (key, state_dir) = (format!("pools.{}.fonts", pool.name), &config.state_dir);
    // An overlay needs a second directory, which is in the state directory.
    let is_plain = is_mountable(fonts) && is_mountable(state_dir);
    faults.require(&key, is_plain, format_args!("and state_dir {MOUNT_ADVICE}"));
    let is_apart = !fonts.starts_with(state_dir) && !state_dir.starts_with(fonts);
    faults.require(
        &key,
        is_apart,
        "must not contain state_dir or lie in it: every command of the pool can read it; name a directory of its own",
    );
}

/// Checks that a file system on disk can have the size and the number of inodes of a pool.
fn check_disk(faults: &mut FaultList<'_>, pool: &PoolConfig) {
    let (field, why) = match DiskGeometry::fit(pool.disk_bytes, pool.inodes) {
        Ok(_) => return,
        Err(GeometryFault::Size(why)) => ("disk", why),
        Err(GeometryFault::Inodes(why)) => ("inodes", why),
    };
    faults.require(&format!("pools.{}.{field}", pool.name), false, why);
}

fn check_pool_relations(faults: &mut FaultList<'_>, config: &Config) {
    let names: Vec<&str> = config.pools.iter().map(|pool| pool.name.as_str()).collect();
    let default = config.default_pool.as_str();
    let configured = match names.as_slice() {
        [] => format!("there is none: add a section [pools.{default}]"),
        names => format!("there are: {}", names.join(", ")),
    };
    faults.require(
        "default_pool",
        names.contains(&default),
        format_args!("{default:?} is not a pool; {configured}"),
    );
    let slots: usize = config.pools.iter().map(|pool| pool.max).sum();
    let uids = usize::try_from(config.engine.uid_count).unwrap_or(usize::MAX);
    faults.require(
        "engine.uid_count",
        slots <= uids,
        format_args!("{uids} are fewer than the {slots} containers that all pools may have"),
    );
}
