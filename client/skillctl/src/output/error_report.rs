//! Error messages and exit codes of the program.

use std::io::{self, Write};

use serde_json::{Map, Value, json};
use skilld_client::v1::ErrorReason;
use skilld_client::{Failure, code_name};

use crate::output::{self, daemon_message};
use crate::terminal::interrupt::{self, InterruptedError};
use crate::terminal::safe_text::plain_line;

/// Exit code of this program when the reader of its output is gone, as if SIGPIPE had ended it.
pub(crate) const PIPE_CLOSED: u8 = 141;

/// Exit code of the commands that pass on a program's code when there is none to pass on, as of `docker`.
pub(crate) const NO_PROGRAM: u8 = 125;

/// Error number of a write to a terminal that is gone.
const EIO: i32 = 5;

/// Advice on a command that is too long.
const LONG_COMMAND: &str =
    "`skillctl cp` puts a long text into a file, and `exec -i` sends it to the command's stdin";

/// Advice on how to get a larger workspace.
const POOL_LIMITS: &str = "`workspace create` and `run` give a workspace all of its pool without `--memory`, `--disk` and `--cpus`; `--pool` takes a larger pool";

/// Prints an error and advice to stderr, and returns the exit code of this program: `code`, unless the program was
/// interrupted or its output has no reader.
pub(crate) fn report_error(error: &anyhow::Error, code: u8) -> u8 {
    if is_broken_pipe(error) {
        return PIPE_CLOSED;
    }
    let interrupted = error.is::<InterruptedError>();
    let mut stderr = io::stderr().lock();
    // A stderr without a reader cannot be reported anywhere.
    if output::is_json() {
        drop(stderr.write_all(output::json_line(&to_json(error)).as_bytes()));
    } else if !interrupted {
        drop(writeln!(
            stderr,
            "error: {}",
            plain_line(&error_message(error))
        ));
        if let Some(command) = next_command(error) {
            drop(writeln!(stderr, "hint: {command}"));
        }
    }
    if interrupted {
        interrupt::EXIT_CODE
    } else {
        code
    }
}

/// Prints a usage error of the command line as JSON.
pub(crate) fn report_usage_error(message: &str) {
    let message = message.trim().trim_start_matches("error: ");
    let error = json!({"error": {"message": message, "code": "USAGE"}});
    drop(
        io::stderr()
            .lock()
            .write_all(output::json_line(&error).as_bytes()),
    );
}

/// Returns the message of an error with its causes, unless it has them already. The client library's errors do, or say
/// what to do instead.
pub(crate) fn error_message(error: &anyhow::Error) -> String {
    let mut message = String::new();
    for cause in error.chain() {
        let of_daemon = cause.downcast_ref::<skilld_client::Error>();
        let text = match of_daemon.and_then(skilld_client::Error::failure) {
            Some(_) => daemon_message::for_command_line(&cause.to_string()),
            None => cause.to_string(),
        };
        if !message.contains(&text) {
            let colon = if message.is_empty() { "" } else { ": " };
            message = format!("{message}{colon}{text}");
        }
        if cause.is::<skilld_client::Error>() {
            break;
        }
    }
    message
}

/// Converts an error to JSON, `{"error": …}`: a message, and the details that the daemon sent.
fn to_json(error: &anyhow::Error) -> Value {
    let mut fields = Map::new();
    fields.insert("message".into(), error_message(error).into());
    let failure = error
        .downcast_ref::<skilld_client::Error>()
        .and_then(skilld_client::Error::failure);
    if let Some(failure) = failure {
        add_failure(&mut fields, failure);
    }
    if let Some(command) = next_command(error) {
        fields.insert("hint".into(), command.into());
    }
    json!({ "error": fields })
}

fn add_failure(fields: &mut Map<String, Value>, failure: &Failure) {
    let violations = failure
        .violations
        .iter()
        .map(|violation| json!({"field": violation.field, "description": violation.description}));
    let reason = failure.reason.map(ErrorReason::error_info_name);
    let retry_after = failure.retry_after.map(|wait| wait.as_secs_f64());
    fields.insert("code".into(), code_name(failure.code).into());
    fields.insert("reason".into(), reason.into());
    fields.insert("metadata".into(), json!(failure.metadata));
    fields.insert("violations".into(), violations.collect());
    fields.insert("retryAfterSeconds".into(), retry_after.into());
}

/// Returns `true` if stdout or stderr has no reader any more: the pipe is closed, or the terminal is gone.
pub(crate) fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let error_kind = error.downcast_ref::<io::Error>().map(io::Error::kind);
    error_kind == Some(io::ErrorKind::BrokenPipe) || is_terminal_gone(error)
}

