//! Exit codes and messages for the end of an exec.

use skilld_client::Outcome;
use skilld_client::v1::ExitReason;
use skilld_client::v1::exec_event::Event;
use skilld_client::v1::spawn_failure::Step;
use skilld_client::v1::{ExecResult, FullDisk};

use crate::output::{error_report, signal_names, value_formats};

/// Advice on a workspace with more memory.
const MORE_MEMORY: &str = "`--pool` of `workspace create` and `run` takes a pool with more; --memory, if it was given, takes less than the pool has";

/// Advice on a workspace's limit of processes.
const FEWER_PROCESSES: &str =
    "start fewer at once, or take a --pool of `workspace create` and `run` with a higher limit";

/// Remark on a file system that was full for a while.
const LACKED_ROOM: &str = "the output reports a full file system: delete files, or use --env TMPDIR=/workspace/work if /tmp was too small";

/// Takes from an event what it says of the exec's end.
pub(crate) fn take_ending(result: &mut Option<ExecResult>, event: &Event) {
    match event {
        Event::Exited(exited) => result.clone_from(&exited.result),
        Event::Closed(closed) => {
            if let (Some(result), Some(ended)) = (result, &closed.ended_processes) {
                result.ended_processes = Some(ended.clone());
            }
        }
        Event::Started(_)
        | Event::Heartbeat(_)
        | Event::Output(_)
        | Event::Gap(_)
        | Event::Workspace(_)
        | Event::Staged(_)
        | Event::File(_)
        | Event::FileData(_)
        | Event::FileEnd(_)
        | Event::Summary(_) => {}
    }
}

/// Returns the exit code for an ended exec: the program's own, 128 and the signal that ended it, a shell's code for a
/// program that it cannot start, or that of a failure of skilld.
pub(crate) fn exit_code(result: &ExecResult) -> u8 {
    let is_of_skilld = match &result.spawn_failure {
        Some(failure) => !matches!(failure.step(), Step::Exec | Step::Program | Step::Cwd),
        None => result.outcome().is_none(),
    };
    match is_of_skilld {
        true => error_report::NO_PROGRAM,
        false => u8::try_from(result.exit_code).unwrap_or(1),
    }
}

/// Returns the reason of the end in words; `None` if the exec ended by itself.
pub(crate) fn end_reason(result: &ExecResult) -> Option<String> {
    let wall = value_formats::format_duration(result.wall_duration.as_ref());
    let how = match result.outcome() {
        Some(Outcome::Signal(signal)) => format!(" ({})", signal_names::signal_name(signal)),
        Some(Outcome::ExitCode(_)) | None => String::new(),
    };
    Some(match result.reason() {
        ExitReason::Exited | ExitReason::Unspecified => return None,
        ExitReason::Signaled => format!("the program was killed by a signal{how}"),
        ExitReason::Timeout => {
            format!(
                "killed{how}: it ran into its timeout after {wall}; see --timeout of `exec` and `run`"
            )
        }
        ExitReason::NoOutputTimeout => format!(
            "killed{how}: it printed nothing for longer than its client allows; let it report its progress"
        ),
        ExitReason::OomKilled => {
            format!("killed{how}: the workspace's memory is used up; {MORE_MEMORY}")
        }
        ExitReason::PidsLimit => {
            format!("the workspace's limit of processes was reached: {FEWER_PROCESSES}")
        }
        ExitReason::OutputLimit => {
            format!("killed{how}: it printed more than its client allows; let it write into a file")
        }
        ExitReason::DiskFull => {
            "the program failed while there was no room for its files".to_owned()
        }
        ExitReason::KilledByClient => format!("killed{how} on request"),
        ExitReason::WorkspaceExpired => format!("killed{how}: the workspace expired"),
        ExitReason::WorkspaceLost => "the workspace was lost".to_owned(),
        ExitReason::SpawnFailed => match &result.spawn_failure {
            Some(failure) => format!(
                "could not start the program ({}): {}",
                value_formats::enum_words(failure.step().as_str_name(), "STEP_"),
                failure.message
            ),
            None => "could not start the program".to_owned(),
        },
    })
}

