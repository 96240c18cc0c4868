//! Reading a command's events to their end, in memory that does not depend on how many there are.

use skilld_proto::v1::exec_event::Event;
use skilld_proto::v1::{ExecResult, ExecSpec, Reason};

use crate::tools::ToolError;
use crate::tools::shown::Streams;
use crate::{Error, ExecStream};

/// A command that has ended.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) output: Streams,
    pub(super) result: ExecResult,
    /// What was in force.
    pub(super) spec: ExecSpec,
}

/// Follows a command until nothing more comes of it. `call` is the model's id for what started it.
pub(super) async fn follow(
    mut events: ExecStream,
    bytes_max: usize,
    call: &str,
) -> Result<Ended, ToolError> {
    let mut ended = Ended {
        output: Streams::new(bytes_max),
        result: ExecResult::default(),
        spec: ExecSpec::default(),
    };
    let mut started = false;
    loop {
        let event = match events.next().await {
            Ok(Some(event)) => event,
            Ok(None) => return Ok(ended),
            Err(error) => return Err(failed(error, started, call)),
        };
        started = true;
        match event.event {
            Some(Event::Started(start)) => ended.spec = start.effective_spec.unwrap_or_default(),
            Some(Event::Exited(exited)) => ended.result = exited.result.unwrap_or_default(),
            Some(event) => ended.output.take(&event),
            None => {}
        }
    }
}

/// Why a command could not be started or followed. Only one that was not started may be tried in a new workspace.
pub(super) fn failed(error: Error, started: bool, call: &str) -> ToolError {
    match error.reason() {
        Some(Reason::WorkspaceNotFound | Reason::GuestLost) if started => ToolError::WorkspaceLost,
        Some(Reason::IdTaken) => ToolError::CallIdTaken {
            id: call.to_owned(),
        },
        _ => error.into(),
    }
}
