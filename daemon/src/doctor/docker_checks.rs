//! Checks of the engine, Docker or Podman: its socket, its version, and what it reports about rights, limits, system calls
//! and storage. Pure.

use super::docker_facts::{DockerFacts, SocketAccess};
use super::report::CheckLine;
use crate::engine::docker::{DockerReport, EngineKind, ROOTLESS_REASON};

/// Permission bit that lets every user of the host write.
const WRITABLE_BY_ALL: u32 = 0o002;
/// Cost of fuse-overlayfs beside overlay2, measured on one host with the images of this repository; see
/// docs/operations.md.
const FUSE_OVERLAYFS_COST: &str = "every access to a file of the image goes through a process of the host: bash starts \
    in 2.4 instead of 1.7 ms, and a first `import pandas` takes 0.96 instead of 0.70 s (measured beside overlay2)";
/// Cost of vfs beside overlay2, measured in the same way.
const VFS_COST: &str = "every container is a copy of its whole image: 9.5 s and 0.85 GB of disk for one of skilld/base, \
    instead of 0.06 s and 0.1 MB (measured beside overlay2)";

/// Checks everything about the engine. Without its report, one line says so.
pub(super) fn check_docker(docker: &DockerFacts) -> Vec<CheckLine> {
    let report = match (&docker.access, &docker.report) {
        (SocketAccess::Connected, Ok(report)) => report,
        (SocketAccess::Connected, Err(why)) => {
            let finding = format!(
                "{} accepts connections and does not answer as Docker does: {why}",
                docker.socket
            );
            let kind = EngineKind::from_socket(&docker.socket);
            let remedy = format!(
                "restart {} (`{}`), or set engine.docker_host to its socket",
                kind.title(),
                kind.restart_command()
            );
            return vec![CheckLine::failed("docker", kind.name(), finding, remedy)];
        }
        _ => return vec![check_socket(docker)],
    };
    vec![
        check_permissions(docker, report.kind()),
        check_version(report),
        check_rootless(report),
        check_limits(report),
        check_storage_driver(report),
        check_seccomp(report),
        check_access_control(report),
    ]
}

/// Reports a socket that can't be used. Its path tells which engine should listen there.
fn check_socket(docker: &DockerFacts) -> CheckLine {
    let socket = &docker.socket;
    let kind = EngineKind::from_socket(socket);
    let (title, start) = (kind.title(), kind.start_command());
    let (finding, remedy) = match &docker.access {
        SocketAccess::Connected => (format!("{socket} can be used"), "nothing".to_owned()),
        SocketAccess::Missing => (
            format!("{socket} does not exist: {title} is not running, or not installed"),
            format!(
                "run `{start}` (Debian: `apt install {}` first), or set engine.docker_host to its socket",
                kind.package()
            ),
        ),
        SocketAccess::NotASocket => (
            format!("{socket} is not a socket"),
            format!("set engine.docker_host to unix:// and the path of {title}'s socket"),
        ),
        SocketAccess::Refused => (
            format!("no process listens at {socket}"),
            format!("run `{start}`"),
        ),
        SocketAccess::Denied => (
            format!("this user has no permission for {socket}"),
            kind.permission_advice().to_owned(),
        ),
        SocketAccess::Failed(why) => (
            format!("{socket} can't be used: {why}"),
            format!(
                "run `{}`, or set engine.docker_host to unix:// and the path of its socket",
                kind.restart_command()
            ),
        ),
    };
    CheckLine::failed("docker", kind.name(), finding, remedy)
}

/// Checks who may use the engine's socket: each of them can become root.
fn check_permissions(docker: &DockerFacts, kind: EngineKind) -> CheckLine {
    let (check, subject, socket) = ("docker", kind.name(), &docker.socket);
    match docker.mode {
        Some(mode) if mode & WRITABLE_BY_ALL != 0 => CheckLine::warning(
            check,
            subject,
            format!(
                "{socket} has mode {mode:04o}: every user of the host can become root through it"
            ),
            format!("run `chmod o-w {socket}`"),
        ),
        _ => CheckLine::ok(
            check,
            subject,
            format!("{} answers at {socket}", kind.title()),
        ),
    }
}

