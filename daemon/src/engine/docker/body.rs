//! Builds the body of Docker's create-container request from a container's settings. Pure.
//!
//! All restrictions of a container are in this file. The tests name every field, so that none is dropped by accident.
//! docs/security.md explains the reasons.

use std::collections::HashMap;
use std::path::Path;

use bollard::models::{
    ContainerCreateBody, HealthConfig, HostConfig, HostConfigCgroupnsModeEnum, HostConfigLogConfig,
    Mount, MountBindOptions, MountBindOptionsPropagationEnum, MountType, MountVolumeOptions,
    MountVolumeOptionsDriverConfig, ResourcesUlimits, RestartPolicy, RestartPolicyNameEnum,
};

use crate::engine::oci_runtime::RuntimeKind;
use crate::engine::{ContainerSpec, HOST_NAME, SharedDirectory, seccomp};

/// Path of the guest in the container. It runs as PID 1 without arguments.
const ENTRYPOINT: &str = "/run/skilld/skilld-guest";

/// Path of the workspace in the container.
const WORKSPACE: &str = "/workspace";

/// Number of inodes of /tmp per MiB of its size: 16,384 for 64 MiB.
const TMP_INODES_PER_MIB: u64 = 256;

/// CPU shares of a container: half of Docker's default, so that the host's services get the CPU first.
const CPU_SHARES: i64 = 512;

/// Period of the CPU limit, in microseconds. A container that has used up its quota stops until the next period, the
/// guest included. With the kernel's default of 100 ms a response would take that long.
const CPU_PERIOD_US: i64 = 10_000;

/// Minimum CPU quota that the kernel accepts, in microseconds per period.
const CPU_QUOTA_MIN_US: i64 = 1_000;

/// Out-of-memory score adjustment of a container. The kernel kills containers before the daemon; the guest raises the
/// value of its commands further.
const OOM_SCORE_ADJ: i64 = 500;

/// Maximum number of open files of one process. The kernel also limits the open files of the whole host
/// (`fs.file-max`), so the product of this and the number of processes matters.
const OPEN_FILES_MAX: i64 = 4096;

/// Name server of a container. No process listens at this address.
pub(super) const NAME_SERVER: &str = "127.0.0.1";
/// Domain to search for names: the root.
pub(super) const DNS_SEARCH: &str = ".";
/// Options of name lookups, so that they fail fast.
pub(super) const DNS_OPTIONS: [&str; 2] = ["timeout:1", "attempts:1"];

/// Paths that programs read and that no process in the container may write.
pub(super) const READONLY_PATHS: [&str; 5] = [
    "/proc/bus",
    "/proc/fs",
    "/proc/irq",
    "/proc/sys",
    "/proc/sysrq-trigger",
];

/// Kernel parameter that keeps the loopback interface without `::1`. Docker sets it in a container without a network.
const LOOPBACK_WITHOUT_IPV6: &str = "net.ipv6.conf.lo.disable_ipv6";

/// Features of the host that the configuration of every container depends on.
#[derive(Debug, Clone, Default)]
pub(super) struct HostFeatures {
    /// Version of the host's control groups: 1 or 2.
    pub(super) cgroup_version: u32,
    /// `true` if AppArmor is enabled.
    pub(super) apparmor: bool,
    /// Name of the engine's default OCI runtime.
    pub(super) default_runtime: String,
    /// Paths in `/proc` and `/sys` that describe the host and must be masked.
    pub(super) masked_paths: Vec<String>,
    /// `true` if the kernel has IPv6.
    pub(super) ipv6: bool,
}

