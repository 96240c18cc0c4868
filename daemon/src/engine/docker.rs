//! Client of the Docker Engine API over a Unix socket, for Docker and for Podman.
//!
//! It uses create, start, inspect, remove, list, events and, where a pool asks for it, pull. It never uses exec, archive,
//! commit or export: these run a process of root in a container that a tenant controls. Every call has a deadline. Before
//! it serves, the daemon calls [`connect_engine`], `describe`, `prepare` and `check_image` to check the host.

use std::collections::HashMap;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bollard::errors::Error as DockerError;
use bollard::models::{ContainerSummaryStateEnum, EventMessage, SystemInfo, SystemVersion};
use bollard::query_parameters::{
    CreateContainerOptions, EventsOptions, ListContainersOptions, ListVolumesOptions,
    RemoveContainerOptions, RemoveVolumeOptions, WaitContainerOptions,
};
use bollard::{API_DEFAULT_VERSION, Docker};
use futures::StreamExt;
use futures::stream::{self, BoxStream};
use tokio::sync::watch;

use super::image_reference::ImageReference;
use super::{
    ContainerEvent, ContainerSpec, ContainerState, ContainerSummary, Engine, EngineInfo, ImageInfo,
    PullProgress, cgroup,
};
use crate::engine::oci_runtime::RuntimeKind;
use crate::error::{Chain, Error, Result};
use crate::shutdown::Tasks;
use body::{HostFeatures, create_body};
pub use engine_kind::{EngineKind, EngineTexts};
use failures::{has_status, map_docker_error};
pub use host_report::DockerReport;
use podman::PodmanEngine;
use response::{
    check_create_warnings, check_engine, instance_label_filter, parse_container_event,
    parse_docker_host, parse_engine_info,
};

mod body;
mod engine_kind;
mod failures;
mod host_report;
mod image;
mod masked_paths;
mod podman;
mod registry_credentials;
mod response;

/// Directory that a kernel with IPv6 has.
const IPV6_PARAMETERS: &str = "/proc/sys/net/ipv6/conf/lo";
/// Names of the events that the daemon uses.
const EVENT_NAMES: [&str; 5] = ["die", "destroy", "oom", "pause", "unpause"];

/// Connects to `docker_host` (`unix:///path`, a plain path, or empty for /var/run/docker.sock), checks that the engine can
/// be used, and returns the client for its kind. Each later call takes at most `timeout`. `client_config` is the directory
/// of the registry credentials, that of Docker's client.
///
/// # Errors
///
/// `Error::EngineUnavailable` if the engine does not answer or the user has no permission for the socket; `Error::Engine`
/// if the engine is too old, runs rootless or does not enforce CPU limits. The messages tell the operator what to do.
pub async fn connect_engine(
    docker_host: &str,
    timeout: Duration,
    client_config: Option<PathBuf>,
) -> Result<Arc<dyn Engine>> {
    let mut engine = DockerEngine::without_checks(docker_host, timeout)?;
    engine.client_config = client_config;
    let info = engine.describe().await?;
    check_engine(&info)?;
    let kind = EngineKind::from_name(&info.name);
    engine.host = HostFeatures {
        cgroup_version: info.cgroup_version,
        apparmor: info.apparmor,
        default_runtime: info.default_runtime,
        masked_paths: masked_paths::find_masked_paths(),
        ipv6: Path::new(IPV6_PARAMETERS).exists(),
    };
    Ok(match kind {
        EngineKind::Docker => Arc::new(engine),
        EngineKind::Podman => Arc::new(PodmanEngine::new(engine)),
    })
}

/// Connection to the Docker Engine of this host.
#[derive(Debug)]
pub struct DockerEngine {
    docker: Docker,
    /// Path of Docker's socket, for error messages.
    socket: String,
    /// Maximum duration of one call to Docker.
    timeout: Duration,
    /// Directory of Docker's client configuration, for credentials of registries; `None` if there is none.
    client_config: Option<PathBuf>,
    /// Host features that decide how containers are configured.
    host: HostFeatures,
    /// Tasks for blocking work, which each call awaits.
    tasks: Tasks,
}

// === impl DockerEngine ===

