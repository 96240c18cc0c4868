//! Facts about kernel, user and clock, read from `/proc`, `/sys` and system calls. Changes nothing.

use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime};

use nix::sys::resource::{Resource, getrlimit};
use nix::unistd::Uid;
use tokio::process::Command;

/// Maximum time that systemd's `timedatectl` may take.
const TIME_SERVICE_TIMEOUT: Duration = Duration::from_secs(3);
/// File whose presence means cgroup v2; it lists the controllers.
const CGROUP2_CONTROLLERS: &str = "/sys/fs/cgroup/cgroup.controllers";

/// Facts about kernel and user. `None` means that a value can't be read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct KernelFacts {
    /// Effective uid of this process.
    pub(super) uid: u32,
    /// Release of the kernel, for instance `6.1.0-18-amd64`.
    pub(super) release: String,
    /// Version of the control groups, 1 or 2, and the enabled controllers.
    pub(super) cgroup: Option<(u32, Vec<String>)>,
    /// Memory of the host in bytes.
    pub(super) memory_bytes: Option<u64>,
    /// kernel.pid_max.
    pub(super) pid_max: Option<u64>,
    /// kernel.threads-max.
    pub(super) threads_max: Option<u64>,
    /// Hard limit of open files of this process.
    pub(super) open_files_max: Option<u64>,
}

/// Facts about the clock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ClockFacts {
    /// Current time.
    pub(super) now: SystemTime,
    /// Time at which the file of this program was written: by its build, or later by its installation.
    pub(super) program_time: Option<SystemTime>,
    /// `true` if the kernel reports that a time service keeps the clock right (adjtimex); `None` if it can't be asked.
    pub(super) is_synchronised: Option<bool>,
}

/// Reads the facts about kernel and user. Blocks for a moment.
pub(super) fn read_kernel_facts() -> KernelFacts {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease");
    KernelFacts {
        uid: Uid::effective().as_raw(),
        release: release.unwrap_or_default().trim().to_owned(),
        cgroup: read_cgroup(),
        memory_bytes: read_memory_total(),
        pid_max: read_kernel_setting("kernel/pid_max"),
        threads_max: read_kernel_setting("kernel/threads-max"),
        open_files_max: getrlimit(Resource::RLIMIT_NOFILE)
            .ok()
            .map(|(_, hard)| hard),
    }
}

/// Reads the facts about the clock. Waits at most [`TIME_SERVICE_TIMEOUT`].
pub(super) async fn read_clock_facts() -> ClockFacts {
    let program = std::env::current_exe().and_then(fs::metadata);
    ClockFacts {
        program_time: program.and_then(|found| found.modified()).ok(),
        is_synchronised: read_synchronised().await,
        now: SystemTime::now(),
    }
}

/// Reads the memory of the host in bytes.
pub(super) fn read_memory_total() -> Option<u64> {
    parse_memory_total(&fs::read_to_string("/proc/meminfo").ok()?)
}

/// Reads a number beneath `/proc/sys`.
pub(super) fn read_kernel_setting(name: &str) -> Option<u64> {
    let text = fs::read_to_string(Path::new("/proc/sys").join(name)).ok()?;
    text.trim().parse().ok()
}

/// Asks systemd for the answer of adjtimex(2), which safe code can't call. `None` on a host without systemd.
async fn read_synchronised() -> Option<bool> {
    let asked = Command::new("timedatectl")
        .args(["show", "--property=NTPSynchronized", "--value"])
        .kill_on_drop(true)
        .output();
    let answer = tokio::time::timeout(TIME_SERVICE_TIMEOUT, asked).await;
    let output = answer.ok()?.ok()?;
    match output.stdout.trim_ascii() {
        b"yes" => Some(true),
        b"no" => Some(false),
        _ => None,
    }
}

fn read_cgroup() -> Option<(u32, Vec<String>)> {
    if let Ok(text) = fs::read_to_string(CGROUP2_CONTROLLERS) {
        let controllers = text.split_whitespace().map(str::to_owned);
        return Some((2, controllers.collect()));
    }
    let text = fs::read_to_string("/proc/cgroups").ok()?;
    Some((1, parse_v1_controllers(&text)))
}

/// Returns the enabled controllers in `/proc/cgroups`: lines of name, hierarchy, number of groups and 0 or 1.
fn parse_v1_controllers(text: &str) -> Vec<String> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let enabled = lines.filter_map(|line| {
        let mut words = line.split_whitespace();
        let name = words.next()?;
        (words.nth(2)? == "1").then(|| name.to_owned())
    });
    enabled.collect()
}

/// Returns the line `MemTotal` of `/proc/meminfo` in bytes.
fn parse_memory_total(text: &str) -> Option<u64> {
    let mut lines = text.lines();
    let value = lines.find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = value.trim().strip_suffix(" kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

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
    }

    #[test]
    fn disabled_controllers_of_cgroup_v1_are_left_out() {
        let text = "#subsys_name\thierarchy\tnum_cgroups\tenabled\ncpu\t2\t9\t1\nmemory\t0\t1\t0\npids\t3\t1\t1\nodd\n\n";
        assert_eq!(parse_v1_controllers(text), ["cpu", "pids"]);
    }

    #[test]
    fn facts_of_this_host_can_be_read() {
        let facts = read_kernel_facts();
        assert_eq!(facts.uid, nix::unistd::geteuid().as_raw());
        assert!(facts.memory_bytes.is_some_and(|bytes| bytes > 1 << 20));
        assert!(facts.pid_max.is_some() && facts.threads_max.is_some());
        assert!(facts.open_files_max.is_some() && !facts.release.is_empty());
        assert_eq!(read_kernel_setting("kernel/no_such_setting"), None);
    }
}
