//! References of the comparison: Docker through its Engine API, with the same image and limits, and processes of the host.
//! Containers carry labels and are removed at the end, also after a failure.

use std::collections::HashMap;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use bollard::Docker;
use bollard::exec::{CreateExecOptions, StartExecResults};
use bollard::models::{ContainerCreateBody, HostConfig};
use bollard::query_parameters::{
    DownloadFromContainerOptionsBuilder, ListContainersOptionsBuilder,
    UploadToContainerOptionsBuilder,
};
use bytes::Bytes;
use futures::{StreamExt, pin_mut};
use skilld_tests::docker;
use tokio::io::AsyncReadExt;
use tokio::process::Command;

pub(crate) const IMAGE: &str = "skilld/base:latest";
const LABEL: &str = "io.skilld.test";
/// Label that tells this run from another one on the same host.
const LABEL_RUN: &str = "io.skilld.bench";
/// Maximum number of bytes of one read from a pipe.
const BUFFER_BYTES: usize = 256 * 1024;

/// Limits of a container, as a pool has them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ContainerLimits {
    pub(crate) memory_bytes: i64,
    pub(crate) cpus: usize,
}

/// Docker as the reference of a comparison.
#[derive(Debug, Clone)]
pub(crate) struct DockerReference {
    docker: Docker,
    run: String,
}

impl DockerReference {
    pub(crate) fn new() -> Result<Self> {
        Ok(Self {
            docker: docker::connect()?,
            run: std::process::id().to_string(),
        })
    }

    /// Creates and starts a container that does nothing. Its root can be written, since Docker's archive API can
    /// write nowhere else.
    pub(crate) async fn create_container(&self, limits: ContainerLimits) -> Result<String> {
        let labels = [(LABEL, "bench"), (LABEL_RUN, self.run.as_str())]
            .map(|(name, value)| (name.to_owned(), value.to_owned()));
        let body = ContainerCreateBody {
            image: Some(IMAGE.to_owned()),
            entrypoint: Some(vec!["sleep".to_owned(), "infinity".to_owned()]),
            user: Some("65534:65534".to_owned()),
            labels: Some(HashMap::from(labels)),
            host_config: Some(HostConfig {
                cap_drop: Some(vec!["ALL".to_owned()]),
                security_opt: Some(vec!["no-new-privileges:true".to_owned()]),
                network_mode: Some("none".to_owned()),
                memory: Some(limits.memory_bytes),
                memory_swap: Some(limits.memory_bytes),
                nano_cpus: Some(i64::try_from(limits.cpus)? * 1_000_000_000),
                pids_limit: Some(512),
                ..HostConfig::default()
            }),
            ..ContainerCreateBody::default()
        };
        let created = self.docker.create_container(None, body).await;
        let id = created.context("create a container to compare with")?.id;
        self.docker.start_container(&id, None).await?;
        Ok(id)
    }

    /// Runs a command in a new container, to its end, as a user does with `docker run --rm`.
    pub(crate) async fn run_once(
        &self,
        image: &str,
        limits: ContainerLimits,
        command: &[&str],
    ) -> Result<()> {
        let label = format!("{LABEL_RUN}={}", self.run);
        let test_label = format!("{LABEL}=bench");
        let memory = limits.memory_bytes.to_string();
        let cpus = limits.cpus.to_string();
        let mut docker_run = vec!["docker", "run", "--rm", "--network", "none"];
        docker_run.extend(["--label", &label, "--label", &test_label]);
        docker_run.extend(["--memory", &memory, "--cpus", &cpus, image]);
        docker_run.extend(command);
        spawn_local(&docker_run).await.map(drop)
    }

    /// Runs a command to the end of its output, and returns the number of bytes and the time of the first one.
    pub(crate) async fn exec(
        &self,
        container: &str,
        argv: &[&str],
    ) -> Result<(u64, Option<Duration>)> {
        let (_, bytes, first) = self.exec_with_id(container, argv).await?;
        Ok((bytes, first))
    }