impl DockerEngine {
    /// Makes a client for [`Self::report`] and questions about images. It has not called Docker yet, and it must not
    /// create containers: it does not know the host's features.
    ///
    /// # Errors
    ///
    /// `Error::EngineUnavailable` if `docker_host` is no Unix socket, or does not exist.
    pub fn without_checks(docker_host: &str, timeout: Duration) -> Result<Self> {
        let socket = parse_docker_host(docker_host)?;
        // bollard's own deadline has whole seconds and covers only the response head. `with_deadline` expires first.
        let docker = Docker::connect_with_unix(
            &socket,
            timeout.as_secs().saturating_add(1),
            API_DEFAULT_VERSION,
        )
        .map_err(|error| map_docker_error(&socket, "connect", &error))?;
        Ok(Self {
            docker,
            socket,
            timeout,
            client_config: None,
            host: HostFeatures::default(),
            tasks: Tasks::default(),
        })
    }

    /// Returns what Docker reports about itself and its host, however old it is.
    ///
    /// # Errors
    ///
    /// `Error::EngineUnavailable` if Docker does not answer in time, and `Error::Engine` if it refuses.
    pub async fn report(&self) -> Result<DockerReport> {
        let (version, info) = self.ask_about_itself().await?;
        Ok(host_report::docker_report(version, info))
    }

    /// Returns the engine's version and description, as far as they hold for containers of the daemon.
    async fn ask_about_itself(&self) -> Result<(SystemVersion, SystemInfo)> {
        let version = self
            .call_docker("report its version", self.docker.version())
            .await?;
        let mut info = self
            .call_docker("describe itself", self.docker.info())
            .await?;
        if EngineKind::from_version(&version) == EngineKind::Podman {
            podman::keep_usable_runtimes(&mut info);
        }
        Ok((version, info))
    }

    /// Awaits one call to Docker with a deadline and maps its error. `operation` names the call in the error.
    async fn call_docker<T>(
        &self,
        operation: &'static str,
        call: impl Future<Output = Result<T, DockerError>>,
    ) -> Result<T> {
        self.with_deadline(call)
            .await?
            .map_err(|error| map_docker_error(&self.socket, operation, &error))
    }

    /// Awaits one call to Docker with a deadline. The inner result is Docker's response, for the caller to map.
    async fn with_deadline<T>(
        &self,
        call: impl Future<Output = Result<T, DockerError>>,
    ) -> Result<Result<T, DockerError>> {
        tokio::time::timeout(self.timeout, call)
            .await
            .map_err(|_| Error::EngineUnavailable {
                message: format!(
                    "{}: no answer within {:?}; the log of its service may say why",
                    self.socket, self.timeout
                ),
            })
    }

    /// Limits the socket memory of a container on cgroup v1, whose memory limit does not include it. Logs a warning if the
    /// daemon lacks the rights; docs/security.md describes the consequences.
    async fn limit_socket_memory(&self, container_id: &str) {
        let inspected = self.docker.inspect_container(container_id, None);
        let Ok(Ok(container)) = self.with_deadline(inspected).await else {
            return;
        };
        let pid = container.state.and_then(|state| state.pid).unwrap_or(0);
        let config = container.host_config.unwrap_or_default();
        let kind = config.runtime.as_deref().map(RuntimeKind::from_name);
        if !kind.is_none_or(RuntimeKind::shares_host_kernel) {
            // A sandbox's kernel holds the socket buffers in the container's memory.
            return;
        }
        let memory = config.memory;
        let (Ok(pid), Ok(memory)) = (i32::try_from(pid), u64::try_from(memory.unwrap_or(0))) else {
            return;
        };
        if pid == 0 {
            // The container has already ended; its events report that.
            return;
        }
        let id = container_id.to_owned();
        let limit = move || {
            cgroup::limit_socket_memory(&id, pid, memory).map_err(|source| {
                Error::io(format!("limit the socket memory of container {id}"), source)
            })
        };
        let limited = tokio::time::timeout(self.timeout, self.tasks.blocking(limit))
            .await
            .unwrap_or_else(|_| Err(Error::Internal(format!("took over {:?}", self.timeout))));
        if let Err(error) = limited {
            tracing::warn!(
                container = container_id, error = %Chain(&error),
                "socket buffers of a container are not limited: run skilld as root, or use cgroup v2"
            );
        }
    }

