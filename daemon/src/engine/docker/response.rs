//! Parses Docker's responses into the engine's types and checks that this Docker can be used.

use bollard::models::{EventMessage, SystemInfo, SystemInfoCgroupVersionEnum, SystemVersion};

use super::engine_kind::EngineKind;
use super::failures::shorten_message;
use crate::engine::{ContainerEvent, ContainerEventKind, EngineInfo, LABEL_INSTANCE};
use crate::error::{Error, Result};

/// Default path of Docker's socket.
pub(super) const DEFAULT_SOCKET: &str = "/var/run/docker.sock";

/// Minimum API version, that of Docker 20.10: the first with private cgroup namespaces on every host.
const API_VERSION_MIN: (u32, u32) = (1, 41);

/// Minimum version of Podman: that of Debian 12, the oldest one that is tested.
const PODMAN_VERSION_MIN: (u32, u32) = (4, 3);

/// Returns the label filter for the containers of one instance, or of all instances for `None`.
pub(super) fn instance_label_filter(instance: Option<&str>) -> String {
    instance.map_or_else(
        || LABEL_INSTANCE.to_owned(),
        |instance| format!("{LABEL_INSTANCE}={instance}"),
    )
}

/// Returns the socket path in `docker_host`, or the default path if it is empty. Rejects remote hosts, because the slot
/// directories of this host are mounted into the containers.
pub(super) fn parse_docker_host(docker_host: &str) -> Result<String> {
    if docker_host.is_empty() {
        return Ok(DEFAULT_SOCKET.to_owned());
    }
    let path = docker_host.strip_prefix("unix://").unwrap_or(docker_host);
    if path.starts_with('/') {
        return Ok(path.to_owned());
    }
    Err(Error::EngineUnavailable {
        message: format!(
            "cannot use docker host {docker_host}: skilld needs a Unix socket of Docker or Podman on its own host; set \
             engine.docker_host (or DOCKER_HOST) to unix:///var/run/docker.sock or unix:///run/podman/podman.sock"
        ),
    })
}

/// Builds the engine's description from Docker's version and info responses.
pub(super) fn parse_engine_info(version: SystemVersion, info: SystemInfo) -> EngineInfo {
    let option = |name: &str| has_security_option(&info, name);
    let (apparmor, userns_remap, rootless) =
        (option("apparmor"), option("userns"), option("rootless"));
    let mut oci_runtimes: Vec<String> = info.runtimes.unwrap_or_default().into_keys().collect();
    oci_runtimes.sort_unstable();
    EngineInfo {
        name: EngineKind::from_version(&version).texts().name.to_owned(),
        version: version.version.unwrap_or_default(),
        api_version: version.api_version.unwrap_or_default(),
        cgroup_version: match info.cgroup_version {
            Some(SystemInfoCgroupVersionEnum::_2) => 2,
            _ => 1,
        },
        oci_runtimes,
        default_runtime: info.default_runtime.unwrap_or_default(),
        apparmor,
        userns_remap,
        rootless,
        // Docker reports these on cgroup v1 only; a missing value means that the kernel enforces quotas.
        cpu_quota: info.cpu_cfs_period != Some(false) && info.cpu_cfs_quota != Some(false),
        cores: info
            .ncpu
            .and_then(|cores| cores.try_into().ok())
            .unwrap_or_default(),
    }
}

/// Returns `true` if Docker reports a security option, as `name=NAME` and possibly further parts.
pub(super) fn has_security_option(info: &SystemInfo, name: &str) -> bool {
    let named = format!("name={name}");
    let mut options = info.security_options.iter().flatten();
    options.any(|option| option.split(',').any(|part| part == named))
}

/// Reason why the daemon refuses an engine that runs rootless.
const ROOTLESS_REASON: &str = "it runs rootless, in a user namespace of an unprivileged user: the uids that isolate \
    workspaces from each other do not exist there, and neither do the limits and mounts that need root";

/// Checks that the engine is new enough, that it runs as root, and that the kernel enforces CPU quotas.
pub(super) fn check_engine(info: &EngineInfo) -> Result<()> {
    check_version(info)?;
    if info.rootless {
        let engine = EngineKind::from_name(&info.name).texts();
        let message = format!(
            "{ROOTLESS_REASON}; run {} as root (`{}`) and set engine.docker_host (or DOCKER_HOST) to {}",
            engine.title, engine.start_command, engine.rootful_host
        );
        return Err(Error::engine("isolate workspaces", message));
    }
    if info.cpu_quota {
        return Ok(());
    }
    Err(Error::engine(
        "limit CPU time",
        "the kernel does not enforce the CPU limits of containers; use one with CONFIG_CFS_BANDWIDTH",
    ))
}

/// Returns an error if a warning reports that Docker created a container without one of its limits.
pub(super) fn check_create_warnings(warnings: &[String]) -> Result<()> {
    // Swappiness is not a limit. Without a swap limit a container can use more than its memory limit.
    let is_missing = |text: &&String| {
        let lower = text.to_lowercase();
        lower.contains("discarded") && !lower.contains("swappiness")
            || lower.contains("without swap")
    };
    match warnings.iter().find(is_missing) {
        Some(warning) => {
            let warning = shorten_message(warning);
            let message = format!("it created a container without a limit: {warning}");
            Err(Error::engine("limit a container", message))
        }
        None => Ok(()),
    }
}

/// Checks that the engine is not older than the oldest version that the daemon works with.
fn check_version(info: &EngineInfo) -> Result<()> {
    let kind = EngineKind::from_name(&info.name);
    let (version, minimum) = match kind {
        EngineKind::Docker => (&info.api_version, API_VERSION_MIN),
        // The version of its Docker API says nothing about its own.
        EngineKind::Podman => (&info.version, PODMAN_VERSION_MIN),
    };
    if parse_version(version).is_some_and(|version| version >= minimum) {
        return Ok(());
    }
    let engine = kind.texts();
    let message = format!(
        "this is {} {} with API {}, skilld needs {} or newer; upgrade it",
        engine.title, info.version, info.api_version, engine.version_min,
    );
    Err(Error::engine("meet the minimum version", message))
}

/// Returns the first two numbers of a version.
fn parse_version(version: &str) -> Option<(u32, u32)> {
    let mut numbers = version.split('.').map(|number| number.parse().ok());
    Some((numbers.next()??, numbers.next()??))
}

/// Converts a Docker event; returns `None` for events that the daemon does not use.
pub(super) fn parse_container_event(event: EventMessage) -> Option<ContainerEvent> {
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
