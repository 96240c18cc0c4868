//! Exit codes and messages for the end of an exec.

use skilld_client::v1::exec_result::{Outcome, Reason};
use skilld_client::v1::spawn_failure::Stage;
use skilld_client::v1::{ExecResult, SpawnFailure};

use crate::{signal_names, value_formats};

const ENOENT: i32 = 2;
const EACCES: i32 = 13;

/// Returns the exit code for an ended exec: the program's own, 128 and the signal that ended it, or a shell's code for
/// a program that it cannot start.
pub(crate) fn exit_code(result: &ExecResult) -> u8 {
    match (&result.outcome, &result.spawn_failure) {
        (_, Some(failure)) => spawn_code(failure),
        (Some(Outcome::ExitCode(code)), None) => u8::try_from(*code).unwrap_or(1),
        (Some(Outcome::Signal(signal)), None) => u8::try_from(128 + signal).unwrap_or(1),
        (None, None) => 1,
    }
}

fn spawn_code(failure: &SpawnFailure) -> u8 {
    match (failure.stage(), failure.errno) {
        (Stage::Exec, ENOENT) => 127,
        (Stage::Exec, EACCES) | (Stage::Program, _) => 126,
        (_, _) => 1,
    }
}

/// Returns the reason of the end in words; `None` if the exec ended by itself.
pub(crate) fn end_reason(result: &ExecResult) -> Option<String> {
    let wall = value_formats::format_duration(result.wall_time.as_ref());
    let how = match &result.outcome {
        Some(Outcome::Signal(signal)) => format!(" ({})", signal_names::signal_name(*signal)),
        Some(Outcome::ExitCode(_)) | None => String::new(),
    };
    Some(match result.reason() {
        Reason::Exited | Reason::Unspecified => return None,
        Reason::Signaled => format!("the program was killed by a signal{how}"),
        Reason::Timeout => {
            format!("killed{how}: it ran into its timeout after {wall}; see --timeout")
        }
        Reason::NoOutputTimeout => format!("killed{how}: it printed nothing for too long"),
        Reason::OomKilled => format!(
            "killed{how}: the workspace's memory is used up; leave out --memory, or take a larger --pool, in `workspace create` and `run`"
        ),
        Reason::PidsLimit => "the workspace's limit of processes was reached".to_owned(),
        Reason::OutputLimit => format!("killed{how}: it printed more than its limit"),
        Reason::DiskFull => "the workspace's disk is full; delete files, leave out --disk, or take a larger --pool, in `workspace create` and `run`".to_owned(),
        Reason::KilledByClient => format!("killed{how} on request"),
        Reason::WorkspaceExpired => format!("killed{how}: the workspace expired"),
        Reason::WorkspaceLost => "the workspace was lost".to_owned(),
        Reason::SpawnFailed => match &result.spawn_failure {
            Some(failure) => format!(
                "could not start the program ({}): {}",
                value_formats::enum_words(failure.stage().as_str_name(), "STAGE_"),
                failure.message
            ),
            None => "could not start the program".to_owned(),
        },
    })
}

/// Returns a warning if the kernel killed processes for memory while an exec ran that did not end for it: a shell that
/// goes on without a killed child can exit with 0.
pub(crate) fn oom_warning(result: &ExecResult) -> Option<String> {
    let killed = match (result.oom_kills, result.reason()) {
        (0, _) | (_, Reason::OomKilled) => return None,
        (1, _) => "1 process was".to_owned(),
        (kills, _) => format!("{kills} processes were"),
    };
    Some(format!(
        "{killed} killed for memory in the workspace while this ran, whatever the exit code says: the output may be \
         incomplete; leave out --memory, or take a larger --pool, in `workspace create` and `run`"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result(outcome: Outcome, reason: Reason) -> ExecResult {
        ExecResult {
            outcome: Some(outcome),
            reason: reason.into(),
            ..Default::default()
        }
    }

    #[test]
    fn the_programs_own_code_is_passed_on() {
        for code in [0, 1, 2, 77, 255] {
            let result = result(Outcome::ExitCode(code), Reason::Exited);
            assert_eq!(i32::from(exit_code(&result)), code);
            assert_eq!(end_reason(&result), None);
        }
    }

    #[test]
    fn a_killed_program_is_128_and_its_signal_with_a_reason() {
        let result = result(Outcome::Signal(9), Reason::Timeout);
        assert_eq!(exit_code(&result), 137);
        let reason = end_reason(&result).expect("has a reason");
        assert!(
            reason.contains("timeout") && reason.contains("SIGKILL"),
            "{reason}"
        );
    }

    #[test]
    fn kills_for_memory_that_the_reason_does_not_name_are_a_warning() {
        let killed = |oom_kills, reason| ExecResult {
            oom_kills,
            ..result(Outcome::ExitCode(0), reason)
        };
        for (kills, begin) in [(1, "1 process was killed"), (3, "3 processes were killed")] {
            let warning = oom_warning(&killed(kills, Reason::Exited)).expect("a warning");
            assert!(warning.starts_with(begin), "{warning}");
        }
        assert_eq!(oom_warning(&killed(0, Reason::Exited)), None);
        assert_eq!(oom_warning(&killed(1, Reason::OomKilled)), None);
    }

    #[test]
    fn a_program_that_is_not_there_is_127_as_in_a_shell() {
        let failed = |errno| ExecResult {
            reason: Reason::SpawnFailed.into(),
            spawn_failure: Some(SpawnFailure {
                stage: Stage::Exec.into(),
                errno,
                message: "ENOENT: no-such-program".into(),
            }),
            ..Default::default()
        };
        assert_eq!(exit_code(&failed(ENOENT)), 127);
        assert_eq!(exit_code(&failed(EACCES)), 126);
        let reason = end_reason(&failed(ENOENT)).expect("has a reason");
        assert!(reason.contains("no-such-program"), "{reason}");
    }
}
