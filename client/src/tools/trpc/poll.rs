//! `skill_poll_session`, `skill_write_stdin`, `skill_kill_session` and those of the workspace: looking at commands that go
//! on, typing, ending them.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use skilld_proto::v1::exec_result::Reason as EndReason;
use skilld_proto::v1::{Exec, WriteStdinRequest};

use crate::state::SessionState;
use crate::tools::trpc::look::{self, ANSWER_BYTES_MAX, Look, is_zero, refused, wait};
use crate::tools::trpc::result::RunResult;
use crate::tools::trpc::sessions::{self, Running};
use crate::tools::trpc::{ALIASES, run};
use crate::tools::{Answer, Call, Inner, Session, ToolError, arguments};

/// How long a call waits for output if it does not say.
const YIELD_MS: u64 = 400;
const WORKSPACE_YIELD_MS: u64 = 200;

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
    /// The end of what it printed since the last call.
    output: String,
    offset: u64,
    next_offset: u64,
    /// Bytes before `output` that were not handed over.
    #[serde(skip_serializing_if = "is_zero")]
    lost_bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    exit_code: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<RunResult>,
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
    let (name, mut running) = sessions::find(session, state, &asked.session_id, of_skills)?;
    let mut data = asked.chars;
    if asked.submit {
        data.push('\n');
    }
    if !data.is_empty() || asked.eof {
        let refused = |error| refused(error, &asked.session_id);
        let request = |offset, data: &str, eof| WriteStdinRequest {
            name: name.clone(),
            offset: Some(offset),
            data: data.as_bytes().to_vec().into(),
            eof,
        };
        // Nothing, at the start: it tells how much was written, by whomever.
        let asked_where = tools.client.write_stdin(request(0, "", false)).await;
        let committed = asked_where.map_err(refused)?.committed_offset;
        let is_repeated = !call.id.is_empty() && committed == running.stdin + data.len() as u64;
        let at = if is_repeated {
            running.stdin
        } else {
            committed
        };
        let written = tools
            .client
            .write_stdin(request(at, &data, asked.eof))
            .await;
        running.stdin = written.map_err(refused)?.committed_offset;
    }
    let default = if of_skills {
        YIELD_MS
    } else {
        WORKSPACE_YIELD_MS
    };
    let asked_for = Look {
        name,
        wait: wait(asked.yield_ms, default),
        lines: look::lines(asked.poll_lines),
    };
    look::answer(tools, session, state, asked_for, running, &call.id).await
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
    let killed = tools.client.kill_exec(&name).await;
    let killed = killed.map_err(|error| refused(error, &asked.session_id))?;
    let before = running.stdout + running.stderr;
    let skipped = skip_to_tail(&mut running, &killed, tools.options.output_bytes_max);
    let asked_for = Look {
        name,
        wait: Duration::ZERO,
        lines: None,
    };
    let mut seen = look::see(tools, session, &asked_for, &mut running).await?;
    let reason = killed.result.unwrap_or_default().reason();
    let result = KillResult {
        ok: true,
        session_id: seen.session_id.clone(),
        status: if reason == EndReason::KilledByClient {
            "killed"
        } else {
            "exited"
        },
        output: std::mem::take(&mut seen.output),
        offset: before,
        next_offset: seen.next_offset,
        lost_bytes: skipped + seen.lost_bytes,
        exit_code: seen.exit_code,
        result: seen.result.take(),
    };
    let artifacts = result.result.as_ref();
    let artifacts = artifacts.map_or(&[][..], |result| &result.artifact_files);
    let mut delta = sessions::remember(&result.session_id, &running);
    delta.then(run::artifacts(&call.id, artifacts));
    Ok(Answer {
        result: json!(result),
        delta,
    })
}

/// Leaves out what is too much to hand over, up to the last bytes of each stream; how much that was.
fn skip_to_tail(running: &mut Running, killed: &Exec, bytes_max: usize) -> u64 {
    let total = killed.total.unwrap_or_default();
    let half = (bytes_max.min(ANSWER_BYTES_MAX) / 2) as u64;
    let mut skipped = 0;
    for (at, total) in [
        (&mut running.stdout, total.stdout),
        (&mut running.stderr, total.stderr),
    ] {
        let start = total.saturating_sub(half).max(*at);
        skipped += start - *at;
        *at = start;
    }
    skipped
}
