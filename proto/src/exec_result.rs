//! Methods of messages about execs: exit codes as shells have them, short names, counts, and what a run does beside it.

use crate::v1::spawn_failure::Step;
use crate::v1::{
    CollectedFile, ExecResult, ExitReason, GapEvent, RunExecRequest, SkipReason, SpawnFailure,
    StreamOffsets,
};

/// Number that shells add to a signal's for an exit code.
const SIGNAL_BASE: i32 = 128;
const SIGKILL: i32 = 9;
const SIGTERM: i32 = 15;
/// Linux error number of a missing file.
const ENOENT: i32 = 2;

/// Way in which the leader of an exec ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The leader exited with this code.
    ExitCode(i32),
    /// This signal ended the leader.
    Signal(i32),
}

impl ExecResult {
    /// Returns the result of a leader that ended for `reason`. `None` if its end is unknown or nothing was started.
    #[must_use]
    pub fn new(reason: ExitReason, outcome: Option<Outcome>) -> Self {
        let by_itself = reason == ExitReason::Exited;
        let (exit_code, signal) = match outcome {
            // The leader exited with 0 because it handled the SIGTERM of skilld, so the exec did not succeed.
            Some(Outcome::ExitCode(0)) if !by_itself => (SIGNAL_BASE + SIGTERM, 0),
            Some(Outcome::ExitCode(code)) => (code, 0),
            Some(Outcome::Signal(signal)) => (SIGNAL_BASE + signal, signal),
            None => (SIGNAL_BASE + SIGKILL, 0),
        };
        Self {
            exit_code,
            signal,
            success: by_itself && exit_code == 0,
            reason: reason.into(),
            ..Self::default()
        }
    }

    /// Returns the result of an exec whose program could not be started.
    #[must_use]
    pub fn spawn_failed(failure: SpawnFailure) -> Self {
        let is_missing = failure.step() == Step::Exec && failure.error_number == ENOENT;
        Self {
            exit_code: if is_missing { 127 } else { 126 },
            spawn_failure: Some(failure),
            ..Self::new(ExitReason::SpawnFailed, None)
        }
    }

    /// Returns how the leader ended, as far as `exit_code` and `signal` say it; `None` if nothing was started or the
    /// workspace was lost.
    #[must_use]
    pub fn outcome(&self) -> Option<Outcome> {
        match self.reason() {
            ExitReason::SpawnFailed | ExitReason::WorkspaceLost => None,
            _ if self.signal != 0 => Some(Outcome::Signal(self.signal)),
            _ => Some(Outcome::ExitCode(self.exit_code)),
        }
    }
}

impl ExitReason {
    /// Returns the name without the prefix of its enum, for instance `TIMEOUT`.
    #[must_use]
    pub fn short_name(self) -> &'static str {
        self.as_str_name().trim_start_matches("EXIT_REASON_")
    }
}

impl SkipReason {
    /// Returns the name without the prefix of its enum, for instance `MAX_FILES`.
    #[must_use]
    pub fn short_name(self) -> &'static str {
        self.as_str_name().trim_start_matches("SKIP_REASON_")
    }
}

impl GapEvent {
    /// Returns the number of lost bytes.
    #[must_use]
    pub fn lost_bytes(&self) -> u64 {
        count_from_int64(self.end_offset.saturating_sub(self.start_offset))
    }
}

impl RunExecRequest {
    /// Returns `true` if the call does more than to run a command in an existing workspace: it claims, stages or collects,
    /// so its stream ends with a summary.
    #[must_use]
    pub fn is_whole_run(&self) -> bool {
        self.workspace_template.is_some()
            || !self.skills.is_empty()
            || self.writable_skills
            || !self.inputs.is_empty()
            || self.scope.is_some()
            || self.outputs.is_some()
            || self.position.is_some()
            || self.setup.is_some()
    }
}

impl CollectedFile {
    /// Returns `true` if bytes and an end follow: the file is neither a link nor a directory.
    #[must_use]
    pub fn has_end(&self) -> bool {
        self.link_target.is_empty() && !self.is_directory
    }
}

impl StreamOffsets {
    /// Makes the message of a number of bytes for each stream.
    #[must_use]
    pub fn from_counts([stdout, stderr]: [u64; 2]) -> Self {
        Self {
            stdout_bytes: int64_from_count(stdout),
            stderr_bytes: int64_from_count(stderr),
        }
    }

    /// Returns the numbers of bytes of stdout and stderr. A negative one, which the server refuses, counts as 0.
    #[must_use]
    pub fn counts(self) -> [u64; 2] {
        [
            count_from_int64(self.stdout_bytes),
            count_from_int64(self.stderr_bytes),
        ]
    }
}

/// Converts a count to a field of the wire, where numbers are signed.
#[must_use]
pub fn int64_from_count(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// Converts a field of the wire to a count. A negative one counts as 0.
#[must_use]
pub fn count_from_int64(field: i64) -> u64 {
    u64::try_from(field).unwrap_or(0)
}
