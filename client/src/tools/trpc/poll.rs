//! `skill_poll_session`, `skill_write_stdin`, `skill_kill_session` and those of the workspace: looking at commands that go
//! on, typing, ending them.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use skilld_proto::v1::{Exec, WriteStdinRequest};

use crate::state::SessionState;
use crate::tools::trpc::look::{self, Look, Touched, is_zero, refused, wait};
use crate::tools::trpc::result::RunResult;
use crate::tools::trpc::sessions::{self, Running};
use crate::tools::trpc::{ALIASES, exec, run};
use crate::tools::{Answer, Call, Inner, Session, ToolError, arguments, follow};

/// How long a call waits for output if it does not say.
const YIELD_MS: u64 = 400;
const WORKSPACE_YIELD_MS: u64 = 200;
/// What a program has to read what is typed, if the call waits no longer.
const TYPE_WAIT_MIN: Duration = Duration::from_millis(200);

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub(super) struct PollArguments {
    /// Id of the session.
    pub(super) session_id: String,
    /// Milliseconds to wait for output; 400 if it is left out.
    pub(super) yield_ms: i64,
    /// Lines to return at most; as many as fit if it is left out. The rest comes with the next call.
    pub(super) poll_lines: i64,
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub(super) struct WriteArguments {
    /// Id of the session.
    pub(super) session_id: String,
    /// What to type.
    pub(super) chars: String,
    /// End it with a newline.
    pub(super) submit: bool,
    /// Close its stdin after it: programs that read to the end wait for that.
    pub(super) eof: bool,
    /// Milliseconds to wait for output; 400, of a workspace's session 200, if it is left out.
    pub(super) yield_ms: i64,
    /// Lines to return at most; as many as fit if it is left out. The rest comes with the next call.
    pub(super) poll_lines: i64,
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub(super) struct KillArguments {
    /// Id of the session.
    pub(super) session_id: String,
}

/// What became of a session that was to be ended.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct KillResult {
    ok: bool,
    session_id: String,
    /// `killed`, or `exited` if it had ended by itself.
    status: &'static str,
    /// The end of what it printed on stdout since the last call.
    output: String,
    /// The same of stderr.
    #[serde(skip_serializing_if = "String::is_empty")]
    stderr: String,
    offset: u64,
    next_offset: u64,
    /// Bytes before `output` and `stderr` that were not handed over.
    #[serde(skip_serializing_if = "is_zero")]
    lost_bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    exit_code: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<RunResult>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<String>,
}

pub(super) async fn poll(
    tools: &Inner,
    session: &Session,
    state: &SessionState,
    call: Call,
) -> Result<Answer, ToolError> {
    let asked: PollArguments = arguments::decode(call.arguments, ALIASES)?;
    let (name, running) = sessions::find(session, state, &asked.session_id, true)?;
    let asked_for = Look {
        name,
        wait: wait(asked.yield_ms, YIELD_MS),
        lines: look::lines(asked.poll_lines),
        is_tail: false,
    };
    look::answer(tools, session, state, asked_for, running, &call.id).await
}

pub(super) async fn write(
    tools: &Inner,
    session: &Session,
    state: &SessionState,
    call: Call,
) -> Result<Answer, ToolError> {
    let asked: WriteArguments = arguments::decode(call.arguments, ALIASES)?;
    let of_skills = call.name.starts_with("skill_");
    let (name, running) = sessions::find(session, state, &asked.session_id, of_skills)?;
    let mut touched = Touched::from(running);
    let default = if of_skills {
        YIELD_MS
    } else {
        WORKSPACE_YIELD_MS
    };
    let mut asked_for = Look {
        name,
        wait: wait(asked.yield_ms, default),
        lines: look::lines(asked.poll_lines),
        is_tail: false,
    };
    let mut data = asked.chars;
    if asked.submit {
        data.push('\n');
    }
    if !data.is_empty() || asked.eof {
        exec::check_typed(&data)?;
        let request = WriteStdinRequest {
            name: asked_for.name.clone(),
            data: data.into_bytes().into(),
            eof: asked.eof,
            write_id: session.exec_id(&call.name, &call.id),
            wait: asked_for.wait.max(TYPE_WAIT_MIN).try_into().ok(),
            ..WriteStdinRequest::default()
        };
        let written = tools.client.write_stdin(request).await;
        let written = written.map_err(|error| refused(error, &asked.session_id))?;
        touched.done = true;
        touched.typed(&written);
        if touched.unwritten > 0 || written.eof_unwritten {
            // It was waited for already.
            asked_for.wait = Duration::ZERO;
        }
    }
    look::answer(tools, session, state, asked_for, touched, &call.id).await
}

pub(super) async fn kill(
    tools: &Inner,
    session: &Session,
    state: &SessionState,
    call: Call,
) -> Result<Answer, ToolError> {
    let asked: KillArguments = arguments::decode(call.arguments, ALIASES)?;
    let of_skills = call.name.starts_with("skill_");
    let (name, mut running) = sessions::find(session, state, &asked.session_id, of_skills)?;
    let saw_end = running.result.is_some();
    let before = running.handed();
    let skipped = match tools.client.kill_exec(&name).await {
        Ok(killed) => skip_to_tail(&mut running, &killed, look::bytes_max(tools)),
        // It ended so long ago that only the state knows of it.
        Err(error) if saw_end && follow::is_unknown(&error) => 0,
        Err(error) => return Err(refused(error, &asked.session_id)),
    };
    let asked_for = Look {
        name,
        wait: Duration::ZERO,
        lines: None,
        is_tail: true,
    };
    let mut seen = look::see(tools, session, &asked_for, &mut running).await?;
    let result = KillResult {
        ok: true,
        session_id: seen.session_id.clone(),
        status: if seen.reason.as_deref() == Some("killed_by_client") {
            "killed"
        } else {
            "exited"
        },
        output: std::mem::take(&mut seen.output),
        stderr: std::mem::take(&mut seen.stderr),
        offset: before,
        next_offset: seen.next_offset,
        lost_bytes: skipped.saturating_add(seen.lost_bytes),
        exit_code: seen.exit_code,
        result: seen.result.take(),
        warnings: std::mem::take(&mut seen.warnings),
    };
    let mut delta = sessions::remember(&result.session_id, &running);
    if !saw_end && let Some(result) = &result.result {
        delta.then(run::artifacts(&call.id, &result.artifact_files));
    }
    Ok(Answer {
        result: json!(result),
        delta,
    })
}

/// Leaves out what is too much to hand over, up to the last bytes of each stream; how much that was.
fn skip_to_tail(running: &mut Running, killed: &Exec, bytes_max: usize) -> u64 {
    let total = killed.total.unwrap_or_default();
    let half = (bytes_max / 2) as u64;
    let mut skipped: u64 = 0;
    for (at, total) in [
        (&mut running.stdout, total.stdout),
        (&mut running.stderr, total.stderr),
    ] {
        let start = total.saturating_sub(half).max(*at);
        skipped = skipped.saturating_add(start - *at);
        *at = start;
    }
    skipped
}
