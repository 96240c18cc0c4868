//! Tests of the checks of Docker: a table of facts and the lines that follow from them.

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
        is_supported: true,
        storage_driver: "overlay2".to_owned(),
        seccomp: true,
        selinux: false,
        memory_limit: true,
        swap_limit: true,
        pids_limit: true,
        runtime_paths: BTreeMap::new(),
    }
}

fn facts(access: SocketAccess, report: Result<DockerReport, String>) -> DockerFacts {
    DockerFacts {
        socket: "/run/d.sock".to_owned(),
        mode: Some(0o660),
        access,
        report,
        images: BTreeMap::new(),
        missing_runtimes: Vec::new(),
        disk_fault: None,
    }
}

fn find(report: DockerReport, check: &str) -> CheckLine {
    let lines = check_docker(&facts(SocketAccess::Connected, Ok(report)));
    let line = lines.into_iter().find(|line| line.check == check);
    line.expect("a line of this check")
}

#[test]
fn a_docker_with_everything_has_no_findings() {
    let lines = check_docker(&facts(SocketAccess::Connected, Ok(report())));
    assert_eq!(lines.len(), 7);
    let odd = lines.iter().find(|line| line.state != CheckState::Ok);
    assert_eq!(odd, None);
}

#[test]
fn a_socket_that_cannot_be_used_is_one_failed_line_with_its_remedy() {
    let not_asked = || Err("not asked".to_owned());
    for (access, finding, remedy) in [
        (
            SocketAccess::Missing,
            "does not exist",
            "systemctl start docker",
        ),
        (
            SocketAccess::NotASocket,
            "is not a socket",
            "engine.docker_host",
        ),
        (
            SocketAccess::Refused,
            "no process listens",
            "systemctl start docker",
        ),
        (SocketAccess::Denied, "no permission", "usermod -aG docker"),
        (
            SocketAccess::Failed("x\u{1b}y".to_owned()),
            "can't be used: x\u{1b}y",
            "systemctl restart docker",
        ),
    ] {
        let lines = check_docker(&facts(access, not_asked()));
        let [line] = lines.as_slice() else {
            panic!("{lines:?}");
        };
        assert_eq!(line.state, CheckState::Failed);
        assert!(line.finding.contains(finding), "{line:?}");
        assert!(line.finding.contains("/run/d.sock"), "{line:?}");
        assert!(
            line.remedy
                .as_deref()
                .is_some_and(|text| text.contains(remedy)),
            "{line:?}"
        );
    }
    let lines = check_docker(&facts(SocketAccess::Connected, Err("no answer".to_owned())));
    assert_eq!(lines.len(), 1);
    assert!(
        lines[0]
            .finding
            .contains("does not answer as Docker does: no answer")
    );
}

#[test]
fn a_socket_that_every_user_may_write_is_a_warning() {
    for (mode, state) in [
        (Some(0o660), CheckState::Ok),
        (Some(0o600), CheckState::Ok),
        (Some(0o666), CheckState::Warning),
        (Some(0o7777), CheckState::Warning),
        (None, CheckState::Ok),
    ] {
        let facts = DockerFacts {
            mode,
            ..facts(SocketAccess::Connected, Ok(report()))
        };
        assert_eq!(
            check_permissions(&facts, EngineKind::Docker).state,
            state,
            "{mode:?}"
        );
    }
}

#[test]
fn slow_storage_drivers_are_warnings_with_what_they_cost() {
    for (driver, cost) in [
        ("overlay2", None),
        ("overlayfs", None),
        ("btrfs", None),
        ("", None),
        ("fuse-overlayfs", Some("0.96 instead of 0.70 s")),
        ("vfs", Some("0.85 GB")),
    ] {
        let storage_driver = driver.to_owned();
        let line = find(
            DockerReport {
                storage_driver,
                ..report()
            },
            "docker.storage_driver",
        );
        match cost {
            None => assert_eq!(line.state, CheckState::Ok, "{line:?}"),
            Some(cost) => {
                assert_eq!(line.state, CheckState::Warning, "{line:?}");
                assert!(line.finding.contains(cost), "{line:?}");
                assert!(line.remedy.is_some_and(|text| text.contains("overlay2")));
            }
        }
    }
}

