//! Tests that Podman's request has every restriction of Docker's.

use std::collections::BTreeSet;

use super::super::super::body::{HostFeatures, READONLY_PATHS as DOCKER_READONLY_PATHS};
use super::*;
use crate::engine::ContainerSpec;
use crate::engine::docker::body::{create_body, tests::spec};

fn build_spec(spec: &ContainerSpec, cgroup_version: u32) -> Value {
    let host = HostFeatures {
        cgroup_version,
        default_runtime: "crun".to_owned(),
        masked_paths: vec!["/proc/acpi".to_owned(), "/sys/class".to_owned()],
        ipv6: true,
        ..HostFeatures::default()
    };
    podman_spec(&spec.name, create_body(spec, &host), &files())
}

fn files() -> SupportFiles {
    SupportFiles {
        seccomp: "/state/podman/seccomp.json".into(),
        resolv_conf: "/state/podman/resolv.conf".into(),
    }
}

/// Returns type, source and options of the mount at a path of the container.
fn find_mount(spec: &Value, target: &str) -> (String, String, String) {
    let mounts = spec["mounts"].as_array().expect("mounts");
    let mount = mounts
        .iter()
        .find(|mount| mount["destination"] == target)
        .unwrap_or_else(|| panic!("no mount at {target}"));
    let text = |value: &Value| value.as_str().expect("text").to_owned();
    let options: Vec<String> = mount["options"]
        .as_array()
        .expect("options")
        .iter()
        .map(text)
        .collect();
    (
        text(&mount["type"]),
        text(&mount["source"]),
        options.join(","),
    )
}

/// Fields of Docker's request that Podman's request has, or that it needs no field for.
const TRANSLATED: &[&str] = &[
    "Cmd",
    "Entrypoint",
    "Env",
    "Healthcheck",
    "Hostname",
    "Image",
    "Labels",
    "OpenStdin",
    "Tty",
    "User",
    "WorkingDir",
    "HostConfig.AutoRemove",
    "HostConfig.CapAdd",
    "HostConfig.CapDrop",
    "HostConfig.CgroupnsMode",
    "HostConfig.CpuPeriod",
    "HostConfig.CpuQuota",
    "HostConfig.CpuShares",
    "HostConfig.GroupAdd",
    "HostConfig.Init",
    "HostConfig.IpcMode",
    "HostConfig.LogConfig",
    "HostConfig.MaskedPaths",
    "HostConfig.Memory",
    "HostConfig.MemorySwap",
    "HostConfig.MemorySwappiness",
    "HostConfig.Mounts",
    "HostConfig.NetworkMode",
    "HostConfig.OomScoreAdj",
    "HostConfig.PidsLimit",
    "HostConfig.Privileged",
    "HostConfig.ReadonlyRootfs",
    "HostConfig.RestartPolicy",
    "HostConfig.Runtime",
    "HostConfig.SecurityOpt",
    "HostConfig.ShmSize",
    "HostConfig.Sysctls",
    "HostConfig.Tmpfs",
    "HostConfig.Ulimits",
    // No process attaches to the container: its log driver discards what it prints.
    "AttachStderr",
    "AttachStdin",
    "AttachStdout",
    // Empty, as in Podman's request.
    "Domainname",
    "HostConfig.DeviceCgroupRules",
    "HostConfig.Devices",
    // Podman's own API publishes the ports that a request names.
    "HostConfig.PublishAllPorts",
    // The mounted /etc/resolv.conf.
    "HostConfig.Dns",
    "HostConfig.DnsOptions",
    "HostConfig.DnsSearch",
    // Podman's own list.
    "HostConfig.ReadonlyPaths",
];

#[test]
fn no_field_of_dockers_request_is_forgotten() {
    let mut container = spec();
    container.oci_runtime = Some("crun".to_owned());
    let host = HostFeatures {
        cgroup_version: 1,
        ipv6: true,
        ..HostFeatures::default()
    };
    let body = serde_json::to_value(create_body(&container, &host)).expect("JSON");
    let fields = |value: &Value, prefix: &str| -> Vec<String> {
        let fields = value.as_object().expect("an object").iter();
        let set = fields.filter(|(name, value)| !value.is_null() && *name != "HostConfig");
        set.map(|(name, _)| format!("{prefix}{name}")).collect()
    };
    let mut found: BTreeSet<String> = fields(&body, "").into_iter().collect();
    found.extend(fields(&body["HostConfig"], "HostConfig."));
    let known: BTreeSet<String> = TRANSLATED.iter().map(|name| (*name).to_owned()).collect();
    assert_eq!(found, known);
    for path in DOCKER_READONLY_PATHS {
        assert!(READONLY_PATHS.contains(&path), "{path}");
    }
}

