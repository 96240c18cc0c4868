//! One look at a command that goes on: what it printed since the last one, and its result when it has ended. One wait in
//! the daemon, and each byte of output once, by offsets that the session's state keeps.

use std::time::Duration;

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::json;
use skilld_proto::v1::{
    AttachExecRequest, Exec, PollExecRequest, Reason, StreamOffsets, exec_collection,
};

use crate::state::SessionState;
use crate::tools::trpc::collect::Plan;
use crate::tools::trpc::hint::{self, Interaction};
use crate::tools::trpc::result::{ArtifactFile, RunResult};
use crate::tools::trpc::sessions::{self, Running};
use crate::tools::trpc::{collect, follow, piece, run};
use crate::tools::{Answer, Inner, Session, ToolError, shown};
use crate::{Error, short_id};

/// The daemon's longest wait.
const YIELD_MS_MAX: u64 = 60_000;
/// The daemon's largest answer.
pub(super) const ANSWER_BYTES_MAX: usize = 1024 * 1024;

/// What a session's command did since the last call.
#[derive(Debug, Default, Serialize, JsonSchema)]
pub(super) struct SessionResult {
    /// `running` or `exited`.
    status: &'static str,
    pub(super) session_id: String,
    /// What it printed since the last call, stdout and stderr, each byte once.
    pub(super) output: String,
    /// Bytes of both streams together that were handed over before this call.
    offset: u64,
    /// The same after it.
    pub(super) next_offset: u64,
    /// There is more output: poll again.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    more: bool,
    /// Bytes that were printed and are not kept any more.
    #[serde(skip_serializing_if = "is_zero")]
    pub(super) lost_bytes: u64,
    /// Of a command that has ended; -1 if it reached none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) exit_code: Option<i32>,
    /// How it ended: exited, signaled, timeout and so on.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    /// It seems to wait for input.
    #[serde(skip_serializing_if = "Option::is_none")]
    interaction: Option<Interaction>,
    /// Of a skill's command that has ended: what skill_run would have given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) result: Option<RunResult>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
pub(super) fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// A look at a command.
pub(super) struct Look {
    /// Its full name.
    pub(super) name: String,
    pub(super) wait: Duration,
    pub(super) lines: Option<usize>,
}

/// The wait that a call asks for, in the daemon's bounds.
pub(super) fn wait(asked: i64, default: u64) -> Duration {
    let asked = u64::try_from(asked).ok().filter(|asked| *asked > 0);
    Duration::from_millis(asked.unwrap_or(default).min(YIELD_MS_MAX))
}

/// The lines that a call asks for.
pub(super) fn lines(asked: i64) -> Option<usize> {
    usize::try_from(asked).ok().filter(|asked| *asked > 0)
}

/// Looks, and says what there is to see; the state remembers what was handed over.
pub(super) async fn answer(
    tools: &Inner,
    session: &Session,
    state: &SessionState,
    look: Look,
    mut running: Running,
    call: &str,
) -> Result<Answer, ToolError> {
    let saw_end = running.result.is_some();
    let seen = see(tools, session, &look, &mut running).await?;
    let mut delta = sessions::forget(state);
    delta.then(sessions::remember(&seen.session_id, &running));
    if !saw_end && let Some(result) = &seen.result {
        delta.then(run::artifacts(call, &result.artifact_files));
    }
    Ok(Answer {
        result: json!(seen),
        delta,
    })
}

/// Looks once, and moves on in what was handed over.
pub(super) async fn see(
    tools: &Inner,
    session: &Session,
    look: &Look,
    running: &mut Running,
) -> Result<SessionResult, ToolError> {
    let id = id(&look.name);
    let max_bytes = tools.options.output_bytes_max.min(ANSWER_BYTES_MAX);
    let request = PollExecRequest {
        name: look.name.clone(),
        offsets: Some(StreamOffsets {
            stdout: running.stdout,
            stderr: running.stderr,
        }),
        wait: look.wait.try_into().ok(),
        max_bytes: i32::try_from(max_bytes).unwrap_or_default(),
        ..PollExecRequest::default()
    };
    let answered = tools.client.poll_exec(request).await;
    let answered = answered.map_err(|error| refused(error, &id))?;
    let offset = running.stdout + running.stderr;
    let handed = piece::hand(running, &answered, look.lines);
    let length: usize = answered
        .output
        .iter()
        .map(|piece| shown::bytes(piece).len())
        .sum();
    let mut seen = SessionResult {
        status: "running",
        session_id: id,
        interaction: hint::interaction(&handed.text),
        output: handed.text,
        offset,
        next_offset: running.stdout + running.stderr,
        more: handed.more || length >= max_bytes,
        lost_bytes: handed.lost,
        ..SessionResult::default()
    };
    if let Some(end) = answered.result {
        let mut ended = RunResult::default();
        ended.ended(&end);
        running.ended = true;
        seen.status = "exited";
        seen.interaction = None;
        seen.exit_code = Some(ended.exit_code);
        seen.reason = Some(ended.reason);
        seen.result = finish(tools, session, look, running).await?;
    }
    Ok(seen)
}

/// The result of a skill's command that has ended; made once, and the same from then on.
async fn finish(
    tools: &Inner,
    session: &Session,
    look: &Look,
    running: &mut Running,
) -> Result<Option<RunResult>, ToolError> {
    let Some(plan) = running.plan.clone() else {
        return Ok(None);
    };
    if let Some(result) = &running.result {
        return Ok(Some(result.clone()));
    }
    let refused = |error| refused(error, &id(&look.name));
    let events = tools.client.attach_resuming(AttachExecRequest {
        name: look.name.clone(),
        ..AttachExecRequest::default()
    });
    let ended = follow::follow(events, tools.options.output_bytes_max, "").await?;
    let mut result = run::result(ended, running.staged.clone());
    let saves = plan.saves();
    let collected = collect::collect(tools, session, &look.name, &plan, saves, &mut result).await;
    if let Err(error) = collected {
        let warning = format!("its files could not be collected: {error}");
        result.warnings.push(warning);
    }
    let is_final = if saves {
        let exec = tools.client.get_exec(&look.name).await.map_err(refused)?;
        saved(&exec, &plan, &mut result)
    } else {
        true
    };
    if is_final {
        running.result = Some(result.clone());
    }
    Ok(Some(result))
}

/// Puts into a result what the daemon has saved by itself; false if it is not done with that.
fn saved(exec: &Exec, plan: &Plan, result: &mut RunResult) -> bool {
    let collection = exec.collection.clone().unwrap_or_default();
    let summary = collection.summary.as_ref();
    let artifacts = summary.map_or(&[][..], |summary| &summary.artifacts);
    result.artifact_files = artifacts
        .iter()
        .filter_map(|name| ArtifactFile::parse(name))
        .collect();
    for file in &mut result.output_files {
        let name = plan.artifact_name(&file.name);
        let of_it = |artifact: &&ArtifactFile| Some(&artifact.name) == name.as_ref();
        let artifact = result.artifact_files.iter().find(of_it);
        file.artifact = artifact.map(|artifact| artifact.reference.clone());
    }
    match collection.state() {
        exec_collection::State::Done => true,
        exec_collection::State::Failed => {
            let error = collection.error;
            result
                .warnings
                .push(format!("its files could not be saved: {error}"));
            true
        }
        exec_collection::State::Pending | exec_collection::State::Unspecified => {
            let warning = "its files are being saved as artifacts: poll once more to see them";
            result.warnings.push(warning.to_owned());
            false
        }
    }
}

/// The id that the model knows.
fn id(name: &str) -> String {
    let short = short_id(name);
    short.rsplit('/').next().unwrap_or(&short).to_owned()
}

/// What the daemon says of a command, in this family's words.
pub(super) fn refused(error: Error, id: &str) -> ToolError {
    let stopped = |problem| ToolError::ExecNotRunning {
        id: id.to_owned(),
        problem,
    };
    match error.reason() {
        Some(Reason::ExecNotFound | Reason::WorkspaceNotFound) => sessions::unknown(id),
        Some(Reason::ExecNotRunning) => stopped("it has ended"),
        Some(Reason::StdinClosed) => stopped("its stdin is closed"),
        _ => error.into(),
    }
}
