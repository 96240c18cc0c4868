//! Paths below `/proc` and `/sys` that a container must not see.
//!
//! Both file systems describe the host, and what is in them depends on its kernel and its hardware. So the daemon masks
//! everything but a list of what programs need. A path that does not exist in a container is skipped by the OCI runtime.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// Paths that are masked whether or not the daemon can see them: Docker's own list (29) and what is known to describe
/// the host. A list of masked paths replaces Docker's, so this one is complete.
const ALWAYS: [&str; 41] = [
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

/// Folders of which only the named entries stay visible.
const VISIBLE: [(&str, &[&str]); 6] = [
    (
        "/proc",
        &[
            // The JVM finds out about control groups here.
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
            // Nobody may write it; it is on Docker's list of read-only paths.
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

/// Returns the paths to mask on this host, sorted.
pub(super) fn masked_paths() -> Vec<String> {
    masked_paths_in(Path::new("/"))
}

fn masked_paths_in(root: &Path) -> Vec<String> {
    let mut masked: BTreeSet<String> = ALWAYS.into_iter().map(str::to_owned).collect();
    for (folder, visible) in VISIBLE {
        let names = entry_names(&root.join(folder.trim_start_matches('/')));
        let hidden = names.filter(|name| !visible.contains(&name.as_str()) && !is_process(name));
        masked.extend(hidden.map(|name| format!("{folder}/{name}")));
    }
    // Counters of the processors' throttling say what other tenants do.
    let processors = "/sys/devices/system/cpu";
    for name in entry_names(&root.join(processors.trim_start_matches('/'))) {
        let throttle = format!("{processors}/{name}/thermal_throttle");
        if root.join(throttle.trim_start_matches('/')).is_dir() {
            masked.insert(throttle);
        }
    }
    masked.into_iter().collect()
}

fn entry_names(folder: &Path) -> impl Iterator<Item = String> + use<> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok())
}

/// Returns `true` for the folder of a process in `/proc`: a container has processes of its own there.
fn is_process(name: &str) -> bool {
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
        let masked = masked_paths_in(root.path());
        let found: Vec<&str> = masked
            .iter()
            .map(String::as_str)
            .filter(|path| !ALWAYS.contains(path))
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
    fn known_paths_are_masked_wherever_the_daemon_runs() {
        let masked = masked_paths_in(Path::new("/nonexistent"));
        assert_eq!(masked.len(), ALWAYS.len());
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
