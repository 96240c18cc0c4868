//! Pools: their own values, and how they relate to everything else.

use std::time::Duration;

use super::check::Check;
use super::raw::{RawConfig, RawPool};
use super::{Config, PoolConfig};
use crate::engine::Limits;

/// Longest wait of PollExec, which `unary_timeout` must leave room for.
pub const POLL_WAIT_MAX: Duration = Duration::from_secs(60);
/// Memory below which a guest and a shell do not start.
const MEMORY_MIN: u64 = 32 << 20;
/// Largest number of cores that makes sense; the engine refuses more than the host has.
const CPUS_MAX: f64 = 1024.0;

/// All pools that are switched on, sorted by name.
pub(super) fn pools(check: &mut Check<'_>, raw: &RawConfig) -> Vec<PoolConfig> {
    raw.pools
        .iter()
        .filter(|(_, pool)| pool.max > 0 || pool.warm > 0)
        .map(|(name, pool)| one(check, name, pool))
        .collect()
}

fn one(check: &mut Check<'_>, name: &str, raw: &RawPool) -> PoolConfig {
    let key = |field: &str| format!("pools.{name}.{field}");
    if !is_name(name) {
        let message = "is not a pool name: 1 to 63 of a-z, 0-9, and inside also . _ -";
        check.fault(&format!("pools.{name}"), message);
    }
    if raw.image.is_empty() {
        check.fault(&key("image"), "must name an image");
    }
    match raw.storage.as_str() {
        "tmpfs" => {}
        "disk" => check.fault(
            &key("storage"),
            "\"disk\" is not in this version; use \"tmpfs\", which counts in the container's memory",
        ),
        other => check.fault(&key("storage"), format!("{other:?} is not a storage; use \"tmpfs\"")),
    }
    let pool = PoolConfig {
        name: name.to_owned(),
        image: raw.image.clone(),
        oci_runtime: Some(raw.oci_runtime.clone()).filter(|runtime| !runtime.is_empty()),
        warm: check.count(&key("warm"), raw.warm, 0),
        max: check.count(&key("max"), raw.max, 1),
        queue_max: check.count(&key("queue_max"), raw.queue_max, 0),
        claim_timeout: check.time(&key("claim_timeout"), &raw.claim_timeout),
        limits: Limits {
            memory_bytes: check.bytes(&key("memory"), &raw.memory),
            cpu_millis: cpu_millis(check, &key("cpus"), raw.cpus),
            pids: check.count(&key("pids"), raw.pids, 48),
            disk_bytes: check.bytes(&key("disk"), &raw.disk),
            inodes: check.count(&key("inodes"), raw.inodes, 64),
        },
        tmp_bytes: check.bytes(&key("tmp"), &raw.tmp),
        shm_bytes: check.bytes(&key("shm"), &raw.shm),
        warm_up: raw.warm_up.clone(),
    };
    check.order((&key("warm"), pool.warm), (&key("max"), pool.max));
    let memory = pool.limits.memory_bytes;
    if check.faulty(&key("memory")) {
        return pool;
    }
    if memory < MEMORY_MIN {
        check.fault(&key("memory"), "must be at least 32MiB");
    }
    for (field, bytes) in [
        ("disk", pool.limits.disk_bytes),
        ("tmp", pool.tmp_bytes),
        ("shm", pool.shm_bytes),
    ] {
        if bytes >= memory {
            check.fault(
                &key(field),
                format!("must be below {}: it counts in it", key("memory")),
            );
        }
    }
    pool
}

fn cpu_millis(check: &mut Check<'_>, key: &str, cpus: f64) -> u64 {
    if !(0.01..=CPUS_MAX).contains(&cpus) {
        check.fault(
            key,
            format!("must be between 0.01 and {CPUS_MAX}, is {cpus}"),
        );
        return 1000;
    }
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "between 10 and 1,024,000, as checked above"
    )]
    let millis = (cpus * 1000.0).round() as u64;
    millis
}

fn is_name(name: &str) -> bool {
    let inner =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"._-".contains(&byte);
    let outer = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = name.as_bytes();
    bytes.len() <= 63
        && outer(bytes.first())
        && outer(bytes.last())
        && bytes.iter().copied().all(inner)
}

/// What holds between sections.
pub(super) fn relations(check: &mut Check<'_>, config: &Config) {
    if !config
        .pools
        .iter()
        .any(|pool| pool.name == config.default_pool)
    {
        let names: Vec<&str> = config.pools.iter().map(|pool| pool.name.as_str()).collect();
        let message = format!(
            "{:?} is not a pool; there are: {}",
            config.default_pool,
            names.join(", ")
        );
        check.fault("default_pool", message);
    }
    let slots: usize = config.pools.iter().map(|pool| pool.max).sum();
    let uids = usize::try_from(config.engine.uid_count).unwrap_or(usize::MAX);
    if slots > uids && !check.faulty("engine.uid_count") {
        let message =
            format!("{uids} are fewer than the {slots} containers that all pools may have");
        check.fault("engine.uid_count", message);
    }
    if config.server.unary_timeout <= POLL_WAIT_MAX && !check.faulty("server.unary_timeout") {
        check.fault(
            "server.unary_timeout",
            "must be over the 60s that PollExec may wait",
        );
    }
    if check.faulty("server.unary_timeout") || check.faulty("execs.retain_bytes_total") {
        return;
    }
    let settle = "files.collect_on_exit_timeout";
    if config.files.collect_on_exit_timeout >= config.server.unary_timeout && !check.faulty(settle)
    {
        let message = "must be below server.unary_timeout: DeleteWorkspace waits for it";
        check.fault(settle, message);
    }
    let remove = "engine.remove_timeout";
    if config.engine.remove_timeout >= config.server.unary_timeout && !check.faulty(remove) {
        let message = "must be below server.unary_timeout: DeleteWorkspace waits for it";
        check.fault(remove, message);
    }
    for pool in &config.pools {
        let memory = format!("pools.{}.memory", pool.name);
        if pool.claim_timeout >= config.server.unary_timeout {
            let message = "must be below server.unary_timeout";
            check.fault(&format!("pools.{}.claim_timeout", pool.name), message);
        }
        if config.execs.retain_bytes_total >= pool.limits.memory_bytes && !check.faulty(&memory) {
            let message = format!("must be below {memory}: the guest holds it");
            check.fault("execs.retain_bytes_total", message);
        }
    }
}
