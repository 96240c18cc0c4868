//! Control groups of a container that the daemon sets up beyond what an engine does: a limit of socket memory, and a CPU
//! group for commands.
//!
//! Both need root, and a daemon that sees the host's control groups. Without them it serves all the same;
//! docs/security.md says what that means. Both read and write files, so they block: call them with `Tasks::blocking`.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

/// Mount point of the control groups.
const MOUNT: &str = "/sys/fs/cgroup";
/// Name of the CPU group of commands, below the container's.
const COMMANDS: &str = "commands";
/// Weight of all commands of a container together on cgroup v1. One process of the guest weighs 1,024.
const COMMANDS_SHARES: &str = "20";
/// The same weight on cgroup v2, where one process of the guest weighs 100.
const COMMANDS_WEIGHT: &str = "2";
/// Part of a container's memory that its sockets may hold in addition.
const SOCKET_SHARE: u64 = 8;
/// Smallest limit of socket memory, in bytes. One TCP connection over loopback holds up to 8 MiB.
const SOCKET_BYTES_MIN: u64 = 16 << 20;

/// Limits the socket memory of a container on cgroup v1. `pid` is its first process.
///
/// cgroup v2 counts socket buffers in the container's memory. v1 has a limit of its own for them, which is off by
/// default, and which runc ignores since 1.0.0: so the daemon writes it, before any command runs in the container.
///
/// # Errors
///
/// When the process is not the container's, or the daemon sees no such control group or may not write to it.
pub fn limit_socket_memory(container_id: &str, pid: i32, memory_bytes: u64) -> io::Result<()> {
    let groups = fs::read_to_string(format!("/proc/{pid}/cgroup"))?;
    let group = group_of(&groups, Some("memory"), container_id).ok_or(io::ErrorKind::NotFound)?;
    let limit = group.join("memory.kmem.tcp.limit_in_bytes");
    fs::write(limit, socket_bytes(memory_bytes).to_string())
}

/// Makes the CPU group of a container's commands and returns its file: a thread that writes 0 to it moves there. `pid` is
/// the container's first process.
///
/// The guest and its supervisors stay in the container's own group and get the CPU before this one, however many
/// processes it has. In one group the kernel would let each of them run before the guest: measured with 490 busy
/// processes, the guest then waits up to 19 s, and 10 ms with this group. Quota and all other limits are the container's.
/// The engine removes the group together with the container's.
///
/// # Errors
///
/// When the process is not the container's, or the daemon sees no such control group or may not write to it.
pub fn make_command_group(container_id: &str, pid: i32) -> io::Result<File> {
    let groups = fs::read_to_string(format!("/proc/{pid}/cgroup"))?;
    if let Some(container) = group_of(&groups, Some("cpu"), container_id) {
        return make_v1(&container);
    }
    let container = group_of(&groups, None, container_id).ok_or(io::ErrorKind::NotFound)?;
    make_v2(&container)
}

fn make_v1(container: &Path) -> io::Result<File> {
    let group = make_directory(container)?;
    fs::write(group.join("cpu.shares"), COMMANDS_SHARES)?;
    open_for_writing(&group.join("tasks"))
}

/// A threaded group, since only such a one may be below a group that has processes.
fn make_v2(container: &Path) -> io::Result<File> {
    let group = make_directory(container)?;
    let kind = group.join("cgroup.type");
    if fs::read_to_string(&kind)?.trim_end() != "threaded" {
        fs::write(kind, "threaded")?;
    }
    fs::write(container.join("cgroup.subtree_control"), "+cpu")?;
    fs::write(group.join("cpu.weight"), COMMANDS_WEIGHT)?;
    open_for_writing(&group.join("cgroup.threads"))
}

/// Makes the group unless a previous daemon has made it.
fn make_directory(container: &Path) -> io::Result<PathBuf> {
    let group = container.join(COMMANDS);
    match fs::create_dir(&group) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(group),
    }
}

fn open_for_writing(path: &Path) -> io::Result<File> {
    File::options().write(true).open(path)
}

/// Limit for a container of this size.
fn socket_bytes(memory_bytes: u64) -> u64 {
    (memory_bytes / SOCKET_SHARE).max(SOCKET_BYTES_MIN)
}

/// Directory of a container's group, from the contents of `/proc/PID/cgroup`: lines of `ID:CONTROLLERS:PATH`. Without a
/// controller it is the group of cgroup v2. `None` if the process is in no group that is named after the container: then
/// its pid has become another's, or the daemon does not see the host's groups.
fn group_of(groups: &str, controller: Option<&str>, container_id: &str) -> Option<PathBuf> {
    let path = groups.lines().find_map(|line| {
        let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
        let found = match controller {
            Some(controller) => controllers.split(',').any(|name| name == controller),
            None => controllers.is_empty(),
        };
        found.then_some(path)
    })?;
    let is_containers = container_id.len() >= 12 && path.contains(container_id);
    let below = path.strip_prefix('/').filter(|_| is_containers)?;
    let mount = Path::new(MOUNT).join(controller.unwrap_or_default());
    (!below.contains("..")).then(|| mount.join(below))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "12ab12ab12ab";

    #[test]
    fn a_group_is_found_by_its_controller_and_its_container() {
        let groups = format!(
            "10:name=systemd:/a\n4:memory,hugetlb:/docker/{ID}\n3:cpu,cpuacct:/docker/{ID}\n\
             0::/system.slice/docker-{ID}.scope\n"
        );
        let found = |controller| group_of(&groups, controller, ID);
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
    fn the_group_of_another_process_is_never_found() {
        for groups in [
            "".to_owned(),
            "nonsense".to_owned(),
            "4:memory:/".to_owned(),
            "4:memory:/docker/99ff99ff99ff".to_owned(),
            format!("4:memory:/../{ID}"),
            format!("4:cpu:/docker/{ID}"),
        ] {
            assert_eq!(group_of(&groups, Some("memory"), ID), None, "{groups}");
        }
        assert_eq!(group_of("4:memory:/docker/x", Some("memory"), ""), None);
    }

    #[test]
    fn a_threaded_group_with_a_low_weight_is_made_on_cgroup_v2() {
        let container = tempfile::tempdir().unwrap();
        let group = container.path().join(COMMANDS);
        fs::create_dir(&group).unwrap();
        fs::write(group.join("cgroup.type"), "domain\n").unwrap();
        fs::write(group.join("cgroup.threads"), "").unwrap();
        for _ in 0..2 {
            make_v2(container.path()).unwrap();
            let read = |path: &Path| fs::read_to_string(path).unwrap();
            assert_eq!(read(&group.join("cgroup.type")), "threaded");
            assert_eq!(read(&group.join("cpu.weight")), "2");
            let enabled = read(&container.path().join("cgroup.subtree_control"));
            assert_eq!(enabled, "+cpu");
        }
    }

    #[test]
    fn sockets_may_hold_an_eighth_of_the_memory_in_addition() {
        assert_eq!(socket_bytes(512 << 20), 64 << 20);
        assert_eq!(socket_bytes(32 << 20), 16 << 20);
    }
}