fn check_version(report: &DockerReport) -> CheckLine {
    let kind = report.kind();
    let (check, subject) = ("docker.version", format!("{} version", kind.name()));
    let info = &report.info;
    let finding = format!(
        "{} {} with API {}",
        kind.title(),
        info.version,
        info.api_version
    );
    if report.is_supported {
        let finding = format!("{finding}; the minimum is {}", kind.version_min());
        return CheckLine::ok(check, subject, finding);
    }
    let remedy = format!("install {} or later", kind.version_min());
    CheckLine::failed(check, subject, format!("{finding} is too old"), remedy)
}

/// Checks that the engine runs as root; the daemon refuses another one at its start.
fn check_rootless(report: &DockerReport) -> CheckLine {
    let (check, subject, kind) = ("docker.rootless", "rights", report.kind());
    if !report.info.rootless {
        return CheckLine::ok(check, subject, format!("{} runs as root", kind.title()));
    }
    let finding = format!(
        "skilld does not start with this {}: {ROOTLESS_REASON}",
        kind.title()
    );
    let remedy = format!(
        "run {} as root (`{}`) and set engine.docker_host to {}",
        kind.title(),
        kind.start_command(),
        kind.rootful_host()
    );
    CheckLine::failed(check, subject, finding, remedy)
}

/// Checks that the engine enforces the limits of containers; the daemon refuses containers without them.
fn check_limits(report: &DockerReport) -> CheckLine {
    let (check, subject) = ("docker.limits", "limits");
    let limits = [
        ("memory", report.memory_limit),
        ("swap", report.swap_limit),
        ("processes", report.pids_limit),
        ("CPU time", report.info.cpu_quota),
    ];
    let missing: Vec<&str> = limits
        .iter()
        .filter(|(_, enforced)| !enforced)
        .map(|(name, _)| *name)
        .collect();
    let (version, title) = (report.info.cgroup_version, report.kind().title());
    if missing.is_empty() {
        let finding =
            format!("{title} enforces memory, swap, processes and CPU time (cgroup v{version})");
        return CheckLine::ok(check, subject, finding);
    }
    let remedy = match version {
        1 => {
            "boot with the kernel parameters `cgroup_enable=memory swapaccount=1` and a kernel with CONFIG_CFS_BANDWIDTH"
        }
        _ => "delegate the controllers cpu, memory and pids to it",
    };
    let finding = format!(
        "{title} can't limit {} (cgroup v{version})",
        missing.join(", ")
    );
    CheckLine::failed(check, subject, finding, remedy)
}

/// Checks the storage driver.
fn check_storage_driver(report: &DockerReport) -> CheckLine {
    let (check, subject) = ("docker.storage_driver", "storage driver");
    let remedy = report.kind().storage_remedy();
    let cost = match report.storage_driver.as_str() {
        "fuse-overlayfs" => FUSE_OVERLAYFS_COST,
        "vfs" => VFS_COST,
        name => return CheckLine::ok(check, subject, name),
    };
    let finding = format!("{}: {cost}", report.storage_driver);
    CheckLine::warning(check, subject, finding, remedy)
}

fn check_seccomp(report: &DockerReport) -> CheckLine {
    let (check, subject) = ("docker.seccomp", "seccomp");
    if report.seccomp {
        return CheckLine::ok(check, subject, "the kernel filters system calls");
    }
    let title = report.kind().title();
    let finding =
        format!("{title} does not filter system calls: no container with skilld's profile starts");
    let remedy = format!(
        "use a kernel with CONFIG_SECCOMP_FILTER, and a {title} that was built with seccomp"
    );
    CheckLine::failed(check, subject, finding, remedy)
}

fn check_access_control(report: &DockerReport) -> CheckLine {
    let (check, subject) = ("docker.access_control", "apparmor");
    if report.info.apparmor {
        let profile = report.kind().apparmor_profile();
        return CheckLine::ok(
            check,
            subject,
            format!("containers get the profile {profile}"),
        );
    }
    if report.selinux {
        return CheckLine::ok(check, subject, "SELinux in its place");
    }
    CheckLine::warning(
        check,
        subject,
        "neither AppArmor nor SELinux: seccomp, capabilities and uids protect the host without a further layer",
        format!(
            "install AppArmor (Debian: `apt install apparmor`), boot with `apparmor=1 security=apparmor`, and restart {}",
            report.kind().title()
        ),
    )
}

#[cfg(test)]
mod tests;
