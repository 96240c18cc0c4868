//! Tests of parsing Docker's responses. End-to-end tests use a real Docker.

use super::*;

#[test]
fn only_local_sockets_are_accepted_as_docker_host() {
    for (given, expected) in [
        ("", DEFAULT_SOCKET),
        ("unix:///run/d.sock", "/run/d.sock"),
        ("/run/d.sock", "/run/d.sock"),
    ] {
        assert_eq!(parse_docker_host(given).expect("a path"), expected);
    }
    for given in ["tcp://10.0.0.1:2375", "ssh://host", "unix://relative"] {
        let error = parse_docker_host(given)
            .expect_err("not a local socket")
            .to_string();
        assert!(
            error.contains(given) && error.contains("engine.docker_host"),
            "{error}"
        );
    }
}

#[test]
fn docker_older_than_the_minimum_version_is_rejected() {
    let info = |api_version: &str| EngineInfo {
        version: "19.03.15".to_owned(),
        api_version: api_version.to_owned(),
        ..EngineInfo::default()
    };
    for fine in ["1.41", "1.44", "1.53", "2.0"] {
        check_version(&info(fine)).expect("new enough");
    }
    // Podman's Docker API has version 1.41 since Podman 4.
    let podman = |version: &str| EngineInfo {
        name: "podman".to_owned(),
        version: version.to_owned(),
        api_version: "1.41".to_owned(),
        ..EngineInfo::default()
    };
    for fine in ["4.3.1", "4.10.0", "5.0.0-rc1"] {
        check_version(&podman(fine)).expect("new enough");
    }
    for old in ["4.2.9", "3.4.4", ""] {
        let error = check_version(&podman(old))
            .expect_err("too old")
            .to_string();
        assert!(
            error.contains(&format!("Podman {old} with")) && error.contains("Podman 4.3"),
            "{error}"
        );
    }
    for old in ["1.40", "1.9", "0.99", "", "new"] {
        let error = check_version(&info(old)).expect_err("too old").to_string();
        assert!(
            error.contains("19.03.15") && error.contains("1.41"),
            "{error}"
        );
    }
}

#[test]
fn security_options_and_runtimes_are_parsed() {
    let info = SystemInfo {
        security_options: Some(vec![
            "name=seccomp,profile=default".to_owned(),
            "name=apparmor".to_owned(),
            "name=userns".to_owned(),
        ]),
        runtimes: Some(
            ["runsc", "crun", "runc"]
                .map(|name| (name.to_owned(), bollard::models::Runtime::default()))
                .into(),
        ),
        cgroup_version: Some(SystemInfoCgroupVersionEnum::_2),
        ncpu: Some(8),
        ..SystemInfo::default()
    };
    let info = parse_engine_info(SystemVersion::default(), info);
    assert!(info.apparmor && info.userns_remap && !info.rootless);
    assert_eq!(info.cgroup_version, 2);
    assert_eq!(info.oci_runtimes, ["crun", "runc", "runsc"]);
    let cores = [500, 8000, 8001].map(|limit| info.usable_cpu_millis(limit));
    assert_eq!(cores, [500, 8000, 8000]);

    assert!(info.cpu_quota);

    let bare = parse_engine_info(SystemVersion::default(), SystemInfo::default());
    assert!(!bare.apparmor && !bare.userns_remap);
    assert_eq!(bare.cgroup_version, 1);
    assert_eq!(bare.usable_cpu_millis(8001), 8001, "not reported");
}

#[test]
fn kernel_without_cpu_quota_is_rejected() {
    for (period, quota, fine) in [
        (None, None, true),
        (Some(true), Some(true), true),
        (Some(true), Some(false), false),
        (Some(false), Some(true), false),
    ] {
        let info = SystemInfo {
            cpu_cfs_period: period,
            cpu_cfs_quota: quota,
            ..SystemInfo::default()
        };
        let version = SystemVersion {
            api_version: Some("1.41".to_owned()),
            ..SystemVersion::default()
        };
        let checked = check_engine(&parse_engine_info(version, info));
        assert_eq!(checked.is_ok(), fine, "{checked:?}");
    }
}

#[test]
fn discarded_limit_is_an_error_and_other_warnings_are_not() {
    let discarded = "Your kernel does not support CPU CFS scheduler or the cgroup is not mounted. Quota discarded.";
    check_create_warnings(&[discarded.to_owned()]).expect_err("no limit");
    let swap = "Your kernel does not support swap limit capabilities or the cgroup is not mounted. Memory limited without swap.";
    check_create_warnings(&[swap.to_owned()]).expect_err("no limit of swap");
    for harmless in [
        "Published ports are ignored when using host network mode",
        "Your kernel does not support memory swappiness capabilities or the cgroup is not mounted. Memory swappiness discarded.",
    ] {
        check_create_warnings(&[harmless.to_owned()]).expect("no limit is missing");
    }
}
