//! Runs a command to its end and reads its events, in memory that does not depend on how many there are.

use std::time::Duration as WallTime;

use prost_types::Duration;
use skilld_client::v1::exec_event::Event;
use skilld_client::v1::exec_result::{Outcome, Reason as EndReason};
use skilld_client::v1::{ExecResult, ExecSpec, Reason, RunExecRequest, Stdin, stdin};
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

/// End of an exec as results report it.
#[derive(Debug)]
pub(crate) struct ExecEnd {
    pub(crate) exit_code: Option<i32>,
    pub(crate) signal: Option<i32>,
    /// Name of the reason in lower case, such as `exited`.
    pub(crate) reason: String,
    pub(crate) timed_out: bool,
    /// Time from start to end in milliseconds.
    pub(crate) duration_ms: u64,
    /// Reason why the command could not be started.
    pub(crate) spawn_failure: Option<String>,
}

impl From<&ExecResult> for ExecEnd {
    fn from(result: &ExecResult) -> Self {
        let (exit_code, signal) = match result.outcome {
            Some(Outcome::ExitCode(code)) => (Some(code), None),
            Some(Outcome::Signal(signal)) => (None, Some(signal)),
            None => (None, None),
        };
        let name = result.reason().as_str_name();
        let name = name.strip_prefix("REASON_").unwrap_or(name);
        let time = WallTime::try_from(result.wall_time.unwrap_or_default()).unwrap_or_default();
        let failure = result.spawn_failure.as_ref();
        Self {
            exit_code,
            signal,
            reason: name.to_ascii_lowercase(),
            timed_out: matches!(
                result.reason(),
                EndReason::Timeout | EndReason::NoOutputTimeout
            ),
            duration_ms: u64::try_from(time.as_millis()).unwrap_or(u64::MAX),
            spawn_failure: failure.map(|failure| failure.message.clone()),
        }
    }
}

/// Runs a command in a workspace to its end.
pub(crate) async fn run_exec(
    call: CallContext<'_>,
    workspace: String,
    exec_id: String,
    spec: ExecSpec,
) -> ToolResult<FinishedExec> {
    let asked = spec.timeout;
    let events = call.tools.client.run_resuming(RunExecRequest {
        workspace,
        exec_id,
        spec: Some(spec),
        ..RunExecRequest::default()
    });
    let mut finished = follow_exec(events, call.tools.options.output_bytes_max, call.id).await?;
    finished
        .warnings
        .extend(timeout_warning(asked, finished.spec.timeout));
    Ok(finished)
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

/// Converts the error of a command that could not be started or followed. Only a command that did not start may be
/// tried in a new workspace: a workspace that is gone, or has failed, took a running command with it.
pub(crate) fn translate_exec_error(error: Error, started: bool, call: &str) -> ToolError {
    match error.reason() {
        Some(Reason::WorkspaceNotFound | Reason::WorkspaceNotReady | Reason::GuestLost)
            if started =>
        {
            ToolError::WorkspaceLost
        }
        Some(Reason::IdTaken) => ToolError::CallIdTaken {
            id: call.to_owned(),
        },
        _ => error.into(),
    }
}

/// Returns `true` if the daemon does not know a command: not yet, or not any more.
pub(crate) fn is_unknown_exec(error: &Error) -> bool {
    matches!(
        error.reason(),
        Some(Reason::ExecNotFound | Reason::WorkspaceNotFound)
    )
}

/// Returns a stdin that ends after a text.
pub(crate) fn text_stdin(text: &str) -> Stdin {
    Stdin {
        source: Some(stdin::Source::Data(text.as_bytes().to_vec().into())),
    }
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
