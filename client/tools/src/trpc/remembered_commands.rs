//! Commands that go on between calls, as the session's state remembers them. The state has the output that was handed
//! over of each, and the files to collect at its end. The daemon owns the command, which outlives calls, turns and this
//! process.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use skilld_client::workspace_name;
use skilld_common::names::is_resource_id;

use super::output_files::CollectPlan;
use super::run_result::{RunResult, StagedFile};
use crate::call_context::CallContext;
use crate::state::{EXEC, SessionState, StateDelta};
use crate::tool_error::{ToolError, ToolResult};

/// Maximum number of ended commands that are remembered: those that were started last.
const ENDED_MAX: usize = 16;
/// Maximum number of remembered commands. Beyond it ended commands are forgotten before others, older ones first.
const KNOWN_MAX: usize = 64;

/// State of a command that continues between calls.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct SessionCommand {
    /// Position among the session's commands, from 1; 0 before it is assigned. A store may keep the commands in any
    /// order.
    pub(super) order: u64,
    /// Bytes of stdout handed over.
    pub(super) stdout: u64,
    /// Bytes of stderr handed over.
    pub(super) stderr: u64,
    /// Collection at the command's end; `None` for a command of `workspace_exec`.
    pub(super) plan: Option<CollectPlan>,
    pub(super) staged: Vec<StagedFile>,
    /// `true` if the command has ended and all of its output was handed over.
    pub(super) ended: bool,
    /// Result of the command; `None` until it has ended.
    pub(super) result: Option<RunResult>,
    /// Warnings about its output that were given; each is given once.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) hints: Vec<String>,
}

impl SessionCommand {
    /// Reads a command from the state.
    pub(super) fn read(state: &SessionState, id: &str) -> Option<Self> {
        let known = state.get(&format!("{EXEC}{id}")).cloned()?;
        serde_json::from_value(known).ok()
    }

    /// Returns the number of bytes of both streams that were handed over.
    pub(super) fn handed(&self) -> u64 {
        self.stdout.saturating_add(self.stderr)
    }

    /// Returns the change of state that remembers the command as it is now.
    pub(super) fn remember(&self, id: &str) -> StateDelta {
        let mut delta = StateDelta::new();
        delta.set(format!("{EXEC}{id}"), json!(self));
        delta
    }
}

/// Returns the full name of a command of the session and its state. A command of another session is unknown here,
/// whatever its id, and so is one that tools of the other kind started.
pub(super) fn find_command(
    call: CallContext<'_>,
    id: &str,
) -> ToolResult<(String, SessionCommand)> {
    let id = id.trim();
    if id.is_empty() {
        return Err(ToolError::arguments("session_id is required"));
    }
    let of_skills = call.tool.starts_with("skill_");
    let command = SessionCommand::read(call.state, id)
        // Other ids must not become part of a resource name.
        .filter(|command| is_resource_id(id) && command.plan.is_some() == of_skills)
        .ok_or_else(|| ToolError::UnknownExec { id: id.to_owned() })?;
    let workspace = workspace_name(&call.session.workspace_id());
    Ok((exec_name(&workspace, id), command))
}

/// Returns the full name of a command.
pub(super) fn exec_name(workspace: &str, id: &str) -> String {
    format!("{workspace}/execs/{id}")
}

/// Returns the change of state that forgets commands that ended long ago, and the first ones where there are too many.
pub(super) fn forget_commands(state: &SessionState) -> StateDelta {
    let mut known: Vec<(bool, u64, &str)> = list_commands(state)
        .map(|(key, value)| {
            let ended = value.get("ended").and_then(Value::as_bool);
            (ended != Some(true), order_of(value), key)
        })
        .collect();
    // Ended commands come first, and of them those that were started first.
    known.sort_unstable();
    let ended = known.iter().filter(|(goes_on, ..)| !goes_on).count();
    let surplus = ended
        .saturating_sub(ENDED_MAX)
        .max(known.len().saturating_sub(KNOWN_MAX));
    let mut delta = StateDelta::new();
    for (_, _, key) in known.iter().take(surplus) {
        delta.remove(*key);
    }
    delta
}

/// Returns the position of a command that is started now.
pub(super) fn next_order(state: &SessionState) -> u64 {
    let orders = list_commands(state).map(|(_, value)| order_of(value));
    orders.max().unwrap_or(0).saturating_add(1)
}

fn list_commands(state: &SessionState) -> impl Iterator<Item = (&str, &Value)> {
    state.iter().filter(|(key, _)| key.starts_with(EXEC))
}

fn order_of(command: &Value) -> u64 {
    command.get("order").and_then(Value::as_u64).unwrap_or(0)
}
