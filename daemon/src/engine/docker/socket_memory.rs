//! Limit of the memory that sockets of a container hold, on cgroup v1.
//!
//! cgroup v2 counts socket buffers in the container's memory. v1 has a limit of its own for them, which is off by
//! default, and which runc ignores since 1.0.0: so the daemon writes it, before any command runs in the container.

use std::fs;
use std::io;
use std::path::PathBuf;

/// Part of a container's memory that its sockets may hold in addition.
const SHARE: u64 = 8;
/// Smallest limit, in bytes. One TCP connection over loopback holds up to 8 MiB.
const BYTES_MIN: u64 = 16 << 20;

/// Limits the socket memory of the control group that process `pid` is in. The process was created by the engine.
///
/// # Errors
///
/// When the daemon sees no such control group or may not write to it: it needs to be root.
pub(super) fn limit_socket_memory(pid: i32, memory_bytes: u64) -> io::Result<()> {
    let groups = fs::read_to_string(format!("/proc/{pid}/cgroup"))?;
    let group = memory_group(&groups).ok_or(io::ErrorKind::NotFound)?;
    fs::write(group, socket_bytes(memory_bytes).to_string())
}

/// Limit for a container of this size.
fn socket_bytes(memory_bytes: u64) -> u64 {
    (memory_bytes / SHARE).max(BYTES_MIN)
}

/// File of the limit, from the contents of `/proc/PID/cgroup`: lines of `ID:CONTROLLERS:PATH`.
fn memory_group(groups: &str) -> Option<PathBuf> {
    let path = groups.lines().find_map(|line| {
        let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
        controllers
            .split(',')
            .any(|controller| controller == "memory")
            .then_some(path)
    })?;
    // The root group has no limits, and what leads out of the hierarchy is in no group that we see.
    let below = path.strip_prefix('/').filter(|path| !path.is_empty())?;
    (!below.contains("..")).then(|| {
        PathBuf::from("/sys/fs/cgroup/memory")
            .join(below)
            .join("memory.kmem.tcp.limit_in_bytes")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_group_is_that_of_the_memory_controller() {
        let groups = "10:name=systemd:/a\n4:memory,hugetlb:/docker/12ab\n3:cpuset:/b\n0::/c\n";
        let expected = "/sys/fs/cgroup/memory/docker/12ab/memory.kmem.tcp.limit_in_bytes";
        assert_eq!(memory_group(groups), Some(expected.into()));
        for none in [
            "",
            "0::/c\n",
            "4:memory:/\n",
            "4:memory:/../x\n",
            "nonsense",
        ] {
            assert_eq!(memory_group(none), None, "{none}");
        }
    }

    #[test]
    fn sockets_may_hold_an_eighth_of_the_memory_in_addition() {
        assert_eq!(socket_bytes(512 << 20), 64 << 20);
        assert_eq!(socket_bytes(32 << 20), 16 << 20);
    }
}
