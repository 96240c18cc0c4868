//! `skill_exec`: starts a command in a skill that goes on after the call, for programs that ask or that take long.

use std::time::Duration;

use serde_json::Value;
use skilld_client::v1::{
    ErrorReason, ExecSpec, ExecTerminal, OutputFullPolicy, StartExecRequest, WriteStdinRequest,
};

use super::prepared_run::PreparedRun;
use super::remembered_commands::{SessionCommand, exec_name};
use super::session_poll::{PollTarget, SessionPollRequest, answer_poll};
use super::{add_warnings, decode};
use crate::call_context::{CallContext, CallResult, ToolsetContext};
use crate::exec_run::{check_start, is_unknown_exec, timeout_warning, translate_exec_error};
use crate::tool_error::{ToolError, ToolResult};

/// Default wait of the first call for output, in milliseconds; trpc-agent-go's.
pub(super) const YIELD_MS: u64 = 1000;
/// Longest wait for a program to read the text that is typed first.
const TYPE_WAIT: Duration = Duration::from_secs(1);
/// Timeout that no server permits, so that the server's own maximum is in force.
const UNLIMITED: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

pub(super) async fn start_skill_command(call: CallContext<'_>, arguments: Value) -> CallResult {
    let mut prepared = PreparedRun::new(call, decode(arguments)?)?;
    let reference = prepared.look_up(call).await?;
    let workspace = prepared.stage(call, &reference).await?;
    let PreparedRun {
        arguments: run,
        plan,
        mut spec,
        ..
    } = prepared;
    spec.planned_collect = plan.planned_spec(call.context);
    let mut typed = InitialStdin {
        text: &run.stdin,
        eof: run.eof,
    };
    make_interactive(call.tools, &mut spec, run.timeout, run.tty);
    if run.eof && !run.tty {
        // Nothing can follow: no need to type it.
        spec.stdin_data = run.stdin.clone().into();
        spec.open_stdin = false;
        typed = InitialStdin::default();
    }
    let translator = plan.error_translator();
    let request = StartExecRequest {
        parent: workspace,
        exec_id: prepared.exec_id,
        spec: Some(spec),
    };
    let name = exec_name(&request.parent, &request.exec_id);
    let command =
        SessionCommand::read(call.state, &request.exec_id).unwrap_or_else(|| SessionCommand {
            plan: Some(plan.clone()),
            staged: prepared.staged_inputs,
            ..SessionCommand::default()
        });
    let started = start_command(call, request, command, typed).await;
    let touched = started.map_err(|error| translator.translate(error))?;
    let request = SessionPollRequest::new(name, run.yield_ms, YIELD_MS, run.poll_lines);
    let mut answer = answer_poll(call, request, touched).await?;
    // How it ends is not known yet.
    let warnings = prepared
        .warnings
        .into_iter()
        .chain(prepared.package_warning);
    add_warnings(&mut answer, warnings);
    Ok(answer)
}

/// Text that is typed into a command right after its start.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct InitialStdin<'a> {
    pub(super) text: &'a str,
    pub(super) eof: bool,
}

/// Gives a command a stdin that stays open, a terminal if `tty`, and a timeout long enough for a dialogue unless the
/// call gives one: `timeout`, in seconds.
pub(super) fn make_interactive(
    tools: &ToolsetContext,
    spec: &mut ExecSpec,
    timeout: i64,
    tty: bool,
) {
    spec.open_stdin = true;
    spec.terminal = tty.then(ExecTerminal::default);
    // A model that reads no output must not block the program; lost output is reported.
    spec.set_on_full(OutputFullPolicy::DropOldest);
    if timeout <= 0 {
        let whole = tools.options.session_timeout.unwrap_or(UNLIMITED);
        let idle = tools.options.session_idle_timeout;
        spec.timeout = whole.try_into().ok();
        spec.no_output_timeout = idle.and_then(|idle| idle.try_into().ok());
    }
}

/// Starts a command and types its first text. Repeated with the same id it starts and types nothing. Once it has
/// started every outcome is a result, so that no started command is left without an owner.
pub(super) async fn start_command(
    call: CallContext<'_>,
    request: StartExecRequest,
    command: SessionCommand,
    typed: InitialStdin<'_>,
) -> ToolResult<PollTarget> {
    let client = &call.tools.client;
    let asked = request
        .spec
        .as_ref()
        .and_then(|spec| spec.timeout)
        .filter(|asked| asked.seconds.unsigned_abs() < UNLIMITED.as_secs());
    let request_id = request.exec_id.clone();
    let started = client
        .start_exec(request)
        .await
        .map_err(|error| translate_exec_error(error, false, call.id))?;
    check_start(call, started.result.as_ref())?;
    let in_force = started.effective_spec.and_then(|spec| spec.timeout);
    let mut touched = PollTarget {
        command,
        is_changed: true,
        unwritten: 0,
        warnings: timeout_warning(asked, in_force).into_iter().collect(),
    };
    if typed.text.is_empty() && !typed.eof {
        return Ok(touched);
    }
    let write = WriteStdinRequest {
        name: started.name,
        data: typed.text.as_bytes().to_vec().into(),
        eof: typed.eof,
        request_id,
        wait: TYPE_WAIT.try_into().ok(),
        ..WriteStdinRequest::default()
    };
    match client.write_stdin(write).await {
        Ok(written) => touched.record_write(&written),
        Err(error) => match error.reason() {
            // It ended without reading: no fault of its result.
            Some(ErrorReason::ExecNotRunning | ErrorReason::StdinClosed) => {}
            _ if is_unknown_exec(&error) => return Err(ToolError::WorkspaceLost),
            _ => {
                let warning = format!("nobody knows how much of its stdin was written: {error}");
                touched.warnings.push(warning);
            }
        },
    }
    Ok(touched)
}
