//! Engines that answer the Docker Engine API, and the texts for operators that depend on which of them answers.

use bollard::models::SystemVersion;

/// Component by which Podman names itself in the version response.
const PODMAN_COMPONENT: &str = "Podman Engine";

/// Engine that answers the Docker Engine API.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum EngineKind {
    /// Docker, or an engine that is like Docker in all that the daemon uses.
    #[default]
    Docker,
    /// Podman, whose API differs: see [`super::podman`].
    Podman,
}

/// Names of an engine, and advice about it for operators.
#[derive(Debug)]
pub struct EngineTexts {
    /// Name of the engine in the API, for instance in GetServerInfo.
    pub name: &'static str,
    /// Name of the engine in a sentence.
    pub title: &'static str,
    /// Oldest version that the daemon works with.
    pub version_min: &'static str,
    /// Package of Debian that has the engine.
    pub package: &'static str,
    /// Command that starts the engine.
    pub start_command: &'static str,
    /// Command that removes a container by force.
    pub remove_command: &'static str,
    /// Way to get the permission for the engine's socket.
    pub permission_advice: &'static str,
    /// Value of `engine.docker_host` for the engine that runs as root.
    pub rootful_host: &'static str,
}

const DOCKER: EngineTexts = EngineTexts {
    name: "docker",
    title: "Docker",
    version_min: "Docker 20.10 (API 1.41)",
    package: "docker.io",
    start_command: "systemctl start docker",
    remove_command: "docker rm -f",
    permission_advice: "add the user to the docker group (`usermod -aG docker USER`, then log in again), or run as root",
    rootful_host: "unix:///var/run/docker.sock",
};

const PODMAN: EngineTexts = EngineTexts {
    name: "podman",
    title: "Podman",
    version_min: "Podman 4.3",
    package: "podman",
    start_command: "systemctl enable --now podman.socket",
    remove_command: "podman rm -f",
    // Debian's socket belongs to root alone.
    permission_advice: "run skilld as root",
    rootful_host: "unix:///run/podman/podman.sock",
};

impl EngineKind {
    /// Returns the kind of the engine that sent a version response.
    pub(super) fn from_version(version: &SystemVersion) -> Self {
        let mut components = version.components.iter().flatten();
        if components.any(|component| component.name == PODMAN_COMPONENT) {
            Self::Podman
        } else {
            Self::Docker
        }
    }

    /// Returns the kind of the engine with this name in the API.
    pub fn from_name(name: &str) -> Self {
        if name == PODMAN.name {
            Self::Podman
        } else {
            Self::Docker
        }
    }

    /// Returns the kind of engine that usually listens at a socket, for advice while no process does.
    pub fn from_socket(path: &str) -> Self {
        if path.contains("podman") {
            Self::Podman
        } else {
            Self::Docker
        }
    }

    /// Returns the texts about the engine.
    pub fn texts(self) -> &'static EngineTexts {
        match self {
            Self::Docker => &DOCKER,
            Self::Podman => &PODMAN,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn podman_is_recognised_by_its_component() {
        for (version, kind) in [
            (
                r#"{"Components":[{"Name":"Podman Engine","Version":"4.3.1"}]}"#,
                EngineKind::Podman,
            ),
            (
                r#"{"Components":[{"Name":"Engine","Version":"28.2.2"}]}"#,
                EngineKind::Docker,
            ),
            (r#"{"Version":"4.3.1"}"#, EngineKind::Docker),
        ] {
            let version = serde_json::from_str(version).expect("a version");
            assert_eq!(EngineKind::from_version(&version), kind, "{version:?}");
        }
        let guessed = EngineKind::from_socket("/run/podman/podman.sock");
        assert_eq!(guessed, EngineKind::Podman);
        let guessed = EngineKind::from_socket("/var/run/docker.sock");
        assert_eq!(guessed, EngineKind::Docker);
    }
}