/// Builds the body of Docker's create-container request.
pub(super) fn create_body(spec: &ContainerSpec, host: &HostFeatures) -> ContainerCreateBody {
    ContainerCreateBody {
        image: Some(spec.image_id.clone()),
        entrypoint: Some(vec![ENTRYPOINT.to_owned()]),
        cmd: Some(Vec::new()),
        // Docker adds the image's environment, of which the guest passes nothing on: the daemon does.
        env: Some(spec.env.clone()),
        user: Some(format!("{0}:{0}", spec.uid)),
        working_dir: Some("/".to_owned()),
        hostname: Some(HOST_NAME.to_owned()),
        domainname: Some(String::new()),
        labels: Some(spec.labels.clone()),
        // A health check would run the OCI runtime inside a container that a tenant controls.
        healthcheck: Some(HealthConfig {
            test: Some(vec!["NONE".to_owned()]),
            ..HealthConfig::default()
        }),
        attach_stdin: Some(false),
        attach_stdout: Some(false),
        attach_stderr: Some(false),
        open_stdin: Some(false),
        tty: Some(false),
        host_config: Some(build_host_config(spec, host)),
        ..ContainerCreateBody::default()
    }
}

/// Returns the period of the CPU limit and the quota in it, both in microseconds. A limit too small for
/// [`CPU_PERIOD_US`] gets a longer period.
fn cpu_period_and_quota(cpu_millis: u64) -> (i64, i64) {
    let millis = to_signed(cpu_millis).max(1);
    let period = CPU_PERIOD_US.max((CPU_QUOTA_MIN_US * 1000 + millis - 1) / millis);
    (period, period.saturating_mul(millis) / 1000)
}

/// Builds Docker's host configuration: rights, namespaces, mounts and limits.
fn build_host_config(spec: &ContainerSpec, host: &HostFeatures) -> HostConfig {
    let (cpu_period, cpu_quota) = cpu_period_and_quota(spec.limits.cpu_millis);
    HostConfig {
        // Rights.
        privileged: Some(false),
        cap_drop: Some(vec!["ALL".to_owned()]),
        cap_add: Some(Vec::new()),
        group_add: Some(Vec::new()),
        security_opt: Some(security_options(host)),
        devices: Some(Vec::new()),
        device_cgroup_rules: Some(Vec::new()),
        // A given list replaces Docker's.
        masked_paths: Some(host.masked_paths.clone()),
        readonly_paths: Some(
            READONLY_PATHS
                .iter()
                .map(|path| (*path).to_owned())
                .collect(),
        ),
        runtime: spec.oci_runtime.clone(),
        // Namespaces. Docker's default is a private pid and uts namespace.
        network_mode: Some("none".to_owned()),
        ipc_mode: Some("private".to_owned()),
        cgroupns_mode: Some(HostConfigCgroupnsModeEnum::PRIVATE),
        // Without these Docker copies the host's resolv.conf into the container.
        dns: Some(vec![NAME_SERVER.to_owned()]),
        dns_search: Some(vec![DNS_SEARCH.to_owned()]),
        dns_options: Some(DNS_OPTIONS.map(str::to_owned).to_vec()),
        sysctls: kernel_parameters(spec, host),
        // Files.
        readonly_rootfs: Some(true),
        mounts: Some(all_mounts(spec, host)),
        tmpfs: Some(tmpfs_mounts(spec)),
        shm_size: Some(to_signed(spec.shm_bytes)),
        // Limits.
        memory: Some(to_signed(spec.limits.memory_bytes)),
        // Memory and swap together, so there is no swap: nothing of a tenant stays on the host's disk.
        memory_swap: Some(to_signed(spec.limits.memory_bytes)),
        // cgroup v2 has no such setting, and Docker rejects it there.
        memory_swappiness: (host.cgroup_version == 1).then_some(0),
        cpu_period: Some(cpu_period),
        cpu_quota: Some(cpu_quota),
        cpu_shares: Some(CPU_SHARES),
        pids_limit: Some(to_signed(spec.limits.pids)),
        ulimits: Some(resource_limits(spec)),
        oom_score_adj: Some(OOM_SCORE_ADJ),
        // Lifecycle. Docker discards the output of PID 1, because the host must not store data of a tenant.
        init: Some(false),
        // The daemon removes an ended container itself, after it has asked how it ended.
        auto_remove: Some(false),
        restart_policy: Some(RestartPolicy {
            name: Some(RestartPolicyNameEnum::NO),
            maximum_retry_count: None,
        }),
        log_config: Some(HostConfigLogConfig {
            typ: Some("none".to_owned()),
            config: None,
        }),
        publish_all_ports: Some(false),
        ..HostConfig::default()
    }
}

