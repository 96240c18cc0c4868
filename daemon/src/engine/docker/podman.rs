//! Podman by its Docker API, and by its own API where that one differs too much. docs/podman.md lists what is different.
//!
//! | call | difference |
//! |---|---|
//! | describe | the default OCI runtime is the only one that can be used |
//! | create | Podman's own API, because the Docker API drops restrictions; see `podman/container_spec.rs` |
//! | inspect, list | states that Docker does not have |
//! | remove | fails if another process removes the same container |
//! | events | other names, and none for a process that ran out of memory |

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use bollard::errors::Error as DockerError;
use bollard::models::{EventMessage, SystemInfo};
use futures::stream::BoxStream;
use http::Method;
use serde::de::DeserializeOwned;
use serde_json::json;
use tokio::sync::watch;
use url::form_urlencoded;

use super::DockerEngine;
use super::body::create_body;
use super::failures::{has_status, map_docker_error};
use super::response::instance_label_filter;
use crate::engine::image_reference::ImageReference;
use crate::engine::{
    ContainerEvent, ContainerEventKind, ContainerSpec, ContainerState, ContainerSummary, Engine,
    EngineInfo, ImageInfo, PullProgress,
};
use crate::error::{Error, Result};
use answers::{ContainerAnswer, ContainerEntry, CreateAnswer};
use container_spec::podman_spec;
use native_api::call_podman;
use support_files::{SupportFiles, install_seccomp_profile};

mod answers;
mod container_spec;
mod native_api;
mod support_files;

/// Path of the create call of Podman's own API. Podman 4 and 5 accept its version.
const CREATE_PATH: &str = "/v4.0.0/libpod/containers/create";
/// Prefix of the calls of Podman's Docker API.
const DOCKER_PATH: &str = "/v1.41";
/// Names of the events that the daemon uses.
const EVENT_NAMES: [&str; 4] = ["died", "remove", "pause", "unpause"];

/// Connection to Podman on this host.
#[derive(Debug)]
pub(super) struct PodmanEngine {
    /// Client for the calls in which Podman is like Docker.
    docker: DockerEngine,
    /// Seccomp profile, once [`Engine::prepare`] has written it.
    seccomp: OnceLock<PathBuf>,
}

// === impl PodmanEngine ===

impl PodmanEngine {
    /// Takes a connection to an engine that is Podman.
    pub(super) fn new(mut docker: DockerEngine) -> Self {
        // Podman loads an AppArmor profile of its own for a container that names none.
        docker.host.apparmor = false;
        Self {
            docker,
            seccomp: OnceLock::new(),
        }
    }

    /// Makes one call, with a deadline. The inner result is Podman's response, for the caller to map.
    async fn call<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: String,
    ) -> Result<Result<T, DockerError>> {
        let call = async {
            let bytes = call_podman(&self.docker.socket, method, path, body).await?;
            Ok(serde_json::from_slice(&bytes)?)
        };
        self.docker.with_deadline(call).await
    }

    fn map_error(&self, operation: &'static str, error: &DockerError) -> Error {
        map_docker_error(&self.docker.socket, operation, error)
    }
}

#[tonic::async_trait]
impl Engine for PodmanEngine {
    async fn describe(&self) -> Result<EngineInfo> {
        self.docker.describe().await
    }

    async fn prepare(&self, state_dir: &Path) -> Result<()> {
        let state_dir = state_dir.to_owned();
        let install = move || install_seccomp_profile(&state_dir);
        let seccomp = self.docker.tasks.blocking(install).await?;
        // A repetition writes the same file.
        let _ = self.seccomp.set(seccomp);
        Ok(())
    }

    async fn ping(&self) -> Result<()> {
        self.docker.ping().await
    }

    async fn find_image(&self, reference: &ImageReference) -> Result<Option<ImageInfo>> {
        self.docker.find_image(reference).await
    }

    async fn pull_image(
        &self,
        reference: &ImageReference,
        progress: &watch::Sender<PullProgress>,
    ) -> Result<()> {
        self.docker.pull_image(reference, progress).await
    }