    /// Runs a command as [`DockerReference::exec`] does, and returns the id of the exec as well.
    pub(crate) async fn exec_with_id(
        &self,
        container: &str,
        argv: &[&str],
    ) -> Result<(String, u64, Option<Duration>)> {
        let started = Instant::now();
        let options = CreateExecOptions {
            attach_stdout: Some(true),
            attach_stderr: Some(true),
            cmd: Some(argv.to_vec()),
            ..CreateExecOptions::default()
        };
        let exec = self.docker.create_exec(container, options).await?.id;
        let StartExecResults::Attached { mut output, .. } =
            self.docker.start_exec(&exec, None).await?
        else {
            bail!("Docker did not attach");
        };
        let (mut bytes, mut first) = (0, None);
        while let Some(chunk) = output.next().await {
            first.get_or_insert(started.elapsed());
            bytes += u64::try_from(chunk?.into_bytes().len())?;
        }
        Ok((exec, bytes, first))
    }

    /// Checks that an exec has ended with 0.
    pub(crate) async fn check_success(&self, exec: &str) -> Result<()> {
        let code = self.docker.inspect_exec(exec).await?.exit_code;
        ensure!(
            code == Some(0),
            "a command of the reference ended with {code:?}"
        );
        Ok(())
    }

    /// Unpacks a tar in a directory.
    pub(crate) async fn upload(&self, container: &str, directory: &str, tar: Bytes) -> Result<()> {
        let options = UploadToContainerOptionsBuilder::default()
            .path(directory)
            .build();
        let body = bollard::body_full(tar);
        let put = self
            .docker
            .upload_to_container(container, Some(options), body);
        put.await.context("put an archive by Docker's API")
    }

    /// Downloads a path as a tar, and returns the number of bytes.
    pub(crate) async fn download(&self, container: &str, path: &str) -> Result<u64> {
        let options = DownloadFromContainerOptionsBuilder::default()
            .path(path)
            .build();
        let stream = self
            .docker
            .download_from_container(container, Some(options));
        pin_mut!(stream);
        let mut bytes = 0;
        while let Some(chunk) = stream.next().await {
            bytes += u64::try_from(chunk?.len())?;
        }
        Ok(bytes)
    }

    pub(crate) async fn remove_container(&self, container: &str) -> Result<()> {
        docker::remove(container).await
    }

    /// Removes every container of this run.
    pub(crate) async fn remove_all(&self) -> Result<()> {
        let label = format!("{LABEL_RUN}={}", self.run);
        let filters = HashMap::from([("label", vec![label.as_str()])]);
        let options = ListContainersOptionsBuilder::default()
            .all(true)
            .filters(&filters)
            .build();
        for container in self.docker.list_containers(Some(options)).await? {
            docker::remove(&container.id.unwrap_or_default()).await?;
        }
        Ok(())
    }
}

/// Runs a command of the host, which has to succeed, and returns the number of bytes that it printed.
pub(crate) async fn spawn_local(argv: &[&str]) -> Result<u64> {
    let (program, args) = argv.split_first().context("nothing to run")?;
    let mut child = Command::new(program)
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .with_context(|| format!("run {program}"))?;
    let mut stdout = child.stdout.take().context("no stdout")?;
    let mut stderr = child.stderr.take().context("no stderr")?;
    let (bytes, errors, status) = tokio::join!(
        drain(&mut stdout),
        async {
            let mut text = String::new();
            stderr.read_to_string(&mut text).await.map(|_| text)
        },
        child.wait()
    );
    ensure!(status?.success(), "{program} failed: {}", errors?);
    bytes
}

async fn drain(pipe: &mut (impl AsyncReadExt + Unpin)) -> Result<u64> {
    let mut buffer = Vec::with_capacity(BUFFER_BYTES);
    let mut bytes = 0;
    loop {
        buffer.clear();
        match pipe.read_buf(&mut buffer).await? {
            0 => return Ok(bytes),
            count => bytes += u64::try_from(count)?,
        }
    }
}
