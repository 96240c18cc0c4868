//! The engine's report on itself and its host, for `skilld doctor`. It shows whether containers can be made and
//! confined.

use std::collections::BTreeMap;

use bollard::models::{SystemInfo, SystemVersion};

use super::engine_kind::EngineKind;
use super::response::{has_security_option, parse_engine_info};
use crate::engine::EngineInfo;

/// Report of an engine, Docker or Podman, on itself and its host.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DockerReport {
    /// Name, version and features.
    pub info: EngineInfo,
    /// Name of the storage driver, for instance `overlay2`; empty if Docker does not report it.
    pub storage_driver: String,
    /// `true` if the kernel filters system calls (seccomp).
    pub seccomp: bool,
    /// `true` if Docker uses SELinux.
    pub selinux: bool,
    /// `true` if the kernel limits the memory of containers.
    pub memory_limit: bool,
    /// `true` if the kernel limits memory and swap together.
    pub swap_limit: bool,
    /// `true` if the kernel limits the number of processes.
    pub pids_limit: bool,
    /// Path of each registered OCI runtime by its name; empty where the engine finds the program by itself.
    pub runtime_paths: BTreeMap<String, String>,
}

// === impl DockerReport ===

impl DockerReport {
    /// Returns the kind of the engine.
    pub fn kind(&self) -> EngineKind {
        EngineKind::from_name(&self.info.name)
    }
}

/// Builds the report from Docker's version and info responses. A missing value means that the kernel enforces a limit.
pub(super) fn docker_report(version: SystemVersion, mut info: SystemInfo) -> DockerReport {
    let seccomp = has_security_option(&info, "seccomp");
    let selinux = has_security_option(&info, "selinux");
    let runtime_paths = info
        .runtimes
        .iter()
        .flatten()
        .map(|(name, runtime)| (name.clone(), runtime.path.clone().unwrap_or_default()))
        .collect();
    let storage_driver = info.driver.take().unwrap_or_default();
    let (memory, swap, pids) = (info.memory_limit, info.swap_limit, info.pids_limit);
    DockerReport {
        info: parse_engine_info(version, info),
        storage_driver,
        seccomp,
        selinux,
        memory_limit: memory != Some(false),
        swap_limit: swap != Some(false),
        pids_limit: pids != Some(false),
        runtime_paths,
    }
}

#[cfg(test)]
mod tests {
    use bollard::models::Runtime;

    use super::*;

    #[test]
    fn security_options_are_found_with_and_without_further_parts() {
        for (option, seccomp, selinux) in [
            ("name=seccomp,profile=default", true, false),
            ("name=seccomp", true, false),
            ("name=selinux", false, true),
            ("name=seccompish", false, false),
        ] {
            let info = SystemInfo {
                security_options: Some(vec![option.to_owned()]),
                ..SystemInfo::default()
            };
            let report = docker_report(SystemVersion::default(), info);
            assert_eq!(
                (report.seccomp, report.selinux),
                (seccomp, selinux),
                "{option}"
            );
        }
    }

    #[test]
    fn a_limit_is_missing_only_if_docker_says_so() {
        let empty = docker_report(SystemVersion::default(), SystemInfo::default());
        assert!(empty.memory_limit && empty.swap_limit && empty.pids_limit);
        assert!(!empty.seccomp && empty.storage_driver.is_empty());
        let runsc = Runtime {
            path: Some("/opt/runsc".to_owned()),
            ..Runtime::default()
        };
        let info = SystemInfo {
            driver: Some("vfs".to_owned()),
            memory_limit: Some(false),
            swap_limit: Some(false),
            pids_limit: Some(false),
            runtimes: Some([("runsc".to_owned(), runsc)].into()),
            ..SystemInfo::default()
        };
        let report = docker_report(SystemVersion::default(), info);
        assert!(!report.memory_limit && !report.swap_limit && !report.pids_limit);
        assert_eq!(report.storage_driver, "vfs");
        assert_eq!(report.runtime_paths["runsc"], "/opt/runsc");
    }
}