/// Returns Docker's security options: no new privileges, seccomp and AppArmor.
fn security_options(host: &HostFeatures) -> Vec<String> {
    let mut options = vec![
        "no-new-privileges:true".to_owned(),
        format!("seccomp={}", seccomp::profile()),
    ];
    if host.apparmor {
        options.push("apparmor=docker-default".to_owned());
    }
    options
}

/// Returns `true` if the container runs on the kernel of the host.
fn shares_host_kernel(spec: &ContainerSpec, host: &HostFeatures) -> bool {
    let runtime = spec.oci_runtime.as_ref().unwrap_or(&host.default_runtime);
    RuntimeKind::from_name(runtime).shares_host_kernel()
}

/// Returns the kernel parameters of a container, by which its loopback interface has an address of IPv6, as that of a
/// host. A sandbox's kernel has one anyway.
fn kernel_parameters(spec: &ContainerSpec, host: &HostFeatures) -> Option<HashMap<String, String>> {
    let has_parameter = host.ipv6 && shares_host_kernel(spec, host);
    has_parameter.then(|| HashMap::from([(LOOPBACK_WITHOUT_IPV6.to_owned(), "0".to_owned())]))
}

/// Returns all mounts of a container except those in memory.
fn all_mounts(spec: &ContainerSpec, host: &HostFeatures) -> Vec<Mount> {
    let terminals = shares_host_kernel(spec, host).then(|| terminals_mount(spec));
    let shared = spec
        .shared_dirs
        .iter()
        .map(|shared| shared_mount(spec, shared));
    let device = spec.workspace_device.as_deref();
    let workspace = device.map(|device| workspace_mount(spec, device));
    bind_mounts(&spec.slot_dir)
        .into_iter()
        .chain(workspace)
        .chain(terminals)
        .chain(shared)
        .collect()
}

/// Returns the read-only bind mounts of a slot's directory.
///
/// Their propagation is `rprivate`: nothing is mounted beneath them later. Docker rejects `rslave` if the state directory
/// is on a private mount, for example if the daemon itself runs in a container. With `mounts`, a missing source is an
/// error; Docker does not create a directory of root.
///
/// The metadata file has its own mount, because a command cannot replace, rename or remove a mount point.
fn bind_mounts(slot_dir: &Path) -> impl IntoIterator<Item = Mount> {
    [
        ("run", "/run/skilld"),
        ("skills", "/workspace/skills"),
        ("skills/.metadata.json", "/workspace/metadata.json"),
        ("mnt", "/mnt"),
        ("passwd", "/etc/passwd"),
        ("group", "/etc/group"),
        ("hosts", "/etc/hosts"),
    ]
    .map(|(source, target)| Mount {
        typ: Some(MountType::BIND),
        source: Some(slot_dir.join(source).to_string_lossy().into_owned()),
        target: Some(target.to_owned()),
        read_only: Some(true),
        bind_options: Some(MountBindOptions {
            propagation: Some(MountBindOptionsPropagationEnum::RPRIVATE),
            ..MountBindOptions::default()
        }),
        ..Mount::default()
    })
}

/// Returns the mount of /dev/pts with a limit of terminals, which replaces Docker's unlimited one. No mount type of
/// Docker accepts this option. The other options are those of Docker's own mount.
fn terminals_mount(spec: &ContainerSpec) -> Mount {
    let options = format!(
        "nosuid,noexec,newinstance,max={},mode=0620,ptmxmode=0666,gid=5",
        spec.terminals
    );
    volume_mount(spec, "/dev/pts", ("devpts", "devpts"), options)
}

/// Returns the mount of a shared directory: an overlay without a writable layer. No mount type of Docker is one, so it
/// is an anonymous volume of the built-in driver.
fn shared_mount(spec: &ContainerSpec, shared: &SharedDirectory) -> Mount {
    let options = format!(
        "ro,nosuid,nodev,lowerdir={}:{}",
        shared.source.display(),
        shared.empty.display()
    );
    volume_mount(spec, &shared.target, ("overlay", "overlay"), options)
}

