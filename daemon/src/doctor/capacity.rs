//! Compares what pools promise and what may be opened with what the host has: memory, processes, disk space and open
//! files. Also used for a warning at the daemon's start.

use std::fs;

use bytesize::ByteSize;
use nix::sys::resource::{Resource, getrlimit};

use super::path_checks::read_disk_space;
use super::report::CheckLine;
use crate::config::{Config, PoolConfig, WorkspaceStorage};

/// Number of descriptors that one connection of a client takes: its own, and one while a call waits.
const FILES_PER_CONNECTION: u64 = 2;
/// Number of descriptors that one guest takes.
const FILES_PER_GUEST: u64 = 4;
/// Number of descriptors for logs, skills, artifacts and Docker.
const FILES_OF_DAEMON: u64 = 512;
/// Largest value of kernel.pid_max.
const PID_MAX_LIMIT: u64 = 4 << 20;
/// Number of processes and threads left for the host itself in a remedy.
const HOST_PIDS: u64 = 8192;
/// Value of an unlimited resource (RLIM_INFINITY).
const UNLIMITED: u64 = u64::MAX;

/// Logs a warning for each promise of the pools that this host can't keep. Blocks for a moment.
pub fn warn_of_promises(config: &Config) {
    for line in check_promises(config) {
        if let Some(remedy) = line.remedy {
            tracing::warn!(remedy, "{}", line.finding);
        }
    }
}

/// Checks memory, processes, disks of workspaces and open files. What the host does not show is left out. Blocks.
pub(super) fn check_capacity(config: &Config) -> Vec<CheckLine> {
    // A limit that can't be read is none.
    let limit = getrlimit(Resource::RLIMIT_NOFILE).map_or(UNLIMITED, |(_, hard)| hard);
    let mut lines = vec![check_open_files(config, limit)];
    lines.extend(check_promises(config));
    lines
}

fn check_promises(config: &Config) -> Vec<CheckLine> {
    let memory = read_memory_total().map(|host| check_memory(config, host));
    let pids = read_kernel_limit("pid_max").zip(read_kernel_limit("threads-max"));
    let pids = pids.map(|(pid_max, threads_max)| check_pids(config, pid_max, threads_max));
    let space = read_disk_space(&config.state_dir);
    let disks = space.and_then(|space| check_disks(config, space));
    [memory, pids, disks].into_iter().flatten().collect()
}

/// Compares the memory that the containers of all pools, and those of builds, may use together with that of the host.
fn check_memory(config: &Config, host_bytes: u64) -> CheckLine {
    let (check, subject) = ("memory", "memory");
    let mut parts = list_promises(config.pools.iter(), |pool| pool.memory_bytes);
    let environments = &config.skills.environments;
    if environments.is_enabled() {
        let builds = count(environments.builds_max);
        let memory = environments.build_memory_bytes();
        parts.push(("builds".to_owned(), builds, memory));
    }
    let (promised, parts) = sum_promises(&parts, show_bytes);
    let (total, host) = (ByteSize::b(promised), ByteSize::b(host_bytes));
    if promised <= host_bytes {
        let finding = format!("the pools promise {total} ({parts}) of the host's {host}");
        return CheckLine::ok(check, subject, finding);
    }
    CheckLine::warning(
        check,
        subject,
        format!(
            "the pools promise {total} ({parts}), and the host has {host}: if all containers use their limits, the \
             kernel kills processes of any of them, or of the host"
        ),
        format!(
            "set `max` or `memory` of the pools, `skills.builds_max` or `skills.build_disk` lower, so that their sum \
             is at most {host}"
        ),
    )
}

/// Compares the processes and threads that the containers of all pools may have together with the kernel's limits, of which
/// the lower one counts.
fn check_pids(config: &Config, pid_max: u64, threads_max: u64) -> CheckLine {
    let (check, subject) = ("pids", "processes");
    let parts = list_promises(config.pools.iter(), |pool| pool.pids);
    let (promised, parts) = sum_promises(&parts, |pids| pids.to_string());
    let host = pid_max.min(threads_max);
    let finding = format!("the pools promise {promised} ({parts}); the host permits {host}");
    if promised <= host {
        return CheckLine::ok(check, subject, finding);
    }
    let needed = promised.saturating_add(HOST_PIDS);
    let (pids, threads) = (needed.max(pid_max), needed.max(threads_max));
    let lower = "set `max` or `pids` of the pools lower";
    let remedy = match pids > PID_MAX_LIMIT {
        true => format!("{lower}: the kernel permits {PID_MAX_LIMIT} at most"),
        false => format!(
            "{lower}; or run `sysctl -w kernel.pid_max={pids} kernel.threads-max={threads}`, and write both into \
             /etc/sysctl.d/skilld.conf"
        ),
    };
    let finding = format!(
        "{finding}: all containers together, and programs of the host, can run out of processes"
    );
    CheckLine::warning(check, subject, finding, remedy)
}

