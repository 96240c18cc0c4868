//! A Docker daemon of our own with the storage driver overlay2, for machines whose Docker uses another one. It starts
//! its own containerd and shares nothing with the host's Docker but the kernel.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use bollard::{API_DEFAULT_VERSION, Docker};
use skilld_tests::binaries;
use tempfile::TempDir;
use tokio::process::Command;

/// A running dockerd with its directories. [`PrivateDocker::stop`] removes all of it.
#[derive(Debug)]
pub(crate) struct PrivateDocker {
    directory: TempDir,
}

impl PrivateDocker {
    /// Starts dockerd and loads images of the host's Docker into it. Needs root and a file system on which overlay2
    /// works.
    pub(crate) async fn start(images: &[&str]) -> Result<Self> {
        let docker = Self {
            directory: tempfile::Builder::new().prefix("skb").tempdir()?,
        };
        let settings = r#"{"storage-driver": "overlay2"}"#;
        std::fs::write(docker.directory.path().join("config.json"), settings)?;
        docker.run_script("start").await?;
        match docker.prepare(images).await {
            Ok(()) => Ok(docker),
            Err(error) => {
                docker.stop().await?;
                Err(error.context("dockerd with overlay2"))
            }
        }
    }

    /// Runs tests/engine.sh, which owns how an engine starts and ends.
    async fn run_script(&self, action: &str) -> Result<()> {
        let output = Command::new(binaries::repository().join("tests/engine.sh"))
            .arg(action)
            .arg(self.directory.path())
            .output()
            .await?;
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "engine.sh {action}: {errors}");
        Ok(())
    }

    async fn prepare(&self, images: &[&str]) -> Result<()> {
        let path = self.directory.path().join("docker.sock");
        let socket = path.to_str().context("a path that is not text")?;
        let engine = Docker::connect_with_unix(socket, 120, API_DEFAULT_VERSION)?;
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
    pub(crate) async fn stop(self) -> Result<()> {
        self.run_script("stop").await?;
        self.directory.close().context("remove dockerd's directory")
    }
}

fn host_of(directory: &Path) -> String {
    format!("unix://{}/docker.sock", directory.display())
}
