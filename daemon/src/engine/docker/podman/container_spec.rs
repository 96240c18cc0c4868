//! Translates the body of Docker's create-container request into the request of Podman's own API. Pure.
//!
//! Podman's Docker API drops what its command line has no option for: masked paths, volumes with options and with them
//! the limit of terminals and the shared directories, a tmpfs without a copy of the image's files. Its own API takes all
//! of it. The restrictions of a container stay in one place, `body.rs`: a test fails for a field that this file forgets.

use std::collections::HashMap;
use std::path::Path;

use bollard::models::{
    ContainerCreateBody, HostConfig, Mount, MountType, MountVolumeOptionsDriverConfig,
    ResourcesUlimits,
};
use serde_json::{Value, json};

use super::support_files::SupportFiles;

/// Paths that Podman makes read-only in every container. Its API has no list of the caller's.
#[cfg(test)]
const READONLY_PATHS: [&str; 6] = [
    "/proc/asound",
    "/proc/bus",
    "/proc/fs",
    "/proc/irq",
    "/proc/sys",
    "/proc/sysrq-trigger",
];
/// Folder with the host's subscriptions, which Podman copies into containers on some distributions.
const SUBSCRIPTIONS: &str = "/run/secrets";
/// Permission bits that new files lack, as with Docker.
const UMASK: &str = "0022";
/// Kernel parameter that Docker sets in every container: any process may listen at a port below 1024.
const UNPRIVILEGED_PORTS: &str = "net.ipv4.ip_unprivileged_port_start";

/// Builds the request of Podman's own API for the container that `body` describes.
pub(super) fn podman_spec(name: &str, body: ContainerCreateBody, files: &SupportFiles) -> Value {
    let host = body.host_config.unwrap_or_default();
    let (namespaces, limits) = (namespace_fields(&host), limit_fields(&host));
    let image = body.image.unwrap_or_default();
    let tmpfs = host.tmpfs.unwrap_or_default();
    let masked = masked_paths(host.masked_paths.unwrap_or_default());
    // One `json!` of all fields exceeds the compiler's limit of recursion.
    let fields = [
        ("name", json!(name)),
        ("labels", json!(body.labels)),
        // Podman looks for an id without the algorithm.
        (
            "image",
            json!(image.strip_prefix("sha256:").unwrap_or(&image)),
        ),
        ("entrypoint", json!(body.entrypoint)),
        ("command", json!(body.cmd)),
        ("env", json!(environment(&body.env.unwrap_or_default()))),
        ("user", json!(body.user)),
        ("work_dir", json!(body.working_dir)),
        ("hostname", json!(body.hostname)),
        ("stdin", json!(body.open_stdin)),
        ("terminal", json!(body.tty)),
        (
            "healthconfig",
            json!({ "Test": body.healthcheck.and_then(|check| check.test) }),
        ),
        // A stop without a signal: a forced removal would wait for the guest, which ignores all signals, otherwise.
        ("stop_timeout", json!(0)),
        ("init", json!(host.init)),
        ("remove", json!(host.auto_remove)),
        (
            "restart_policy",
            json!(host.restart_policy.and_then(|policy| policy.name)),
        ),
        (
            "log_configuration",
            json!({ "driver": host.log_config.and_then(|log| log.typ) }),
        ),
        ("systemd", json!("false")),
        ("sdnotifyMode", json!("ignore")),
        ("oci_runtime", json!(host.runtime)),
        // Rights.
        ("privileged", json!(host.privileged)),
        ("cap_add", json!(host.cap_add)),
        ("cap_drop", json!(host.cap_drop)),
        ("groups", json!(host.group_add)),
        (
            "no_new_privileges",
            json!(has_option(
                host.security_opt.as_ref(),
                "no-new-privileges:true"
            )),
        ),
        ("seccomp_profile_path", json!(files.seccomp)),
        ("mask", json!(masked)),
        ("umask", json!(UMASK)),
        (
            "sysctl",
            json!(kernel_parameters(host.sysctls.unwrap_or_default())),
        ),
        // Files.
        ("read_only_filesystem", json!(host.readonly_rootfs)),
        ("image_volume_mode", json!("ignore")),
        (
            "mounts",
            json!(all_mounts(host.mounts.unwrap_or_default(), tmpfs, files)),
        ),
        ("shm_size", json!(host.shm_size)),
    ];
    let all = fields.into_iter().chain(namespaces).chain(limits);
    Value::Object(all.map(|(name, value)| (name.to_owned(), value)).collect())
}

