//! What an operator should look at of slots and of the state directory, found out when it is asked for.

use std::io::Write;
use std::path::Path;
use std::time::SystemTime;

use crate::error::{Error, HostFault};
use crate::workspace::lease::from_unix_ms;
use crate::workspace::record::Phase;
use crate::workspace::registry::Registry;
use crate::workspace::slot;
use crate::workspace::state::State;

/// Bytes that must fit on the state disk: the record of a claim, what its commands see of it, and some.
const PROBE_BYTES: usize = 64 << 10;

/// Something that an operator should look at.
#[derive(Debug, Clone)]
pub struct HostProblem {
    /// Stable, for programs.
    pub code: &'static str,
    /// Name of the container or path of the directory.
    pub subject: String,
    /// What is wrong and what to do.
    pub message: String,
    /// When it began, or when it was found.
    pub time: SystemTime,
}

/// Quarantined containers, and a state directory that cannot be written.
pub async fn find_all(registry: &Registry) -> Vec<HostProblem> {
    let mut problems = quarantined(registry);
    let context = registry.context();
    let dir = context.config.state_dir.clone();
    // A probe that could not be made says nothing.
    let found = context.tasks.blocking(move || Ok(probe(&dir))).await;
    problems.extend(found.ok().flatten());
    problems
}

/// Containers that the engine could not remove in time: those of quarantined slots and of failed workspaces.
pub fn quarantined(registry: &Registry) -> Vec<HostProblem> {
    let context = registry.context();
    let limit = context.config.engine.remove_timeout;
    let mut problems = Vec::new();
    for slot in registry.slots() {
        let view = slot.view();
        let time = if let (State::Quarantined, Phase::Quarantined { time_ms }) =
            (view.state, view.record.phase)
        {
            from_unix_ms(time_ms)
        } else if let Some(time) = view.removal_overdue {
            time
        } else {
            continue;
        };
        let (number, uid) = (slot.number(), view.record.uid);
        let name = slot::container_name(context, number);
        let message = format!(
            "Docker did not remove {name} within {limit:?}: slot {number} and uid {uid} are not used again before it is gone, \
             and it counts in its pool's `max`; skilld goes on trying; if `docker rm -f {name}` hangs as well, restart \
             Docker, or the host"
        );
        problems.push(HostProblem {
            code: "container.quarantined",
            subject: name,
            message,
            time,
        });
    }
    problems
}

/// Writes beneath the state directory, and removes it again. Blocks.
fn probe(state_dir: &Path) -> Option<HostProblem> {
    let write = || {
        let mut file = tempfile::tempfile_in(state_dir)?;
        file.write_all(&[0; PROBE_BYTES])
    };
    let source = write().err()?;
    let code = match HostFault::of(&source) {
        Some(HostFault::DiskFull) => "state.disk_full",
        Some(HostFault::DiskReadOnly) => "state.disk_read_only",
        Some(HostFault::TooManyFiles) => "state.too_many_files",
        None => "state.unusable",
    };
    let message = match HostFault::of(&source) {
        Some(fault) => {
            let disk = format!("the disk of the state directory {}", state_dir.display());
            fault.remedy(&disk)
        }
        None => Error::Io {
            operation: format!("write beneath {}: {source}", state_dir.display()),
            source,
        }
        .to_string(),
    };
    Some(HostProblem {
        code,
        subject: state_dir.display().to_string(),
        message,
        time: SystemTime::now(),
    })
}
