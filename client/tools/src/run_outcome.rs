//! Outcome of a run, the same for every family. It holds how the command ended, its output as a model reads it, and the
//! warnings about both. Each family renders it as its own system does.

use std::time::Duration;

use schemars::JsonSchema;
use serde::Serialize;
use skilld_client::Outcome;
use skilld_client::v1::ExecResult;
use skilld_client::v1::ExitReason;

use crate::exec_run::FinishedExec;
use crate::run_warnings;
use crate::tool_definition::Family;
use crate::tool_options::ToolOptions;

/// End of trpc's warning about output that is not UTF-8. Images may lack iconv.
const DECODING_ADVICE: &str =
    "; a command can convert text, for example `iconv -f ENCODING -t UTF-8`";

/// Outcome of a run, without its files. Serialised it is a part of the results of scripts.
#[derive(Debug, Default, Serialize, JsonSchema)]
pub(crate) struct RunOutcome {
    /// Resource name of the exec.
    #[serde(skip)]
    pub(crate) exec_name: String,
    /// Outcome: exited, signaled, timeout, no_output_timeout, oom_killed, output_limit, spawn_failed and others.
    #[serde(rename = "outcome")]
    pub(crate) reason: String,
    /// Exit code; null if the command did not exit by itself.
    pub(crate) exit_code: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) signal: Option<i32>,
    pub(crate) timed_out: bool,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    /// Number of bytes written.
    pub(crate) stdout_bytes: u64,
    pub(crate) stderr_bytes: u64,
    /// `true` if the middle of the text above is left out.
    pub(crate) stdout_truncated: bool,
    pub(crate) stderr_truncated: bool,
    /// Time from start to end in milliseconds.
    pub(crate) duration_ms: u64,
    #[serde(skip)]
    pub(crate) warnings: Vec<String>,
}

impl From<&ExecResult> for RunOutcome {
    /// Creates the outcome without its output and its warnings.
    fn from(result: &ExecResult) -> Self {
        let (exit_code, signal) = match result.outcome() {
            Some(Outcome::ExitCode(code)) => (Some(code), None),
            Some(Outcome::Signal(signal)) => (None, Some(signal)),
            None => (None, None),
        };
        let time = Duration::try_from(result.wall_duration.unwrap_or_default()).unwrap_or_default();
        Self {
            reason: result.reason().short_name().to_ascii_lowercase(),
            exit_code,
            signal,
            timed_out: matches!(
                result.reason(),
                ExitReason::Timeout | ExitReason::NoOutputTimeout
            ),
            duration_ms: u64::try_from(time.as_millis()).unwrap_or(u64::MAX),
            ..Self::default()
        }
    }
}

impl RunOutcome {
    /// Creates the outcome of a command that has ended, with the warnings about its start, its output and its end.
    pub(crate) fn new(options: &ToolOptions, finished: FinishedExec) -> Self {
        let (subject, advice) = match options.family {
            Family::Trpc => ("the command", DECODING_ADVICE),
            Family::Sherma | Family::AgentZero => ("it", ""),
        };
        let (result, output) = (&finished.result, finished.output);
        let mut outcome = Self::from(result);
        let mut warnings = finished.warnings;
        if let Some(failure) = &result.spawn_failure {
            let warning = format!("{subject} could not be started: {}", failure.message);
            outcome.warnings.push(warning);
        }
        if outcome.timed_out && options.family == Family::Trpc {
            let warning =
                "the command was ended for its time; output and files until then are kept";
            outcome.warnings.push(warning.to_owned());
        }
        outcome.exec_name = finished.name;
        outcome.stdout_bytes = output.stdout.total();
        outcome.stderr_bytes = output.stderr.total();
        outcome.stdout_truncated = output.stdout.is_cut();
        outcome.stderr_truncated = output.stderr.is_cut();
        let texts = &mut outcome.warnings;
        outcome.stdout = output.stdout.into_text("stdout", advice, texts);
        outcome.stderr = output.stderr.into_text("stderr", advice, texts);
        let streams = outcome.streams();
        let end = &finished.run_warnings;
        warnings.extend(run_warnings::describe_end(options, end));
        let has_full_disk = !result.full_disks.is_empty();
        let of_output = run_warnings::describe_output(&finished.spec, &streams, has_full_disk);
        warnings.extend(of_output);
        outcome.warnings.extend(warnings);
        outcome
    }

    /// Adds the warnings of what was prepared for the run, and the one about packages that its skill lacks if these may
    /// be why the command did not do what it should.
    pub(crate) fn add_preparation_warnings(
        &mut self,
        warnings: impl IntoIterator<Item = String>,
        package_warning: Option<String>,
    ) {
        self.warnings.extend(warnings);
        let has_failed = self.exit_code != Some(0) || self.timed_out;
        if has_failed || run_warnings::lacks_package(&self.streams()) {
            self.warnings.extend(package_warning);
        }
    }

    fn streams(&self) -> [&str; 2] {
        [&self.stdout, &self.stderr]
    }
}
