//! `skill_exec`: starts a command in a skill that goes on after the call, for programs that ask or that take long.

use std::time::Duration;

use skilld_proto::v1::{
    ExecSpec, OnFull, Reason, StartExecRequest, Stdin, Terminal, WriteStdinRequest, stdin,
};

use crate::state::SessionState;
use crate::tools::trpc::collect::Plan;
use crate::tools::trpc::look::{self, Look, Touched};
use crate::tools::trpc::prepare::{self, Run};
use crate::tools::trpc::sessions::{self, Running};
use crate::tools::trpc::{ALIASES, ids, policy, run, warn};
use crate::tools::{Answer, Call, Inner, Session, ToolError, arguments, follow};

/// Default wait of the first call for output, in milliseconds.
pub(super) const YIELD_MS: u64 = 1000;
/// Longest wait for a program to read the text that is typed first.
const TYPE_WAIT: Duration = Duration::from_secs(1);
/// The daemon's largest write.
const TYPED_BYTES_MAX: usize = 1024 * 1024;
/// Longer than any server permits, so that its own maximum is in force.
const FAR: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

pub(super) async fn exec(
    tools: &Inner,
    session: &Session,
    state: &SessionState,
    call: Call,
) -> Result<Answer, ToolError> {
    let run: Run = arguments::decode(call.arguments, ALIASES)?;
    check_typed(&run.stdin)?;
    let prepared = prepare::prepare(tools, session, state, "skill_exec", &call.id, &run).await?;
    let plan = Plan::of(tools, &run);
    let mut spec = prepared.spec;
    if plan.saves() {
        // By the daemon, at the end, whether anybody asks then or not, and once.
        spec.collect = Some(plan.spec(tools, session, false));
    } else {
        spec.planned_collect = plan.planned(tools, session);
    }
    let asked = plan.clone();
    let mut typed = Typed {
        text: &run.stdin,
        eof: run.eof,
    };
    if run.eof && !run.tty {
        // Nothing can follow: no need to type it.
        spec.stdin = Some(run::stdin(&run.stdin));
        typed = Typed::default();
    }
    let request = StartExecRequest {
        workspace: prepared.workspace.clone(),
        exec_id: prepared.exec.clone(),
        spec: Some(interactive(tools, spec, run.timeout, run.tty)),
    };
    let running = sessions::known(state, &prepared.exec).unwrap_or(Running {
        plan: Some(plan),
        staged: prepared.staged,
        ..Running::default()
    });
    let started = start(tools, request, running, &call.id, &typed).await;
    let running = started.map_err(|error| asked.arguments().translate(error))?;
    let asked_for = Look {
        name: ids::exec_name(&prepared.workspace, &prepared.exec),
        wait: look::wait(run.yield_ms, YIELD_MS),
        lines: look::lines(run.poll_lines),
        is_tail: false,
    };
    let mut answer = look::answer(tools, session, state, asked_for, running, &call.id).await?;
    warn(&mut answer, prepared.warnings);
    Ok(answer)
}

/// Text that is typed at the start.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Typed<'a> {
    pub(super) text: &'a str,
    pub(super) eof: bool,
}

/// Returns the specification with a stdin that stays open unless it has one, with a terminal if `tty`, and with a timeout
/// long enough for a dialogue unless the call gives one: `timeout`, in seconds.
pub(super) fn interactive(tools: &Inner, mut spec: ExecSpec, timeout: i64, tty: bool) -> ExecSpec {
    spec.stdin.get_or_insert(Stdin {
        source: Some(stdin::Source::Open(true)),
    });
    spec.terminal = tty.then(Terminal::default);
    // A model that does not ask must not hold the program up; what is lost is told.
    spec.set_on_full(OnFull::DropOldest);
    if timeout <= 0 {
        let whole = tools.options.session_timeout.unwrap_or(FAR);
        let idle = tools.options.session_idle_timeout;
        spec.timeout = whole.try_into().ok();
        spec.no_output_timeout = idle.and_then(|idle| idle.try_into().ok());
    }
    spec
}

/// Refuses text that is too long to be typed.
pub(super) fn check_typed(text: &str) -> Result<(), ToolError> {
    let bytes = text.len();
    if bytes <= TYPED_BYTES_MAX {
        return Ok(());
    }
    Err(ToolError::arguments(format!(
        "{bytes} bytes are too many to be typed, {TYPED_BYTES_MAX} at most: give the program a file"
    )))
}

/// Starts a command and types what is to be typed first. Repeated with the same id it starts and types nothing. Once it
/// has started there is no error that would leave it to nobody.
pub(super) async fn start(
    tools: &Inner,
    request: StartExecRequest,
    running: Running,
    call: &str,
    typed: &Typed<'_>,
) -> Result<Touched, ToolError> {
    check_typed(typed.text)?;
    let asked = request.spec.as_ref().and_then(|spec| spec.timeout);
    // As long as the server permits is no wish that it could cut.
    let asked = asked.filter(|asked| asked.seconds.unsigned_abs() < FAR.as_secs());
    let write_id = request.exec_id.clone();
    let started = tools.client.start_exec(request).await;
    let started = started.map_err(|error| follow::failed(error, false, call))?;
    let tool = match running.plan {
        Some(_) => "skill_exec",
        None => "workspace_exec",
    };
    policy::started(tool, started.result.as_ref())?;
    let in_force = started.effective_spec.and_then(|spec| spec.timeout);
    let mut touched = Touched {
        running,
        done: true,
        warnings: follow::clamped(asked, in_force).into_iter().collect(),
        ..Touched::default()
    };
    if typed.text.is_empty() && !typed.eof {
        return Ok(touched);
    }
    let write = WriteStdinRequest {
        name: started.name,
        data: typed.text.as_bytes().to_vec().into(),
        eof: typed.eof,
        write_id,
        wait: TYPE_WAIT.try_into().ok(),
        ..WriteStdinRequest::default()
    };
    match tools.client.write_stdin(write).await {
        Ok(written) => touched.typed(&written),
        Err(error) => match error.reason() {
            // It ended without reading: no fault of its result.
            Some(Reason::ExecNotRunning | Reason::StdinClosed) => {}
            _ if follow::is_unknown(&error) => return Err(ToolError::WorkspaceLost),
            _ => {
                let warning = format!("nobody knows how much of its stdin was written: {error}");
                touched.warnings.push(warning);
            }
        },
    }
    Ok(touched)
}
