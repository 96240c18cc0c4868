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
    #[must_use]
    pub fn from_name(name: &str) -> Self {
        if name == Self::Podman.name() {
            Self::Podman
        } else {
            Self::Docker
        }
    }

    /// Returns the kind of engine that usually listens at a socket, for advice while no process does.
    #[must_use]
    pub fn from_socket(path: &str) -> Self {
        if path.contains("podman") {
            Self::Podman
        } else {
            Self::Docker
        }
    }

    /// Returns the name of the engine in the API, for instance in GetServerInfo.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Docker => "docker",
            Self::Podman => "podman",
        }
    }

    /// Returns the name of the engine in a sentence.
    #[must_use]
    pub fn title(self) -> &'static str {
        match self {
            Self::Docker => "Docker",
            Self::Podman => "Podman",
        }
    }

    /// Returns the oldest version that the daemon works with.
    #[must_use]
    pub fn version_min(self) -> &'static str {
        match self {
            Self::Docker => "Docker 20.10 (API 1.41)",
            Self::Podman => "Podman 4.3",
        }
    }

    /// Returns the package of Debian that has the engine.
    #[must_use]
    pub fn package(self) -> &'static str {
        match self {
            Self::Docker => "docker.io",
            Self::Podman => "podman",
        }
    }

    /// Returns the command that starts the engine.
    #[must_use]
    pub fn start_command(self) -> &'static str {
        match self {
            Self::Docker => "systemctl start docker",
            Self::Podman => "systemctl enable --now podman.socket",
        }
    }

    /// Returns the command that removes a container by force.
    #[must_use]
    pub fn remove_command(self) -> &'static str {
        match self {
            Self::Docker => "docker rm -f",
            Self::Podman => "podman rm -f",
        }
    }

    /// Returns the way to get the permission for the engine's socket.
    #[must_use]
    pub fn permission_advice(self) -> &'static str {
        match self {
            Self::Docker => {
                "add the user to the docker group (`usermod -aG docker USER`, then log in again), or run as root"
            }
            // Debian's socket belongs to root alone.
            Self::Podman => "run skilld as root",
        }
    }

    /// Returns the value of `engine.docker_host` for the engine that runs as root.
    #[must_use]
    pub fn rootful_host(self) -> &'static str {
        match self {
            Self::Docker => "unix:///var/run/docker.sock",
            Self::Podman => "unix:///run/podman/podman.sock",
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