    /// Returns the id of a new container, unless the engine's warnings say that it lacks a limit: then the container is
    /// removed.
    async fn check_created(&self, container_id: String, warnings: &[String]) -> Result<String> {
        for warning in warnings {
            tracing::debug!(container = %container_id, %warning, "the engine reported a warning for a new container");
        }
        let Err(error) = check_create_warnings(warnings) else {
            return Ok(container_id);
        };
        if let Err(error) = self.remove(&container_id).await {
            tracing::warn!(container = %container_id, %error, "failed to remove a container that was created without its limits");
        }
        Err(error)
    }

    /// Subscribes to the events of an instance's containers that have one of these names.
    async fn subscribe(
        &self,
        instance: &str,
        names: &[&str],
        parse: fn(EventMessage) -> Option<ContainerEvent>,
    ) -> Result<BoxStream<'static, Result<ContainerEvent>>> {
        // Docker subscribes shortly after it responds. With a start time it replays the events in between.
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        self.ping().await?;
        let filters = HashMap::from([
            ("type".to_owned(), vec!["container".to_owned()]),
            (
                "label".to_owned(),
                vec![instance_label_filter(Some(instance))],
            ),
            (
                "event".to_owned(),
                names.iter().map(|name| (*name).to_owned()).collect(),
            ),
        ]);
        let options = EventsOptions {
            since: Some(format!("{}.{:09}", now.as_secs(), now.subsec_nanos())),
            until: None,
            filters: Some(filters),
        };
        let socket = self.socket.clone();
        let events = self.docker.events(Some(options)).filter_map(move |event| {
            let event = match event {
                Ok(event) => parse(event).map(Ok),
                Err(error) => Some(Err(map_docker_error(&socket, "stream events", &error))),
            };
            futures::future::ready(event)
        });
        let end = Error::EngineUnavailable {
            message: format!("{}: the engine closed the event stream", self.socket),
        };
        Ok(events.chain(stream::once(async { Err(end) })).boxed())
    }

    /// Waits until a container whose removal is already in progress is gone.
    async fn wait_until_removed(&self, container_id: &str) -> Result<()> {
        let options = WaitContainerOptions {
            condition: "removed".to_owned(),
        };
        let mut ended = std::pin::pin!(self.docker.wait_container(container_id, Some(options)));
        // An exit code and 404 both mean that the container is gone.
        match self.with_deadline(async { Ok(ended.next().await) }).await? {
            Ok(Some(Err(error)))
                if !has_status(&error, 404)
                    && !matches!(error, DockerError::DockerContainerWaitError { .. }) =>
            {
                Err(map_docker_error(&self.socket, "wait for container", &error))
            }
            Ok(_) => Ok(()),
            Err(error) => Err(map_docker_error(&self.socket, "wait for container", &error)),
        }
    }
}

#[tonic::async_trait]
impl Engine for DockerEngine {
    async fn describe(&self) -> Result<EngineInfo> {
        let (version, info) = self.ask_about_itself().await?;
        Ok(parse_engine_info(version, info))
    }

    async fn ping(&self) -> Result<()> {
        self.call_docker("answer a ping", self.docker.ping())
            .await
            .map(drop)
    }

    async fn find_image(&self, reference: &ImageReference) -> Result<Option<ImageInfo>> {
        let name = image::local_name(reference);
        match self.with_deadline(self.docker.inspect_image(&name)).await? {
            Ok(found) => image::image_info(reference, found).map(Some),
            Err(error) if has_status(&error, 404) => Ok(None),
            Err(error) => Err(map_docker_error(&self.socket, "inspect image", &error)),
        }
    }

    async fn pull_image(
        &self,
        reference: &ImageReference,
        progress: &watch::Sender<PullProgress>,
    ) -> Result<()> {
        let credentials = match &self.client_config {
            Some(dir) => {
                let registry = reference.registry();
                registry_credentials::find_credentials(&self.tasks, dir, registry).await?
            }
            None => None,
        };
        image::pull_image(&self.docker, &self.socket, reference, credentials, progress).await
    }

