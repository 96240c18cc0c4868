//! Containers from the Docker Engine, over its Unix socket.
//!
//! Create, start, inspect, remove, list and events; never exec, archive, commit or export, which would let a
//! process of root's into a container that a tenant controls. Every call has a deadline. [`DockerEngine::connect`],
//! `describe` and `image` together are the daemon's check before it starts to serve.

use std::collections::HashMap;
use std::future::Future;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bollard::errors::Error as DockerError;
use bollard::models::ContainerSummaryStateEnum;
use bollard::query_parameters::{
    CreateContainerOptions, EventsOptions, ListContainersOptions, RemoveContainerOptions,
    WaitContainerOptions,
};
use bollard::{API_DEFAULT_VERSION, Docker};
use futures::StreamExt;
use futures::stream::{self, BoxStream};

use super::{
    ContainerEvent, ContainerSpec, ContainerState, ContainerSummary, Engine, EngineInfo, ImageInfo,
    cgroup,
};
use crate::engine::runtime::RuntimeKind;
use crate::error::{Chain, Error, Result};
use crate::shutdown::Tasks;
use answer::{
    check_usable, check_warnings, container_event, engine_info, instance_label, socket_path,
};
use body::{Host, body};
use failure::{is_status, to_error};

mod answer;
mod body;
mod failure;
mod masked;

/// A connection to a Docker Engine on this host.
#[derive(Debug)]
pub struct DockerEngine {
    docker: Docker,
    socket: String,
    timeout: Duration,
    host: Host,
    /// Runs blocking work, which each call awaits as it awaits Docker.
    tasks: Tasks,
}

// === impl DockerEngine ===

impl DockerEngine {
    /// Connects to `docker_host` (`unix:///path`, a plain path, or empty for /var/run/docker.sock) and checks that
    /// the engine is new enough. Each later call takes at most `timeout`.
    ///
    /// # Errors
    ///
    /// `Error::EngineUnavailable` when nobody answers or the user may not ask, `Error::Engine` when Docker is too
    /// old; both say what to do.
    pub async fn connect(docker_host: &str, timeout: Duration) -> Result<Self> {
        let socket = socket_path(docker_host)?;
        // bollard's own deadline is in whole seconds and covers only the head of an answer: ours comes first.
        let docker = Docker::connect_with_unix(
            &socket,
            timeout.as_secs().saturating_add(1),
            API_DEFAULT_VERSION,
        )
        .map_err(|error| to_error(&socket, "connect", &error))?;
        let mut engine = Self {
            docker,
            socket,
            timeout,
            host: Host::default(),
            tasks: Tasks::default(),
        };
        let info = engine.describe().await?;
        check_usable(&info)?;
        engine.host = Host {
            cgroup_version: info.cgroup_version,
            apparmor: info.apparmor,
            default_runtime: info.default_runtime,
            masked_paths: masked::masked_paths(),
        };
        Ok(engine)
    }

    /// One call: bounded, and its failure mapped.
    async fn call<T>(
        &self,
        operation: &'static str,
        call: impl Future<Output = Result<T, DockerError>>,
    ) -> Result<T> {
        self.answer(call)
            .await?
            .map_err(|error| to_error(&self.socket, operation, &error))
    }

    /// One call, bounded; what Docker answered is the caller's business.
    async fn answer<T>(
        &self,
        call: impl Future<Output = Result<T, DockerError>>,
    ) -> Result<Result<T, DockerError>> {
        tokio::time::timeout(self.timeout, call)
            .await
            .map_err(|_| Error::EngineUnavailable {
                message: format!("{}: no answer within {:?}", self.socket, self.timeout),
            })
    }

    /// Bounds the memory of a container's sockets where its own limit does not. A daemon that may not do so serves
    /// without: docs/security.md says what that means.
    async fn limit_socket_memory(&self, container_id: &str) {
        let inspected = self.docker.inspect_container(container_id, None);
        let Ok(Ok(container)) = self.answer(inspected).await else {
            return;
        };
        let pid = container.state.and_then(|state| state.pid).unwrap_or(0);
        let config = container.host_config.unwrap_or_default();
        let kind = config.runtime.as_deref().map(RuntimeKind::of);
        if !kind.is_none_or(RuntimeKind::shares_host_kernel) {
            // A sandbox has the sockets of its container in its own memory.
            return;
        }
        let memory = config.memory;
        let (Ok(pid), Ok(memory)) = (i32::try_from(pid), u64::try_from(memory.unwrap_or(0))) else {
            return;
        };
        if pid == 0 {
            // It has ended already, which its events say.
            return;
        }
        let id = container_id.to_owned();
        let limit = move || {
            cgroup::limit_socket_memory(&id, pid, memory).map_err(|source| Error::Io {
                operation: format!("limit the socket memory of container {id}"),
                source,
            })
        };
        let limited = tokio::time::timeout(self.timeout, self.tasks.blocking(limit));
        let limited = limited
            .await
            .unwrap_or_else(|_| Err(Error::Internal(format!("took over {:?}", self.timeout))));
        if let Err(error) = limited {
            tracing::warn!(
                container = container_id, error = %Chain(&error),
                "socket buffers of a container are not limited: run skilld as root, or use cgroup v2"
            );
        }
    }

