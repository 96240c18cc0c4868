//! One look at a command that goes on: what it printed since the last one, and its result when it has ended. One wait in
//! the daemon, and each byte of output once, by offsets that the session's state keeps.

use std::time::Duration;

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::json;
use skilld_proto::v1::{
    AttachExecRequest, Exec, PollExecRequest, Reason, StreamOffsets, WriteStdinResponse,
    exec_collection,
};
use tonic::Code;

use crate::state::SessionState;
use crate::tools::trpc::collect::Plan;
use crate::tools::trpc::hint::{self, Interaction};
use crate::tools::trpc::result::RunResult;
use crate::tools::trpc::sessions::{self, Running};
use crate::tools::trpc::{collect, piece, run};
use crate::tools::{Answer, Inner, Session, ToolError, follow, shown};
use crate::{Error, short_id};

/// The daemon's longest wait.
const YIELD_MS_MAX: u64 = 60_000;
/// The daemon's largest answer, and one in which a character of each stream fits, so that there is always some to hand
/// over.
const ANSWER_BYTES_MAX: usize = 1024 * 1024;
const ANSWER_BYTES_MIN: usize = 8;

/// What a session's command did since the last call.
#[derive(Debug, Default, Serialize, JsonSchema)]
pub(super) struct SessionResult {
    /// `running` or `exited`.
    status: &'static str,
    pub(super) session_id: String,
    /// What it printed on stdout since the last call, each byte once.
    pub(super) output: String,
    /// The same of stderr.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) stderr: String,
    /// Bytes of both streams together that were handed over before this call.
    offset: u64,
    /// The same after it.
    pub(super) next_offset: u64,
    /// There may be more output: poll again.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    more: bool,
    /// Bytes that were printed and are not kept any more.
    #[serde(skip_serializing_if = "is_zero")]
    pub(super) lost_bytes: u64,
    /// Bytes at the end of what was to be typed that it has not taken, and with them the end of its input: type these
    /// when it reads again.
    #[serde(skip_serializing_if = "is_zero")]
    unwritten_bytes: u64,
    /// Of a command that has ended; -1 if it reached none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) exit_code: Option<i32>,
    /// How it ended: exited, signaled, timeout and so on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) reason: Option<String>,
    /// It seems to wait for input.
    #[serde(skip_serializing_if = "Option::is_none")]
    interaction: Option<Interaction>,
    /// Of a skill's command that has ended: what skill_run would have given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) result: Option<RunResult>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) warnings: Vec<String>,
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
    /// What is before it is left out: it may begin within a character.
    pub(super) is_tail: bool,
}

/// A command, and what a call did to it before it looks.
#[derive(Debug, Default)]
pub(super) struct Touched {
    pub(super) running: Running,
    /// It was started, or something was typed: that must be told, whatever comes of the look.
    pub(super) done: bool,
    /// Bytes at the end of what was to be typed that it has not taken.
    pub(super) unwritten: u64,
    pub(super) warnings: Vec<String>,
}

impl Touched {
    /// Notes what the command has not taken.
    pub(super) fn typed(&mut self, written: &WriteStdinResponse) {
        self.unwritten = written.unwritten_bytes;
        // Where bytes are left, they tell of the end, too.
        if written.eof_unwritten && written.unwritten_bytes == 0 {
            let warning = "the end of its input was not taken: give eof again when it reads again";
            self.warnings.push(warning.to_owned());
        }
    }
}

impl From<Running> for Touched {
    fn from(running: Running) -> Self {
        Self {
            running,
            ..Self::default()
        }
    }
}

