//! Problems of slots and of the host's directories for operators, found when ListProblems asks.

use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use skilld_common::unix_time::from_unix_ms;

use crate::config::Config;
use crate::engine::docker::EngineKind;
use crate::error::{DaemonProblem, HostFault};
use crate::workspace::record::SlotPhase;
use crate::workspace::shared_slot_context::SharedSlotContext;
use crate::workspace::slot_provisioning;
use crate::workspace::slot_state_machine::SlotState;

/// Number of bytes that must fit on the state disk: enough for a claim's record and its metadata file.
const PROBE_BYTES: usize = 64 << 10;

/// Finds quarantined containers, an unwritable state directory, and unreadable directories of wheels and fonts.
pub async fn find_problems(context: &SharedSlotContext) -> Vec<DaemonProblem> {
    let mut problems = list_quarantined(context);
    let config = Arc::clone(&context.config);
    let probe = move || {
        let unusable = list_unusable_dirs(&config);
        let probed = probe_state_dir(&config.state_dir).into_iter();
        Ok(probed.chain(unusable).collect::<Vec<_>>())
    };
    // A probe that could not run shows nothing.
    let found = context.tasks.blocking(probe).await;
    problems.extend(found.into_iter().flatten());
    problems
}

/// Lists the containers that the engine did not remove in time, of quarantined slots and failed workspaces.
pub fn list_quarantined(context: &SharedSlotContext) -> Vec<DaemonProblem> {
    let limit = context.config.engine.remove_timeout;
    let engine = EngineKind::from_name(&context.info.name).texts();
    let mut problems = Vec::new();
    for slot in context.slots.list() {
        let view = slot.snapshot();
        let time = if let (SlotState::Quarantined, SlotPhase::Quarantined { time_ms }) =
            (view.state, view.record.phase)
        {
            from_unix_ms(time_ms)
        } else if let Some(time) = view.removal_overdue {
            time
        } else {
            continue;
        };
        let (number, uid) = (slot.number, view.record.uid);
        let name = slot_provisioning::container_name(context, number);
        let message = format!(
            "{title} did not remove {name} within {limit:?}: slot {number} and uid {uid} are not used again before it is gone, \
             and it counts in its pool's `max`; skilld goes on trying; if `{remove} {name}` hangs as well, restart \
             {title}, or the host",
            title = engine.title,
            remove = engine.remove_command
        );
        problems.push(DaemonProblem {
            code: "container.quarantined",
            is_error: true,
            subject: name,
            message,
            time,
        });
    }
    problems
}

/// Lists the operator's directories that containers cannot use. Blocks.
fn list_unusable_dirs(config: &Config) -> Vec<DaemonProblem> {
    let options = &config.skills.environments;
    let problem = |code, dir: &Path, fault: String, what: &str| DaemonProblem {
        code,
        is_error: true,
        subject: dir.display().to_string(),
        message: format!("{fault}; until then containers start without the {what}"),
        time: SystemTime::now(),
    };
    let wheels = options
        .wheelhouse
        .as_deref()
        .zip(options.wheelhouse_fault());
    let wheels =
        wheels.map(|(dir, fault)| problem("environment.wheelhouse_unusable", dir, fault, "wheels"));
    let fonts = config.pools.iter().filter_map(|pool| {
        let (dir, fault) = pool.fonts.as_deref().zip(pool.fonts_fault())?;
        Some(problem("pool.fonts_unusable", dir, fault, "fonts"))
    });
    wheels.into_iter().chain(fonts).collect()
}

/// Tests whether the state directory is writable, with a temporary file. Blocks.
fn probe_state_dir(state_dir: &Path) -> Option<DaemonProblem> {
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
        None => format!("failed to write beneath {}: {source}", state_dir.display()),
    };
    Some(DaemonProblem {
        code,
        is_error: true,
        subject: state_dir.display().to_string(),
        message,
        time: SystemTime::now(),
    })
}
