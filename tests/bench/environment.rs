//! What the figures were taken on. A figure without it is worth nothing.

use std::fmt::Write;
use std::process::Command;
use std::time::SystemTime;

use anyhow::{Context, Result};
use skilld_tests::{binaries, docker};

/// The host, its Docker, and what was measured.
#[derive(Debug)]
pub(crate) struct Environment {
    /// Start of the run, UTC.
    pub(crate) time: String,
    facts: Vec<(&'static str, String)>,
}

impl Environment {
    pub(crate) async fn read() -> Result<Self> {
        let docker = docker::connect()?;
        let version = docker.version().await.context("ask Docker its version")?;
        let info = docker.info().await.context("ask Docker about itself")?;
        let cgroup = info.cgroup_version.map(|version| version.to_string());
        let facts = vec![
            ("skilld", commit()),
            ("CPU", field("/proc/cpuinfo", "model name")?),
            (
                "cores",
                std::thread::available_parallelism()?.get().to_string(),
            ),
            ("memory", field("/proc/meminfo", "MemTotal")?),
            ("kernel", read("/proc/sys/kernel/osrelease")?),
            ("Docker", version.version.unwrap_or_default()),
            (
                "OCI runtime",
                info.default_runtime.clone().unwrap_or_default(),
            ),
            ("storage driver", info.driver.unwrap_or_default()),
            ("cgroup version", cgroup.unwrap_or_default()),
            ("load average at start", read("/proc/loadavg")?),
        ];
        let now = prost_types::Timestamp::from(SystemTime::now()).to_string();
        let time = now.split('.').next().unwrap_or_default().replace('T', " ");
        let time = format!("{} UTC", time.trim_end_matches('Z'));
        Ok(Self { time, facts })
    }

    /// One line.
    pub(crate) fn text(&self) -> String {
        let facts = self
            .facts
            .iter()
            .map(|(name, value)| format!("{name}: {value}"));
        format!("{}\n{}", self.time, facts.collect::<Vec<_>>().join(" · "))
    }

    /// A list.
    pub(crate) fn markdown(&self) -> String {
        let mut text = String::new();
        for (name, value) in &self.facts {
            // Writing to a String does not fail.
            let _ = writeln!(text, "* {name}: {value}");
        }
        text
    }
}

fn commit() -> String {
    let described = Command::new("git")
        .arg("-C")
        .arg(binaries::repository())
        .args(["describe", "--always", "--dirty"])
        .output();
    let commit = described.map_or_else(
        |_no_git| String::new(),
        |output| String::from_utf8_lossy(&output.stdout).trim().to_owned(),
    );
    format!("{} {commit}", env!("CARGO_PKG_VERSION"))
}

fn read(path: &str) -> Result<String> {
    let text = std::fs::read_to_string(path).with_context(|| format!("read {path}"))?;
    Ok(text.trim().to_owned())
}

fn field(path: &str, name: &str) -> Result<String> {
    let text = read(path)?;
    let line = text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then(|| value.trim().to_owned())
    });
    Ok(line.unwrap_or_else(|| "unknown".to_owned()))
}