/// Bytes of output that one look hands over.
pub(super) fn bytes_max(tools: &Inner) -> usize {
    let asked = tools.options.output_bytes_max;
    asked.clamp(ANSWER_BYTES_MIN, ANSWER_BYTES_MAX)
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
    touched: impl Into<Touched>,
    call: &str,
) -> Result<Answer, ToolError> {
    let touched = touched.into();
    let mut running = touched.running;
    if running.order == 0 {
        running.order = sessions::next_order(state);
    }
    let (before, saw_end) = (running.clone(), running.result.is_some());
    let mut seen = match see(tools, session, &look, &mut running).await {
        Err(error) if touched.done && !matches!(error, ToolError::UnknownExec { .. }) => {
            running = before;
            SessionResult::unseen(id(&look.name), &running, &error)
        }
        seen => seen?,
    };
    seen.unwritten_bytes = touched.unwritten;
    seen.warnings.extend(touched.warnings);
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
    let max_bytes = bytes_max(tools);
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
    let answered = match (tools.client.poll_exec(request).await, &running.result) {
        (Ok(answered), _) => answered,
        // It ended so long ago that only the state knows of it.
        (Err(error), Some(result)) if follow::is_unknown(&error) => {
            let mut seen = SessionResult::of(id, running);
            seen.ended(result);
            seen.result = Some(result.clone());
            return Ok(seen);
        }
        (Err(error), _) => return Err(refused(error, &id)),
    };
    let mut seen = SessionResult::of(id, running);
    let lengths = answered
        .output
        .iter()
        .map(|piece| shown::bytes(piece).len());
    let is_full = lengths.sum::<usize>() >= max_bytes;
    let handed = piece::hand(running, &answered, look, is_full);
    seen.next_offset = running.handed();
    seen.more = handed.more || is_full;
    seen.lost_bytes = handed.lost;
    (seen.output, seen.stderr) = (handed.stdout, handed.stderr);
    if let Some(end) = answered.result {
        let mut ended = RunResult::default();
        ended.ended(&end);
        seen.ended(&ended);
        match finish(tools, session, look, running).await {
            Ok(result) => seen.result = result,
            // What it printed is handed over all the same.
            Err(error) => seen
                .warnings
                .push(format!("its result could not be had: {error}")),
        }
        let has_all = running.plan.is_none() || running.result.is_some();
        running.ended = has_all && !seen.more;
    } else if !seen.more {
        let asks = |text: &str| hint::interaction(text);
        seen.interaction = asks(&seen.output).or_else(|| asks(&seen.stderr));
    }
    Ok(seen)
}

impl SessionResult {
    /// One that runs, with nothing new.
    fn of(session_id: String, running: &Running) -> Self {
        Self {
            status: "running",
            session_id,
            offset: running.handed(),
            next_offset: running.handed(),
            ..Self::default()
        }
    }

    /// One of which nobody could be asked.
    fn unseen(session_id: String, running: &Running, error: &ToolError) -> Self {
        Self {
            warnings: vec![format!("its output could not be had yet: {error}")],
            ..Self::of(session_id, running)
        }
    }

    fn ended(&mut self, result: &RunResult) {
        self.status = "exited";
        self.exit_code = Some(result.exit_code);
        self.reason = Some(result.reason.clone());
    }
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
    let mut is_final = true;
    if let Err(error) = collected {
        // What cannot be collected at all stays so.
        is_final = error.code() == Some(Code::InvalidArgument);
        let warning = format!("its files could not be collected: {error}");
        result.warnings.push(warning);
    }
    if saves {
        let exec = tools.client.get_exec(&look.name).await.map_err(refused)?;
        is_final &= saved(&exec, (&plan, session), &mut result);
    }
    if is_final {
        running.result = Some(result.clone());
    }
    Ok(Some(result))
}

/// Puts into a result what the daemon has saved by itself; false if it is not done with that.
fn saved(exec: &Exec, plan: (&Plan, &Session), result: &mut RunResult) -> bool {
    let collection = exec.collection.clone().unwrap_or_default();
    let summary = collection.summary.as_ref();
    if let Some(summary) = summary {
        let mut files = std::mem::take(&mut result.output_files);
        collect::saved(plan, summary, &mut files, result);
        result.output_files = files;
        result.limits_hit |= summary.limits_hit;
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
        _ if follow::is_unknown(&error) => sessions::unknown(id),
        Some(Reason::ExecNotRunning) => stopped("it has ended, or its input has"),
        Some(Reason::StdinClosed) => stopped("its stdin is closed"),
        _ => error.into(),
    }
}
