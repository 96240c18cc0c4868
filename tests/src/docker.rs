//! Calls to Docker that tests make: containers by label, and what an operator might do to them.

use std::collections::HashMap;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use bollard::Docker;
use bollard::models::{ContainerCreateBody, HostConfig};
use bollard::query_parameters::{
    CreateContainerOptions, ListVolumesOptionsBuilder, RemoveContainerOptionsBuilder,
};

use crate::test_image::TEST_LABEL;

/// Label with the id of the daemon instance that owns a container.
pub const LABEL_INSTANCE: &str = "io.skilld.instance";

/// Image of the default pool.
pub const BASE_IMAGE: &str = "skilld/base:latest";

/// Image of skills for documents, data and media.
pub const OFFICE_IMAGE: &str = "skilld/office:latest";

/// Image of skills that use a browser.
pub const WEB_IMAGE: &str = "skilld/web:latest";

/// Connects to the local engine.
///
/// # Errors
/// When Docker does not answer.
pub fn connect() -> Result<Docker> {
    Docker::connect_with_defaults().context("connect to Docker")
}

/// Returns the name of the engine of the tests, as skilld reports it: `docker` or `podman`.
///
/// # Errors
/// When the engine does not answer.
pub async fn engine_name() -> Result<&'static str> {
    let components = connect()?.version().await?.components.unwrap_or_default();
    let is_podman = components
        .iter()
        .any(|component| component.name == "Podman Engine");
    Ok(if is_podman { "podman" } else { "docker" })
}

/// Returns `true` if the engine has an image of this name.
///
/// # Errors
/// When Docker does not answer.
pub async fn has_image(name: &str) -> Result<bool> {
    use bollard::errors::Error::DockerResponseServerError;
    match connect()?.inspect_image(name).await {
        Ok(_) => Ok(true),
        Err(DockerResponseServerError {
            status_code: 404, ..
        }) => Ok(false),
        Err(error) => Err(error).with_context(|| format!("ask Docker for the image {name}")),
    }
}

/// Returns the ids of the containers of one daemon instance, stopped ones included.
///
/// # Errors
/// When Docker does not answer.
pub async fn containers(instance: &str) -> Result<Vec<String>> {
    list_containers(&[
        "--all",
        &format!("--filter=label={LABEL_INSTANCE}={instance}"),
    ])
    .await
}

/// Returns the ids of containers. The client library knows no container in the state `stopped`, which Podman has.
async fn list_containers(options: &[&str]) -> Result<Vec<String>> {
    let listed = tokio::process::Command::new("docker")
        .args(["ps", "--quiet", "--no-trunc"])
        .args(options)
        .output()
        .await?;
    ensure!(listed.status.success(), "{listed:?}");
    let ids = String::from_utf8(listed.stdout)?;
    Ok(ids.lines().map(str::to_owned).collect())
}

/// Returns the names of the volumes of one daemon instance.
///
/// # Errors
/// When Docker does not answer.
pub async fn volumes(instance: &str) -> Result<Vec<String>> {
    let label = format!("{LABEL_INSTANCE}={instance}");
    let filters = HashMap::from([("label", vec![label.as_str()])]);
    let options = ListVolumesOptionsBuilder::default()
        .filters(&filters)
        .build();
    let list = connect()?.list_volumes(Some(options)).await?;
    let volumes = list.volumes.unwrap_or_default();
    Ok(volumes.into_iter().map(|volume| volume.name).collect())
}

/// Returns the paths on this host at which volumes with this file system are mounted for a container.
///
/// # Errors
/// When Docker does not answer, or there is no such container.
pub async fn mounted_volumes(id: &str, file_system: &str) -> Result<Vec<PathBuf>> {
    let found = connect()?.inspect_container(id, None).await?;
    let mounts = found.mounts.unwrap_or_default().into_iter();
    let sources: Vec<PathBuf> = mounts
        .filter(|mount| mount.typ.as_deref() == Some("volume"))
        .filter_map(|mount| mount.source.map(PathBuf::from))
        .collect();
    let mounted = std::fs::read_to_string("/proc/self/mounts")?;
    let is_wanted = |source: &PathBuf| {
        let fields = format!(" {} {file_system} ", source.display());
        mounted.contains(&fields)
    };
    Ok(sources.into_iter().filter(is_wanted).collect())
}

/// Removes a container by force, as an operator might, behind the daemon's back. Its anonymous volumes stay.
///
/// # Errors
/// When Docker refuses.
pub async fn remove(id: &str) -> Result<()> {
    let options = RemoveContainerOptionsBuilder::default().force(true).build();
    Ok(connect()?.remove_container(id, Some(options)).await?)
}

/// Pauses a container, as an operator might, behind the daemon's back.
///
/// # Errors
/// When Docker refuses.
pub async fn pause(id: &str) -> Result<()> {
    Ok(connect()?.pause_container(id).await?)
}

/// Resumes a paused container.
///
/// # Errors
/// When Docker refuses.
pub async fn unpause(id: &str) -> Result<()> {
    Ok(connect()?.unpause_container(id).await?)
}

/// Returns the host's process id of a container's first process; `None` if the container does not run.
///
/// # Errors
/// When Docker does not answer, or there is no such container.
pub async fn pid(id: &str) -> Result<Option<i32>> {
    let container = connect()?.inspect_container(id, None).await?;
    let pid = container.state.and_then(|state| state.pid).unwrap_or(0);
    Ok(i32::try_from(pid).ok().filter(|pid| *pid > 0))
}

/// Container that sleeps and that no daemon made. Dropping the value removes it.
#[derive(Debug)]
pub struct Sleeper {
    /// Id of the container.
    pub id: String,
}

impl Sleeper {
    /// Starts a container with these labels and the label of tests.
    ///
    /// # Errors
    /// When Docker refuses.
    pub async fn start(labels: &[(&str, &str)]) -> Result<Self> {
        let body = ContainerCreateBody {
            image: Some(BASE_IMAGE.to_owned()),
            entrypoint: Some(vec!["sleep".to_owned(), "infinity".to_owned()]),
            labels: Some(
                labels
                    .iter()
                    .chain(&[(TEST_LABEL, "sleeper")])
                    .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
                    .collect(),
            ),
            host_config: Some(HostConfig {
                network_mode: Some("none".to_owned()),
                ..HostConfig::default()
            }),
            ..ContainerCreateBody::default()
        };
        let docker = connect()?;
        let id = docker
            .create_container(None::<CreateContainerOptions>, body)
            .await?
            .id;
        let sleeper = Self { id };
        docker.start_container(&sleeper.id, None).await?;
        Ok(sleeper)
    }

    /// Returns `true` if the container exists and runs.
    ///
    /// # Errors
    /// When Docker does not answer.
    pub async fn runs(&self) -> Result<bool> {
        let running = list_containers(&["--filter=status=running"]).await?;
        Ok(running.contains(&self.id))
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        let remove = ["rm", "-fv", &self.id];
        drop(std::process::Command::new("docker").args(remove).output());
    }
}
