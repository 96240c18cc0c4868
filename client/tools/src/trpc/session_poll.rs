//! Polls a command that continues between calls: its output since the last poll, and its result when it has ended. A
//! poll is one wait in the daemon, and hands over each byte once, by offsets in the session's state.

use std::time::Duration;

use schemars::JsonSchema;
use serde::Serialize;
use skilld_client::count_from_int64;
use skilld_client::v1::{
    AttachExecRequest, ErrorReason, ExecResult, ExecSpec, ExecState, PollExecRequest,
    PollExecResponse, StreamOffsets, WriteStdinResponse,
};
use skilld_client::{Error, short_id};
use tonic::Code;

use super::output_delivery::{DeliveredOutput, OutputDelivery};
use super::remembered_commands::{SessionCommand, forget_commands, next_order};
use super::run_result::{RunResult, artifacts_delta};
use super::stdin_prompt::{StdinPrompt, find_prompt};
use crate::call_context::{CallContext, CallResult, SessionContext, ToolAnswer, ToolsetContext};
use crate::exec_run::{follow_exec, is_unknown_exec};
use crate::output_buffer::{OutputStreams, output_bytes};
use crate::output_collection::failure_warning;
use crate::run_outcome::RunOutcome;
use crate::run_warnings;
use crate::tool_error::{ToolError, ToolResult};
use crate::tool_options::ToolOptions;

/// Longest wait in milliseconds; the daemon's maximum.
const YIELD_MS_MAX: u64 = 60_000;
/// Maximum size of an answer in bytes; the daemon's maximum.
const ANSWER_BYTES_MAX: usize = 1024 * 1024;
/// Minimum size of an answer in bytes: a character of each stream fits, so that there is always some to hand over.
const ANSWER_BYTES_MIN: usize = 8;
/// Maximum number of answers of which one call hands output over.
const ANSWERS_MAX: usize = 64;

/// Result of a poll of a session's command.
#[derive(Debug, Default, Serialize, JsonSchema)]
pub(super) struct SessionResult {
    /// `running` or `exited`.
    pub(super) status: &'static str,
    /// Id of the session of a command that goes on.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) session_id: String,
    /// Output on stdout since the last call, each byte once.
    pub(super) output: String,
    /// The same of stderr.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) stderr: String,
    /// Bytes of both streams together that were handed over before this call.
    pub(super) offset: u64,
    /// The same after it.
    pub(super) next_offset: u64,
    /// `true` if a poll may give more output.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(super) more: bool,
    /// Bytes that were printed and are not kept any more.
    #[serde(skip_serializing_if = "is_zero")]
    pub(super) lost_bytes: u64,
    /// Bytes at the end of what was to be typed that it has not taken, and with them the end of its input: type these
    /// when it reads again.
    #[serde(skip_serializing_if = "is_zero")]
    pub(super) unwritten_bytes: u64,
    /// Exit code of an ended command; -1 if it reached none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) exit_code: Option<i32>,
    /// Outcome: exited, signaled, timeout and so on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) reason: Option<String>,
    /// Prompt of a command that seems to wait for input.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) interaction: Option<StdinPrompt>,
    /// Result of a skill's command that has ended, as skill_run gives it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) result: Option<RunResult>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) warnings: Vec<String>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// Request for the next output of a command.
pub(super) struct SessionPollRequest {
    /// Resource name of the command.
    pub(super) name: String,
    pub(super) wait: Duration,
    /// Maximum number of lines to hand over.
    pub(super) lines: Option<usize>,
    /// `true` if output before the offset was left out, so that the output may begin within a character.
    pub(super) is_tail: bool,
}

impl SessionPollRequest {
    /// Creates a request with the wait in milliseconds and the lines that a call asks for; 0 and less for the default.
    pub(super) fn new(name: String, wait_ms: i64, default_ms: u64, lines: i64) -> Self {
        let asked = u64::try_from(wait_ms).ok().filter(|asked| *asked > 0);
        let wait_ms = asked.unwrap_or(default_ms).min(YIELD_MS_MAX);
        Self {
            name,
            wait: Duration::from_millis(wait_ms),
            lines: usize::try_from(lines).ok().filter(|asked| *asked > 0),
            is_tail: false,
        }
    }

