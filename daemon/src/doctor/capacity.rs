//! Memory, processes and disk space that the pools promise, compared with the host's. Also used for a warning at the daemon's start.

use bytesize::ByteSize;

use super::report::CheckLine;
use crate::config::{Config, WorkspaceStorage};

/// Largest value of kernel.pid_max.
const PID_MAX_LIMIT: u64 = 4 << 20;
/// Number of processes and threads left for the host itself in a remedy.
const HOST_PIDS: u64 = 8192;

/// Limits that containers have together if all of them exist.
#[derive(Debug, Clone, PartialEq, Eq)]
struct CapacityPromise {
    /// Sum over all parts.
    total: u64,
    /// Parts for people: `default 64 × 512 MiB, office 16 × 1 GiB`.
    parts: String,
}

impl CapacityPromise {
    /// Sums up parts, each a name, a number of containers, and the limit of one.
    fn new(parts: &[(String, u64, u64)], show: impl Fn(u64) -> String) -> Self {
        let total = parts.iter().fold(0, |sum: u64, (_, count, each)| {
            sum.saturating_add(count.saturating_mul(*each))
        });
        let parts: Vec<String> = parts
            .iter()
            .map(|(name, count, each)| format!("{name} {count} × {}", show(*each)))
            .collect();
        Self {
            total,
            parts: parts.join(", "),
        }
    }
}

/// Compares the memory that pools and builds promise with the host's. `None` means that the host's is not known.
pub(super) fn check_memory(config: &Config, memory_bytes: Option<u64>) -> CheckLine {
    let (check, subject) = ("memory", "memory");
    let promise = promised_memory(config);
    let (total, parts) = (ByteSize::b(promise.total), promise.parts);
    let Some(host) = memory_bytes else {
        return CheckLine::warning(
            check,
            subject,
            format!(
                "the host's memory is not known: /proc/meminfo can't be read; the pools promise {total} ({parts})"
            ),
            "mount /proc",
        );
    };
    let shown = ByteSize::b(host);
    if promise.total <= host {
        let finding = format!("the pools promise {total} ({parts}) of the host's {shown}");
        return CheckLine::ok(check, subject, finding);
    }
    CheckLine::warning(
        check,
        subject,
        format!(
            "the pools promise {total} ({parts}), and the host has {shown}: if all containers use their limits, the \
             kernel kills processes of any of them, or of the host"
        ),
        format!(
            "set `max` or `memory` of the pools, `skills.builds_max` or `skills.build_memory` lower, so that their sum \
             is at most {shown}"
        ),
    )
}

/// Compares the processes and threads that pools promise with the host's limits, of which the lower one counts. `None`
/// means that a limit is not known.
pub(super) fn check_pids(
    config: &Config,
    pid_max: Option<u64>,
    threads_max: Option<u64>,
) -> CheckLine {
    let (check, subject) = ("pids", "processes");
    let parts: Vec<_> = config
        .pools
        .iter()
        .map(|pool| (pool.name.clone(), count(pool.max), pool.pids))
        .collect();
    let promise = CapacityPromise::new(&parts, |each| each.to_string());
    let CapacityPromise { total, parts } = promise;
    let (Some(pid_max), Some(threads_max)) = (pid_max, threads_max) else {
        return CheckLine::warning(
            check,
            subject,
            format!(
                "the host's limits are not known: /proc/sys/kernel can't be read; the pools promise {total} ({parts})"
            ),
            "mount /proc",
        );
    };
    let limits = format!("kernel.pid_max {pid_max}, kernel.threads-max {threads_max}");
    if total <= pid_max.min(threads_max) {
        let finding = format!("the pools promise {total} ({parts}); the host permits {limits}");
        return CheckLine::ok(check, subject, finding);
    }
    let needed = total.saturating_add(HOST_PIDS);
    let remedy = if needed > PID_MAX_LIMIT {
        format!(
            "set `max` or `pids` of the pools lower: the kernel permits {PID_MAX_LIMIT} at most"
        )
    } else {
        let (pids, threads) = (needed.max(pid_max), needed.max(threads_max));
        format!(
            "run `sysctl -w kernel.pid_max={pids} kernel.threads-max={threads}`, and write both into \
             /etc/sysctl.d/skilld.conf; or set `max` or `pids` of the pools lower"
        )
    };
    let finding = format!(
        "the pools promise {total} ({parts}), and the host permits fewer ({limits}): commands of all containers \
         together, and programs of the host, can run out of processes"
    );
    CheckLine::warning(check, subject, finding, remedy)
}