    async fn create(&self, spec: &ContainerSpec) -> Result<String> {
        let seccomp = self.seccomp.get().cloned().ok_or_else(|| {
            Error::Internal("a container was requested before the files for Podman".to_owned())
        })?;
        let slot_dir = spec.slot_dir.clone();
        let write = move || SupportFiles::write(seccomp, &slot_dir);
        let files = self.docker.tasks.blocking(write).await?;
        let body = podman_spec(&spec.name, create_body(spec, &self.docker.host), &files);
        let created = self
            .call::<CreateAnswer>(Method::POST, CREATE_PATH, body.to_string())
            .await?;
        let created = match created {
            Ok(created) => created,
            Err(error) if is_image_missing(&error) => {
                return Err(Error::image(
                    &spec.image_id,
                    "Podman no longer has this image: build or pull it again and restart skilld",
                ));
            }
            Err(error) => return Err(self.map_error("create container", &error)),
        };
        let warnings = created.warnings.unwrap_or_default();
        self.docker.check_created(created.id, &warnings).await
    }

    async fn start(&self, container_id: &str) -> Result<()> {
        self.docker.start(container_id).await
    }

    async fn inspect(&self, container_id: &str) -> Result<Option<ContainerState>> {
        let path = format!("{DOCKER_PATH}/containers/{container_id}/json");
        let answer = self
            .call::<ContainerAnswer>(Method::GET, &path, String::new())
            .await?;
        match answer {
            Ok(container) => Ok(Some(container.into())),
            Err(error) if has_status(&error, 404) => Ok(None),
            Err(error) => Err(self.map_error("inspect container", &error)),
        }
    }

    async fn remove(&self, container_id: &str) -> Result<()> {
        let Err(error) = self.docker.remove(container_id).await else {
            return Ok(());
        };
        // Podman fails if another process, such as its own clean-up, was faster.
        match self.inspect(container_id).await {
            Ok(None) => Ok(()),
            _ => Err(error),
        }
    }

    async fn remove_unused_volumes(&self, _instance: &str) -> Result<()> {
        // Podman's containers have mounts where Docker's have volumes.
        Ok(())
    }

    async fn list(&self, instance: Option<&str>) -> Result<Vec<ContainerSummary>> {
        let filters = json!({ "label": [instance_label_filter(instance)] });
        let query = form_urlencoded::Serializer::new(String::new())
            .append_pair("all", "true")
            .append_pair("filters", &filters.to_string())
            .finish();
        let path = format!("{DOCKER_PATH}/containers/json?{query}");
        let entries = self
            .call::<Vec<ContainerEntry>>(Method::GET, &path, String::new())
            .await?
            .map_err(|error| self.map_error("list containers", &error))?;
        Ok(entries.into_iter().map(ContainerSummary::from).collect())
    }

    async fn events(&self, instance: &str) -> Result<BoxStream<'static, Result<ContainerEvent>>> {
        let subscribed = self.docker.subscribe(instance, &EVENT_NAMES, parse_event);
        subscribed.await
    }
}

/// Leaves only the default OCI runtime in the list of runtimes. Podman 4 creates every container with it, whatever a request
/// names: a pool that asks for gVisor would run without its barrier.
pub(super) fn keep_usable_runtimes(info: &mut SystemInfo) {
    let default = info.default_runtime.as_ref();
    if let Some(runtimes) = &mut info.runtimes {
        runtimes.retain(|name, _| Some(name) == default);
    }
}

/// Returns `true` if Podman created no container because it lacks the image: status 404 or, in Podman 4, 500.
fn is_image_missing(error: &DockerError) -> bool {
    let DockerError::DockerResponseServerError { message, .. } = error else {
        return false;
    };
    has_status(error, 404) || message.ends_with("image not known")
}

/// Converts an event of Podman; returns `None` for events that the daemon does not use.
fn parse_event(event: EventMessage) -> Option<ContainerEvent> {
    let kind = match event.action?.as_str() {
        // The Docker API renames this one, and only this one.
        "die" | "died" => ContainerEventKind::Died,
        "remove" => ContainerEventKind::Removed,
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