/// Returns the limits of the container.
fn limit_fields(host: &HostConfig) -> [(&'static str, Value); 3] {
    [
        ("oom_score_adj", json!(host.oom_score_adj)),
        ("r_limits", json!(resource_limits(host))),
        ("resource_limits", json!(control_group_limits(host))),
    ]
}

/// Returns the namespaces of the container.
fn namespace_fields(host: &HostConfig) -> [(&'static str, Value); 7] {
    let private = json!({ "nsmode": "private" });
    [
        ("netns", json!({ "nsmode": host.network_mode })),
        ("ipcns", json!({ "nsmode": host.ipc_mode })),
        ("cgroupns", json!({ "nsmode": host.cgroupns_mode })),
        ("pidns", json!(private)),
        ("utsns", json!(private)),
        ("userns", json!({ "nsmode": "host" })),
        ("use_image_hosts", json!(true)),
    ]
}

/// Returns variables `NAME=value` as a map.
fn environment(variables: &[String]) -> HashMap<String, String> {
    let pairs = variables.iter();
    pairs
        .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}

fn has_option(options: Option<&Vec<String>>, wanted: &str) -> bool {
    options.is_some_and(|options| options.iter().any(|option| option == wanted))
}

/// Returns the paths to mask in addition to Podman's own list.
fn masked_paths(mut paths: Vec<String>) -> Vec<String> {
    paths.push(SUBSCRIPTIONS.to_owned());
    paths
}

/// Adds the kernel parameter that Docker sets by itself.
fn kernel_parameters(mut parameters: HashMap<String, String>) -> HashMap<String, String> {
    parameters.insert(UNPRIVILEGED_PORTS.to_owned(), "0".to_owned());
    parameters
}

/// Returns the limits per process. Podman adds limits of open files and of processes where there are none, and the OCI
/// runtime fails where it must not raise its own. The second is twice the number that the control group allows, so that
/// the group's limit is reached first: its counter tells why a command failed.
fn resource_limits(host: &HostConfig) -> Value {
    let limit = |name: &str, soft: Option<i64>, hard: Option<i64>| json!({ "type": name, "soft": soft, "hard": hard });
    let given = host.ulimits.iter().flatten();
    let mut limits: Vec<Value> = given
        .map(|ResourcesUlimits { name, soft, hard }| {
            limit(name.as_deref().unwrap_or_default(), *soft, *hard)
        })
        .collect();
    let processes = host.pids_limit.map(|pids| pids.saturating_mul(2));
    limits.push(limit("nproc", processes, processes));
    limits.into()
}

/// Returns the limits of the container's control group, as the OCI runtime specification names them.
fn control_group_limits(host: &HostConfig) -> Value {
    json!({
        "memory": {
            "limit": host.memory,
            "swap": host.memory_swap,
            "swappiness": host.memory_swappiness,
        },
        "cpu": {
            "shares": host.cpu_shares,
            "period": host.cpu_period,
            "quota": host.cpu_quota,
        },
        "pids": { "limit": host.pids_limit },
    })
}

/// Returns all mounts, as the OCI runtime specification describes them.
fn all_mounts(mounts: Vec<Mount>, tmpfs: HashMap<String, String>, files: &SupportFiles) -> Value {
    let mut all: Vec<Value> = mounts.into_iter().map(oci_mount).collect();
    all.extend(tmpfs.into_iter().map(|(target, options)| {
        let (settings, flags): (Vec<&str>, Vec<&str>) =
            options.split(',').partition(|option| option.contains('='));
        // Podman knows no option for inodes and owner. It passes on the option `size` with all that follows, and the
        // OCI runtime joins the options with commas for the kernel.
        let joined = settings.join(",");
        // Without the last option Podman copies the image's files into it.
        let options = flags.into_iter().chain([joined.as_str(), "notmpcopyup"]);
        describe_mount("tmpfs", "tmpfs", &target, &options.collect::<Vec<_>>())
    }));
    let file = |source: &Path, target: &str| {
        let options = vec!["ro", "rprivate", "nosuid", "nodev", "noexec"];
        describe_mount("bind", &source.to_string_lossy(), target, &options)
    };
    all.push(file(&files.resolv_conf, "/etc/resolv.conf"));
    all.into()
}

/// Converts a mount. A volume of Docker's built-in driver is a file system that the OCI runtime mounts as well.
fn oci_mount(mount: Mount) -> Value {
    let target = mount.target.unwrap_or_default();
    if mount.typ == Some(MountType::VOLUME) {
        let options = mount
            .volume_options
            .and_then(|options| options.driver_config)
            .and_then(|MountVolumeOptionsDriverConfig { options, .. }| options)
            .unwrap_or_default();
        let option = |name: &str| options.get(name).map(String::as_str).unwrap_or_default();
        let file_system_options: Vec<&str> = option("o").split(',').collect();
        return describe_mount(
            option("type"),
            option("device"),
            &target,
            &file_system_options,
        );
    }
    let propagation = mount
        .bind_options
        .and_then(|options| options.propagation)
        .map(|propagation| propagation.to_string());
    let access = if mount.read_only == Some(false) {
        "rw"
    } else {
        "ro"
    };
    let mut options = vec![access, "nosuid", "nodev"];
    options.extend(propagation.as_deref());
    describe_mount("bind", &mount.source.unwrap_or_default(), &target, &options)
}

fn describe_mount(file_system: &str, source: &str, target: &str, options: &[&str]) -> Value {
    json!({ "type": file_system, "source": source, "destination": target, "options": options })
}

#[cfg(test)]
mod tests;
