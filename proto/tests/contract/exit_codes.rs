//! Checks the exit codes of results, which are those of shells, and the conversion of counts.

use skilld_proto::v1::spawn_failure::Step;
use skilld_proto::v1::{ExecResult, ExitReason, SpawnFailure, StreamOffsets};
use skilld_proto::{Outcome, int64_from_count};

#[test]
fn an_exit_code_is_a_shells_and_0_only_with_success() {
    use Outcome::{ExitCode, Signal};
    for (reason, outcome, (exit_code, signal, success)) in [
        (ExitReason::Exited, Some(ExitCode(0)), (0, 0, true)),
        (ExitReason::Exited, Some(ExitCode(3)), (3, 0, false)),
        (ExitReason::Signaled, Some(Signal(9)), (137, 9, false)),
        (ExitReason::OomKilled, Some(Signal(9)), (137, 9, false)),
        (ExitReason::DiskFull, Some(ExitCode(1)), (1, 0, false)),
        (ExitReason::Timeout, Some(ExitCode(0)), (143, 0, false)),
        (ExitReason::Timeout, Some(ExitCode(5)), (5, 0, false)),
        (ExitReason::OutputLimit, Some(Signal(15)), (143, 15, false)),
        (ExitReason::WorkspaceLost, None, (137, 0, false)),
    ] {
        let result = ExecResult::new(reason, outcome);
        let parts = (result.exit_code, result.signal, result.success);
        let row = format!("{reason:?}, {outcome:?}");
        assert_eq!(parts, (exit_code, signal, success), "{row}");
        assert_eq!(result.reason(), reason, "{row}");
        // The wire has one exit code, which is not 0 here.
        let unsuccessful = outcome == Some(ExitCode(0)) && !success;
        let expected = if unsuccessful {
            Some(ExitCode(exit_code))
        } else {
            outcome
        };
        assert_eq!(result.outcome(), expected, "{row}");
    }
}

#[test]
fn a_failed_start_is_127_for_a_missing_program_and_else_126() {
    for (stage, error_number, exit_code) in [
        (Step::Exec, 2, 127),
        (Step::Exec, 13, 126),
        (Step::Cwd, 2, 126),
        (Step::Program, 13, 126),
    ] {
        let failure = SpawnFailure {
            step: stage.into(),
            error_number,
            ..Default::default()
        };
        let result = ExecResult::spawn_failed(failure.clone());
        assert_eq!(
            (result.exit_code, result.signal, result.success),
            (exit_code, 0, false)
        );
        assert_eq!(
            (result.reason(), result.outcome()),
            (ExitReason::SpawnFailed, None)
        );
        assert_eq!(result.spawn_failure, Some(failure));
    }
}

#[test]
fn counts_beyond_the_wires_numbers_are_the_nearest_of_them() {
    assert_eq!(StreamOffsets::from_counts([1, 2]).counts(), [1, 2]);
    assert_eq!(int64_from_count(u64::MAX), i64::MAX);
    let negative = StreamOffsets {
        stdout_bytes: -1,
        stderr_bytes: i64::MIN,
    };
    assert_eq!(negative.counts(), [0, 0]);
}
