//! Memory and descriptors of a process, and the other processes of its container, as the kernel reports them.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::{Daemon, docker};

/// Returns the host's process id of a workspace's guest, the first process of its container.
///
/// # Errors
/// When the container does not run.
pub async fn guest(daemon: &Daemon, workspace: &str) -> Result<u32> {
    let pid = docker::pid(&daemon.container(workspace)?).await?;
    Ok(u32::try_from(pid.context("the container does not run")?)?)
}

/// Returns the resident bytes of a process.
///
/// # Errors
/// When it has ended.
pub fn resident(pid: u32) -> Result<u64> {
    status(pid, "VmRSS")
}

/// Returns the resident bytes of a process without pages of files, which come and go with the host's page cache.
///
/// # Errors
/// When it has ended.
pub fn anonymous(pid: u32) -> Result<u64> {
    status(pid, "RssAnon")
}

/// Returns the largest resident bytes of a process since [`forget_peak`].
///
/// # Errors
/// When it has ended.
pub fn peak(pid: u32) -> Result<u64> {
    status(pid, "VmHWM")
}

/// Resets [`peak`] to the bytes that are resident now, and returns them.
///
/// # Errors
/// When it has ended, or belongs to another user.
pub fn forget_peak(pid: u32) -> Result<u64> {
    fs::write(format!("/proc/{pid}/clear_refs"), "5")?;
    resident(pid)
}

/// Returns the bytes of files that the kernel keeps in memory and counts for the cgroup of a process. A page that several
/// cgroups read counts for the first of them only.
///
/// # Errors
/// When the process has ended, or its cgroup is not mounted where systems mount it.
pub fn page_cache(pid: u32) -> Result<u64> {
    let path = format!("/proc/{pid}/cgroup");
    let text = fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
    let cgroup = |wanted: &str| {
        text.lines().find_map(|line| {
            let (_, rest) = line.split_once(':')?;
            let (controllers, cgroup) = rest.split_once(':')?;
            let is_wanted = controllers.split(',').any(|name| name == wanted);
            is_wanted.then_some(cgroup)
        })
    };
    // Version 1 has a hierarchy for memory; in version 2 the only one has no name.
    let (path, field) = match cgroup("memory") {
        Some(cgroup) => (
            format!("/sys/fs/cgroup/memory{cgroup}/memory.stat"),
            "cache",
        ),
        None => {
            let cgroup = cgroup("").context("a process without a cgroup")?;
            (format!("/sys/fs/cgroup{cgroup}/memory.stat"), "file")
        }
    };
    let text = fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
    let bytes = text.lines().find_map(|line| {
        let (name, value) = line.split_once(' ')?;
        (name == field).then(|| value.parse().ok())?
    });
    bytes.with_context(|| format!("{path} has no {field}"))
}

fn status(pid: u32, field: &str) -> Result<u64> {
    let path = format!("/proc/{pid}/status");
    let text = fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
    let kib = text.lines().find_map(|line| {
        let (name, rest) = line.split_once(':')?;
        let value = rest.trim().strip_suffix(" kB")?;
        (name == field).then(|| value.parse::<u64>().ok())?
    });
    Ok(kib.with_context(|| format!("{path} has no {field}"))? * 1024)
}

/// Returns the number of open descriptors of a process.
///
/// # Errors
/// When it has ended, or belongs to another user.
pub fn descriptors(pid: u32) -> Result<usize> {
    let path = format!("/proc/{pid}/fd");
    let entries = fs::read_dir(&path).with_context(|| format!("read {path}"))?;
    Ok(entries.count())
}

/// Process in a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerProcess {
    /// Process id on the host.
    pub pid: u32,
    /// Program name that the kernel keeps, at most 15 bytes.
    pub name: String,
    /// State as `/proc/PID/stat` shows it; `Z` is a zombie.
    pub state: char,
}

/// Returns all processes that share a process's pid namespace, itself included, in no order.
///
/// # Errors
/// When it has ended.
pub fn list_container_processes(pid: u32) -> Result<Vec<ContainerProcess>> {
    let namespace = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/pid"));
    let wanted: PathBuf = namespace(&pid.to_string()).context("its pid namespace")?;
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let name = entry?.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        // The kernel shows no namespace of a zombie, so its parent's counts.
        let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else {
            continue;
        };
        let Some(inmate) = parse(pid, &stat) else {
            continue;
        };
        found.push((inmate, parent(&stat)));
    }
    let inside = |pid: u32| namespace(&pid.to_string()).is_ok_and(|found| found == wanted);
    let here = |(inmate, parent): &(ContainerProcess, u32)| {
        inside(inmate.pid) || (inmate.state == 'Z' && inside(*parent))
    };
    Ok(found
        .into_iter()
        .filter(here)
        .map(|(inmate, _)| inmate)
        .collect())
}

/// Parses `pid (name) state parent …`, where the name may hold any character.
fn parse(pid: u32, stat: &str) -> Option<ContainerProcess> {
    let (head, rest) = stat.rsplit_once(") ")?;
    let (_, name) = head.split_once(" (")?;
    let state = rest.chars().next()?;
    Some(ContainerProcess {
        pid,
        name: name.to_owned(),
        state,
    })
}

fn parent(stat: &str) -> u32 {
    let rest = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
    let parent = rest
        .split(' ')
        .nth(1)
        .and_then(|parent| parent.parse().ok());
    parent.unwrap_or(0)
}
