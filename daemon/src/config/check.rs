//! From [`RawConfig`] to [`Config`]: units, ranges, and how values relate. Reports every fault, not the first.

use std::path::{Path, PathBuf};
use std::time::Duration;

use bytesize::ByteSize;

use super::raw::{RawConfig, RawEngine, RawExecs, RawFiles, RawServer, RawSkills, RawWorkspaces};
use super::{
    Config, EngineConfig, ExecConfig, FileConfig, ServerConfig, SkillsConfig, WorkspaceConfig,
    roots,
};
use crate::fetch::Bounds;

/// Longest path that a Unix socket can have: 108 bytes with the zero at its end.
const SOCKET_PATH_MAX: usize = 107;
/// What lies between the state directory and the end of a guest's socket path, with the longest slot name.
const GUEST_SOCKET_TAIL: usize = "/slots/".len() + super::SLOT_NAME_MAX + "/run/guest.sock".len();
/// A day, in seconds: no time in the configuration needs more than 365 of them.
const DAY: u64 = 24 * 60 * 60;

/// Collects faults; answers a harmless value for each, so that checking goes on.
pub(super) struct Check<'a> {
    pub(super) faults: Vec<String>,
    /// Where a key's value was given.
    pub(super) place: &'a dyn Fn(&str) -> String,
}

impl Check<'_> {
    pub(super) fn fault(&mut self, key: &str, message: impl std::fmt::Display) {
        let place = (self.place)(key);
        self.faults.push(format!("{key}: {message}{place}"));
    }

    pub(super) fn time(&mut self, key: &str, text: &str) -> Duration {
        match humantime::parse_duration(text) {
            Ok(time) if time.is_zero() => {
                self.fault(key, "must be over zero");
                Duration::from_secs(1)
            }
            Ok(time) if time > Duration::from_secs(365 * DAY) => {
                self.fault(key, format!("{text} is over a year"));
                Duration::from_secs(1)
            }
            Ok(time) => time,
            Err(_) => {
                self.fault(
                    key,
                    format!("{text:?} is not a time; write it like \"30s\""),
                );
                Duration::from_secs(1)
            }
        }
    }

    pub(super) fn bytes(&mut self, key: &str, text: &str) -> u64 {
        match text.parse::<ByteSize>() {
            Ok(size) if size.as_u64() > 0 && i64::try_from(size.as_u64()).is_ok() => size.as_u64(),
            Ok(_) => {
                self.fault(key, format!("{text} is not between 1 and 2^63 bytes"));
                1
            }
            Err(_) => {
                self.fault(
                    key,
                    format!("{text:?} is not a size; write it like \"256MiB\""),
                );
                1
            }
        }
    }

    /// A count from `low` to what its type holds.
    pub(super) fn count<T: TryFrom<u64> + Default>(
        &mut self,
        key: &str,
        value: u64,
        low: u64,
    ) -> T {
        if value < low {
            self.fault(key, format!("must be at least {low}, is {value}"));
            return T::default();
        }
        T::try_from(value).unwrap_or_else(|_| {
            self.fault(key, format!("{value} is too large"));
            T::default()
        })
    }

    /// `small ≤ large`, named by their keys. Says nothing about a key that has a fault already: its value is
    /// a stand-in.
    pub(super) fn order<T: PartialOrd + Copy>(&mut self, small: (&str, T), large: (&str, T)) {
        if small.1 > large.1 && !self.faulty(small.0) && !self.faulty(large.0) {
            self.fault(small.0, format!("must not be over {}", large.0));
        }
    }

    /// Whether this key has a fault already.
    pub(super) fn faulty(&self, key: &str) -> bool {
        self.faults.iter().any(|fault| {
            fault
                .strip_prefix(key)
                .is_some_and(|rest| rest.starts_with(':'))
        })
    }

    /// A size within a range, for people as `low` and `high`.
    pub(super) fn bytes_within(
        &mut self,
        key: &str,
        text: &str,
        low: ByteSize,
        high: ByteSize,
    ) -> u64 {
        let bytes = self.bytes(key, text);
        if !(low.as_u64()..=high.as_u64()).contains(&bytes) && !self.faulty(key) {
            self.fault(key, format!("must be between {low} and {high}, is {text}"));
        }
        bytes
    }
}