/// Compares the limit of open files with what the configuration permits clients and containers to take.
fn check_open_files(config: &Config, hard_limit: u64) -> CheckLine {
    let (check, subject) = ("open_files", "open files");
    let slots = config
        .pools
        .iter()
        .fold(0, |sum: u64, pool| sum.saturating_add(count(pool.max)));
    let connections = count(config.server.connections_max);
    let needed = connections
        .saturating_mul(FILES_PER_CONNECTION)
        .saturating_add(slots.saturating_mul(FILES_PER_GUEST))
        .saturating_add(FILES_OF_DAEMON);
    let limit = match hard_limit {
        UNLIMITED => "any number".to_owned(),
        limit => limit.to_string(),
    };
    let finding = format!(
        "this process may open {limit}; {connections} connections and {slots} containers can take {needed}"
    );
    if needed <= hard_limit {
        return CheckLine::ok(check, subject, finding);
    }
    let remedy = format!(
        "set LimitNOFILE={needed} in the service, or run `ulimit -Hn {needed}` before skilld"
    );
    CheckLine::warning(check, subject, finding, remedy)
}

/// Compares the disks that pools with `storage = "disk"` promise with the space of the state directory: what is free there,
/// and what such disks have taken already. `None` without such a pool.
fn check_disks(config: &Config, space_bytes: u64) -> Option<CheckLine> {
    let (check, subject) = ("disk", "disk of workspaces");
    let pools = config.pools.iter();
    let on_disk = pools.filter(|pool| pool.storage == WorkspaceStorage::Disk);
    let parts = list_promises(on_disk, |pool| pool.disk_bytes);
    if parts.is_empty() {
        return None;
    }
    let (promised, parts) = sum_promises(&parts, show_bytes);
    let reserve = config.workspaces.disk_reserve_bytes;
    let [total, kept, space] = [promised, reserve, space_bytes].map(ByteSize::b);
    let finding = format!(
        "the pools promise {total} on disk ({parts}) and leave {kept}; the state directory has {space} for both"
    );
    if promised.saturating_add(reserve) <= space_bytes {
        return Some(CheckLine::ok(check, subject, finding));
    }
    Some(CheckLine::warning(
        check,
        subject,
        format!("{finding}: containers beyond that do not start"),
        "set `max` or `disk` of these pools lower, or put state_dir on a larger disk",
    ))
}

/// Reads the memory of the host in bytes.
fn read_memory_total() -> Option<u64> {
    parse_memory_total(&fs::read_to_string("/proc/meminfo").ok()?)
}

/// Reads one of the kernel's limits of the whole host.
fn read_kernel_limit(name: &str) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/sys/kernel/{name}")).ok()?;
    text.trim().parse().ok()
}