/// Returns what an ended exec's exit code and reason do not say: kills for memory, refused processes, full file
/// systems, and processes that were ended with the command. `reports_no_room` is set if the printed output reports a
/// full file system; that is a warning where the result names none.
pub(crate) fn warnings(result: &ExecResult, reports_no_room: bool) -> Vec<String> {
    let lacked_room = reports_no_room && result.full_disks.is_empty();
    oom_warning(result)
        .into_iter()
        .chain(fork_warning(result))
        .chain(result.full_disks.iter().map(full_disk_warning))
        .chain(lacked_room.then(|| LACKED_ROOM.to_owned()))
        .chain(ended_processes_warning(result))
        .collect()
}

/// Returns a warning if the kernel killed processes for memory while an exec ran that did not end for it: a shell that
/// goes on without a killed child can exit with 0.
fn oom_warning(result: &ExecResult) -> Option<String> {
    let killed = match (result.oom_kills(), result.reason()) {
        (0, _) | (_, ExitReason::OomKilled) => return None,
        (1, _) => "1 process was".to_owned(),
        (kills, _) => format!("{kills} processes were"),
    };
    Some(format!(
        "{killed} killed for memory in the workspace while this ran, whatever the exit code says: the output may be \
         incomplete; {MORE_MEMORY}"
    ))
}

/// Returns a warning if the workspace's limit refused processes while an exec ran that did not fail for it.
fn fork_warning(result: &ExecResult) -> Option<String> {
    let is_silent = result.refused_forks() > 0 && result.reason() != ExitReason::PidsLimit;
    is_silent.then(|| {
        format!(
            "the workspace reached its limit of processes while this ran, whatever the exit code says: \
             {FEWER_PROCESSES}"
        )
    })
}

fn full_disk_warning(disk: &FullDisk) -> String {
    let advice = match disk.path.as_str() {
        "/workspace" => {
            "delete files; `--pool` of `workspace create` and `run` takes a pool with more, and --disk, if it was given, takes less than the pool has"
        }
        "/tmp" => "delete files there, or use --env TMPDIR=/workspace/work",
        _ => "delete files there, or take a --pool with more",
    };
    let size = value_formats::format_size(disk.size_bytes);
    format!("{} ({size}) is full: {advice}", disk.path)
}

fn ended_processes_warning(result: &ExecResult) -> Option<String> {
    let ended = result.ended_processes.as_ref()?;
    let processes = match ended.count {
        0 => return None,
        1 => "1 process that the command left running was ended with it".to_owned(),
        count => format!("{count} processes that the command left running were ended with it"),
    };
    let mut named = ended.command_lines.join("; ");
    if usize::try_from(ended.count).is_ok_and(|count| count > ended.command_lines.len()) {
        named.push_str("; …");
    }
    Some(format!(
        "{processes} ({named}): `skillctl exec --keep-processes` lets such processes run on"
    ))
}

#[cfg(test)]
mod tests {
    use skilld_client::v1::{EndedProcesses, SpawnFailure};

    use super::*;

    const ENOENT: i32 = 2;

    fn result(outcome: Outcome, reason: ExitReason) -> ExecResult {
        ExecResult::new(reason, Some(outcome))
    }

    #[test]
    fn the_programs_own_code_is_passed_on() {
        for code in [0, 1, 2, 77, 255] {
            let result = result(Outcome::ExitCode(code), ExitReason::Exited);
            assert_eq!(i32::from(exit_code(&result)), code);
            assert_eq!(end_reason(&result), None);
        }
    }