#[test]
fn container_has_no_rights_in_podmans_request() {
    let spec = build_spec(&spec(), 2);
    for (field, expected) in [
        ("name", json!("skilld-i-s")),
        ("image", json!("abc")),
        ("entrypoint", json!(["/run/skilld/skilld-guest"])),
        ("command", json!([])),
        ("env", json!({ "SKILLD_NONCE": "00" })),
        ("user", json!("900001:900001")),
        ("work_dir", json!("/")),
        ("hostname", json!("sandbox")),
        ("labels", json!({ "io.skilld.slot": "s" })),
        ("healthconfig", json!({ "Test": ["NONE"] })),
        ("stdin", json!(false)),
        ("terminal", json!(false)),
        ("stop_timeout", json!(0)),
        ("init", json!(false)),
        ("remove", json!(false)),
        ("restart_policy", json!("no")),
        ("log_configuration", json!({ "driver": "none" })),
        ("systemd", json!("false")),
        ("privileged", json!(false)),
        ("cap_add", json!([])),
        ("cap_drop", json!(["ALL"])),
        ("groups", json!([])),
        ("no_new_privileges", json!(true)),
        ("seccomp_profile_path", json!("/state/podman/seccomp.json")),
        ("mask", json!(["/proc/acpi", "/sys/class", "/run/secrets"])),
        ("netns", json!({ "nsmode": "none" })),
        ("ipcns", json!({ "nsmode": "private" })),
        ("cgroupns", json!({ "nsmode": "private" })),
        ("pidns", json!({ "nsmode": "private" })),
        ("utsns", json!({ "nsmode": "private" })),
        ("userns", json!({ "nsmode": "host" })),
        ("use_image_hosts", json!(true)),
        ("read_only_filesystem", json!(true)),
        ("image_volume_mode", json!("ignore")),
        (
            "sysctl",
            json!({ "net.ipv4.ip_unprivileged_port_start": "0", "net.ipv6.conf.lo.disable_ipv6": "0" }),
        ),
        ("oci_runtime", json!(null)),
    ] {
        assert_eq!(spec.get(field), Some(&expected), "{field}");
    }
    let text = spec.to_string();
    assert!(
        !text.contains("apparmor") && !text.contains("defaultAction"),
        "{text}"
    );
}

#[test]
fn everything_has_a_size_in_podmans_request() {
    let limits = |cgroup_version| build_spec(&spec(), cgroup_version)["resource_limits"].clone();
    let group = |swappiness: Value| {
        json!({
            "memory": { "limit": 512 << 20, "swap": 512 << 20, "swappiness": swappiness },
            "cpu": { "shares": 512, "period": 10_000, "quota": 15_000 },
            "pids": { "limit": 512 },
        })
    };
    assert_eq!(
        (limits(1), limits(2)),
        (group(json!(0)), group(json!(null)))
    );
    let spec = build_spec(&spec(), 2);
    assert_eq!(spec["shm_size"], 32 << 20);
    assert_eq!(spec["oom_score_adj"], 500);
    let limit =
        |name: &str, soft: u64, hard: u64| json!({ "type": name, "soft": soft, "hard": hard });
    assert_eq!(
        spec["r_limits"],
        json!([
            limit("core", 0, 0),
            limit("fsize", 320 << 20, 320 << 20),
            limit("memlock", 8 << 20, 8 << 20),
            limit("msgqueue", 819_200, 819_200),
            limit("nice", 0, 0),
            limit("nofile", 4096, 4096),
            limit("rtprio", 0, 0),
            limit("sigpending", 8192, 8192),
            limit("stack", 8 << 20, 64 << 20),
            limit("nproc", 1024, 1024),
        ])
    );
}

/// Mounts of the container: target, file system, source and options.
const MOUNTS: [(&str, &str, &str, &str); 12] = [
    (
        "/run/skilld",
        "bind",
        "/state/slots/s/run",
        "ro,nosuid,nodev,rprivate",
    ),
    (
        "/workspace/skills",
        "bind",
        "/state/slots/s/skills",
        "ro,nosuid,nodev,rprivate",
    ),
    (
        "/workspace/metadata.json",
        "bind",
        "/state/slots/s/skills/.metadata.json",
        "ro,nosuid,nodev,rprivate",
    ),
    (
        "/mnt",
        "bind",
        "/state/slots/s/mnt",
        "ro,nosuid,nodev,rprivate",
    ),
    (
        "/etc/passwd",
        "bind",
        "/state/slots/s/passwd",
        "ro,nosuid,nodev,rprivate",
    ),
    (
        "/etc/group",
        "bind",
        "/state/slots/s/group",
        "ro,nosuid,nodev,rprivate",
    ),
    (
        "/dev/pts",
        "devpts",
        "devpts",
        "nosuid,noexec,newinstance,max=48,mode=0620,ptmxmode=0666,gid=5",
    ),
    (
        "/opt/skilld/environments",
        "overlay",
        "overlay",
        "ro,nosuid,nodev,lowerdir=/state/environments/mounted:/state/environments/empty",
    ),
    (
        "/workspace",
        "tmpfs",
        "tmpfs",
        "rw,exec,nosuid,nodev,size=268435456,nr_inodes=65536,uid=900001,gid=900001,mode=0700,notmpcopyup",
    ),
    (
        "/tmp",
        "tmpfs",
        "tmpfs",
        "rw,exec,nosuid,nodev,size=67108864,nr_inodes=16384,mode=1777,notmpcopyup",
    ),
    (
        "/etc/hosts",
        "bind",
        "/state/slots/s/hosts",
        "ro,nosuid,nodev,rprivate",
    ),
    (
        "/etc/resolv.conf",
        "bind",
        "/state/podman/resolv.conf",
        "ro,rprivate,nosuid,nodev,noexec",
    ),
];

#[test]
fn mounts_are_those_of_docker_and_a_file_that_docker_writes() {
    let spec = build_spec(&spec(), 2);
    for (target, file_system, source, options) in MOUNTS {
        let expected = (
            file_system.to_owned(),
            source.to_owned(),
            options.to_owned(),
        );
        assert_eq!(find_mount(&spec, target), expected, "{target}");
    }
    let mounts = spec["mounts"].as_array().expect("mounts");
    assert_eq!(mounts.len(), MOUNTS.len());
    // Podman refuses `nr_inodes`, `uid` and `gid` as options of their own.
    let tmpfs = mounts.iter().find(|mount| mount["destination"] == "/tmp");
    assert_eq!(
        tmpfs.expect("a tmpfs")["options"],
        json!([
            "rw",
            "exec",
            "nosuid",
            "nodev",
            "size=67108864,nr_inodes=16384,mode=1777",
            "notmpcopyup"
        ])
    );
}
