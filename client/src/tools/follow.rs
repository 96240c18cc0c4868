//! Reading a command's events to their end, in memory that does not depend on how many there are.

use prost_types::Duration;
use skilld_proto::v1::exec_event::Event;
use skilld_proto::v1::{ExecResult, ExecSpec, Reason};

use crate::tools::ToolError;
use crate::tools::shown::Streams;
use crate::{Error, ExecStream};

/// A command that has ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) output: Streams,
    pub(crate) result: ExecResult,
    /// What was in force.
    pub(crate) spec: ExecSpec,
}

impl Ended {
    /// What to say where the server permits less time than was asked for.
    pub(crate) fn clamped(&self, asked: Option<Duration>) -> Option<String> {
        clamped(asked, self.spec.timeout)
    }
}

/// What to say where less time is in force than was asked for.
pub(crate) fn clamped(asked: Option<Duration>, in_force: Option<Duration>) -> Option<String> {
    let whole = |time: &Duration| (time.seconds, time.nanos);
    let (asked, in_force) = asked.zip(in_force)?;
    let seconds = in_force.seconds;
    (whole(&in_force) < whole(&asked))
        .then(|| format!("timeout: the server permits {seconds} s, which was in force"))
}

/// Follows a command until nothing more comes of it. `call` is the model's id for what started it.
pub(crate) async fn follow(
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

/// Why a command could not be started or followed. Only one that was not started may be tried in a new workspace: a
/// workspace that is found to be gone, or to have failed, took one with it that was.
pub(crate) fn failed(error: Error, started: bool, call: &str) -> ToolError {
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

/// Whether the daemon knows nothing of a command: not yet, or not any more.
pub(crate) fn is_unknown(error: &Error) -> bool {
    matches!(
        error.reason(),
        Some(Reason::ExecNotFound | Reason::WorkspaceNotFound)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_less_time_than_was_asked_for_is_said() {
        let time = |seconds: i64, nanos: i32| Some(Duration { seconds, nanos });
        let ended = |timeout| Ended {
            output: Streams::new(1),
            result: ExecResult::default(),
            spec: ExecSpec {
                timeout,
                ..ExecSpec::default()
            },
        };
        for (asked, in_force, is_said) in [
            (time(7200, 0), time(3600, 0), true),
            (time(1, 5), time(1, 4), true),
            (time(60, 0), time(60, 0), false),
            // The server's own, where nothing was asked for.
            (None, time(60, 0), false),
            (time(60, 0), None, false),
        ] {
            let said = ended(in_force).clamped(asked);
            assert_eq!(said.is_some(), is_said, "{asked:?} {in_force:?}");
        }
        let said = ended(time(3600, 0)).clamped(time(7200, 0));
        let wanted = "timeout: the server permits 3600 s, which was in force";
        assert_eq!(said.as_deref(), Some(wanted));
    }
}
