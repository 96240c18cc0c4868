//! The configuration of a container: a pure function from what the pool wants to what Docker is told.
//!
//! Everything that keeps a container in is here and nowhere else; the tests name every field, so that none is
//! dropped by accident. docs/security.md has the reasons at length.

use std::collections::HashMap;
use std::path::Path;

use bollard::models::{
    ContainerCreateBody, HealthConfig, HostConfig, HostConfigCgroupnsModeEnum, HostConfigLogConfig,
    Mount, MountBindOptions, MountBindOptionsPropagationEnum, MountType, MountVolumeOptions,
    MountVolumeOptionsDriverConfig, ResourcesUlimits, RestartPolicy, RestartPolicyNameEnum,
};

use crate::engine::runtime::RuntimeKind;
use crate::engine::{ContainerSpec, seccomp};

/// The guest, which is PID 1. It needs no argument.
const ENTRYPOINT: &str = "/run/skilld/skilld-guest";

/// Inodes of /tmp for each MiB of it, and at least this many MiB's worth: 16,384 for 64 MiB.
const TMP_INODES_PER_MIB: u64 = 256;

/// Half of what a container gets by default, so that the host's own services come first.
const CPU_SHARES: i64 = 512;

/// Period of the CPU limit. What a workspace has used up in a period stops its guest as well until the next one, so the
/// kernel's default of 100 ms would be the time of an answer.
const CPU_PERIOD_US: i64 = 10_000;

/// The least CPU time in a period that the kernel takes.
const CPU_QUOTA_MIN_US: i64 = 1_000;

/// Containers go before the daemon when the host runs out of memory; the guest raises its commands further.
const OOM_SCORE_ADJ: i64 = 500;

/// Open files of one process. The kernel counts those of all processes of the host together (`fs.file-max`), so the
/// product with the number of processes matters.
const OPEN_FILES_MAX: i64 = 4096;

/// What programs need to read and nobody may write.
const READONLY_PATHS: [&str; 5] = [
    "/proc/bus",
    "/proc/fs",
    "/proc/irq",
    "/proc/sys",
    "/proc/sysrq-trigger",
];

/// What the configuration depends on beyond the spec: the same for all containers of one engine.
#[derive(Debug, Clone, Default)]
pub(super) struct Host {
    /// 1 or 2.
    pub(super) cgroup_version: u32,
    /// AppArmor is on.
    pub(super) apparmor: bool,
    /// Name of the OCI runtime that the engine uses for containers that name none.
    pub(super) default_runtime: String,
    /// Paths in `/proc` and `/sys` that describe the host.
    pub(super) masked_paths: Vec<String>,
}

/// What Docker is told to create.
pub(super) fn body(spec: &ContainerSpec, host: &Host) -> ContainerCreateBody {
    ContainerCreateBody {
        image: Some(spec.image_id.clone()),
        entrypoint: Some(vec![ENTRYPOINT.to_owned()]),
        cmd: Some(Vec::new()),
        // The image's own environment is added by Docker; the guest passes none of it on.
        env: Some(spec.env.clone()),
        user: Some(format!("{0}:{0}", spec.uid)),
        working_dir: Some("/".to_owned()),
        hostname: Some("sandbox".to_owned()),
        domainname: Some(String::new()),
        labels: Some(spec.labels.clone()),
        // A health check runs the OCI runtime inside a container that a tenant controls.
        healthcheck: Some(HealthConfig {
            test: Some(vec!["NONE".to_owned()]),
            ..HealthConfig::default()
        }),
        attach_stdin: Some(false),
        attach_stdout: Some(false),
        attach_stderr: Some(false),
        open_stdin: Some(false),
        tty: Some(false),
        host_config: Some(host_config(spec, host)),
        ..ContainerCreateBody::default()
    }
}

/// Period and CPU time in it, in microseconds. A limit too small for the period gets a longer one.
fn cpu_period_and_quota(cpu_millis: u64) -> (i64, i64) {
    let millis = int(cpu_millis).max(1);
    let period = CPU_PERIOD_US.max((CPU_QUOTA_MIN_US * 1000 + millis - 1) / millis);
    (period, period.saturating_mul(millis) / 1000)
}

