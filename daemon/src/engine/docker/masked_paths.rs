//! Finds the paths below `/proc` and `/sys` that a container must not see.
//!
//! Both file systems describe the host, and their entries depend on its kernel and hardware. So the daemon masks every entry
//! that is not on a list of entries that programs need. The OCI runtime skips paths that do not exist in a container.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// Paths that are masked even if the daemon cannot see them: the list of Docker 29 and further paths that describe the
/// host. A list of masked paths replaces Docker's list, so this one contains all of it.
const ALWAYS_MASKED: [&str; 41] = [
    "/proc/acpi",
    "/proc/asound",
    "/proc/bus",
    "/proc/cmdline",
    "/proc/config.gz",
    "/proc/diskstats",
    "/proc/driver",
    "/proc/fs",
    "/proc/interrupts",
    "/proc/iomem",
    "/proc/ioports",
    "/proc/irq",
    "/proc/kallsyms",
    "/proc/kcore",
    "/proc/key-users",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/modules",
    "/proc/partitions",
    // Opening a file here for writing and setting a trigger delays the end of the process by a grace period of the
    // kernel (RCU) each: 15,000 of them keep a container from being removed for minutes.
    "/proc/pressure",
    "/proc/sched_debug",
    "/proc/scsi",
    "/proc/softirqs",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/sys/block",
    "/sys/bus",
    "/sys/class",
    "/sys/dev",
    "/sys/devices/virtual",
    "/sys/firmware",
    "/sys/fs/selinux",
    "/sys/hypervisor",
    "/sys/kernel/btf",
    "/sys/kernel/debug",
    "/sys/kernel/irq",
    "/sys/kernel/security",
    "/sys/kernel/slab",
    "/sys/kernel/tracing",
    "/sys/module",
    "/sys/power",
];

/// Folders of `/proc` and `/sys` with the only entries that stay visible in a container.
const VISIBLE_ENTRIES: [(&str, &[&str]); 6] = [
    (
        "/proc",
        &[
            // The JVM detects control groups with this file.
            "cgroups",
            "cpuinfo",
            "filesystems",
            "loadavg",
            "meminfo",
            "mounts",
            "net",
            "self",
            "stat",
            "swaps",
            "sys",
            // Docker's list of read-only paths protects it from writes.
            "sysrq-trigger",
            "sysvipc",
            "thread-self",
            "tty",
            "uptime",
            "version",
        ],
    ),
    ("/sys", &["devices", "fs", "kernel"]),
    ("/sys/devices", &["system"]),
    ("/sys/devices/system", &["cpu", "node"]),
    ("/sys/fs", &["cgroup"]),
    // Sizes of huge pages, which allocators and the JVM read.
    ("/sys/kernel", &["mm"]),
];

/// Returns the paths to mask in containers of this host, sorted.
pub(super) fn find_masked_paths() -> Vec<String> {
    find_masked_paths_in(Path::new("/"))
}

fn find_masked_paths_in(root: &Path) -> Vec<String> {
    let mut masked: BTreeSet<String> = ALWAYS_MASKED.into_iter().map(str::to_owned).collect();
    for (folder, visible) in VISIBLE_ENTRIES {
        let names = entry_names(&root.join(folder.trim_start_matches('/')));
        let hidden =
            names.filter(|name| !visible.contains(&name.as_str()) && !is_process_directory(name));
        masked.extend(hidden.map(|name| format!("{folder}/{name}")));
    }
    // Throttling counters of the processors reveal the load of other tenants.
    let processors = "/sys/devices/system/cpu";
    for name in entry_names(&root.join(processors.trim_start_matches('/'))) {
        let throttle = format!("{processors}/{name}/thermal_throttle");
        if root.join(throttle.trim_start_matches('/')).is_dir() {
            masked.insert(throttle);
        }
    }
    masked.into_iter().collect()
}

/// Returns the names of a directory's entries; none if the directory cannot be read.
fn entry_names(folder: &Path) -> impl Iterator<Item = String> + use<> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok())
}

/// Returns `true` for the directory of a process in `/proc`. A container sees only its own processes there.
fn is_process_directory(name: &str) -> bool {
    name.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_but_the_visible_entries_is_masked() {
        let root = tempfile::tempdir().expect("a directory");
        for path in [
            "proc/1",
            "proc/cpuinfo",
            "proc/self",
            "proc/new_file",
            "sys/devices/system/cpu/cpu0/thermal_throttle",
            "sys/devices/system/cpu/cpu0/topology",
            "sys/devices/pci0000:00",
            "sys/fs/cgroup",
            "sys/fs/ext4",
            "sys/kernel/mm",
        ] {
            fs::create_dir_all(root.path().join(path)).expect("made");
        }
        let masked = find_masked_paths_in(root.path());
        let found: Vec<&str> = masked
            .iter()
            .map(String::as_str)
            .filter(|path| !ALWAYS_MASKED.contains(path))
            .collect();
        assert_eq!(
            found,
            [
                "/proc/new_file",
                "/sys/devices/pci0000:00",
                "/sys/devices/system/cpu/cpu0/thermal_throttle",
                "/sys/fs/ext4",
            ]
        );
        assert!(masked.is_sorted());
    }

    #[test]
    fn known_paths_are_masked_even_if_the_daemon_cannot_see_them() {
        let masked = find_masked_paths_in(Path::new("/nonexistent"));
        assert_eq!(masked.len(), ALWAYS_MASKED.len());
        // Docker's own list as of 29.
        for path in [
            "/proc/acpi",
            "/proc/asound",
            "/proc/interrupts",
            "/proc/kcore",
            "/proc/keys",
            "/proc/latency_stats",
            "/proc/sched_debug",
            "/proc/scsi",
            "/proc/timer_list",
            "/proc/timer_stats",
            "/sys/devices/virtual",
            "/sys/firmware",
        ] {
            assert!(masked.iter().any(|masked| masked == path), "{path}");
        }
    }
}
