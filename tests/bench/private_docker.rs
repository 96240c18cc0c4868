//! A Docker daemon of our own with the storage driver overlay2, for machines whose Docker uses another one. It starts
//! its own containerd and shares nothing with the host's Docker but the kernel.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use bollard::{API_DEFAULT_VERSION, Docker};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use skilld_tests::wait;
use tempfile::TempDir;
use tokio::process::{Child, Command};

/// Time within which dockerd has to serve, and to end.
const DOCKERD_TIMEOUT: Duration = Duration::from_secs(60);

/// A running dockerd with its directories. [`PrivateDocker::stop`] removes all of it.
#[derive(Debug)]
pub(crate) struct PrivateDocker {
    dockerd: Child,
    directory: TempDir,
}

impl PrivateDocker {
    /// Starts dockerd and loads images of the host's Docker into it. Needs root and a file system on which overlay2
    /// works.
    pub(crate) async fn start(images: &[&str]) -> Result<Self> {
        let directory = tempfile::Builder::new().prefix("skb").tempdir()?;
        let path = |name: &str| directory.path().join(name);
        std::fs::write(path("config.json"), "{}")?;
        let log = std::fs::File::create(path("log"))?;
        let dockerd = Command::new("dockerd")
            .arg("--config-file")
            .arg(path("config.json"))
            .arg("--data-root")
            .arg(path("data"))
            .arg("--exec-root")
            .arg(path("exec"))
            .arg("--pidfile")
            .arg(path("pid"))
            .arg("-H")
            .arg(host_of(directory.path()))
            .args(["--storage-driver", "overlay2", "--bridge", "none"])
            .arg("--iptables=false")
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            // Ctrl-C is for the bench, which then stops dockerd in its own time.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .context("start dockerd")?;
        let mut docker = Self { dockerd, directory };
        match docker.prepare(images).await {
            Ok(()) => Ok(docker),
            Err(error) => {
                let log = std::fs::read_to_string(docker.directory.path().join("log"));
                let log = log.unwrap_or_default();
                let tail: Vec<&str> = log.lines().rev().take(5).collect();
                docker.stop().await?;
                Err(error.context(format!("dockerd with overlay2: {}", tail.join("\n"))))
            }
        }
    }

    async fn prepare(&mut self, images: &[&str]) -> Result<()> {
        let socket = self.directory.path().join("docker.sock");
        let socket = socket.to_str().context("a path that is not text")?;
        let engine = wait::until("dockerd serves", DOCKERD_TIMEOUT, async || {
            if let Some(status) = self.dockerd.try_wait()? {
                bail!("dockerd ended with {status}");
            }
            // bollard refuses a socket that does not exist yet.
            let Ok(engine) = Docker::connect_with_unix(socket, 120, API_DEFAULT_VERSION) else {
                return Ok(None);
            };
            Ok(engine.ping().await.ok().map(|_| engine))
        })
        .await?;
        let driver = engine.info().await?.driver;
        ensure!(
            driver.as_deref() == Some("overlay2"),
            "the storage driver is {driver:?}"
        );
        let script = r#"set -o pipefail; docker save "$1" | docker --host "$2" load"#;
        for image in images {
            let output = Command::new("bash")
                .args(["-c", script, "-", image, &self.host()])
                .output()
                .await?;
            ensure!(
                output.status.success(),
                "load {image}: {}",
                String::from_utf8_lossy(&output.stderr)
            );
        }
        Ok(())
    }

    /// Returns the value of `DOCKER_HOST` that names this daemon.
    pub(crate) fn host(&self) -> String {
        host_of(self.directory.path())
    }

    /// Stops dockerd, which stops its containers, and removes its directories.
    pub(crate) async fn stop(mut self) -> Result<()> {
        if let Some(pid) = self.dockerd.id() {
            kill(Pid::from_raw(i32::try_from(pid)?), Signal::SIGTERM)?;
        }
        if tokio::time::timeout(DOCKERD_TIMEOUT, self.dockerd.wait())
            .await
            .is_err()
        {
            self.dockerd.kill().await?;
        }
        for mount in mounts_beneath(self.directory.path())? {
            let status = Command::new("umount").arg("--lazy").arg(&mount).status();
            ensure!(status.await?.success(), "umount {}", mount.display());
        }
        self.directory.close().context("remove dockerd's directory")
    }
}

fn host_of(directory: &Path) -> String {
    format!("unix://{}/docker.sock", directory.display())
}

/// Returns the mount points beneath a directory, the deepest first.
fn mounts_beneath(directory: &Path) -> Result<Vec<PathBuf>> {
    let text = std::fs::read_to_string("/proc/self/mounts")?;
    let points = text.lines().filter_map(|line| line.split(' ').nth(1));
    let mut mounts: Vec<PathBuf> = points
        .map(PathBuf::from)
        .filter(|point| point.starts_with(directory))
        .collect();
    mounts.sort();
    mounts.reverse();
    Ok(mounts)
}
