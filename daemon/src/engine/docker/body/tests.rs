//! Tests that name every field of the create-container body that restricts a container.

use super::*;
use crate::engine::ContainerLimits;

/// Returns the settings of a container with everything that a pool can have.
pub(in crate::engine::docker) fn spec() -> ContainerSpec {
    ContainerSpec {
        name: "skilld-i-s".to_owned(),
        labels: HashMap::from([("io.skilld.slot".to_owned(), "s".to_owned())]),
        image_id: "sha256:abc".to_owned(),
        slot_dir: "/state/slots/s".into(),
        uid: 900_001,
        limits: ContainerLimits {
            memory_bytes: 512 << 20,
            cpu_millis: 1500,
            pids: 512,
            disk_bytes: 256 << 20,
            inodes: 65_536,
        },
        workspace_device: None,
        shared_dirs: vec![SharedDirectory {
            source: "/state/environments/mounted".into(),
            empty: "/state/environments/empty".into(),
            target: "/opt/skilld/environments".into(),
        }],
        tmp_bytes: 64 << 20,
        shm_bytes: 32 << 20,
        terminals: 48,
        oci_runtime: None,
        env: vec!["SKILLD_NONCE=00".to_owned()],
    }
}

fn build_body(host: &HostFeatures) -> (ContainerCreateBody, HostConfig) {
    let mut body = create_body(&spec(), host);
    let host_config = body.host_config.take().expect("a host config");
    (body, host_config)
}

fn strings(values: Option<&Vec<String>>) -> Vec<&str> {
    values.expect("a list").iter().map(String::as_str).collect()
}

#[test]
fn container_runs_only_the_guest_as_the_slots_user() {
    let (body, _) = build_body(&HostFeatures::default());
    assert_eq!(body.image.as_deref(), Some("sha256:abc"));
    assert_eq!(
        strings(body.entrypoint.as_ref()),
        ["/run/skilld/skilld-guest"]
    );
    assert_eq!(strings(body.cmd.as_ref()), Vec::<&str>::new());
    assert_eq!(strings(body.env.as_ref()), ["SKILLD_NONCE=00"]);
    assert_eq!(body.user.as_deref(), Some("900001:900001"));
    assert_eq!(body.working_dir.as_deref(), Some("/"));
    assert_eq!(body.hostname.as_deref(), Some("sandbox"));
    assert_eq!(body.domainname.as_deref(), Some(""));
    assert_eq!(
        strings(body.healthcheck.expect("said").test.as_ref()),
        ["NONE"]
    );
    assert_eq!(body.labels, Some(spec().labels));
    let stdio = [
        body.attach_stdin,
        body.attach_stdout,
        body.attach_stderr,
        body.open_stdin,
        body.tty,
    ];
    assert_eq!(stdio, [Some(false); 5]);
    assert_eq!(
        (body.volumes, body.exposed_ports, body.networking_config),
        (None, None, None)
    );
}

#[test]
fn container_has_no_capabilities_devices_or_privileges() {
    let (_, host) = build_body(&HostFeatures::default());
    assert_eq!(host.privileged, Some(false));
    assert_eq!(strings(host.cap_drop.as_ref()), ["ALL"]);
    assert_eq!(strings(host.cap_add.as_ref()), Vec::<&str>::new());
    assert_eq!(strings(host.group_add.as_ref()), Vec::<&str>::new());
    assert_eq!(host.devices, Some(vec![]));
    assert_eq!(
        strings(host.device_cgroup_rules.as_ref()),
        Vec::<&str>::new()
    );
    assert_eq!((host.device_requests, host.sysctls), (None, None));
    let seccomp = format!("seccomp={}", seccomp::profile());
    assert_eq!(
        strings(host.security_opt.as_ref()),
        ["no-new-privileges:true", &seccomp]
    );
}

#[test]
fn apparmor_profile_is_set_if_the_host_has_apparmor() {
    let (_, host) = build_body(&HostFeatures {
        apparmor: true,
        ..HostFeatures::default()
    });
    assert_eq!(
        strings(host.security_opt.as_ref()).last(),
        Some(&"apparmor=docker-default")
    );
}

#[test]
fn namespaces_are_private_and_there_is_no_network() {
    let (_, host) = build_body(&HostFeatures::default());
    assert_eq!(host.network_mode.as_deref(), Some("none"));
    assert_eq!(host.ipc_mode.as_deref(), Some("private"));
    assert_eq!(
        host.cgroupns_mode,
        Some(HostConfigCgroupnsModeEnum::PRIVATE)
    );
    // By default Docker creates private namespaces of these types (userns: that of the engine).
    assert_eq!(
        (host.pid_mode, host.uts_mode, host.userns_mode),
        (None, None, None)
    );
    assert_eq!(host.publish_all_ports, Some(false));
    assert_eq!(
        (
            host.port_bindings,
            host.links,
            host.extra_hosts,
            host.volumes_from
        ),
        (None, None, None, None)
    );
    assert_eq!(strings(host.dns.as_ref()), ["127.0.0.1"]);
    assert_eq!(strings(host.dns_search.as_ref()), ["."]);
    assert_eq!(
        strings(host.dns_options.as_ref()),
        ["timeout:1", "attempts:1"]
    );
}