/// Returns `true` if stdout or stderr is a terminal that is gone.
pub(crate) fn is_terminal_gone(error: &anyhow::Error) -> bool {
    let code = error
        .downcast_ref::<io::Error>()
        .and_then(io::Error::raw_os_error);
    code == Some(EIO)
}

/// Returns advice that names the command to run next; `None` if no command helps.
fn next_command(error: &anyhow::Error) -> Option<&'static str> {
    let failure = error.downcast_ref::<skilld_client::Error>()?.failure()?;
    match failure.reason? {
        ErrorReason::SkillNotFound => Some("`skillctl skill list` shows all skills"),
        ErrorReason::SkillInvalid => Some("`skillctl skill show NAME` lists its problems"),
        ErrorReason::WorkspaceNotFound => Some("`skillctl workspace list` shows all workspaces"),
        ErrorReason::ExecNotFound | ErrorReason::ExecNotRunning | ErrorReason::StdinClosed => {
            Some("`skillctl ps ID` shows a workspace's execs")
        }
        ErrorReason::PoolNotFound => Some("`skillctl pool list` shows all pools"),
        ErrorReason::PoolExhausted => Some(
            "`skillctl pool list` shows how full it is, `skillctl pool resize NAME N` keeps more warm",
        ),
        // Only of a skill's files nearest ones are named, or that there are none.
        ErrorReason::FileNotFound if failure.metadata.contains_key("nearest") => {
            Some("`skillctl skill files NAME` shows what there is")
        }
        ErrorReason::FileNotFound => Some("`skillctl ls ID PATH` shows what is there"),
        ErrorReason::ArtifactNotFound => Some(
            "`skillctl artifact list` and `skillctl artifact versions NAME` show what there is in a scope",
        ),
        ErrorReason::IdTaken if names_workspace(failure) => Some(
            "--allow-existing takes the workspace that exists; without --id the workspace gets a new id",
        ),
        ErrorReason::InvalidRequest if is_long_command(failure) => Some(LONG_COMMAND),
        ErrorReason::DiskFull => Some(POOL_LIMITS),
        ErrorReason::LimitUnsupported if is_size(failure) => Some(POOL_LIMITS),
        ErrorReason::Unauthenticated => Some(
            "--token-file, SKILLD_TOKEN, or a context (`skillctl context --help`) has the credential",
        ),
        ErrorReason::PermissionDenied => Some("`skillctl whoami` shows your tenant and role"),
        ErrorReason::QuotaExceeded if failure.is_tenant_quota() => {
            Some("`skillctl usage` shows your quotas and what is held")
        }
        ErrorReason::EngineUnavailable => Some("`skillctl problems` shows what the daemon knows"),
        ErrorReason::Unspecified
        | ErrorReason::InvalidRequest
        | ErrorReason::IdTaken
        | ErrorReason::WorkspaceNotReady
        | ErrorReason::LimitUnsupported
        | ErrorReason::PathEscapes
        | ErrorReason::ReadOnly
        | ErrorReason::OutputDropped
        | ErrorReason::QuotaExceeded
        | ErrorReason::Draining
        | ErrorReason::GuestLost
        | ErrorReason::Internal
        | ErrorReason::NotImplemented
        | ErrorReason::ArchiveInvalid
        | ErrorReason::ChecksumMismatch
        | ErrorReason::WrongFileType
        | ErrorReason::Deadline
        | ErrorReason::FilePermission
        | ErrorReason::LimitExceeded
        | ErrorReason::StorageUnavailable
        | ErrorReason::StateDiskFull
        | ErrorReason::StateDiskReadOnly
        | ErrorReason::TooManyFiles
        | ErrorReason::FetchFailed
        | ErrorReason::AuthenticationOff
        | ErrorReason::AuditUnavailable
        | ErrorReason::SetupFailed => None,
    }
}

/// Returns `true` if the failure is about a workspace itself.
fn names_workspace(failure: &Failure) -> bool {
    let name = failure.resource.as_deref().unwrap_or_default();
    name.starts_with("workspaces/") && !name.contains("/execs/")
}

/// Returns `true` if the words or the environment of a command are too long.
fn is_long_command(failure: &Failure) -> bool {
    failure.violations.iter().any(|violation| {
        let fields = ["spec.shell", "spec.argv", "spec.script.arg", "spec.env"];
        fields
            .iter()
            .any(|field| violation.field.starts_with(field))
            && violation.description.contains(" bytes")
    })
}

/// Returns `true` if a refused limit is one of a workspace's sizes.
fn is_size(failure: &Failure) -> bool {
    let field = failure.metadata.get("field");
    field.is_some_and(|field| field.starts_with("limits"))
}
