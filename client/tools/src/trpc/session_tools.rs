//! Tools that poll commands which go on, type into them and kill them. They are `skill_poll_session`,
//! `skill_write_stdin`, `skill_kill_session` and those of the workspace.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use skilld_client::v1::{Exec, WriteStdinRequest};

use super::decode;
use super::remembered_commands::{SessionCommand, find_command};
use super::run_result::artifacts_delta;
use super::session_poll::{
    PollTarget, SessionPollRequest, SessionResult, answer_bytes_max, answer_poll, poll_command,
    translate_session_error,
};
use crate::call_context::{CallContext, CallResult, ToolAnswer};
use crate::command_limits::check_stdin;
use crate::exec_run::is_unknown_exec;

/// Default wait for output of a skill's session, in milliseconds; the default of trpc-agent-go, like the next.
const SKILL_YIELD_MS: u64 = 400;
/// Default wait for output of a workspace's session, in milliseconds.
const WORKSPACE_YIELD_MS: u64 = 200;
/// Number of printed bytes that are read for each byte of a killed command's text: escape sequences and redrawn lines are
/// no text.
const PRINTED_PER_TEXT: usize = 16;
/// Maximum number of bytes that are read of each stream of a killed command: half of the daemon's answer.
const STREAM_TAIL_MAX: u64 = 512 * 1024;
/// Minimum wait for a program to read a typed text.
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
    /// Text to type.
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

/// Result of killing a session's command: `status` is `killed`, or `exited` if it had ended by itself, and `output` the
/// end of what it printed.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct KillResult {
    ok: bool,
    #[serde(flatten)]
    end: SessionResult,
}

pub(super) async fn poll_session(call: CallContext<'_>, arguments: Value) -> CallResult {
    let asked: PollArguments = decode(arguments)?;
    let (name, command) = find_command(call, &asked.session_id)?;
    let request = SessionPollRequest::new(name, asked.yield_ms, SKILL_YIELD_MS, asked.poll_lines);
    let touched = PollTarget {
        command,
        ..PollTarget::default()
    };
    answer_poll(call, request, touched).await
}

pub(super) async fn write_stdin(call: CallContext<'_>, arguments: Value) -> CallResult {
    let asked: WriteArguments = decode(arguments)?;
    let (name, command) = find_command(call, &asked.session_id)?;
    let default = match command.plan {
        Some(_) => SKILL_YIELD_MS,
        None => WORKSPACE_YIELD_MS,
    };
    let mut request = SessionPollRequest::new(name, asked.yield_ms, default, asked.poll_lines);
    let mut touched = PollTarget {
        command,
        ..PollTarget::default()
    };
    let mut text = asked.chars;
    if asked.submit {
        text.push('\n');
    }
    if !text.is_empty() || asked.eof {
        check_stdin("chars", &text)?;
        let write = WriteStdinRequest {
            name: request.name.clone(),
            data: text.into_bytes().into(),
            eof: asked.eof,
            request_id: call.exec_id(),
            wait: request.wait.max(TYPE_WAIT_MIN).try_into().ok(),
            ..WriteStdinRequest::default()
        };
        let written = call
            .tools
            .client
            .write_stdin(write)
            .await
            .map_err(|error| translate_session_error(error, &asked.session_id))?;
        touched.is_changed = true;
        touched.record_write(&written);
        if touched.unwritten > 0 || written.eof_unwritten {
            // The write has waited already.
            request.wait = Duration::ZERO;
        }
    }
    answer_poll(call, request, touched).await
}

pub(super) async fn kill_session(call: CallContext<'_>, arguments: Value) -> CallResult {
    let asked: KillArguments = decode(arguments)?;
    let (name, mut command) = find_command(call, &asked.session_id)?;
    let has_result = command.result.is_some();
    let before = command.handed();
    let skipped = match call.tools.client.kill_exec(&name).await {
        Ok(killed) => skip_to_tail(&mut command, &killed, answer_bytes_max(call.tools)),
        // It ended so long ago that only the state knows of it.
        Err(error) if has_result && is_unknown_exec(&error) => 0,
        Err(error) => return Err(translate_session_error(error, &asked.session_id)),
    };
    let request = SessionPollRequest {
        name,
        wait: Duration::ZERO,
        lines: None,
        is_tail: true,
    };
    let seen = poll_command(call.context, &request, &mut command).await?;
    let mut delta = command.remember(&seen.session_id);
    if let Some(result) = seen.result.as_ref().filter(|_| !has_result) {
        delta.then(artifacts_delta(call, &result.artifact_files));
    }
    let end = SessionResult {
        status: match seen.reason.as_deref() {
            Some("killed_by_client") => "killed",
            _ => "exited",
        },
        offset: before,
        lost_bytes: skipped.saturating_add(seen.lost_bytes),
        more: false,
        reason: None,
        interaction: None,
        ..seen
    };
    Ok(ToolAnswer::with(&KillResult { ok: true, end }, delta))
}

/// Moves the offsets to the last bytes of each stream, from which the end of its text is taken. Returns the number of
/// bytes that were left out.
fn skip_to_tail(command: &mut SessionCommand, killed: &Exec, bytes_max: usize) -> u64 {
    let [stdout, stderr] = killed.total.unwrap_or_default().counts();
    let printed = (bytes_max / 2).saturating_mul(PRINTED_PER_TEXT) as u64;
    let half = printed.min(STREAM_TAIL_MAX);
    let mut skipped: u64 = 0;
    for (offset, total) in [(&mut command.stdout, stdout), (&mut command.stderr, stderr)] {
        let start = total.saturating_sub(half).max(*offset);
        skipped = skipped.saturating_add(start - *offset);
        *offset = start;
    }
    skipped
}