/// Checks everything; the faults are in `check`.
pub(super) fn config(check: &mut Check<'_>, raw: &RawConfig) -> Config {
    let state_dir = absolute(check, "state_dir", &raw.state_dir);
    let length = state_dir.as_os_str().len() + GUEST_SOCKET_TAIL;
    if length > SOCKET_PATH_MAX {
        let most = SOCKET_PATH_MAX - GUEST_SOCKET_TAIL;
        let message = format!(
            "{} is too long: at most {most} bytes, so that the guests' sockets in it stay below 108",
            state_dir.display()
        );
        check.fault("state_dir", message);
    }
    let log_json = match raw.log_format.as_str() {
        "text" => false,
        "json" => true,
        other => {
            check.fault(
                "log_format",
                format!("{other:?} is neither \"text\" nor \"json\""),
            );
            false
        }
    };
    if let Err(error) = tracing_subscriber::EnvFilter::try_new(&raw.log) {
        check.fault("log", format!("{:?} is not a filter: {error}", raw.log));
    }
    let fetch = super::fetch::fetch(check, &raw.fetch);
    let config = Config {
        socket: socket(check, &raw.listen, &state_dir),
        state_dir,
        server: server(check, &raw.server),
        engine: engine(check, &raw.engine),
        pools: super::pools::pools(check, raw),
        default_pool: raw.default_pool.clone(),
        workspaces: workspaces(check, &raw.workspaces),
        execs: execs(check, &raw.execs),
        files: files(check, &raw.files),
        skills: skills(check, &raw.skills, &fetch),
        fetch,
        artifacts: super::artifacts::artifacts(check, &raw.artifacts),
        log: raw.log.clone(),
        log_json,
        log_lines_max: check.count("log_lines_max", raw.log_lines_max, 1),
    };
    super::pools::relations(check, &config);
    config
}

pub(super) fn absolute(check: &mut Check<'_>, key: &str, text: &str) -> PathBuf {
    if text.trim().is_empty() || text.contains('\0') {
        check.fault(key, "must be a path");
    }
    std::path::absolute(text).unwrap_or_else(|_| PathBuf::from(text))
}

fn socket(check: &mut Check<'_>, listen: &str, state_dir: &Path) -> PathBuf {
    let path = match listen.split_once(':') {
        Some(("unix", path)) if !path.is_empty() => absolute(check, "listen", path),
        Some(("https" | "http", _)) => {
            let message =
                "only unix:PATH works in this version; put a proxy in front of it for TCP";
            check.fault("listen", message);
            PathBuf::new()
        }
        _ => {
            check.fault("listen", format!("{listen:?} is not of the form unix:PATH"));
            state_dir.join("skilld.sock")
        }
    };
    let length = path.as_os_str().len();
    if length > SOCKET_PATH_MAX {
        let message = format!(
            "the path of a Unix socket has at most {SOCKET_PATH_MAX} bytes; {} has {length}: choose a shorter one",
            path.display()
        );
        check.fault("listen", message);
    }
    path
}

fn server(check: &mut Check<'_>, raw: &RawServer) -> ServerConfig {
    let socket_mode = match u32::from_str_radix(&raw.socket_mode, 8) {
        Ok(mode) if mode <= 0o777 => mode,
        _ => {
            let message = format!(
                "{:?} is not a mode; write it like \"0660\"",
                raw.socket_mode
            );
            check.fault("server.socket_mode", message);
            0o660
        }
    };
    // The least is what chunks of 1 MiB and their frame need.
    let (low, high) = (ByteSize::mib(2), ByteSize::gib(1));
    let message_bytes = check.bytes_within(
        "server.message_bytes_max",
        &raw.message_bytes_max,
        low,
        high,
    );
    let (low, high) = (ByteSize::kib(4), ByteSize::mib(1));
    let header_bytes =
        check.bytes_within("server.header_bytes_max", &raw.header_bytes_max, low, high);
    // Below that a handful of slow readers would be in each other's way.
    let (low, high) = (ByteSize::mib(16), ByteSize::tib(1));
    let relay_bytes_max =
        check.bytes_within("server.relay_bytes_max", &raw.relay_bytes_max, low, high);
    ServerConfig {
        socket_mode,
        relay_bytes_max,
        message_bytes_max: check.count("server.message_bytes_max", message_bytes, 1),
        header_bytes_max: check.count("server.header_bytes_max", header_bytes, 1),
        streams_max: check.count("server.streams_max", raw.streams_max, 1),
        connections_max: check.count("server.connections_max", raw.connections_max, 1),
        connections_per_user_max: check.count(
            "server.connections_per_user_max",
            raw.connections_per_user_max,
            1,
        ),
        handshake_timeout: check.time("server.handshake_timeout", &raw.handshake_timeout),
        keepalive_interval: check.time("server.keepalive_interval", &raw.keepalive_interval),
        keepalive_timeout: check.time("server.keepalive_timeout", &raw.keepalive_timeout),
        unary_timeout: check.time("server.unary_timeout", &raw.unary_timeout),
        upload_timeout: check.time("server.upload_timeout", &raw.upload_timeout),
        drain_timeout: check.time("server.drain_timeout", &raw.drain_timeout),
        stop_timeout: check.time("server.stop_timeout", &raw.stop_timeout),
        reflection: raw.reflection,
    }
}