    /// Returns the id that the model knows.
    fn id(&self) -> String {
        let short = short_id(&self.name);
        short.rsplit('/').next().unwrap_or(&short).to_owned()
    }
}

/// Command, and what a call did to it before it polls.
#[derive(Debug, Default)]
pub(super) struct PollTarget {
    pub(super) command: SessionCommand,
    /// `true` if the call started the command or typed something, which the result must report even if the poll fails.
    pub(super) is_changed: bool,
    /// Bytes at the end of the typed text that the command has not taken.
    pub(super) unwritten: u64,
    pub(super) warnings: Vec<String>,
}

impl PollTarget {
    /// Records what the command has taken of a write.
    pub(super) fn record_write(&mut self, written: &WriteStdinResponse) {
        self.unwritten = count_from_int64(written.unwritten_bytes);
        // Unwritten bytes imply that the end was not taken either.
        if written.eof_unwritten && written.unwritten_bytes == 0 {
            let warning = "the end of its input was not taken: give eof again when it reads again";
            self.warnings.push(warning.to_owned());
        }
    }
}

/// Returns the number of bytes of text that one call hands over.
pub(super) fn answer_bytes_max(tools: &ToolsetContext) -> usize {
    let asked = tools.options.output_bytes_max;
    asked.clamp(ANSWER_BYTES_MIN, ANSWER_BYTES_MAX)
}

/// Polls a command and answers the call. The state remembers what was handed over.
pub(super) async fn answer_poll(
    call: CallContext<'_>,
    request: SessionPollRequest,
    touched: PollTarget,
) -> CallResult {
    let mut command = touched.command;
    if command.order == 0 {
        command.order = next_order(call.state);
    }
    let before = command.clone();
    let mut seen = match poll_command(call.context, &request, &mut command).await {
        Err(error) if touched.is_changed && !matches!(error, ToolError::UnknownExec { .. }) => {
            command = before.clone();
            let mut unseen = SessionResult::running(request.id(), &command);
            let warning = format!("its output could not be had yet: {error}");
            unseen.warnings.push(warning);
            unseen
        }
        seen => seen?,
    };
    seen.unwritten_bytes = touched.unwritten;
    seen.warnings.extend(touched.warnings);
    let mut delta = forget_commands(call.state);
    delta.then(command.remember(&seen.session_id));
    if before.result.is_none()
        && let Some(result) = &seen.result
    {
        delta.then(artifacts_delta(call, &result.artifact_files));
    }
    Ok(ToolAnswer::with(&seen, delta))
}

/// Polls a command, and advances the offsets by what is handed over.
pub(super) async fn poll_command(
    context: SessionContext<'_>,
    poll: &SessionPollRequest,
    command: &mut SessionCommand,
) -> ToolResult<SessionResult> {
    let id = poll.id();
    let mut seen = SessionResult::running(id, command);
    let taken = match (take_output(context, poll, command).await, &command.result) {
        (Ok(taken), _) => taken,
        // It ended so long ago that only the state knows of it.
        (Err(error), Some(result)) if is_unknown_exec(&error) => {
            seen.set_end(result.exit_code, &result.reason);
            seen.result = Some(result.clone());
            return Ok(seen);
        }
        (Err(error), _) => return Err(translate_session_error(error, &seen.session_id)),
    };
    let (delivered, answer, has_more) = taken;
    seen.next_offset = command.handed();
    seen.more = delivered.more || has_more;
    seen.lost_bytes = delivered.lost;
    (seen.output, seen.stderr) = (delivered.stdout, delivered.stderr);
    let end = answer.result.as_ref();
    if command.plan.is_none() {
        // The result of a skill's command has the warnings.
        seen.add_warnings(&context.tools.options, end, command);
    }
    if let Some(end) = end {
        let ended = RunOutcome::from(end);
        seen.set_end(ended.exit_code.unwrap_or(-1), &ended.reason);
        match finish_command(context, poll, command).await {
            Ok(result) => seen.result = result,
            // The output is handed over all the same.
            Err(error) => seen
                .warnings
                .push(format!("its result could not be had: {error}")),
        }
        let has_all = command.plan.is_none() || command.result.is_some();
        command.ended = has_all && !seen.more;
    } else if !seen.more {
        seen.interaction = find_prompt(&seen.output).or_else(|| find_prompt(&seen.stderr));
    }
    Ok(seen)
}

/// Takes output from a command: of one answer, and of more at once while what is for a terminal leaves room for text.
/// Of an ended command it also waits for what the processes that it left still print. Returns the output with the last
/// answer, and `true` if more may follow.
async fn take_output(
    context: SessionContext<'_>,
    poll: &SessionPollRequest,
    command: &mut SessionCommand,
) -> Result<(DeliveredOutput, PollExecResponse, bool), Error> {
    let bytes_max = answer_bytes_max(context.tools);
    let mask = context.tools.secrets.mask(context.session);
    let mut delivery = OutputDelivery::new(poll.lines, poll.is_tail, mask);
    let (mut wait, mut answers) = (poll.wait, 0);
    let (answer, has_more) = loop {
        let left = match poll.is_tail {
            true => ANSWER_BYTES_MAX,
            false => bytes_max.saturating_sub(delivery.text_bytes()),
        };
        let room = left.max(ANSWER_BYTES_MIN);
        let request = PollExecRequest {
            name: poll.name.clone(),
            offsets: Some(StreamOffsets::from_counts([command.stdout, command.stderr])),
            wait: wait.try_into().ok(),
            max_bytes: i32::try_from(room).unwrap_or_default(),
            ..PollExecRequest::default()
        };
        let answer = context.tools.client.poll_exec(request).await?;
        let lengths = answer.outputs.iter().map(|piece| output_bytes(piece).len());
        let is_full = lengths.sum::<usize>() >= room;
        delivery.take(command, &answer, is_full);
        answers += 1;
        let is_enough = delivery.is_at_its_lines() || delivery.text_bytes() > bytes_max / 2;
        let has_more = is_full || answer.state() == ExecState::Exited;
        if !has_more || is_enough || answers == ANSWERS_MAX {
            break (answer, has_more);
        }
        if !is_full {
            wait_until_closed(context, poll, command).await?;
        }
        wait = Duration::ZERO;
    };
    let goes_on = has_more || answer.state() != ExecState::Closed;
    let mut delivered = delivery.finish(command, goes_on);
    if poll.is_tail {
        delivered.keep_tail(bytes_max / 2);
    }
    Ok((delivered, answer, has_more))
}

/// Waits until the processes that an ended command left have ended too.
async fn wait_until_closed(
    context: SessionContext<'_>,
    poll: &SessionPollRequest,
    command: &SessionCommand,
) -> Result<(), Error> {
    // Polls hand its output over.
    let mut events = context.tools.client.attach_resuming(AttachExecRequest {
        name: poll.name.clone(),
        offsets: Some(StreamOffsets::from_counts([command.stdout, command.stderr])),
        ..AttachExecRequest::default()
    });
    while events.next().await?.is_some() {}
    Ok(())
}

impl SessionResult {
    /// Creates the result of a running command without new output.
    fn running(session_id: String, command: &SessionCommand) -> Self {
        Self {
            status: "running",
            session_id,
            offset: command.handed(),
            next_offset: command.handed(),
            ..Self::default()
        }
    }