#[test]
fn loopback_has_an_ipv6_address_if_the_kernel_has_ipv6() {
    let host = HostFeatures {
        ipv6: true,
        ..HostFeatures::default()
    };
    let sysctls = |oci_runtime: Option<&str>| {
        let mut spec = spec();
        spec.oci_runtime = oci_runtime.map(str::to_owned);
        build_host_config(&spec, &host).sysctls
    };
    let enabled = ("net.ipv6.conf.lo.disable_ipv6".to_owned(), "0".to_owned());
    assert_eq!(sysctls(None), Some(HashMap::from([enabled])));
    assert_eq!(sysctls(Some("runsc")), None);
}

#[test]
fn only_two_size_limited_tmpfs_are_writable() {
    let (_, host) = build_body(&HostFeatures::default());
    assert_eq!(host.readonly_rootfs, Some(true));
    assert_eq!(host.binds, None);
    let mut mounts = host.mounts.expect("mounts");
    let shared = mounts.pop().expect("a shared directory");
    assert_eq!(shared.target.as_deref(), Some("/opt/skilld/environments"));
    let options = shared
        .volume_options
        .expect("options")
        .driver_config
        .expect("a driver")
        .options
        .expect("options");
    assert_eq!(options["type"], "overlay");
    assert_eq!(
        options["o"],
        "ro,nosuid,nodev,lowerdir=/state/environments/mounted:/state/environments/empty"
    );
    assert_eq!(
        mounts.pop().expect("terminals").typ,
        Some(MountType::VOLUME)
    );
    let binds: Vec<_> = mounts
        .into_iter()
        .map(|mount| {
            assert_eq!(mount.typ, Some(MountType::BIND));
            assert_eq!(mount.read_only, Some(true));
            let propagation = mount.bind_options.expect("said").propagation;
            assert_eq!(propagation, Some(MountBindOptionsPropagationEnum::RPRIVATE));
            (
                mount.source.expect("a source"),
                mount.target.expect("a target"),
            )
        })
        .collect();
    let expected = [
        ("/state/slots/s/run", "/run/skilld"),
        ("/state/slots/s/skills", "/workspace/skills"),
        (
            "/state/slots/s/skills/.metadata.json",
            "/workspace/metadata.json",
        ),
        ("/state/slots/s/mnt", "/mnt"),
        ("/state/slots/s/passwd", "/etc/passwd"),
        ("/state/slots/s/group", "/etc/group"),
        ("/state/slots/s/hosts", "/etc/hosts"),
    ];
    assert_eq!(
        binds,
        expected.map(|(source, target)| (source.to_owned(), target.to_owned()))
    );
    let tmpfs = host.tmpfs.expect("tmpfs");
    assert_eq!(tmpfs.len(), 2);
    assert_eq!(
        tmpfs["/workspace"],
        "rw,exec,nosuid,nodev,size=268435456,nr_inodes=65536,uid=900001,gid=900001,mode=0700"
    );
    assert_eq!(
        tmpfs["/tmp"],
        "rw,exec,nosuid,nodev,size=67108864,nr_inodes=16384,mode=1777"
    );
    assert_eq!(host.shm_size, Some(32 << 20));
    assert_eq!(host.storage_opt, None);
}

#[test]
fn docker_mounts_a_workspace_disk_instead_of_the_tmpfs() {
    let spec = ContainerSpec {
        workspace_device: Some("/dev/loop7".into()),
        ..spec()
    };
    let host = build_host_config(&spec, &HostFeatures::default());
    let tmpfs = host.tmpfs.expect("tmpfs");
    assert_eq!(tmpfs.keys().collect::<Vec<_>>(), ["/tmp"]);
    let mut mounts = host.mounts.expect("mounts").into_iter();
    let workspace = mounts
        .find(|mount| mount.target.as_deref() == Some("/workspace"))
        .expect("a mount");
    assert_eq!(workspace.typ, Some(MountType::VOLUME));
    assert_eq!((workspace.source, workspace.read_only), (None, None));
    let volume = workspace.volume_options.expect("options");
    assert_eq!(volume.no_copy, Some(true));
    assert_eq!(volume.labels, Some(spec.labels));
    let driver = volume.driver_config.expect("a driver");
    let options = HashMap::from(
        [
            ("type", "ext4"),
            ("device", "/dev/loop7"),
            ("o", "nosuid,nodev,noatime,barrier=0"),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned())),
    );
    assert_eq!(driver.options, Some(options));
}

#[test]
fn a_cpu_limit_has_a_short_period_and_a_quota_of_at_least_1_ms() {
    for (millis, expected) in [
        (1000, (10_000, 10_000)),
        (64_000, (10_000, 640_000)),
        (100, (10_000, 1_000)),
        (50, (20_000, 1_000)),
        (10, (100_000, 1_000)),
        (1, (1_000_000, 1_000)),
    ] {
        assert_eq!(cpu_period_and_quota(millis), expected, "{millis}");
    }
}