/// Returns the line `MemTotal` of `/proc/meminfo` in bytes.
fn parse_memory_total(text: &str) -> Option<u64> {
    let mut lines = text.lines();
    let value = lines.find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = value.trim().strip_suffix(" kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// Lists what pools promise, each with its name, its number of containers, and what one of them may use.
fn list_promises<'a>(
    pools: impl Iterator<Item = &'a PoolConfig>,
    each: fn(&PoolConfig) -> u64,
) -> Vec<(String, u64, u64)> {
    pools
        .map(|pool| (pool.name.clone(), count(pool.max), each(pool)))
        .collect()
}

/// Sums up parts, each a name, a number of containers, and what one may use. Returns the sum, and the parts for people:
/// `default 64 × 512 MiB, office 16 × 1 GiB`.
fn sum_promises(parts: &[(String, u64, u64)], show: impl Fn(u64) -> String) -> (u64, String) {
    let total = parts.iter().fold(0, |sum: u64, (_, count, each)| {
        sum.saturating_add(count.saturating_mul(*each))
    });
    let shown: Vec<String> = parts
        .iter()
        .map(|(name, count, each)| format!("{name} {count} × {}", show(*each)))
        .collect();
    (total, shown.join(", "))
}

fn show_bytes(bytes: u64) -> String {
    ByteSize::b(bytes).to_string()
}

fn count(containers: usize) -> u64 {
    u64::try_from(containers).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::super::report::CheckState;
    use super::*;

    const GIB: u64 = 1 << 30;

    fn config(text: &str) -> Config {
        Config::from_toml(text).expect("valid").config
    }

    #[test]
    fn memory_of_all_pools_and_builds_is_compared_with_the_hosts() {
        // 64 × 512 MiB, 16 × 2 GiB, 2 × 3 GiB.
        let defaults = config("");
        for (host, state) in [
            (70 * GIB, CheckState::Ok),
            (70 * GIB - 1, CheckState::Warning),
            (0, CheckState::Warning),
        ] {
            let line = check_memory(&defaults, host);
            assert_eq!(line.state, state, "{line:?}");
            for part in [
                "70.0 GiB",
                "default 64 × 512.0 MiB",
                "office 16 × 2.0 GiB",
                "builds 2 × 3.0 GiB",
            ] {
                assert!(line.finding.contains(part), "{line:?}");
            }
        }
        let without_builds = config("[skills]\nenvironment_builds = \"never\"");
        let line = check_memory(&without_builds, 64 * GIB);
        assert_eq!(line.state, CheckState::Ok, "{line:?}");
    }

    #[test]
    fn processes_of_all_pools_are_compared_with_the_hosts() {
        // 64 × 512 and 16 × 512, and 8192 for the host.
        for (pid_max, threads_max, remedy) in [
            (40_960, 40_960, None),
            (
                40_959,
                1 << 20,
                Some("kernel.pid_max=49152 kernel.threads-max=1048576`"),
            ),
            (
                1 << 20,
                40_959,
                Some("kernel.pid_max=1048576 kernel.threads-max=49152`"),
            ),
        ] {
            let line = check_pids(&config(""), pid_max, threads_max);
            for part in ["40960", "default 64 × 512", "office 16 × 512"] {
                assert!(line.finding.contains(part), "{line:?}");
            }
            let is_met = match (&line.remedy, remedy) {
                (None, None) => true,
                (Some(shown), Some(expected)) => shown.contains(expected),
                _ => false,
            };
            assert!(is_met, "{line:?}");
        }
    }

    #[test]
    fn pool_disks_are_compared_with_the_state_directorys_space() {
        assert_eq!(check_disks(&config(""), 0), None, "no pool is on disk");
        let big = config("[pools.big]\nstorage = \"disk\"\ndisk = \"4GiB\"\nmax = 10");
        for (space, state) in [
            (41 * GIB, CheckState::Ok),
            (41 * GIB - 1, CheckState::Warning),
        ] {
            let line = check_disks(&big, space).expect("a line");
            assert_eq!(line.state, state, "{line:?}");
            assert!(line.finding.contains("40.0 GiB"), "{line:?}");
            assert!(line.finding.contains("big 10 × 4.0 GiB"), "{line:?}");
        }
    }

    #[test]
    fn promises_beyond_all_numbers_are_not_lost() {
        let mut config = config("");
        for pool in &mut config.pools {
            (pool.max, pool.memory_bytes, pool.pids) = (usize::MAX, u64::MAX, u64::MAX);
        }
        let pids = check_pids(&config, u64::MAX - 1, u64::MAX);
        assert_eq!(pids.state, CheckState::Warning, "{pids:?}");
        let memory = check_memory(&config, u64::MAX - 1);
        assert_eq!(memory.state, CheckState::Warning, "{memory:?}");
        let files = check_open_files(&config, u64::MAX - 1);
        assert_eq!(files.state, CheckState::Warning, "{files:?}");
    }

    #[test]
    fn open_files_are_compared_with_connections_and_containers() {
        // 2 × 1000 + 4 × 80 + 512.
        let defaults = config("");
        for (hard_limit, state) in [
            (2832, CheckState::Ok),
            (2831, CheckState::Warning),
            (u64::MAX, CheckState::Ok),
            (0, CheckState::Warning),
        ] {
            let line = check_open_files(&defaults, hard_limit);
            assert_eq!(line.state, state, "{line:?}");
        }
    }

    #[test]
    fn memory_of_the_host_is_parsed_or_unknown() {
        for (text, expected) in [
            (
                "MemTotal:       24683652 kB\nMemFree: 1 kB\n",
                Some(24_683_652 * 1024),
            ),
            ("MemFree: 1 kB\nMemTotal: 0 kB\n", Some(0)),
            ("MemTotal: 18446744073709551615 kB\n", None),
            ("MemTotal: -1 kB\n", None),
            ("MemTotal: 12\n", None),
            ("", None),
        ] {
            assert_eq!(parse_memory_total(text), expected, "{text:?}");
        }
        assert!(read_memory_total().is_some_and(|bytes| bytes > 1 << 20));
    }
}