    /// Waits until a container that someone else removes is gone.
    async fn wait_removed(&self, container_id: &str) -> Result<()> {
        let options = WaitContainerOptions {
            condition: "removed".to_owned(),
        };
        let mut ended = std::pin::pin!(self.docker.wait_container(container_id, Some(options)));
        // Whatever it says, an exit code or that there is no such container: it is gone then.
        match self.answer(async { Ok(ended.next().await) }).await? {
            Ok(Some(Err(error)))
                if !is_status(&error, 404)
                    && !matches!(error, DockerError::DockerContainerWaitError { .. }) =>
            {
                Err(to_error(&self.socket, "wait for container", &error))
            }
            Ok(_) => Ok(()),
            Err(error) => Err(to_error(&self.socket, "wait for container", &error)),
        }
    }
}

#[tonic::async_trait]
impl Engine for DockerEngine {
    async fn describe(&self) -> Result<EngineInfo> {
        let version = self.call("tell its version", self.docker.version()).await?;
        let info = self.call("describe itself", self.docker.info()).await?;
        Ok(engine_info(version, info))
    }

    async fn ping(&self) -> Result<()> {
        self.call("answer a ping", self.docker.ping())
            .await
            .map(drop)
    }

    async fn image(&self, reference: &str) -> Result<ImageInfo> {
        let unusable = |why: &str| Error::Image {
            image: reference.to_owned(),
            why: why.to_owned(),
        };
        let image = match self.answer(self.docker.inspect_image(reference)).await? {
            Ok(image) => image,
            Err(error) if is_status(&error, 404) => {
                return Err(unusable(
                    "Docker has no such image; run `make image`, or `docker pull` it",
                ));
            }
            Err(error) => return Err(to_error(&self.socket, "inspect image", &error)),
        };
        let volumes = image
            .config
            .and_then(|config| config.volumes)
            .unwrap_or_default();
        if !volumes.is_empty() {
            // Docker would make each a writable directory on the host that no limit covers.
            let paths = volumes.join(", ");
            return Err(unusable(&format!(
                "it declares VOLUME {paths}; build it without"
            )));
        }
        let id = image
            .id
            .ok_or_else(|| unusable("Docker told no id for it"))?;
        Ok(ImageInfo {
            reference: reference.to_owned(),
            id,
        })
    }

    async fn create(&self, spec: &ContainerSpec) -> Result<String> {
        let options = CreateContainerOptions {
            name: Some(spec.name.clone()),
            ..CreateContainerOptions::default()
        };
        let created = self
            .answer(
                self.docker
                    .create_container(Some(options), body(spec, &self.host)),
            )
            .await?;
        match created {
            Ok(created) => {
                for warning in &created.warnings {
                    tracing::debug!(container = %created.id, %warning, "docker warns about a container");
                }
                if let Err(error) = check_warnings(&created.warnings) {
                    if let Err(error) = self.remove(&created.id).await {
                        tracing::warn!(container = %created.id, %error, "container without its limits was not removed");
                    }
                    return Err(error);
                }
                Ok(created.id)
            }
            Err(error) if is_status(&error, 404) => Err(Error::Image {
                image: spec.image_id.clone(),
                why: "Docker has no such image any more; run `make image` and restart skilld"
                    .to_owned(),
            }),
            Err(error) => Err(to_error(&self.socket, "create container", &error)),
        }
    }

    async fn start(&self, container_id: &str) -> Result<()> {
        self.call(
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
            .answer(self.docker.inspect_container(container_id, None))
            .await?
        {
            Ok(container) => container,
            Err(error) if is_status(&error, 404) => return Ok(None),
            Err(error) => return Err(to_error(&self.socket, "inspect container", &error)),
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
            .answer(self.docker.remove_container(container_id, Some(options)))
            .await?;
        match removed {
            Ok(()) => Ok(()),
            Err(error) if is_status(&error, 404) => Ok(()),
            Err(error) if is_status(&error, 409) => self.wait_removed(container_id).await,
            Err(error) => Err(to_error(&self.socket, "remove container", &error)),
        }
    }

    async fn list(&self, instance: Option<&str>) -> Result<Vec<ContainerSummary>> {
        let options = ListContainersOptions {
            all: true,
            filters: Some(HashMap::from([(
                "label".to_owned(),
                vec![instance_label(instance)],
            )])),
            ..ListContainersOptions::default()
        };
        let containers = self
            .call(
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
        // Docker subscribes a moment after it answered. With a start time it replays what happened in between.
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        self.ping().await?;
        let filters = HashMap::from([
            ("type".to_owned(), vec!["container".to_owned()]),
            ("label".to_owned(), vec![instance_label(Some(instance))]),
            (
                "event".to_owned(),
                ["die", "destroy", "oom", "pause", "unpause"]
                    .map(str::to_owned)
                    .to_vec(),
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
                Ok(event) => container_event(event).map(Ok),
                Err(error) => Some(Err(to_error(&socket, "tell events", &error))),
            };
            futures::future::ready(event)
        });
        let end = Error::EngineUnavailable {
            message: format!("{}: the event stream ended", self.socket),
        };
        Ok(events.chain(stream::once(async { Err(end) })).boxed())
    }
}

#[cfg(test)]
mod tests;