fn engine(check: &mut Check<'_>, raw: &RawEngine) -> EngineConfig {
    if !raw.docker_host.starts_with("unix:///") {
        let message = format!("{:?} is not of the form unix:///PATH", raw.docker_host);
        check.fault("engine.docker_host", message);
    }
    let uid_base = check.count("engine.uid_base", raw.uid_base, 1000);
    let uid_count = check.count("engine.uid_count", raw.uid_count, 1);
    if u32::checked_add(uid_base, uid_count).is_none_or(|end| end == u32::MAX) {
        check.fault(
            "engine.uid_count",
            "uid_base + uid_count is over what a uid can be",
        );
    }
    EngineConfig {
        docker_host: raw.docker_host.clone(),
        timeout: check.time("engine.timeout", &raw.timeout),
        guest_path: absolute(check, "engine.guest_path", &raw.guest_path),
        uid_base,
        uid_count,
        uid_quarantine: check.time("engine.uid_quarantine", &raw.uid_quarantine),
        remove_timeout: check.time("engine.remove_timeout", &raw.remove_timeout),
        reconcile_interval: check.time("engine.reconcile_interval", &raw.reconcile_interval),
        boot_timeout: check.time("engine.boot_timeout", &raw.boot_timeout),
        pause_timeout: check.time("engine.pause_timeout", &raw.pause_timeout),
        boots_max: check.count("engine.boots_max", raw.boots_max, 1),
    }
}

fn workspaces(check: &mut Check<'_>, raw: &RawWorkspaces) -> WorkspaceConfig {
    let config = WorkspaceConfig {
        workspaces_max: check.count("workspaces.count_max", raw.count_max, 1),
        idle_timeout_default: check
            .time("workspaces.idle_timeout_default", &raw.idle_timeout_default),
        idle_timeout_max: check.time("workspaces.idle_timeout_max", &raw.idle_timeout_max),
        lifetime_default: check.time("workspaces.lifetime_default", &raw.lifetime_default),
        lifetime_max: check.time("workspaces.lifetime_max", &raw.lifetime_max),
        failed_retention: check.time("workspaces.failed_retention", &raw.failed_retention),
    };
    check.order(
        (
            "workspaces.idle_timeout_default",
            config.idle_timeout_default,
        ),
        ("workspaces.idle_timeout_max", config.idle_timeout_max),
    );
    check.order(
        ("workspaces.lifetime_default", config.lifetime_default),
        ("workspaces.lifetime_max", config.lifetime_max),
    );
    config
}

