//! `skill_exec`: starts a command in a skill that goes on after the call, for programs that ask or that take long.

use skilld_proto::v1::{
    OnFull, Reason, StartExecRequest, Stdin, Terminal, WriteStdinRequest, stdin,
};

use crate::state::SessionState;
use crate::tools::trpc::collect::Plan;
use crate::tools::trpc::look::{self, Look};
use crate::tools::trpc::prepare::{self, Run};
use crate::tools::trpc::sessions::Running;
use crate::tools::trpc::{ALIASES, follow, ids};
use crate::tools::{Answer, Call, Inner, Session, ToolError, arguments};

/// How long the first call waits for output.
pub(super) const YIELD_MS: u64 = 1000;

pub(super) async fn exec(
    tools: &Inner,
    session: &Session,
    state: &SessionState,
    call: Call,
) -> Result<Answer, ToolError> {
    let run: Run = arguments::decode(call.arguments, ALIASES)?;
    let prepared = prepare::prepare(tools, session, state, "skill_exec", &call.id, &run).await?;
    let plan = Plan::of(tools, &run);
    let mut spec = prepared.spec;
    if plan.saves() {
        // By the daemon, at the end, whether anybody asks then or not, and once.
        spec.collect = Some(plan.spec(tools, session, false));
    }
    let request = StartExecRequest {
        workspace: prepared.workspace.clone(),
        exec_id: prepared.exec.clone(),
        spec: Some(interactive(spec, run.tty)),
    };
    let running = Running {
        plan: Some(plan),
        staged: prepared.staged,
        ..Running::default()
    };
    let typed = Typed {
        text: &run.stdin,
        eof: run.eof,
    };
    let running = start(tools, request, running, &call.id, &typed).await?;
    let asked_for = Look {
        name: ids::exec_name(&prepared.workspace, &prepared.exec),
        wait: look::wait(run.yield_ms, YIELD_MS),
        lines: look::lines(run.poll_lines),
    };
    look::answer(tools, session, state, asked_for, running, &call.id).await
}

/// What is typed at the start.
pub(super) struct Typed<'a> {
    pub(super) text: &'a str,
    pub(super) eof: bool,
}

/// With a stdin that stays open, and a terminal if there is to be one.
pub(super) fn interactive(
    mut spec: skilld_proto::v1::ExecSpec,
    tty: bool,
) -> skilld_proto::v1::ExecSpec {
    spec.stdin = Some(Stdin {
        source: Some(stdin::Source::Open(true)),
    });
    spec.terminal = tty.then(Terminal::default);
    // A model that does not ask must not hold the program up; what is lost is told.
    spec.set_on_full(OnFull::DropOldest);
    spec
}

/// Starts a command and types what is to be typed first. Repeated with the same id it starts and types nothing.
pub(super) async fn start(
    tools: &Inner,
    request: StartExecRequest,
    mut running: Running,
    call: &str,
    typed: &Typed<'_>,
) -> Result<Running, ToolError> {
    let started = tools.client.start_exec(request).await;
    let started = started.map_err(|error| follow::failed(error, false, call))?;
    if typed.text.is_empty() && !typed.eof {
        return Ok(running);
    }
    let write = WriteStdinRequest {
        name: started.name,
        offset: Some(0),
        data: typed.text.as_bytes().to_vec().into(),
        eof: typed.eof,
    };
    match tools.client.write_stdin(write).await {
        Ok(_) => {
            running.stdin = typed.text.len() as u64;
            Ok(running)
        }
        // It ended without reading: no fault of its result.
        Err(error)
            if matches!(
                error.reason(),
                Some(Reason::ExecNotRunning | Reason::StdinClosed)
            ) =>
        {
            Ok(running)
        }
        Err(error) => Err(error.into()),
    }
}
