//! Warnings about a run that its exit code does not show, in the words of RunExec's summary.

use crate::v1::{EndedProcesses, ExecResult, FullDisk, Problem, ProblemSeverity};

/// Number of bytes of a MiB.
const MIB: i64 = 1 << 20;

impl ExecResult {
    /// Returns warnings about an exec that has ended: processes that were killed for memory, forks that were refused,
    /// processes that ended with the command, full file systems. The codes begin with `run.`.
    #[must_use]
    pub fn warnings(&self) -> Vec<Problem> {
        let limits = oom_warning(self).into_iter().chain(fork_warning(self));
        let ended = self.ended_processes.as_ref().map(ended_warning);
        let disks = self.full_disks.iter().map(disk_warning);
        limits.chain(ended).chain(disks).collect()
    }
}

fn warning(code: &str, message: String) -> Problem {
    Problem {
        severity: ProblemSeverity::Warning.into(),
        code: code.to_owned(),
        message,
        ..Problem::default()
    }
}

/// Returns a warning if the kernel killed processes for memory. A shell that goes on without a killed child can exit
/// with 0.
fn oom_warning(result: &ExecResult) -> Option<Problem> {
    let killed = match result.oom_kills() {
        0 => return None,
        1 => "1 process was".to_owned(),
        kills => format!("{kills} processes were"),
    };
    let message = format!(
        "{killed} killed for memory in the workspace while this ran, whatever the exit code says: the output may be \
         incomplete; use less memory at once, and run nothing beside it"
    );
    Some(warning("run.oom_kills", message))
}

fn fork_warning(result: &ExecResult) -> Option<Problem> {
    let message = "the workspace reached its limit of processes while this ran, whatever the exit code says: start \
                   fewer at once";
    (result.refused_forks() > 0).then(|| warning("run.refused_forks", message.to_owned()))
}

fn ended_warning(ended: &EndedProcesses) -> Problem {
    let count = match ended.count {
        1 => "1 process was".to_owned(),
        count => format!("{count} processes were"),
    };
    let mut names = ended.command_lines.clone();
    if usize::try_from(ended.count).is_ok_and(|count| count > names.len()) {
        names.push("…".to_owned());
    }
    let message = format!("{count} ended with this command ({})", names.join(", "));
    warning("run.ended_processes", message)
}

fn disk_warning(disk: &FullDisk) -> Problem {
    let size = match disk.size_bytes {
        bytes if bytes >= MIB => format!("{} MiB", bytes / MIB),
        bytes => format!("{bytes} bytes"),
    };
    let advice = match disk.path.as_str() {
        "/tmp" => {
            "remove files there, or set TMPDIR=$WORK_DIR; what fills it stays for later commands"
        }
        "/workspace" => "delete files of the workspace that are no longer needed",
        _ => "remove files there; what fills it stays for later commands",
    };
    let message = format!("{} is full ({size}): {advice}", disk.path);
    warning("run.disk_full", message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Outcome;
    use crate::v1::ExitReason;

    #[track_caller]
    fn check(result: &ExecResult, expected: &[(&str, &str)]) {
        let warnings = result.warnings();
        let shown: Vec<(&str, &str)> = warnings
            .iter()
            .map(|warning| (warning.code.as_str(), warning.message.as_str()))
            .collect();
        assert_eq!(shown.len(), expected.len(), "{shown:?}");
        for ((code, message), (expected_code, part)) in shown.iter().zip(expected) {
            assert!(code == expected_code && message.contains(part), "{shown:?}");
        }
    }

    #[test]
    fn oom_kills_cause_a_warning_whatever_the_exit_code() {
        for (oom_kills, code, begins) in [
            (1, 0, "1 process was killed for memory"),
            (3, 137, "3 processes were killed for memory"),
        ] {
            let result = ExecResult {
                oom_kills: Some(oom_kills),
                ..ExecResult::new(ExitReason::Exited, Some(Outcome::ExitCode(code)))
            };
            check(&result, &[("run.oom_kills", begins)]);
        }
        check(&ExecResult::default(), &[]);
    }

    #[test]
    fn refused_forks_cause_a_warning_despite_exit_code_0() {
        let result = ExecResult {
            refused_forks: Some(3),
            ..ExecResult::new(ExitReason::Exited, Some(Outcome::ExitCode(0)))
        };
        check(&result, &[("run.refused_forks", "start fewer at once")]);
    }

    #[test]
    fn processes_ended_with_their_command_are_named() {
        for (count, lines, named) in [
            (
                1,
                &["a b"] as &[&str],
                "1 process was ended with this command (a b)",
            ),
            (
                7,
                &["a", "b"],
                "7 processes were ended with this command (a, b, …)",
            ),
        ] {
            let result = ExecResult {
                ended_processes: Some(EndedProcesses {
                    count,
                    command_lines: lines.iter().map(|&line| line.to_owned()).collect(),
                }),
                ..ExecResult::default()
            };
            check(&result, &[("run.ended_processes", named)]);
        }
    }

    #[test]
    fn a_full_file_system_is_named_with_its_size_and_what_helps() {
        let full = |path: &str, size_bytes| FullDisk {
            path: path.to_owned(),
            size_bytes,
        };
        let result = ExecResult {
            full_disks: vec![full("/tmp", 64 * MIB), full("/workspace", 256 * MIB)],
            ..ExecResult::default()
        };
        let expected = [
            (
                "run.disk_full",
                "/tmp is full (64 MiB): remove files there, or set TMPDIR=$WORK_DIR; what fills it stays for later commands",
            ),
            (
                "run.disk_full",
                "/workspace is full (256 MiB): delete files of the workspace that are no longer needed",
            ),
        ];
        check(&result, &expected);
    }
}