fn execs(check: &mut Check<'_>, raw: &RawExecs) -> ExecConfig {
    let config = ExecConfig {
        execs_max: check.count("execs.count_max", raw.count_max, 1),
        retained_max: check.count("execs.retained_max", raw.retained_max, 1),
        timeout_default: check.time("execs.timeout_default", &raw.timeout_default),
        timeout_max: check.time("execs.timeout_max", &raw.timeout_max),
        retain_bytes_default: check.bytes("execs.retain_bytes_default", &raw.retain_bytes_default),
        retain_bytes_max: check.bytes("execs.retain_bytes_max", &raw.retain_bytes_max),
        retain_bytes_total: check.bytes("execs.retain_bytes_total", &raw.retain_bytes_total),
        retain_after_exit_default: check.time(
            "execs.retain_after_exit_default",
            &raw.retain_after_exit_default,
        ),
        retain_after_exit_max: check
            .time("execs.retain_after_exit_max", &raw.retain_after_exit_max),
        kill_grace: check.time("execs.kill_grace", &raw.kill_grace),
        leak_grace: check.time("execs.leak_grace", &raw.leak_grace),
        disconnect_grace: check.time("execs.disconnect_grace", &raw.disconnect_grace),
        heartbeat: check.time("execs.heartbeat", &raw.heartbeat),
    };
    check.order(
        ("execs.timeout_default", config.timeout_default),
        ("execs.timeout_max", config.timeout_max),
    );
    check.order(
        ("execs.retain_bytes_default", config.retain_bytes_default),
        ("execs.retain_bytes_max", config.retain_bytes_max),
    );
    // An exec has two streams.
    if config.retain_bytes_max.saturating_mul(2) > config.retain_bytes_total {
        let key = "execs.retain_bytes_total";
        check.fault(
            key,
            "must be at least twice execs.retain_bytes_max: an exec has two streams",
        );
    }
    check.order(
        (
            "execs.retain_after_exit_default",
            config.retain_after_exit_default,
        ),
        ("execs.retain_after_exit_max", config.retain_after_exit_max),
    );
    config
}

fn files(check: &mut Check<'_>, raw: &RawFiles) -> FileConfig {
    let config = FileConfig {
        archive_entries_max: check.count("files.archive_entries_max", raw.archive_entries_max, 1),
        stage_bytes_max: check.bytes("files.stage_bytes_max", &raw.stage_bytes_max),
        host_roots: raw
            .host_roots
            .iter()
            .map(|root| absolute(check, "files.host_roots", root))
            .collect(),
        input_urls: raw.input_urls,
        input_private_addresses: raw.input_private_addresses,
        collect_files_default: check.count(
            "files.collect_files_default",
            raw.collect_files_default,
            1,
        ),
        collect_files_max: check.count("files.collect_files_max", raw.collect_files_max, 1),
        collect_file_bytes_default: check.bytes(
            "files.collect_file_bytes_default",
            &raw.collect_file_bytes_default,
        ),
        collect_file_bytes_max: check
            .bytes("files.collect_file_bytes_max", &raw.collect_file_bytes_max),
        collect_total_bytes_default: check.bytes(
            "files.collect_total_bytes_default",
            &raw.collect_total_bytes_default,
        ),
        collect_total_bytes_max: check.bytes(
            "files.collect_total_bytes_max",
            &raw.collect_total_bytes_max,
        ),
        collect_on_exit_timeout: check.time(
            "files.collect_on_exit_timeout",
            &raw.collect_on_exit_timeout,
        ),
    };
    check.order(
        ("files.collect_files_default", config.collect_files_default),
        ("files.collect_files_max", config.collect_files_max),
    );
    check.order(
        (
            "files.collect_file_bytes_default",
            config.collect_file_bytes_default,
        ),
        (
            "files.collect_file_bytes_max",
            config.collect_file_bytes_max,
        ),
    );
    check.order(
        (
            "files.collect_total_bytes_default",
            config.collect_total_bytes_default,
        ),
        (
            "files.collect_total_bytes_max",
            config.collect_total_bytes_max,
        ),
    );
    config
}

fn skills(check: &mut Check<'_>, raw: &RawSkills, fetch: &Bounds) -> SkillsConfig {
    SkillsConfig {
        roots: roots::checked(check, &raw.roots),
        depth_max: check.count("skills.depth_max", raw.depth_max, 1),
        dirs_max: check.count("skills.dirs_max", raw.dirs_max, 1),
        entries_max: check.count("skills.entries_max", raw.entries_max, 1),
        watches_max: check.count("skills.watches_max", raw.watches_max, 0),
        files_max: check.count("skills.files_max", raw.files_max, 1),
        bytes_max: check.bytes("skills.bytes_max", &raw.bytes_max),
        skill_md_bytes_max: check.bytes("skills.skill_md_bytes_max", &raw.skill_md_bytes_max),
        skills_max: check.count("skills.count_max", raw.count_max, 1),
        publish_bytes_max: check.bytes("skills.publish_bytes_max", &raw.publish_bytes_max),
        publishes_max: check.count("skills.publishes_max", raw.publishes_max, 1),
        keep_unused: check.time("skills.keep_unused", &raw.keep_unused),
        remote: super::fetch::remote(check, raw, fetch),
    }
}
