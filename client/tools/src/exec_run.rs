//! Runs a command to its end and reads its events, in memory that does not depend on how many there are.

use prost_types::Duration;
use skilld_client::v1::exec_event::Event;
use skilld_client::v1::spawn_failure::Step;
use skilld_client::v1::{ErrorReason, ExecResult, ExecSpec, Problem, RunExecRequest, StagedEvent};
use skilld_client::{Error, ExecStream};

use crate::call_context::CallContext;
use crate::output_buffer::OutputStreams;
use crate::output_collection::{CollectedOutputs, OutputReceiver};
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
    /// Warnings about the run that its result does not show.
    pub(crate) run_warnings: Vec<Problem>,
    /// Skills and inputs that were staged for it; none if it had been started before.
    pub(crate) staged: StagedEvent,
    /// Files that it left; `None` if none were requested or nothing was started.
    pub(crate) outputs: Option<Result<CollectedOutputs, Error>>,
}

/// Runs a command in a workspace to its end, with all that its request stages and collects. Of each text file at most
/// `text_max` bytes are kept.
///
/// # Errors
///
/// [`ToolError::CommandRefused`] for a program that the host's rules do not let start, beside the daemon's errors.
pub(crate) async fn run_exec(
    call: CallContext<'_>,
    request: RunExecRequest,
    text_max: usize,
) -> ToolResult<FinishedExec> {
    let asked = request.spec.as_ref().and_then(|spec| spec.timeout);
    let tools = call.tools;
    let events = tools.client.run_resuming(request);
    let output = OutputStreams::new(
        tools.options.output_bytes_max,
        tools.secrets.mask(call.session),
    );
    let mut finished = follow_exec(events, output, text_max, call.id).await?;
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

/// Follows a command until nothing more comes of it. `call` is the model's id for the call that started it. A
/// collection that fails loses no output of the command.
pub(crate) async fn follow_exec(
    mut events: ExecStream,
    output: OutputStreams,
    text_max: usize,
    call: &str,
) -> ToolResult<FinishedExec> {
    let mut finished = FinishedExec {
        name: events.name().to_owned(),
        output,
        result: ExecResult::default(),
        spec: ExecSpec::default(),
        warnings: Vec::new(),
        run_warnings: Vec::new(),
        staged: StagedEvent::default(),
        outputs: None,
    };
    let mut receiver = OutputReceiver::new(text_max);
    let mut closed = false;
    loop {
        let event = match events.next().await {
            Ok(Some(event)) => event,
            Ok(None) => break,
            Err(error) if closed => {
                finished.outputs = Some(Err(error));
                break;
            }
            Err(error) => return Err(translate_exec_error(error, events.is_accepted(), call)),
        };
        match event.event {
            Some(Event::Staged(staged)) => finished.staged = staged,
            Some(Event::Started(start)) => finished.spec = start.effective_spec.unwrap_or_default(),
            Some(Event::Exited(exited)) => finished.result = exited.result.unwrap_or_default(),
            Some(Event::Closed(end)) => {
                finished.result.ended_processes = end.ended_processes;
                finished.run_warnings = finished.result.warnings();
                closed = true;
            }
            Some(Event::File(file)) => receiver.begin(file),
            Some(Event::FileData(data)) => receiver.add(&data),
            Some(Event::FileEnd(end)) => receiver.end(end),
            Some(Event::Summary(summary)) => {
                finished.run_warnings = summary.warnings;
                let files = std::mem::take(&mut receiver.files);
                finished.outputs = summary.outputs.map(|summary| Ok((files, summary)));
            }
            Some(event) => finished.output.take(&event),
            None => {}
        }
    }
    finished.output.finish();
    Ok(finished)
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

/// Converts the error of a command that could not be started or followed. A workspace that is gone, or has failed,
/// took a running command with it; only a command that certainly did not start may be tried in a new one.
pub(crate) fn translate_exec_error(error: Error, may_have_started: bool, call: &str) -> ToolError {
    match error.reason() {
        Some(
            ErrorReason::WorkspaceNotFound
            | ErrorReason::WorkspaceNotReady
            | ErrorReason::GuestLost,
        ) if may_have_started => ToolError::WorkspaceLost,
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
