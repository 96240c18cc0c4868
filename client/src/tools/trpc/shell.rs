//! `workspace_exec`: a command in the session's workspace, in no skill. To its end, or going on like those of skill_exec.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use skilld_proto::v1::{ExecSpec, RunExecRequest, StartExecRequest};

use crate::state::SessionState;
use crate::tools::environment::add_host_variables;
use crate::tools::follow::{self, Ended};
use crate::tools::trpc::exec::{self, Typed};
use crate::tools::trpc::hint::Interaction;
use crate::tools::trpc::look::{self, Look};
use crate::tools::trpc::mistake::Arguments;
use crate::tools::trpc::result::RunResult;
use crate::tools::trpc::sessions;
use crate::tools::trpc::{ALIASES, ids, policy, prepare, run, warn};
use crate::tools::{Answer, Call, Inner, Session, ToolError, arguments};

const TOOL: &str = "workspace_exec";
/// Wait for a command in the background, to see whether it starts, in milliseconds.
const BACKGROUND_MS: u64 = 1;

/// Arguments of `workspace_exec`.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub(super) struct ShellArguments {
    /// Shell command, run by bash in the workspace.
    pub(super) command: String,
    /// Where to start: `work/…`, `out/…`, `$WORK_DIR/…`. The workspace's root if it is left out.
    pub(super) cwd: String,
    /// Environment variables.
    pub(super) env: BTreeMap<String, String>,
    /// Text for the standard input of the command.
    pub(super) stdin: String,
    /// Seconds; 300 if it is left out, of a session as long as the host permits.
    pub(super) timeout_sec: i64,
    /// Milliseconds to wait for the command; if it still runs, it goes on as a session. Without it: to the end.
    pub(super) yield_time_ms: i64,
    /// Return at once while the command goes on as a session.
    pub(super) background: bool,
    /// Run the command in a terminal, as a session.
    pub(super) tty: bool,
}

/// Result of a command of the workspace.
#[derive(Debug, Default, Serialize, JsonSchema)]
pub(super) struct ShellResult {
    /// `exited`, or `running` with a session_id to go on with.
    status: &'static str,
    /// stdout, then stderr; of a command that goes on stdout alone.
    output: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    stderr: String,
    /// -1 if it reached none.
    #[serde(skip_serializing_if = "Option::is_none")]
    exit_code: Option<i32>,
    /// Id of the session of a command that goes on.
    #[serde(skip_serializing_if = "Option::is_none")]
    session_id: Option<String>,
    /// Bytes of both streams together that were handed over before this call.
    offset: u64,
    /// Bytes of both streams together that were handed over after this call.
    next_offset: u64,
    /// There is more output of a command that goes on.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    more: bool,
    #[serde(skip_serializing_if = "look::is_zero")]
    lost_bytes: u64,
    /// Bytes at the end of `stdin` that it has not taken: type these when it reads again.
    #[serde(skip_serializing_if = "look::is_zero")]
    unwritten_bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    interaction: Option<Interaction>,
    /// The output's beginning and end are shown.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    truncated: bool,
    /// Bytes that it printed.
    #[serde(skip_serializing_if = "Option::is_none")]
    total_bytes: Option<u64>,
    /// Reason of its end: exited, signaled, timeout and so on.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    timed_out: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    duration_ms: Option<u64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<String>,
}

pub(super) async fn exec(
    tools: &Inner,
    session: &Session,
    state: &SessionState,
    call: Call,
) -> Result<Answer, ToolError> {
    let asked: ShellArguments = arguments::decode(call.arguments, ALIASES)?;
    let (spec, warnings) = specify(tools, &asked)?;
    if asked.background || asked.tty || asked.yield_time_ms > 0 {
        let mut answer = goes_on(tools, session, state, &asked, spec, &call.id).await?;
        warn(&mut answer, warnings);
        return Ok(answer);
    }
    let id = session.exec_id(TOOL, &call.id);
    let timeout = spec.timeout;
    let mut spec = spec;
    if !asked.stdin.is_empty() {
        spec.stdin = Some(run::stdin(&asked.stdin));
    }
    let ended = tools
        .workspaces
        .within(&tools.client, session, |workspace| {
            let events = tools.client.run_resuming(RunExecRequest {
                workspace,
                exec_id: id.clone(),
                spec: Some(spec.clone()),
                ..RunExecRequest::default()
            });
            follow::follow(events, tools.options.output_bytes_max, &call.id)
        });
    let ended = ended.await.map_err(mistake)?;
    policy::started(TOOL, Some(&ended.result))?;
    let clamped = ended.clamped(timeout);
    let mut result = ended_result(ended);
    result.warnings.extend(warnings.into_iter().chain(clamped));
    Ok(Answer::of(json!(result)))
}