    #[test]
    fn a_killed_program_is_128_and_its_signal_with_a_reason() {
        let result = result(Outcome::Signal(9), ExitReason::Timeout);
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
            oom_kills: Some(oom_kills),
            ..result(Outcome::ExitCode(0), reason)
        };
        for (kills, begin) in [(1, "1 process was killed"), (3, "3 processes were killed")] {
            let found = warnings(&killed(kills, ExitReason::Exited), false).concat();
            assert!(found.starts_with(begin), "{found}");
        }
        for (kills, reason) in [(0, ExitReason::Exited), (1, ExitReason::OomKilled)] {
            assert!(warnings(&killed(kills, reason), false).is_empty());
        }
    }

    #[test]
    fn refused_forks_that_the_reason_does_not_name_are_a_warning() {
        let refused = |refused_forks, reason| ExecResult {
            refused_forks: Some(refused_forks),
            ..result(Outcome::ExitCode(0), reason)
        };
        let found = warnings(&refused(4, ExitReason::Exited), false).concat();
        assert!(found.ends_with(FEWER_PROCESSES), "{found}");
        for (forks, reason) in [(0, ExitReason::Exited), (4, ExitReason::PidsLimit)] {
            assert!(warnings(&refused(forks, reason), false).is_empty());
        }
    }

    #[test]
    fn ends_for_a_limit_name_a_way_out() {
        for (reason, advice) in [
            (ExitReason::Timeout, "--timeout"),
            (ExitReason::NoOutputTimeout, "let it report its progress"),
            (ExitReason::OomKilled, MORE_MEMORY),
            (ExitReason::PidsLimit, FEWER_PROCESSES),
            (ExitReason::OutputLimit, "let it write into a file"),
        ] {
            let reason = end_reason(&result(Outcome::Signal(9), reason)).expect("has a reason");
            assert!(reason.contains(advice), "{reason}");
        }
    }

    #[test]
    fn full_file_systems_are_named_with_what_helps() {
        let full = |path: &str| FullDisk {
            path: path.to_owned(),
            size_bytes: 64 << 20,
        };
        let ended = ExecResult {
            full_disks: vec![full("/tmp"), full("/workspace")],
            ..result(Outcome::ExitCode(0), ExitReason::Exited)
        };
        // The output adds nothing to what the result names.
        let found = warnings(&ended, true);
        assert_eq!(found.len(), 2);
        assert!(found[0].starts_with("/tmp (64.0 MiB) is full: ") && found[0].contains("TMPDIR"));
        assert!(found[1].starts_with("/workspace (64.0 MiB) is full: delete files"));
    }

    #[test]
    fn ended_processes_that_have_no_name_are_counted() {
        let ended = ExecResult {
            ended_processes: Some(EndedProcesses {
                count: 3,
                command_lines: vec!["a".into(), "b".into()],
            }),
            ..result(Outcome::ExitCode(0), ExitReason::Exited)
        };
        let said = warnings(&ended, false).concat();
        assert!(said.starts_with("3 processes ") && said.contains("(a; b; …)"));
    }

    #[test]
    fn a_program_that_did_not_run_has_a_code_that_says_so() {
        let failed = |step: Step, errno| {
            ExecResult::spawn_failed(SpawnFailure {
                step: step.into(),
                error_number: errno,
                message: "ENOENT: no-such-program".into(),
            })
        };
        for (step, errno, code) in [
            (Step::Exec, ENOENT, 127),
            (Step::Exec, 13, 126),
            (Step::Cwd, ENOENT, 126),
            (Step::Program, 13, 126),
            (Step::Fork, 11, 125),
        ] {
            assert_eq!(exit_code(&failed(step, errno)), code, "{step:?} {errno}");
        }
        let lost = ExecResult::new(ExitReason::WorkspaceLost, None);
        assert_eq!(exit_code(&lost), 125, "lost");
        let reason = end_reason(&failed(Step::Exec, ENOENT)).expect("has a reason");
        assert!(reason.contains("no-such-program"), "{reason}");
    }
}