    async fn create(&self, spec: &ContainerSpec) -> Result<String> {
        let options = CreateContainerOptions {
            name: Some(spec.name.clone()),
            ..CreateContainerOptions::default()
        };
        let created = self
            .with_deadline(
                self.docker
                    .create_container(Some(options), create_body(spec, &self.host)),
            )
            .await?;
        match created {
            Ok(created) => self.check_created(created.id, &created.warnings).await,
            Err(error) if has_status(&error, 404) => Err(Error::image(
                &spec.image_id,
                "Docker no longer has this image: build or pull it again and restart skilld",
            )),
            Err(error) => Err(map_docker_error(&self.socket, "create container", &error)),
        }
    }

    async fn start(&self, container_id: &str) -> Result<()> {
        self.call_docker(
            "start container",
            self.docker.start_container(container_id, None),
        )
        .await?;
        if self.host.cgroup_version == 1 {
            self.limit_socket_memory(container_id).await;
        }
        Ok(())
    }

    async fn inspect(&self, container_id: &str) -> Result<Option<ContainerState>> {
        let container = match self
            .with_deadline(self.docker.inspect_container(container_id, None))
            .await?
        {
            Ok(container) => container,
            Err(error) if has_status(&error, 404) => return Ok(None),
            Err(error) => return Err(map_docker_error(&self.socket, "inspect container", &error)),
        };
        let state = container.state.unwrap_or_default();
        Ok(Some(ContainerState {
            running: state.running.unwrap_or(false) && !state.restarting.unwrap_or(false),
            paused: state.paused.unwrap_or(false),
            pid: state
                .pid
                .and_then(|pid| i32::try_from(pid).ok())
                .unwrap_or(0),
            oom_killed: state.oom_killed.unwrap_or(false),
            exit_code: state.exit_code.unwrap_or(0),
        }))
    }

    async fn remove(&self, container_id: &str) -> Result<()> {
        let options = RemoveContainerOptions {
            force: true,
            v: true,
            link: false,
        };
        let removed = self
            .with_deadline(self.docker.remove_container(container_id, Some(options)))
            .await?;
        match removed {
            Ok(()) => Ok(()),
            Err(error) if has_status(&error, 404) => Ok(()),
            Err(error) if has_status(&error, 409) => self.wait_until_removed(container_id).await,
            Err(error) => Err(map_docker_error(&self.socket, "remove container", &error)),
        }
    }

    async fn remove_unused_volumes(&self, instance: &str) -> Result<()> {
        // Docker's own prune leaves out volumes with options, which all of these have.
        let filters = HashMap::from([
            (
                "label".to_owned(),
                vec![instance_label_filter(Some(instance))],
            ),
            ("dangling".to_owned(), vec!["true".to_owned()]),
        ]);
        let options = ListVolumesOptions {
            filters: Some(filters),
        };
        let failed = |error| map_docker_error(&self.socket, "remove volumes", &error);
        let unused = self
            .with_deadline(self.docker.list_volumes(Some(options)))
            .await?
            .map_err(failed)?;
        for volume in unused.volumes.unwrap_or_default() {
            let removal = self
                .docker
                .remove_volume(&volume.name, None::<RemoveVolumeOptions>);
            match self.with_deadline(removal).await? {
                Ok(()) => {}
                // Gone, or still in use: then the next call removes it.
                Err(error) if has_status(&error, 404) || has_status(&error, 409) => {}
                Err(error) => return Err(failed(error)),
            }
        }
        Ok(())
    }

    async fn list(&self, instance: Option<&str>) -> Result<Vec<ContainerSummary>> {
        let options = ListContainersOptions {
            all: true,
            filters: Some(HashMap::from([(
                "label".to_owned(),
                vec![instance_label_filter(instance)],
            )])),
            ..ListContainersOptions::default()
        };
        let containers = self
            .call_docker(
                "list containers",
                self.docker.list_containers(Some(options)),
            )
            .await?;
        let summary = |container: bollard::models::ContainerSummary| {
            let paused = container.state == Some(ContainerSummaryStateEnum::PAUSED);
            Some(ContainerSummary {
                id: container.id?,
                running: paused || container.state == Some(ContainerSummaryStateEnum::RUNNING),
                paused,
                labels: container.labels.unwrap_or_default(),
            })
        };
        Ok(containers.into_iter().filter_map(summary).collect())
    }

    async fn events(&self, instance: &str) -> Result<BoxStream<'static, Result<ContainerEvent>>> {
        let subscribed = self.subscribe(instance, &EVENT_NAMES, parse_container_event);
        subscribed.await
    }
}

#[cfg(test)]
mod tests;
