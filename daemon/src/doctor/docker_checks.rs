//! Checks of the engine, Docker or Podman. They report whether a start could use it, who may use its socket, and what
//! it says about limits, system calls and storage. Creates and pulls nothing.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use super::report::CheckLine;
use crate::config::Config;
use crate::engine::docker::{DockerEngine, DockerReport, EngineKind, connect_engine};
use crate::error::Chain;

/// Longest wait for one answer of Docker, also if `engine.timeout` is longer.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// Permission bit that lets every user of the host write.
const WRITABLE_BY_ALL: u32 = 0o002;

/// Checks everything about the engine. If a start could not use it, one line says why.
pub(super) async fn check_docker(config: &Config) -> Vec<CheckLine> {
    let docker_host = &config.engine.docker_host;
    let socket = docker_host.strip_prefix("unix://").unwrap_or(docker_host);
    let timeout = config.engine.timeout.min(CALL_TIMEOUT);
    let asked = async {
        connect_engine(docker_host, timeout, None).await?;
        let engine = DockerEngine::without_checks(docker_host, timeout)?;
        engine.report().await
    };
    let report = match asked.await {
        Ok(report) => report,
        Err(error) => {
            let name = EngineKind::from_socket(socket).texts().name;
            let finding = Chain(&error).to_string();
            let remedy = "mend it, or set engine.docker_host; until then skilld does not start";
            return vec![CheckLine::failed("docker", name, finding, remedy)];
        }
    };
    let found = tokio::time::timeout(timeout, tokio::fs::metadata(socket)).await;
    let mode = found.ok().and_then(Result::ok).map(|found| found.mode());
    let mut lines = vec![
        check_socket(&report, socket, mode),
        check_limits(&report),
        check_storage_driver(&report),
        check_seccomp(&report),
        check_access_control(&report),
    ];
    lines.extend(find_missing_runtimes(config, &report));
    lines
}

/// Checks who may use the engine's socket: each of them can become root. `mode` is `None` if it can't be read.
fn check_socket(report: &DockerReport, socket: &str, mode: Option<u32>) -> CheckLine {
    let engine = report.kind().texts();
    let (check, subject, title) = ("docker", engine.name, engine.title);
    if let Some(mode) = mode.filter(|mode| mode & WRITABLE_BY_ALL != 0) {
        let permissions = mode & 0o7777;
        let finding = format!(
            "{socket} has mode {permissions:04o}: every user of the host can become root through it"
        );
        return CheckLine::warning(check, subject, finding, format!("run `chmod o-w {socket}`"));
    }
    let (version, api) = (&report.info.version, &report.info.api_version);
    let finding = format!("{title} {version} with API {api} answers at {socket}");
    CheckLine::ok(check, subject, finding)
}

/// Checks that the engine enforces the limits of containers; the daemon refuses containers without them.
fn check_limits(report: &DockerReport) -> CheckLine {
    let (check, subject) = ("docker.limits", "limits");
    let limits = [
        ("memory", report.memory_limit),
        ("swap", report.swap_limit),
        ("processes", report.pids_limit),
    ];
    let missing: Vec<&str> = limits
        .iter()
        .filter(|(_, enforced)| !enforced)
        .map(|(name, _)| *name)
        .collect();
    let (version, title) = (report.info.cgroup_version, report.kind().texts().title);
    if missing.is_empty() {
        let finding =
            format!("{title} enforces memory, swap, processes and CPU time (cgroup v{version})");
        return CheckLine::ok(check, subject, finding);
    }
    let remedy = match version {
        1 => "boot with the kernel parameters `cgroup_enable=memory swapaccount=1`",
        _ => "delegate the controllers cpu, memory and pids to it",
    };
    let listed = missing.join(", ");
    let finding = format!("{title} can't limit {listed} (cgroup v{version})");
    CheckLine::failed(check, subject, finding, remedy)
}

/// Checks the storage driver.
fn check_storage_driver(report: &DockerReport) -> CheckLine {
    let (check, subject) = ("docker.storage_driver", "storage driver");
    let cost = match report.storage_driver.as_str() {
        "fuse-overlayfs" => {
            "every access to a file of the image goes through a process of the host"
        }
        "vfs" => "every container is a copy of its whole image",
        name => return CheckLine::ok(check, subject, name),
    };
    let finding = format!("{}: {cost}", report.storage_driver);
    let remedy = "use overlay2, or with Podman overlay: see docs/requirements.md#storage-drivers";
    CheckLine::warning(check, subject, finding, remedy)
}

/// Returns a line for each pool whose OCI runtime has no program: Docker registers a runtime without looking for it. Podman
/// looks, and reports the first of several paths.
fn find_missing_runtimes(config: &Config, report: &DockerReport) -> Vec<CheckLine> {
    if report.kind() != EngineKind::Docker {
        return Vec::new();
    }
    let title = report.kind().texts().title;
    let lines = config.pools.iter().filter_map(|pool| {
        let default = &report.info.default_runtime;
        let name = pool.oci_runtime.as_ref().unwrap_or(default);
        let path = report.runtime_paths.get(name)?;
        let is_missing = path.starts_with('/') && !Path::new(path).exists();
        is_missing.then(|| {
            let key = format!("pools.{}", pool.name);
            let remedy = format!("install it there, or set {key}.oci_runtime to another one");
            let finding = format!(
                "OCI runtime {name} is registered with {title} as {path}, which does not exist"
            );
            CheckLine::failed("docker.runtime", key, finding, remedy)
        })
    });
    lines.collect()
}

