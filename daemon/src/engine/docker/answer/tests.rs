//! What Docker says, as we read it. Docker itself is asked by the end-to-end tests.

use super::*;

#[test]
fn only_a_socket_on_this_host_will_do() {
    for (given, expected) in [
        ("", DEFAULT_SOCKET),
        ("unix:///run/d.sock", "/run/d.sock"),
        ("/run/d.sock", "/run/d.sock"),
    ] {
        assert_eq!(socket_path(given).expect("a path"), expected);
    }
    for given in ["tcp://10.0.0.1:2375", "ssh://host", "unix://relative"] {
        let error = socket_path(given)
            .expect_err("not a local socket")
            .to_string();
        assert!(
            error.contains(given) && error.contains("engine.docker_host"),
            "{error}"
        );
    }
}

#[test]
fn an_old_docker_is_told_apart_from_a_new_one() {
    let info = |api_version: &str| EngineInfo {
        version: "19.03.15".to_owned(),
        api_version: api_version.to_owned(),
        ..EngineInfo::default()
    };
    for fine in ["1.41", "1.44", "1.53", "2.0"] {
        check_version(&info(fine)).expect("new enough");
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
fn security_options_and_runtimes_are_read() {
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
        ..SystemInfo::default()
    };
    let info = engine_info(SystemVersion::default(), info);
    assert!(info.apparmor && info.userns_remap);
    assert_eq!(info.cgroup_version, 2);
    assert_eq!(info.oci_runtimes, ["crun", "runc", "runsc"]);

    assert!(info.cpu_quota);

    let bare = engine_info(SystemVersion::default(), SystemInfo::default());
    assert!(!bare.apparmor && !bare.userns_remap);
    assert_eq!(bare.cgroup_version, 1);
}

#[test]
fn a_kernel_without_cpu_limits_is_refused() {
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
        let checked = check_usable(&engine_info(version, info));
        assert_eq!(checked.is_ok(), fine, "{checked:?}");
    }
}

#[test]
fn a_limit_that_docker_discards_is_an_error_and_other_warnings_are_not() {
    let discarded = "Your kernel does not support CPU CFS scheduler or the cgroup is not mounted. Quota discarded.";
    check_warnings(&[discarded.to_owned()]).expect_err("no limit");
    let swap = "Your kernel does not support swap limit capabilities or the cgroup is not mounted. Memory limited without swap.";
    check_warnings(&[swap.to_owned()]).expect_err("no limit of swap");
    for harmless in [
        "Published ports are ignored when using host network mode",
        "Your kernel does not support memory swappiness capabilities or the cgroup is not mounted. Memory swappiness discarded.",
    ] {
        check_warnings(&[harmless.to_owned()]).expect("no limit is missing");
    }
}