#[test]
fn limits_that_docker_cannot_enforce_fail_and_are_named() {
    let without = |change: fn(&mut DockerReport)| {
        let mut report = report();
        change(&mut report);
        find(report, "docker.limits")
    };
    for (line, named) in [
        (without(|report| report.memory_limit = false), "memory"),
        (without(|report| report.swap_limit = false), "swap"),
        (without(|report| report.pids_limit = false), "processes"),
        (without(|report| report.info.cpu_quota = false), "CPU time"),
    ] {
        assert_eq!(line.state, CheckState::Failed);
        assert!(
            line.finding
                .contains(&format!("can't limit {named} (cgroup v2)")),
            "{line:?}"
        );
    }
    let line = without(|report| {
        report.swap_limit = false;
        report.info.cgroup_version = 1;
    });
    assert!(
        line.remedy
            .is_some_and(|text| text.contains("swapaccount=1"))
    );
}

#[test]
fn an_old_docker_fails_and_one_without_seccomp_too() {
    let old = DockerReport {
        is_supported: false,
        ..report()
    };
    assert_eq!(find(old, "docker.version").state, CheckState::Failed);
    let unfiltered = DockerReport {
        seccomp: false,
        ..report()
    };
    assert_eq!(find(unfiltered, "docker.seccomp").state, CheckState::Failed);
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
        assert_eq!(find(report, "docker.access_control").state, state);
    }
}

#[test]
fn report_names_the_engine_and_its_minimum_version() {
    let version = find(report(), "docker.version");
    assert_eq!(version.subject, "docker version");
    assert_eq!(
        version.finding,
        "Docker 20.10.24 with API 1.41; the minimum is Docker 20.10 (API 1.41)"
    );
    let mut podman = report();
    podman.info.name = "podman".to_owned();
    podman.info.version = "4.3.1".to_owned();
    let lines = check_docker(&facts(SocketAccess::Connected, Ok(podman.clone())));
    let texts: Vec<&str> = lines.iter().map(|line| line.finding.as_str()).collect();
    assert!(
        texts.contains(&"Podman 4.3.1 with API 1.41; the minimum is Podman 4.3"),
        "{texts:?}"
    );
    assert!(
        texts.contains(&"containers get the profile containers-default"),
        "{texts:?}"
    );
    assert!(
        !texts.iter().any(|text| text.contains("Docker")),
        "{texts:?}"
    );
    assert_eq!(lines[1].subject, "podman version");
    podman.is_supported = false;
    let old = find(podman, "docker.version");
    assert_eq!(old.remedy.as_deref(), Some("install Podman 4.3 or later"));
    let missing = check_docker(&DockerFacts {
        socket: "/run/podman/podman.sock".to_owned(),
        ..facts(SocketAccess::Missing, Err("not asked".to_owned()))
    });
    let remedy = missing[0].remedy.as_deref().expect("a remedy");
    assert!(
        remedy.contains("systemctl enable --now podman.socket"),
        "{remedy}"
    );
}

#[test]
fn a_rootless_engine_fails_with_the_reason_and_what_to_do() {
    for (name, host) in [
        ("docker", "unix:///var/run/docker.sock"),
        ("podman", "unix:///run/podman/podman.sock"),
    ] {
        let mut rootless = report();
        rootless.info.name = name.to_owned();
        rootless.info.rootless = true;
        let line = find(rootless, "docker.rootless");
        assert_eq!(line.state, CheckState::Failed);
        assert!(line.finding.contains("runs rootless"), "{line:?}");
        assert!(line.remedy.is_some_and(|text| text.contains(host)));
    }
}
