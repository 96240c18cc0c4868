//! Control group settings that the engine does not offer: a limit on socket memory, and a CPU group for commands.
//!
//! Both need root and a daemon that sees the host's control groups. Without them the daemon still serves;
//! docs/security.md describes the consequences. Both functions block: call them with `Tasks::blocking`.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

/// Mount point of the host's control groups.
const CGROUP_MOUNT: &str = "/sys/fs/cgroup";
/// Name of the CPU group for commands, below the container's group.
const COMMAND_GROUP: &str = "commands";
/// CPU shares of all commands of a container together, on cgroup v1. The guest has 1,024.
const COMMAND_GROUP_SHARES: &str = "20";
/// CPU weight of all commands of a container together, on cgroup v2. The guest has 100.
const COMMAND_GROUP_WEIGHT: &str = "2";
/// Divisor of a container's memory limit that gives its limit of socket memory.
const SOCKET_MEMORY_DIVISOR: u64 = 8;
/// Minimum limit of socket memory, in bytes. One TCP connection over loopback holds up to 8 MiB.
const SOCKET_MEMORY_MIN_BYTES: u64 = 16 << 20;

/// Limits the socket memory of a container on cgroup v1. `pid` is the container's first process.
///
/// cgroup v2 counts socket buffers in the container's memory. cgroup v1 has a separate limit, which is off by default and
/// which runc ignores since 1.0.0. So the daemon writes it before any command runs in the container.
///
/// # Errors
///
/// Fails if the process does not belong to the container, or if the daemon cannot see or write its control group.
pub fn limit_socket_memory(container_id: &str, pid: i32, memory_bytes: u64) -> io::Result<()> {
    let groups = fs::read_to_string(format!("/proc/{pid}/cgroup"))?;
    let group = find_container_group(&groups, Some("memory"), container_id)
        .ok_or(io::ErrorKind::NotFound)?;
    let limit = group.join("memory.kmem.tcp.limit_in_bytes");
    fs::write(limit, socket_memory_limit(memory_bytes).to_string())
}

/// Creates the CPU group for a container's commands and returns its `tasks` or `cgroup.threads` file. A thread that
/// writes 0 to this file moves into the group. `pid` is the container's first process.
///
/// The guest and its supervisors stay in the container's group and get the CPU before all commands together. In a common
/// group each busy command competes with the guest: measured with 490 busy processes, the guest waits up to 19 s; with
/// this group it waits 10 ms. Quota and all other limits stay those of the container. The engine removes the group
/// together with the container's group.
///
/// # Errors
///
/// Fails if the process does not belong to the container, or if the daemon cannot see or write its control group.
pub fn create_command_group(container_id: &str, pid: i32) -> io::Result<File> {
    let groups = fs::read_to_string(format!("/proc/{pid}/cgroup"))?;
    if let Some(container) = find_container_group(&groups, Some("cpu"), container_id) {
        return create_command_group_v1(&container);
    }
    let container =
        find_container_group(&groups, None, container_id).ok_or(io::ErrorKind::NotFound)?;
    create_command_group_v2(&container)
}

fn create_command_group_v1(container: &Path) -> io::Result<File> {
    let group = create_group_directory(container)?;
    fs::write(group.join("cpu.shares"), COMMAND_GROUP_SHARES)?;
    open_for_writing(&group.join("tasks"))
}

/// Creates a threaded group: below a group that has processes, the kernel allows no other type.
fn create_command_group_v2(container: &Path) -> io::Result<File> {
    let group = create_group_directory(container)?;
    let kind = group.join("cgroup.type");
    if fs::read_to_string(&kind)?.trim_end() != "threaded" {
        fs::write(kind, "threaded")?;
    }
    fs::write(container.join("cgroup.subtree_control"), "+cpu")?;
    fs::write(group.join("cpu.weight"), COMMAND_GROUP_WEIGHT)?;
    open_for_writing(&group.join("cgroup.threads"))
}

/// Creates the group's directory unless a previous daemon has created it.
fn create_group_directory(container: &Path) -> io::Result<PathBuf> {
    let group = container.join(COMMAND_GROUP);
    match fs::create_dir(&group) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(group),
    }
}