/// A refusal of the daemon in the words of this tool.
fn mistake(error: ToolError) -> ToolError {
    Arguments::default()
        .with_timeout("timeout_sec")
        .translate(error)
}

/// Returns what runs, and warnings about its environment.
fn specify(tools: &Inner, asked: &ShellArguments) -> Result<(ExecSpec, Vec<String>), ToolError> {
    if asked.command.trim().is_empty() {
        return Err(ToolError::arguments("command is required"));
    }
    let cwd = prepare::cwd(&asked.cwd);
    if cwd.contains(['*', '?', '[']) {
        return Err(ToolError::arguments("cwd must not contain glob patterns"));
    }
    let mut spec = ExecSpec {
        timeout: prepare::timeout(tools, asked.timeout_sec),
        ..ExecSpec::default()
    };
    spec.env.clone_from(&asked.env);
    if policy::is_active(&tools.options) {
        policy::restrict(TOOL, &tools.options, &asked.command, &mut spec, None)?;
    } else {
        spec.shell.clone_from(&asked.command);
    }
    spec.cwd = match cwd.as_str() {
        "" => "$WORKSPACE_DIR".to_owned(),
        _ => cwd,
    };
    let warnings = add_host_variables(&tools.options.env, &mut spec.env);
    Ok((spec, warnings))
}

async fn goes_on(
    tools: &Inner,
    session: &Session,
    state: &SessionState,
    asked: &ShellArguments,
    spec: ExecSpec,
    call: &str,
) -> Result<Answer, ToolError> {
    let id = session.exec_id(TOOL, call);
    let id = id.as_str();
    let spec = exec::interactive(tools, spec, asked.timeout_sec, asked.tty);
    let known = || sessions::known(state, id).unwrap_or_default();
    let typed = Typed {
        text: &asked.stdin,
        eof: false,
    };
    let typed = &typed;
    let started = tools
        .workspaces
        .within(&tools.client, session, |workspace| {
            let request = StartExecRequest {
                workspace: workspace.clone(),
                exec_id: id.to_owned(),
                spec: Some(spec.clone()),
            };
            let known = known();
            async move {
                let running = exec::start(tools, request, known, call, typed).await?;
                Ok((workspace, running))
            }
        });
    let (workspace, running) = started.await.map_err(mistake)?;
    let default = if asked.background {
        BACKGROUND_MS
    } else {
        exec::YIELD_MS
    };
    let asked_for = Look {
        name: ids::exec_name(&workspace, id),
        wait: look::wait(asked.yield_time_ms, default),
        lines: None,
        is_tail: false,
    };
    look::answer(tools, session, state, asked_for, running, call).await
}

fn ended_result(ended: Ended) -> ShellResult {
    let mut result = RunResult::default();
    result.ended(&ended.result);
    let total = ended.output.stdout.total() + ended.output.stderr.total();
    let truncated = ended.output.stdout.is_cut() || ended.output.stderr.is_cut();
    let stdout = ended.output.stdout.text("stdout", &mut result.warnings);
    let stderr = ended.output.stderr.text("stderr", &mut result.warnings);
    ShellResult {
        status: "exited",
        output: stdout + &stderr,
        exit_code: Some(result.exit_code),
        next_offset: total,
        truncated,
        total_bytes: truncated.then_some(total),
        reason: Some(result.reason),
        timed_out: result.timed_out,
        duration_ms: Some(result.duration_ms),
        warnings: result.warnings,
        ..ShellResult::default()
    }
}
