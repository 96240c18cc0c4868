//! Runs a command to its end and reads its events, in memory that does not depend on how many there are.

use prost_types::Duration;
use skilld_client::v1::exec_event::Event;
use skilld_client::v1::spawn_failure::Step;
use skilld_client::v1::{ErrorReason, ExecResult, ExecSpec, RunExecRequest};
use skilld_client::{Error, ExecStream};

use crate::call_context::CallContext;
use crate::output_buffer::OutputStreams;
use crate::tool_error::{ToolError, ToolResult};

/// Command that has ended.
#[derive(Debug)]
pub(crate) struct FinishedExec {
    /// Resource name of the exec.
    pub(crate) name: String,
    pub(crate) output: OutputStreams,
    pub(crate) result: ExecResult,
    /// Specification that was in force.
    pub(crate) spec: ExecSpec,
    /// Limits of the server that replaced those of the call.
    pub(crate) warnings: Vec<String>,
}

/// Runs a command in a workspace to its end.
///
/// # Errors
///
/// [`ToolError::CommandRefused`] for a program that the host's rules do not let start, beside the daemon's errors.
pub(crate) async fn run_exec(
    call: CallContext<'_>,
    workspace: String,
    exec_id: String,
    spec: ExecSpec,
) -> ToolResult<FinishedExec> {
    let asked = spec.timeout;
    let events = call.tools.client.run_resuming(RunExecRequest {
        parent: workspace,
        exec_id,
        spec: Some(spec),
        ..RunExecRequest::default()
    });
    let mut finished = follow_exec(events, call.tools.options.output_bytes_max, call.id).await?;
    check_start(call, Some(&finished.result))?;
    finished
        .warnings
        .extend(timeout_warning(asked, finished.spec.timeout));
    Ok(finished)
}

/// Converts a start that the workspace refused by the host's rules to an error.
pub(crate) fn check_start(call: CallContext<'_>, result: Option<&ExecResult>) -> ToolResult<()> {
    let failure = result.and_then(|result| result.spawn_failure.as_ref());
    match failure {
        Some(failure) if failure.step() == Step::Program => Err(ToolError::CommandRefused {
            tool: call.tool,
            problem: format!("command {}", failure.message),
        }),
        _ => Ok(()),
    }
}

/// Follows a command until nothing more comes of it. `call` is the model's id for the call that started it.
pub(crate) async fn follow_exec(
    mut events: ExecStream,
    bytes_max: usize,
    call: &str,
) -> ToolResult<FinishedExec> {
    let mut finished = FinishedExec {
        name: events.name().to_owned(),
        output: OutputStreams::new(bytes_max),
        result: ExecResult::default(),
        spec: ExecSpec::default(),
        warnings: Vec::new(),
    };
    let mut started = false;
    loop {
        let event = match events.next().await {
            Ok(Some(event)) => event,
            Ok(None) => {
                finished.output.finish();
                return Ok(finished);
            }
            Err(error) => return Err(translate_exec_error(error, started, call)),
        };
        started = true;
        match event.event {
            Some(Event::Started(start)) => finished.spec = start.effective_spec.unwrap_or_default(),
            Some(Event::Exited(exited)) => finished.result = exited.result.unwrap_or_default(),
            Some(Event::Closed(closed)) => {
                finished.result.ended_processes = closed.ended_processes;
            }
            Some(event) => finished.output.take(&event),
            None => {}
        }
    }
}

/// Returns a warning if less time is in force than the call asked for.
pub(crate) fn timeout_warning(
    asked: Option<Duration>,
    in_force: Option<Duration>,
) -> Option<String> {
    let whole = |time: &Duration| (time.seconds, time.nanos);
    let (asked, in_force) = asked.zip(in_force)?;
    let seconds = in_force.seconds;
    (whole(&in_force) < whole(&asked))
        .then(|| format!("timeout: the server permits {seconds} s, which was in force"))
}

/// Converts the error of a command that could not be started or followed. A workspace that is gone, or has failed, took a
/// running command with it; only a command that did not start may be tried in a new one, as `workspace_exec` does.
pub(crate) fn translate_exec_error(error: Error, started: bool, call: &str) -> ToolError {
    match error.reason() {
        Some(
            ErrorReason::WorkspaceNotFound
            | ErrorReason::WorkspaceNotReady
            | ErrorReason::GuestLost,
        ) if started => ToolError::WorkspaceLost,
        Some(ErrorReason::IdTaken) => ToolError::CallIdTaken {
            id: call.to_owned(),
        },
        _ => error.into(),
    }
}

/// Returns `true` if the daemon does not know a command: not yet, or not any more.
pub(crate) fn is_unknown_exec(error: &Error) -> bool {
    matches!(
        error.reason(),
        Some(ErrorReason::ExecNotFound | ErrorReason::WorkspaceNotFound)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_less_time_than_was_asked_for_is_said() {
        let time = |seconds: i64, nanos: i32| Some(Duration { seconds, nanos });
        for (asked, in_force, is_said) in [
            (time(7200, 0), time(3600, 0), true),
            (time(1, 5), time(1, 4), true),
            (time(60, 0), time(60, 0), false),
            // The server's own, where nothing was asked for.
            (None, time(60, 0), false),
            (time(60, 0), None, false),
        ] {
            let said = timeout_warning(asked, in_force);
            assert_eq!(said.is_some(), is_said, "{asked:?} {in_force:?}");
        }
        let said = timeout_warning(time(7200, 0), time(3600, 0));
        let wanted = "timeout: the server permits 3600 s, which was in force";
        assert_eq!(said.as_deref(), Some(wanted));
    }
}
