//! End of an exec: builds the result of its leader, and records it and the end of the output.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use skilld_proto::Outcome;
use skilld_proto::v1::{self, ExitReason};

use crate::exec::host::ExecHost;
use crate::exec::{Exec, ExecPhase};
use crate::sys::ExitStatus;

/// Records the result once the leader has exited or could not be spawned.
pub(super) fn record_exit(host: &ExecHost, exec: &Exec, mut result: v1::ExecResult) {
    result.effective_limits = Some(exec.spec.limits.unwrap_or_default());
    let mut state = exec.state();
    state.phase = ExecPhase::Exited;
    state.end_time = Some(SystemTime::now());
    let total = state.total();
    state.exit_offsets = total.counts();
    state.result = Some(result);
    // From here on only stragglers have the terminal open.
    state.terminal = None;
    drop(state);
    if let Some(stdin) = &exec.stdin {
        stdin.close();
    }
    host.execs.count_leader_exit();
    exec.notify_changed();
}

/// Returns the result of an exec whose leader exited. `cause`, the reason that skilld had to end it, takes precedence
/// over the exit status.
pub(super) fn exited_result(
    exit: ExitStatus,
    wall: Duration,
    cause: Option<ExitReason>,
) -> v1::ExecResult {
    let by_itself = if exit.signaled {
        ExitReason::Signaled
    } else {
        ExitReason::Exited
    };
    let outcome = if exit.signaled {
        Outcome::Signal(exit.code)
    } else {
        Outcome::ExitCode(exit.code)
    };
    v1::ExecResult {
        wall_duration: to_proto_duration(wall),
        user_duration: to_proto_duration(Duration::from_micros(exit.user_us)),
        system_duration: to_proto_duration(Duration::from_micros(exit.sys_us)),
        peak_memory_bytes: i64::try_from(exit.peak_bytes).unwrap_or(i64::MAX),
        ..v1::ExecResult::new(cause.unwrap_or(by_itself), Some(outcome))
    }
}

/// Returns the result of an exec whose exit status is lost, because its supervisor was killed before it reported it.
pub(super) fn lost_result() -> v1::ExecResult {
    v1::ExecResult::new(ExitReason::WorkspaceLost, None)
}

/// Returns the result of a leader whose exit status is lost.
pub(super) fn lost_leader_result(cause: Option<ExitReason>, wall: Duration) -> v1::ExecResult {
    v1::ExecResult {
        wall_duration: wall.try_into().ok(),
        ..v1::ExecResult::new(cause.unwrap_or(ExitReason::WorkspaceLost), None)
    }
}

/// Records the end of both output streams.
pub(super) fn record_output_end(host: &ExecHost, exec: &Arc<Exec>) {
    host.execs.output_ended(exec);
    exec.state().phase = ExecPhase::Closed;
    exec.notify_changed();
}

fn to_proto_duration(duration: Duration) -> Option<prost_types::Duration> {
    prost_types::Duration::try_from(duration).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_status_keeps_the_reason_and_the_wall_time() {
        let wall = Duration::from_millis(1500);
        let timed_out = lost_leader_result(Some(ExitReason::Timeout), wall);
        assert_eq!(timed_out.reason(), ExitReason::Timeout);
        assert_eq!(timed_out.wall_duration, wall.try_into().ok());
        assert_eq!((timed_out.exit_code, timed_out.success), (137, false));
        let result = lost_leader_result(None, wall);
        assert_eq!(result.reason(), ExitReason::WorkspaceLost);
        assert_eq!(result.wall_duration, wall.try_into().ok());
    }
}
