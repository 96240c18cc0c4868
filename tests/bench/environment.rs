//! The machine that figures were taken on. A figure without it is worth nothing.

use std::fmt::Write;
use std::process::Command;

use anyhow::{Context, Result};
use skilld_bench::results;
use skilld_tests::docker;

/// The host, its Docker, and the measured version.
#[derive(Debug)]
pub(crate) struct Environment {
    /// Start of the run, UTC.
    pub(crate) time: String,
    /// Storage driver of the Docker that is used.
    pub(crate) storage_driver: String,
    facts: Vec<(&'static str, String)>,
}

impl Environment {
    /// Reads the facts from the kernel, Docker and git.
    pub(crate) async fn probe() -> Result<Self> {
        let docker = docker::connect()?;
        let version = docker.version().await.context("ask Docker its version")?;
        let info = docker.info().await.context("ask Docker about itself")?;
        let cgroup = info.cgroup_version.map(|version| version.to_string());
        let cores = std::thread::available_parallelism()?.get().to_string();
        let storage_driver = info.driver.unwrap_or_default();
        let commit = format!(
            "{} {}",
            env!("CARGO_PKG_VERSION"),
            results::current_commit()
        );
        let facts = vec![
            ("skilld", commit),
            ("CPU", read_field("/proc/cpuinfo", "model name")?),
            ("cores", cores),
            ("memory", read_field("/proc/meminfo", "MemTotal")?),
            ("kernel", read_text("/proc/sys/kernel/osrelease")?),
            ("Docker", version.version.unwrap_or_default()),
            ("OCI runtime", info.default_runtime.unwrap_or_default()),
            ("storage driver", storage_driver.clone()),
            ("file system of TMPDIR", temporary_file_system()?),
            ("cgroup version", cgroup.unwrap_or_default()),
            ("load average at start", read_text("/proc/loadavg")?),
        ];
        Ok(Self {
            time: results::time_now(),
            storage_driver,
            facts,
        })
    }

    /// Returns the facts as one line.
    pub(crate) fn text(&self) -> String {
        let facts: Vec<_> = self
            .facts
            .iter()
            .map(|(name, value)| format!("{name}: {value}"))
            .collect();
        format!("{} UTC\n{}", self.time, facts.join(" · "))
    }

    /// Returns the facts as a list.
    pub(crate) fn markdown(&self) -> String {
        let mut text = String::new();
        for (name, value) in &self.facts {
            // Writing to a String does not fail.
            let _ = writeln!(text, "* {name}: {value}");
        }
        text
    }
}

/// Returns the type of the file system on which daemons of the benchmark keep their state. Ext4 without a journal makes
/// files slowly.
fn temporary_file_system() -> Result<String> {
    let mut findmnt = Command::new("findmnt");
    findmnt.args(["--noheadings", "--output", "FSTYPE,MAJ:MIN", "--target"]);
    let found = findmnt.arg(std::env::temp_dir()).output();
    let found = String::from_utf8(found.context("run findmnt")?.stdout)?;
    let (kind, number) = found.trim().split_once(' ').unwrap_or((found.trim(), ""));
    let device = std::fs::read_link(format!("/sys/dev/block/{}", number.trim()));
    let has_journal = match (device, std::fs::read_dir("/proc/fs/jbd2")) {
        (Ok(device), Ok(mut journals)) => {
            let name = device.file_name().unwrap_or_default().to_string_lossy();
            let own = format!("{name}-");
            journals.any(|it| it.is_ok_and(|it| it.file_name().to_string_lossy().starts_with(&own)))
        }
        // Not known.
        _ => true,
    };
    Ok(match (kind, has_journal) {
        ("ext4", false) => "ext4 without a journal".to_owned(),
        _ => kind.to_owned(),
    })
}

fn read_text(path: &str) -> Result<String> {
    let text = std::fs::read_to_string(path).with_context(|| format!("read {path}"))?;
    Ok(text.trim().to_owned())
}

fn read_field(path: &str, name: &str) -> Result<String> {
    let text = read_text(path)?;
    let line = text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then(|| value.trim().to_owned())
    });
    Ok(line.unwrap_or_else(|| "unknown".to_owned()))
}