    /// Adds the warnings about the end of a command, and those about its new output that were not given before.
    fn add_warnings(
        &mut self,
        options: &ToolOptions,
        end: Option<&ExecResult>,
        command: &mut SessionCommand,
    ) {
        let has_full_disk = end.is_some_and(|end| !end.full_disks.is_empty());
        let streams = [self.output.as_str(), self.stderr.as_str()];
        let mut hints =
            run_warnings::describe_output(&ExecSpec::default(), &streams, has_full_disk);
        hints.retain(|hint| !command.hints.contains(hint));
        command.hints.extend(hints.iter().cloned());
        let end_warnings = end.map(|end| run_warnings::describe_end(options, &end.warnings()));
        self.warnings.extend(end_warnings.unwrap_or_default());
        self.warnings.extend(hints);
    }

    fn set_end(&mut self, exit_code: i32, reason: &str) {
        self.status = "exited";
        self.exit_code = Some(exit_code);
        self.reason = Some(reason.to_owned());
    }
}

/// Returns the result of a skill's command that has ended. It is made once and stays the same from then on.
async fn finish_command(
    context: SessionContext<'_>,
    poll: &SessionPollRequest,
    command: &mut SessionCommand,
) -> ToolResult<Option<RunResult>> {
    let (Some(plan), None) = (command.plan.clone(), &command.result) else {
        return Ok(command.result.clone());
    };
    let tools = context.tools;
    let events = tools.client.attach_resuming(AttachExecRequest {
        name: poll.name.clone(),
        ..AttachExecRequest::default()
    });
    let mask = tools.secrets.mask(context.session);
    let output = OutputStreams::new(tools.options.output_bytes_max, mask);
    let finished = follow_exec(events, output, 0, "").await?;
    let outcome = RunOutcome::new(&tools.options, finished);
    let mut result = RunResult::new(outcome, command.staged.clone());
    let mut is_final = true;
    if let Err(error) = plan.collect(context, &poll.name, &mut result).await {
        // A request that the daemon refuses now is refused later, too.
        let refusals = [Code::InvalidArgument, Code::PermissionDenied];
        is_final = error.code().is_some_and(|code| refusals.contains(&code));
        result.warnings.push(failure_warning(&error));
    }
    if is_final {
        command.result = Some(result.clone());
    }
    Ok(Some(result))
}

/// Converts the daemon's error about a command.
pub(super) fn translate_session_error(error: Error, id: &str) -> ToolError {
    let id = id.to_owned();
    let problem = match error.reason() {
        _ if is_unknown_exec(&error) => return ToolError::UnknownExec { id },
        Some(ErrorReason::ExecNotRunning) => "it has ended, or its input has",
        Some(ErrorReason::StdinClosed) => "its stdin is closed",
        _ => return error.into(),
    };
    ToolError::ExecNotRunning { id, problem }
}