/// Returns the mount of a workspace on disk. Its files end with the container. So no write of a command flushes the cache of
/// the host's disk, for which the whole host would wait, and times of access are not written.
fn workspace_mount(spec: &ContainerSpec, device: &Path) -> Mount {
    let options = "nosuid,nodev,noatime,barrier=0".to_owned();
    volume_mount(
        spec,
        WORKSPACE,
        ("ext4", &device.to_string_lossy()),
        options,
    )
}

/// Returns the mount of a file system, given by its type and its device, as an anonymous volume of Docker's built-in
/// driver. It is removed together with the container.
fn volume_mount(
    spec: &ContainerSpec,
    target: &str,
    (file_system, device): (&str, &str),
    options: String,
) -> Mount {
    let driver_options = [
        ("type", file_system.to_owned()),
        ("device", device.to_owned()),
        ("o", options),
    ]
    .map(|(name, value)| (name.to_owned(), value));
    Mount {
        typ: Some(MountType::VOLUME),
        target: Some(target.to_owned()),
        volume_options: Some(MountVolumeOptions {
            no_copy: Some(true),
            labels: Some(spec.labels.clone()),
            driver_config: Some(MountVolumeOptionsDriverConfig {
                name: Some("local".to_owned()),
                options: Some(HashMap::from(driver_options)),
            }),
            ..MountVolumeOptions::default()
        }),
        ..Mount::default()
    }
}

/// Returns the mount options of the writable file systems in memory: /tmp, and a workspace that is not on disk. All
/// writable ones allow execution: commands build programs in the workspace and run them, and `noexec` on /tmp alone would
/// protect nothing.
fn tmpfs_mounts(spec: &ContainerSpec) -> HashMap<String, String> {
    let uid = spec.uid;
    let workspace = format!(
        "rw,exec,nosuid,nodev,size={},nr_inodes={},uid={uid},gid={uid},mode=0700",
        spec.limits.disk_bytes, spec.limits.inodes
    );
    let tmp_inodes = (spec.tmp_bytes >> 20)
        .max(1)
        .saturating_mul(TMP_INODES_PER_MIB);
    let tmp = format!(
        "rw,exec,nosuid,nodev,size={},nr_inodes={tmp_inodes},mode=1777",
        spec.tmp_bytes
    );
    let in_memory = spec.workspace_device.is_none();
    let workspace = in_memory.then(|| (WORKSPACE.to_owned(), workspace));
    [("/tmp".to_owned(), tmp)]
        .into_iter()
        .chain(workspace)
        .collect()
}

/// Returns the resource limits per process, or per uid, which no other slot shares. `fsize` exceeds either of the
/// writable file systems, so that a full disk causes ENOSPC and not SIGXFSZ. It still bounds sparse files, which would
/// burden their reader. `msgqueue` is the kernel's default.
fn resource_limits(spec: &ContainerSpec) -> Vec<ResourcesUlimits> {
    let file_size = to_signed(spec.limits.disk_bytes).saturating_add(to_signed(spec.tmp_bytes));
    [
        ("core", 0, 0),
        ("fsize", file_size, file_size),
        ("memlock", 8 << 20, 8 << 20),
        ("msgqueue", 819_200, 819_200),
        ("nice", 0, 0),
        ("nofile", OPEN_FILES_MAX, OPEN_FILES_MAX),
        ("rtprio", 0, 0),
        ("sigpending", 8192, 8192),
        ("stack", 8 << 20, 64 << 20),
    ]
    .into_iter()
    .map(|(name, soft, hard)| ResourcesUlimits {
        name: Some(name.to_owned()),
        soft: Some(soft),
        hard: Some(hard),
    })
    .collect()
}

/// Converts a number for Docker, whose numbers are signed. The configuration rejects values that do not fit.
fn to_signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

#[cfg(test)]
pub(super) mod tests;