fn host_config(spec: &ContainerSpec, host: &Host) -> HostConfig {
    let (cpu_period, cpu_quota) = cpu_period_and_quota(spec.limits.cpu_millis);
    HostConfig {
        // Rights.
        privileged: Some(false),
        cap_drop: Some(vec!["ALL".to_owned()]),
        cap_add: Some(Vec::new()),
        group_add: Some(Vec::new()),
        security_opt: Some(security_opt(host)),
        devices: Some(Vec::new()),
        device_cgroup_rules: Some(Vec::new()),
        // Giving a list replaces Docker's.
        masked_paths: Some(host.masked_paths.clone()),
        readonly_paths: Some(
            READONLY_PATHS
                .iter()
                .map(|path| (*path).to_owned())
                .collect(),
        ),
        runtime: spec.oci_runtime.clone(),
        // Namespaces. A private pid and uts namespace is what Docker makes when nothing is said.
        network_mode: Some("none".to_owned()),
        ipc_mode: Some("private".to_owned()),
        cgroupns_mode: Some(HostConfigCgroupnsModeEnum::PRIVATE),
        // Without these Docker copies the host's resolv.conf into the container; nobody answers here.
        dns: Some(vec!["127.0.0.1".to_owned()]),
        dns_search: Some(vec![".".to_owned()]),
        dns_options: Some(vec!["timeout:1".to_owned(), "attempts:1".to_owned()]),
        // Files.
        readonly_rootfs: Some(true),
        mounts: Some(mounts(spec, host)),
        tmpfs: Some(tmpfs(spec)),
        shm_size: Some(int(spec.shm_bytes)),
        // Sizes.
        memory: Some(int(spec.limits.memory_bytes)),
        memory_swap: Some(int(spec.limits.memory_bytes)),
        // cgroup v2 has no such setting, and Docker refuses it there.
        memory_swappiness: (host.cgroup_version == 1).then_some(0),
        cpu_period: Some(cpu_period),
        cpu_quota: Some(cpu_quota),
        cpu_shares: Some(CPU_SHARES),
        pids_limit: Some(int(spec.limits.pids)),
        ulimits: Some(ulimits(spec)),
        oom_score_adj: Some(OOM_SCORE_ADJ),
        // Life. What PID 1 prints goes nowhere: the host stores nothing that a tenant makes.
        init: Some(false),
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

fn security_opt(host: &Host) -> Vec<String> {
    let mut options = vec![
        "no-new-privileges:true".to_owned(),
        format!("seccomp={}", seccomp::profile()),
    ];
    if host.apparmor {
        options.push("apparmor=docker-default".to_owned());
    }
    options
}

/// All mounts but the two tmpfs.
fn mounts(spec: &ContainerSpec, host: &Host) -> Vec<Mount> {
    let runtime = spec.oci_runtime.as_ref().unwrap_or(&host.default_runtime);
    let shares_host_kernel = RuntimeKind::of(runtime).shares_host_kernel();
    let terminals = shares_host_kernel.then(|| terminals(spec));
    binds(&spec.slot_dir).into_iter().chain(terminals).collect()
}

/// The read-only binds. Their propagation is `rprivate`: nothing is mounted beneath them later, and `rslave`
/// is refused by Docker where the state directory lies on a private mount, as it does when the daemon itself runs
/// in a container. A missing source is an error, not a new directory of root's.
///
/// The metadata is a mount of its own because a mount point cannot be replaced, renamed or removed by a command.
fn binds(slot_dir: &Path) -> impl IntoIterator<Item = Mount> {
    [
        ("run", "/run/skilld"),
        ("skills", "/workspace/skills"),
        ("skills/.metadata.json", "/workspace/metadata.json"),
        ("passwd", "/etc/passwd"),
        ("group", "/etc/group"),
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

/// Terminals of the container, in place of those that Docker mounts without a limit. No mount of Docker's takes the
/// option, so this is an anonymous volume of the built-in driver, which is removed together with the container.
fn terminals(spec: &ContainerSpec) -> Mount {
    let options = format!(
        "nosuid,noexec,newinstance,max={},mode=0620,ptmxmode=0666,gid=5",
        spec.terminals
    );
    let driver_options = [
        ("type", "devpts".to_owned()),
        ("device", "devpts".to_owned()),
        ("o", options),
    ];
    let driver_options = driver_options.map(|(name, value)| (name.to_owned(), value));
    Mount {
        typ: Some(MountType::VOLUME),
        target: Some("/dev/pts".to_owned()),
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

/// The two places that can be written. Programs may be run from both: what is built is run, and a `noexec` that the
/// workspace cannot have buys nothing on /tmp.
fn tmpfs(spec: &ContainerSpec) -> HashMap<String, String> {
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
    HashMap::from([
        ("/workspace".to_owned(), workspace),
        ("/tmp".to_owned(), tmp),
    ])
}

/// Per process, or per uid, which only this slot has. A file may be larger than either tmpfs, so that a full disk
/// is ENOSPC and not SIGXFSZ, but not so large that a sparse one becomes a weapon against whoever collects it.
fn ulimits(spec: &ContainerSpec) -> Vec<ResourcesUlimits> {
    let file_size = int(spec.limits.disk_bytes).saturating_add(int(spec.tmp_bytes));
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

/// Docker's numbers are signed. Config refuses what does not fit long before.
fn int(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests;
