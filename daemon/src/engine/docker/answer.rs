//! What Docker answers, read into the engine's own types; and where Docker is.

use bollard::models::{EventMessage, SystemInfo, SystemInfoCgroupVersionEnum, SystemVersion};

use crate::engine::{ContainerEvent, ContainerEventKind, EngineInfo, LABEL_INSTANCE};
use crate::error::{Error, Result};

/// Where Docker listens when nothing is said.
pub(super) const DEFAULT_SOCKET: &str = "/var/run/docker.sock";

/// Docker 20.10: the first with private cgroup namespaces for all.
const API_VERSION_MIN: (u32, u32) = (1, 41);

pub(super) fn instance_label(instance: Option<&str>) -> String {
    instance.map_or_else(
        || LABEL_INSTANCE.to_owned(),
        |instance| format!("{LABEL_INSTANCE}={instance}"),
    )
}

/// Only a local socket will do: the slot directories are bound into the containers.
pub(super) fn socket_path(docker_host: &str) -> Result<String> {
    if docker_host.is_empty() {
        return Ok(DEFAULT_SOCKET.to_owned());
    }
    let path = docker_host.strip_prefix("unix://").unwrap_or(docker_host);
    if path.starts_with('/') {
        return Ok(path.to_owned());
    }
    Err(Error::EngineUnavailable {
        message: format!(
            "cannot use {docker_host}: skilld needs Docker on its own host, by a Unix socket; set engine.docker_host \
             (or DOCKER_HOST) to unix:///var/run/docker.sock"
        ),
    })
}

pub(super) fn engine_info(version: SystemVersion, info: SystemInfo) -> EngineInfo {
    let options = info.security_options.unwrap_or_default();
    let option = |name: &str| {
        let named = format!("name={name}");
        options
            .iter()
            .any(|option| option.split(',').any(|part| part == named))
    };
    let mut oci_runtimes: Vec<String> = info.runtimes.unwrap_or_default().into_keys().collect();
    oci_runtimes.sort_unstable();
    EngineInfo {
        name: "docker".to_owned(),
        version: version.version.unwrap_or_default(),
        api_version: version.api_version.unwrap_or_default(),
        cgroup_version: match info.cgroup_version {
            Some(SystemInfoCgroupVersionEnum::_2) => 2,
            _ => 1,
        },
        oci_runtimes,
        default_runtime: info.default_runtime.unwrap_or_default(),
        apparmor: option("apparmor"),
        userns_remap: option("userns") || option("rootless"),
        // Docker 20.10 says so on cgroup v1; a kernel that is not asked about has it.
        cpu_quota: info.cpu_cfs_period != Some(false) && info.cpu_cfs_quota != Some(false),
    }
}

pub(super) fn check_usable(info: &EngineInfo) -> Result<()> {
    check_version(info)?;
    if info.cpu_quota {
        return Ok(());
    }
    Err(Error::Engine {
        operation: "limit CPU time",
        message: "the kernel does not enforce the CPU limits of containers; use one with CONFIG_CFS_BANDWIDTH, and \
                  with rootless Docker delegate the cpu controller to its user"
            .to_owned(),
    })
}

/// Error for a container that Docker has created without one of its limits, as a warning says.
pub(super) fn check_warnings(warnings: &[String]) -> Result<()> {
    // Swappiness is no limit. Without a limit of swap a container may use more than its memory.
    let is_missing = |text: &&String| {
        let text = text.to_lowercase();
        text.contains("discarded") && !text.contains("swappiness") || text.contains("without swap")
    };
    match warnings.iter().find(is_missing) {
        Some(warning) => Err(Error::Engine {
            operation: "limit a container",
            message: format!("docker left a limit out: {warning}"),
        }),
        None => Ok(()),
    }
}

fn check_version(info: &EngineInfo) -> Result<()> {
    let parsed = info
        .api_version
        .split_once('.')
        .and_then(|(major, minor)| Some((major.parse::<u32>().ok()?, minor.parse::<u32>().ok()?)));
    if parsed.is_some_and(|version| version >= API_VERSION_MIN) {
        return Ok(());
    }
    let (major, minor) = API_VERSION_MIN;
    Err(Error::Engine {
        operation: "meet the minimum version",
        message: format!(
            "this is Docker {} with API {}, skilld needs API {major}.{minor} (Docker 20.10) or newer; upgrade Docker",
            info.version, info.api_version
        ),
    })
}

pub(super) fn container_event(event: EventMessage) -> Option<ContainerEvent> {
    let kind = match event.action?.as_str() {
        "die" => ContainerEventKind::Died,
        "destroy" => ContainerEventKind::Removed,
        "oom" => ContainerEventKind::OutOfMemory,
        "pause" => ContainerEventKind::Paused,
        "unpause" => ContainerEventKind::Unpaused,
        _ => return None,
    };
    Some(ContainerEvent {
        container_id: event.actor?.id?,
        kind,
    })
}

#[cfg(test)]
mod tests;