/// Compares the disks that pools with `storage = "disk"` promise with the space of the state directory: what is free there,
/// and what such disks have taken already. `None` without such a pool.
pub(super) fn check_disks(config: &Config, space_bytes: Option<u64>) -> Option<CheckLine> {
    let (check, subject) = ("disk", "disk of workspaces");
    let parts: Vec<_> = config
        .pools
        .iter()
        .filter(|pool| pool.storage == WorkspaceStorage::Disk)
        .map(|pool| (pool.name.clone(), count(pool.max), pool.disk_bytes))
        .collect();
    if parts.is_empty() {
        return None;
    }
    let promise = CapacityPromise::new(&parts, |each| ByteSize::b(each).to_string());
    let (total, parts) = (ByteSize::b(promise.total), promise.parts);
    let reserve = config.workspaces.disk_reserve_bytes;
    let kept = ByteSize::b(reserve);
    let Some(space_bytes) = space_bytes else {
        return Some(CheckLine::warning(
            check,
            subject,
            format!(
                "the space of the state directory is not known; the pools promise {total} ({parts})"
            ),
            "see the lines about the state directory",
        ));
    };
    let space = ByteSize::b(space_bytes);
    let finding = format!(
        "the pools promise {total} on disk ({parts}) and leave {kept}; the state directory has {space} for both"
    );
    if promise.total.saturating_add(reserve) <= space_bytes {
        return Some(CheckLine::ok(check, subject, finding));
    }
    Some(CheckLine::warning(
        check,
        subject,
        format!("{finding}: containers beyond that do not start"),
        "set `max` or `disk` of these pools lower, or put state_dir on a larger disk",
    ))
}

/// Logs a warning for each promise of the pools that this host can't keep. Blocks for a moment.
pub fn warn_of_promises(config: &Config) {
    let read = super::kernel_facts::read_kernel_setting;
    let memory = check_memory(config, super::kernel_facts::read_memory_total());
    let pids = check_pids(config, read("kernel/pid_max"), read("kernel/threads-max"));
    let disks = check_disks(
        config,
        super::path_facts::read_disk_space(&config.state_dir),
    );
    for line in [memory, pids].into_iter().chain(disks) {
        if let Some(remedy) = line.remedy {
            tracing::warn!(remedy, "{}", line.finding);
        }
    }
}

/// Returns the memory that the containers of all pools, and those of builds, may use together.
fn promised_memory(config: &Config) -> CapacityPromise {
    let pools = config.pools.iter();
    let mut parts: Vec<_> = pools
        .map(|pool| (pool.name.clone(), count(pool.max), pool.memory_bytes))
        .collect();
    let environments = &config.skills.environments;
    if environments.is_enabled() {
        let builds = count(environments.builds_max);
        parts.push(("builds".to_owned(), builds, environments.build_memory_bytes));
    }
    CapacityPromise::new(&parts, |each| ByteSize::b(each).to_string())
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
        // 64 × 512 MiB, 16 × 1 GiB, 2 × 3 GiB.
        let defaults = config("");
        for (host, state) in [
            (Some(54 * GIB), CheckState::Ok),
            (Some(54 * GIB - 1), CheckState::Warning),
            (Some(0), CheckState::Warning),
            (None, CheckState::Warning),
        ] {
            let line = check_memory(&defaults, host);
            assert_eq!(line.state, state, "{line:?}");
            for part in [
                "54.0 GiB",
                "default 64 × 512.0 MiB",
                "office 16 × 1.0 GiB",
                "builds 2 × 3.0 GiB",
            ] {
                assert!(line.finding.contains(part), "{line:?}");
            }
        }
        let without_builds = config("[skills]\nenvironment_builds = \"never\"");
        let line = check_memory(&without_builds, Some(48 * GIB));
        assert_eq!(line.state, CheckState::Ok, "{line:?}");
    }

    #[test]
    fn disks_of_all_pools_are_compared_with_the_space_of_the_state_directory() {
        assert_eq!(
            check_disks(&config(""), Some(0)),
            None,
            "no pool is on disk"
        );
        let big = config("[pools.big]\nstorage = \"disk\"\ndisk = \"4GiB\"\nmax = 10");
        for (space, state) in [
            (Some(41 * GIB), CheckState::Ok),
            (Some(41 * GIB - 1), CheckState::Warning),
            (None, CheckState::Warning),
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
        let memory = check_memory(&config, Some(u64::MAX - 1));
        assert_eq!(memory.state, CheckState::Warning, "{memory:?}");
        let pids = check_pids(&config, Some(u64::MAX - 1), Some(u64::MAX));
        assert_eq!(pids.state, CheckState::Warning, "{pids:?}");
        assert!(
            pids.remedy
                .is_some_and(|text| text.contains("4194304 at most"))
        );
    }

    #[test]
    fn processes_are_compared_with_the_lower_limit_of_the_kernel() {
        // (64 + 16) × 512.
        let defaults = config("");
        for (pid_max, threads_max, state) in [
            (40_960, 40_960, CheckState::Ok),
            (4_194_304, 40_959, CheckState::Warning),
            (32_768, 192_731, CheckState::Warning),
        ] {
            let line = check_pids(&defaults, Some(pid_max), Some(threads_max));
            assert_eq!(line.state, state, "{line:?}");
        }
        let line = check_pids(&defaults, Some(32_768), Some(192_731));
        let remedy = line.remedy.expect("a remedy");
        assert!(
            remedy.contains("kernel.pid_max=49152 kernel.threads-max=192731"),
            "{remedy}"
        );
        let line = check_pids(&defaults, None, Some(1));
        assert_eq!(line.state, CheckState::Warning, "{line:?}");
    }
}
