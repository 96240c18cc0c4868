//! Commands that go on between calls, as the session's state remembers them: what was handed over of each, and what is to
//! be collected at its end. The command itself is the daemon's; it outlives calls, turns and this process.

use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::state::{Delta, SessionState};
use crate::tools::trpc::collect::Plan;
use crate::tools::trpc::ids;
use crate::tools::trpc::result::{RunResult, StagedFile};
use crate::tools::{Session, ToolError};
use crate::workspace_name;

/// Before the id of a command.
const KEY: &str = "temp:skill:exec:";
/// Commands remembered after their end, the latest ones.
const ENDED_MAX: usize = 16;
/// A result that is larger is remembered without the texts of its files.
const RESULT_BYTES_MAX: usize = 256 * 1024;

/// What is remembered of a command.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Running {
    /// Bytes of stdout handed over.
    pub(super) stdout: u64,
    /// Bytes of stderr handed over.
    pub(super) stderr: u64,
    /// Bytes of stdin written.
    pub(super) stdin: u64,
    /// What is collected at its end; none for a command of `workspace_exec`.
    pub(super) plan: Option<Plan>,
    pub(super) staged: Vec<StagedFile>,
    /// Seen to have ended.
    pub(super) ended: bool,
    /// What it came to.
    pub(super) result: Option<RunResult>,
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
    let known = state.get(&format!("{KEY}{id}")).cloned();
    let known = known.and_then(|value| serde_json::from_value::<Running>(value).ok());
    known
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

/// Forgets commands that ended long ago.
pub(super) fn forget(state: &SessionState) -> Delta {
    let ended = state.iter().filter(|(key, value)| {
        let ended = value.get("ended").and_then(serde_json::Value::as_bool);
        key.starts_with(KEY) && ended == Some(true)
    });
    let keys: Vec<&str> = ended.map(|(key, _)| key).collect();
    let mut delta = Delta::new();
    for key in keys.iter().rev().skip(ENDED_MAX) {
        delta.remove(*key);
    }
    delta
}
