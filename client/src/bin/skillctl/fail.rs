//! How the program says that it failed.

use std::io::{self, Write};

use skilld_client::v1::Reason;

use crate::interrupt::{self, Interrupted};
use crate::output::plain_line;

/// Code of a program that its reader left, as if SIGPIPE had ended it.
pub(crate) const PIPE_CLOSED: u8 = 141;

/// What writing to a terminal that is gone brings.
const EIO: i32 = 5;

/// Says what went wrong and what to do next; the code to exit with.
pub(crate) fn report(error: &anyhow::Error) -> u8 {
    if error.is::<Interrupted>() {
        return interrupt::EXIT_CODE;
    }
    if is_broken_pipe(error) {
        return PIPE_CLOSED;
    }
    let mut stderr = io::stderr().lock();
    // Nothing can be done about a stderr that nobody reads.
    drop(writeln!(
        stderr,
        "error: {}",
        plain_line(&error.to_string())
    ));
    if let Some(command) = next_command(error) {
        drop(writeln!(stderr, "hint: {command}"));
    }
    1
}

/// Whether nobody reads what is printed any more: the pipe is closed, or the terminal is gone.
pub(crate) fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| {
        error.kind() == io::ErrorKind::BrokenPipe || error.raw_os_error() == Some(EIO)
    })
}

/// The command that helps, where one does.
fn next_command(error: &anyhow::Error) -> Option<&'static str> {
    let failure = error.downcast_ref::<skilld_client::Error>()?.failure()?;
    match failure.reason? {
        Reason::SkillNotFound => Some("`skillctl skill list` shows all skills"),
        Reason::SkillInvalid => Some("`skillctl skill show NAME` lists its problems"),
        Reason::WorkspaceNotFound => Some("`skillctl workspace list` shows all workspaces"),
        Reason::ExecNotFound | Reason::ExecNotRunning | Reason::StdinClosed => {
            Some("`skillctl ps ID` shows a workspace's execs")
        }
        Reason::PoolNotFound => Some("`skillctl pool list` shows all pools"),
        Reason::PoolExhausted => Some(
            "`skillctl pool list` shows how full it is, `skillctl pool resize NAME N` keeps more warm",
        ),
        // Only of a skill's files nearest ones are named, or that there are none.
        Reason::FileNotFound if failure.metadata.contains_key("nearest") => {
            Some("`skillctl skill files NAME` shows what there is")
        }
        Reason::FileNotFound => Some("`skillctl ls ID PATH` shows what is there"),
        Reason::ArtifactNotFound => Some(
            "`skillctl artifact list` and `skillctl artifact versions NAME` show what there is in a scope",
        ),
        Reason::EngineUnavailable => Some("`skillctl problems` shows what the daemon knows"),
        Reason::Unspecified
        | Reason::InvalidRequest
        | Reason::Unauthenticated
        | Reason::PermissionDenied
        | Reason::IdTaken
        | Reason::WorkspaceNotReady
        | Reason::LimitUnsupported
        | Reason::PathEscapes
        | Reason::ReadOnly
        | Reason::OutputDropped
        | Reason::QuotaExceeded
        | Reason::DiskFull
        | Reason::Draining
        | Reason::GuestLost
        | Reason::Internal
        | Reason::NotImplemented
        | Reason::ArchiveInvalid
        | Reason::ChecksumMismatch
        | Reason::WrongFileType
        | Reason::Deadline
        | Reason::FilePermission
        | Reason::LimitExceeded
        | Reason::StorageUnavailable
        | Reason::StateDiskFull
        | Reason::StateDiskReadOnly
        | Reason::TooManyFiles
        | Reason::FetchFailed => None,
    }
}