fn check_seccomp(report: &DockerReport) -> CheckLine {
    let (check, subject) = ("docker.seccomp", "seccomp");
    if report.seccomp {
        return CheckLine::ok(check, subject, "the kernel filters system calls");
    }
    let title = report.kind().texts().title;
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
        return CheckLine::ok(check, subject, "containers get the engine's profile");
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
            report.kind().texts().title
        ),
    )
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::report::CheckState;
    use super::*;
    use crate::engine::EngineInfo;

    fn report() -> DockerReport {
        DockerReport {
            info: EngineInfo {
                name: "docker".to_owned(),
                version: "20.10.24".to_owned(),
                api_version: "1.41".to_owned(),
                cgroup_version: 2,
                apparmor: true,
                cpu_quota: true,
                ..EngineInfo::default()
            },
            storage_driver: "overlay2".to_owned(),
            seccomp: true,
            selinux: false,
            memory_limit: true,
            swap_limit: true,
            pids_limit: true,
            runtime_paths: BTreeMap::new(),
        }
    }

    #[test]
    fn a_runtime_without_its_program_fails_in_its_pools() {
        let mut report = report();
        report.info.default_runtime = "runc".to_owned();
        let paths = [
            ("runc", "runc"),
            ("runsc", "/nonexistent/runsc"),
            ("kata", "/"),
        ];
        report.runtime_paths = paths.map(|(name, path)| (name.into(), path.into())).into();
        for (runtime, expected) in [("runsc", 2), ("kata", 0), ("runc", 0), ("other", 0)] {
            let text = format!("[pools.default]\noci_runtime = \"{runtime}\"");
            let config = Config::from_toml(&text).expect("valid").config;
            let lines = find_missing_runtimes(&config, &report);
            assert_eq!(lines.len(), expected, "{lines:?}");
            // The other pools take over the settings of `default`.
            for (line, pool) in lines.iter().zip(["pools.default", "pools.office"]) {
                assert_eq!(line.state, CheckState::Failed);
                assert_eq!(line.subject, pool);
                assert!(line.finding.contains("/nonexistent/runsc"), "{line:?}");
            }
        }
    }

    #[test]
    fn a_socket_that_every_user_may_write_is_a_warning() {
        for (mode, state) in [
            (Some(0o140_660), CheckState::Ok),
            (Some(0o600), CheckState::Ok),
            (Some(0o666), CheckState::Warning),
            (Some(0o7777), CheckState::Warning),
            (None, CheckState::Ok),
        ] {
            let line = check_socket(&report(), "/run/d.sock", mode);
            assert_eq!(line.state, state, "{line:?}");
        }
    }

    #[test]
    fn slow_storage_drivers_are_warnings() {
        for (driver, state) in [
            ("overlay2", CheckState::Ok),
            ("overlayfs", CheckState::Ok),
            ("btrfs", CheckState::Ok),
            ("", CheckState::Ok),
            ("fuse-overlayfs", CheckState::Warning),
            ("vfs", CheckState::Warning),
        ] {
            let storage_driver = driver.to_owned();
            let line = check_storage_driver(&DockerReport {
                storage_driver,
                ..report()
            });
            assert_eq!(line.state, state, "{line:?}");
            let has_remedy = line.remedy.is_some_and(|text| text.contains("overlay2"));
            assert_eq!(has_remedy, state == CheckState::Warning);
        }
    }

    #[test]
    fn limits_that_docker_cannot_enforce_fail_and_are_named() {
        let without = |change: fn(&mut DockerReport)| {
            let mut report = report();
            change(&mut report);
            check_limits(&report)
        };
        assert_eq!(without(|_| {}).state, CheckState::Ok);
        for (line, named) in [
            (without(|report| report.memory_limit = false), "memory"),
            (without(|report| report.swap_limit = false), "swap"),
            (without(|report| report.pids_limit = false), "processes"),
        ] {
            assert_eq!(line.state, CheckState::Failed);
            let expected = format!("can't limit {named} (cgroup v2)");
            assert!(line.finding.contains(&expected), "{line:?}");
        }
        let line = without(|report| {
            report.swap_limit = false;
            report.info.cgroup_version = 1;
        });
        let remedy = line.remedy.unwrap_or_default();
        assert!(remedy.contains("swapaccount=1"), "{remedy}");
    }

    #[test]
    fn a_docker_without_seccomp_fails() {
        assert_eq!(check_seccomp(&report()).state, CheckState::Ok);
        let unfiltered = DockerReport {
            seccomp: false,
            ..report()
        };
        assert_eq!(check_seccomp(&unfiltered).state, CheckState::Failed);
    }

    #[test]
    fn a_host_needs_apparmor_or_selinux() {
        for (apparmor, selinux, state) in [
            (true, false, CheckState::Ok),
            (false, true, CheckState::Ok),
            (false, false, CheckState::Warning),
        ] {
            let mut report = DockerReport {
                selinux,
                ..report()
            };
            report.info.apparmor = apparmor;
            assert_eq!(check_access_control(&report).state, state);
        }
    }

    #[test]
    fn lines_name_the_engine_that_answers() {
        let finding = check_socket(&report(), "/run/d.sock", None).finding;
        assert_eq!(
            finding,
            "Docker 20.10.24 with API 1.41 answers at /run/d.sock"
        );
        let mut podman = report();
        podman.info.name = "podman".to_owned();
        let lines = [
            check_socket(&podman, "/run/p.sock", None),
            check_limits(&podman),
            check_access_control(&podman),
        ];
        for line in lines {
            assert!(!line.finding.contains("Docker"), "{line:?}");
        }
    }
}