fn open_for_writing(path: &Path) -> io::Result<File> {
    File::options().write(true).open(path)
}

/// Returns the limit of socket memory, in bytes, for a container with this memory limit.
fn socket_memory_limit(memory_bytes: u64) -> u64 {
    (memory_bytes / SOCKET_MEMORY_DIVISOR).max(SOCKET_MEMORY_MIN_BYTES)
}

/// Finds the directory of a container's group in the contents of `/proc/PID/cgroup`, lines of `ID:CONTROLLERS:PATH`.
/// `controller` is `None` for the group of cgroup v2. Returns `None` if no group is named after the container: the kernel
/// has reused the pid, or the daemon does not see the host's groups.
fn find_container_group(
    groups: &str,
    controller: Option<&str>,
    container_id: &str,
) -> Option<PathBuf> {
    let path = groups.lines().find_map(|line| {
        let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
        let found = match controller {
            Some(controller) => controllers.split(',').any(|name| name == controller),
            None => controllers.is_empty(),
        };
        found.then_some(path)
    })?;
    // A shorter text could be a part of any path; 12 digits are Docker's short form of an id.
    let is_containers = container_id.len() >= 12 && path.contains(container_id);
    let below = path.strip_prefix('/').filter(|_| is_containers)?;
    let mount = Path::new(CGROUP_MOUNT).join(controller.unwrap_or_default());
    (!below.contains("..")).then(|| mount.join(below))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "12ab12ab12ab";

    #[test]
    fn container_group_is_found_by_controller_and_container_id() {
        let groups = format!(
            "10:name=systemd:/a\n4:memory,hugetlb:/docker/{ID}\n3:cpu,cpuacct:/docker/{ID}\n\
             0::/system.slice/docker-{ID}.scope\n"
        );
        let found = |controller| find_container_group(&groups, controller, ID);
        let path = |text: &str| Some(PathBuf::from(text.replace("ID", ID)));
        assert_eq!(
            found(Some("memory")),
            path("/sys/fs/cgroup/memory/docker/ID")
        );
        assert_eq!(found(Some("cpu")), path("/sys/fs/cgroup/cpu/docker/ID"));
        assert_eq!(found(Some("pids")), None);
        let unified = path("/sys/fs/cgroup/system.slice/docker-ID.scope");
        assert_eq!(found(None), unified);
    }

    #[test]
    fn group_of_another_process_is_never_found() {
        for groups in [
            "".to_owned(),
            "nonsense".to_owned(),
            "4:memory:/".to_owned(),
            "4:memory:/docker/99ff99ff99ff".to_owned(),
            format!("4:memory:/../{ID}"),
            format!("4:cpu:/docker/{ID}"),
        ] {
            assert_eq!(
                find_container_group(&groups, Some("memory"), ID),
                None,
                "{groups}"
            );
        }
        assert_eq!(
            find_container_group("4:memory:/docker/x", Some("memory"), ""),
            None
        );
    }

    #[test]
    fn command_group_is_threaded_with_low_weight_on_cgroup_v2() {
        let container = tempfile::tempdir().unwrap();
        let group = container.path().join(COMMAND_GROUP);
        fs::create_dir(&group).unwrap();
        fs::write(group.join("cgroup.type"), "domain\n").unwrap();
        fs::write(group.join("cgroup.threads"), "").unwrap();
        for _ in 0..2 {
            create_command_group_v2(container.path()).unwrap();
            let read = |path: &Path| fs::read_to_string(path).unwrap();
            assert_eq!(read(&group.join("cgroup.type")), "threaded");
            assert_eq!(read(&group.join("cpu.weight")), "2");
            let enabled = read(&container.path().join("cgroup.subtree_control"));
            assert_eq!(enabled, "+cpu");
        }
    }

    #[test]
    fn socket_memory_limit_is_an_eighth_and_at_least_16_mib() {
        assert_eq!(socket_memory_limit(512 << 20), 64 << 20);
        assert_eq!(socket_memory_limit(32 << 20), 16 << 20);
    }
}
