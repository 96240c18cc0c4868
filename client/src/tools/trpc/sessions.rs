//! Commands that go on between calls, as the session's state remembers them: what was handed over of each, and what is to
//! be collected at its end. The command itself is the daemon's; it outlives calls, turns and this process.

use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::state::{Delta, EXEC as KEY, SessionState};
use crate::tools::trpc::collect::Plan;
use crate::tools::trpc::ids;
use crate::tools::trpc::result::{RunResult, StagedFile};
use crate::tools::{Session, ToolError};
use crate::workspace_name;

/// Commands remembered after their end, those that were started last.
const ENDED_MAX: usize = 16;
/// Commands remembered in all. Beyond it those that were started first go, and of these such as have ended before others.
const KNOWN_MAX: usize = 64;
/// A result that is larger is remembered without the texts of its files.
const RESULT_BYTES_MAX: usize = 256 * 1024;

/// What is remembered of a command.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Running {
    /// Of the session's commands, from 1 on; 0 where nobody has said yet. A store may keep them in any order.
    pub(super) order: u64,
    /// Bytes of stdout handed over.
    pub(super) stdout: u64,
    /// Bytes of stderr handed over.
    pub(super) stderr: u64,
    /// What is collected at its end; none for a command of `workspace_exec`.
    pub(super) plan: Option<Plan>,
    pub(super) staged: Vec<StagedFile>,
    /// Seen to have ended, and nothing of it is left to hand over.
    pub(super) ended: bool,
    /// What it came to.
    pub(super) result: Option<RunResult>,
}

impl Running {
    /// Bytes of both streams that were handed over.
    pub(super) fn handed(&self) -> u64 {
        self.stdout.saturating_add(self.stderr)
    }
}

/// What the state knows of a command.
pub(super) fn known(state: &SessionState, id: &str) -> Option<Running> {
    let known = state.get(&format!("{KEY}{id}")).cloned()?;
    serde_json::from_value(known).ok()
}

/// A command of the session, and its full name. One of another session is unknown here, whatever its id.
pub(super) fn find(
    session: &Session,
    state: &SessionState,
    id: &str,
    of_skills: bool,
) -> Result<(String, Running), ToolError> {
    let id = id.trim();
    if id.is_empty() {
        return Err(ToolError::arguments("session_id is required"));
    }
    known(state, id)
        .filter(|running| ids::is_exec_id(id) && running.plan.is_some() == of_skills)
        .map(|running| {
            let workspace = workspace_name(&session.workspace_id());
            (ids::exec_name(&workspace, id), running)
        })
        .ok_or_else(|| unknown(id))
}

pub(super) fn unknown(id: &str) -> ToolError {
    ToolError::UnknownExec { id: id.to_owned() }
}

/// Remembers a command as it is now.
pub(super) fn remember(id: &str, running: &Running) -> Delta {
    let mut running = running.clone();
    let size = |running: &Running| json!(running).to_string().len();
    if size(&running) > RESULT_BYTES_MAX
        && let Some(result) = &mut running.result
    {
        for file in result
            .output_files
            .iter_mut()
            .chain(&mut result.primary_output)
        {
            if file.content.take().is_some() {
                file.note = Some("shown before; read_file reads it".to_owned());
            }
        }
    }
    let mut delta = Delta::new();
    delta.set(format!("{KEY}{id}"), json!(running));
    delta
}

/// Forgets commands that ended long ago, and the first ones where there are too many.
pub(super) fn forget(state: &SessionState) -> Delta {
    let mut known: Vec<(bool, u64, &str)> = commands(state)
        .map(|(key, value)| {
            let ended = value.get("ended").and_then(serde_json::Value::as_bool);
            (ended != Some(true), order(value), key)
        })
        .collect();
    // Those that have ended come first, and of them those that were started first.
    known.sort_unstable();
    let ended = known.iter().filter(|(goes_on, ..)| !goes_on).count();
    let surplus = ended.saturating_sub(ENDED_MAX);
    let surplus = surplus.max(known.len().saturating_sub(KNOWN_MAX));
    let mut delta = Delta::new();
    for (_, _, key) in known.iter().take(surplus) {
        delta.remove(*key);
    }
    delta
}

/// The place of a command that is started now.
pub(super) fn next_order(state: &SessionState) -> u64 {
    let orders = commands(state).map(|(_, value)| order(value));
    orders.max().unwrap_or(0).saturating_add(1)
}

fn commands(state: &SessionState) -> impl Iterator<Item = (&str, &serde_json::Value)> {
    state.iter().filter(|(key, _)| key.starts_with(KEY))
}

fn order(command: &serde_json::Value) -> u64 {
    let order = command.get("order").and_then(serde_json::Value::as_u64);
    order.unwrap_or(0)
}