#[test]
fn everything_has_a_size() {
    let (_, host) = build_body(&HostFeatures {
        cgroup_version: 1,
        ..HostFeatures::default()
    });
    assert_eq!(host.memory, Some(512 << 20));
    assert_eq!(host.memory_swap, host.memory);
    assert_eq!(host.memory_swappiness, Some(0));
    assert_eq!(host.oom_kill_disable, None);
    // Docker accepts either these two or nano_cpus.
    assert_eq!(host.nano_cpus, None);
    assert_eq!(host.cpu_period, Some(10_000));
    assert_eq!(host.cpu_quota, Some(15_000));
    assert_eq!(host.cpu_shares, Some(512));
    assert_eq!(host.pids_limit, Some(512));
    assert_eq!(host.oom_score_adj, Some(500));
    let ulimits: Vec<_> = host
        .ulimits
        .expect("ulimits")
        .into_iter()
        .map(|limit| {
            (
                limit.name.expect("a name"),
                limit.soft.expect("soft"),
                limit.hard.expect("hard"),
            )
        })
        .collect();
    let expected = [
        ("core", 0, 0),
        ("fsize", 320 << 20, 320 << 20),
        ("memlock", 8 << 20, 8 << 20),
        ("msgqueue", 819_200, 819_200),
        ("nice", 0, 0),
        ("nofile", 4096, 4096),
        ("rtprio", 0, 0),
        ("sigpending", 8192, 8192),
        ("stack", 8 << 20, 64 << 20),
    ];
    assert_eq!(
        ulimits,
        expected.map(|(name, soft, hard)| (name.to_owned(), soft, hard))
    );
}

#[test]
fn swappiness_is_omitted_on_cgroup_v2() {
    let (_, host) = build_body(&HostFeatures {
        cgroup_version: 2,
        ..HostFeatures::default()
    });
    assert_eq!(host.memory_swappiness, None);
}

#[test]
fn terminals_are_limited_if_the_kernel_is_shared() {
    let terminals = |oci_runtime: Option<&str>, default_runtime: &str| {
        let mut spec = spec();
        spec.oci_runtime = oci_runtime.map(str::to_owned);
        let host = HostFeatures {
            default_runtime: default_runtime.to_owned(),
            ..HostFeatures::default()
        };
        create_body(&spec, &host)
            .host_config
            .expect("a host config")
            .mounts
            .expect("mounts")
            .into_iter()
            .find(|mount| mount.target.as_deref() == Some("/dev/pts"))
    };
    let shared =
        ["", "runc", "io.containerd.runc.v2", "runc-1.3", "youki"].map(|default| (None, default));
    for (runtime, default) in shared.into_iter().chain([(Some("crun"), "runsc")]) {
        let mount = terminals(runtime, default).expect("terminals");
        assert_eq!((mount.typ, mount.source), (Some(MountType::VOLUME), None));
        let options = mount.volume_options.expect("options");
        assert_eq!(options.no_copy, Some(true));
        assert_eq!(options.labels, Some(spec().labels));
        let driver = options.driver_config.expect("a driver");
        assert_eq!(driver.name.as_deref(), Some("local"));
        let options = driver.options.expect("options");
        assert_eq!(options["type"], "devpts");
        assert_eq!(
            options["o"],
            "nosuid,noexec,newinstance,max=48,mode=0620,ptmxmode=0666,gid=5"
        );
    }
    for (runtime, default) in [(Some("runsc"), "runc"), (None, "runsc"), (Some("kata"), "")] {
        assert_eq!(terminals(runtime, default), None);
    }
}

#[test]
fn host_paths_are_masked_and_needed_paths_are_read_only() {
    let paths = vec!["/proc/pressure".to_owned(), "/sys/class".to_owned()];
    let (_, host) = build_body(&HostFeatures {
        masked_paths: paths.clone(),
        ..HostFeatures::default()
    });
    assert_eq!(host.masked_paths, Some(paths));
    assert_eq!(
        strings(host.readonly_paths.as_ref()),
        [
            "/proc/bus",
            "/proc/fs",
            "/proc/irq",
            "/proc/sys",
            "/proc/sysrq-trigger"
        ]
    );
}

#[test]
fn container_is_never_restarted_and_its_output_is_not_stored() {
    let (_, host) = build_body(&HostFeatures::default());
    assert_eq!(host.init, Some(false));
    assert_eq!(host.auto_remove, Some(false));
    assert_eq!(
        host.restart_policy.expect("said").name,
        Some(RestartPolicyNameEnum::NO)
    );
    assert_eq!(host.log_config.expect("said").typ.as_deref(), Some("none"));
    assert_eq!(host.runtime, None);
}

#[test]
fn oci_runtime_of_the_pool_is_used() {
    let mut spec = spec();
    spec.oci_runtime = Some("runsc".to_owned());
    let host = create_body(&spec, &HostFeatures::default())
        .host_config
        .expect("a host config");
    assert_eq!(host.runtime.as_deref(), Some("runsc"));
}
