//! Warnings about a run: what skilld or the kernel ended during it, and what its output shows that a workspace lacks. Pure;
//! every family adds them to its results.

mod missing_software;
mod output_signs;
mod read_only_skill;

use skilld_client::v1::{EndedProcesses, ExecResult, ExecSpec, FullDisk};

pub(crate) use output_signs::lacks_package;
pub use output_signs::lacks_room;

use crate::prompt::untrusted_text::one_line;
use crate::tool_options::ToolOptions;

/// Number of bytes of a MiB.
const MIB: i64 = 1 << 20;

/// Returns the warnings about a run with this output on stdout and stderr.
pub(crate) fn describe_run(
    options: &ToolOptions,
    result: &ExecResult,
    spec: &ExecSpec,
    streams: &[&str],
) -> Vec<String> {
    let mut warnings = describe_end(options, result);
    warnings.extend(describe_output(
        spec,
        streams,
        !result.full_disks.is_empty(),
    ));
    warnings
}

/// Returns the warnings about what output of a run shows that the workspace lacks. `has_full_disk` is `true` if the end
/// of the run names the file system that was full.
pub(crate) fn describe_output(
    spec: &ExecSpec,
    streams: &[&str],
    has_full_disk: bool,
) -> Vec<String> {
    let room = output_signs::room_warning(streams).filter(|_| !has_full_disk);
    let read_only = read_only_skill::read_only_warning(spec, streams);
    let network = output_signs::network_warning(streams);
    let mut warnings: Vec<String> = room.into_iter().chain(read_only).chain(network).collect();
    warnings.extend(missing_software::missing_software_warnings(streams));
    warnings
}

/// Returns the warnings about the end of a run, whatever it printed.
pub(crate) fn describe_end(options: &ToolOptions, result: &ExecResult) -> Vec<String> {
    let ended = result
        .ended_processes
        .as_ref()
        .map(|ended| ended_warning(options, ended));
    let disks = result.full_disks.iter().map(disk_warning);
    let limits = oom_warning(result).into_iter().chain(fork_warning(result));
    limits.chain(ended).chain(disks).collect()
}

/// Returns a warning if the kernel killed processes for memory during a run. A shell that goes on without a killed
/// child can exit with 0.
fn oom_warning(result: &ExecResult) -> Option<String> {
    let killed = match result.oom_kills() {
        0 => return None,
        1 => "1 process was".to_owned(),
        kills => format!("{kills} processes were"),
    };
    Some(format!(
        "{killed} killed for memory in the workspace while this ran, whatever the exit code says: the output may be \
         incomplete; use less memory at once, and run nothing beside it"
    ))
}

/// Returns a warning if the workspace's limit refused processes during a run.
fn fork_warning(result: &ExecResult) -> Option<String> {
    let warning = "the workspace reached its limit of processes while this ran, whatever the exit code says: start \
                   fewer at once";
    (result.refused_forks() > 0).then(|| warning.to_owned())
}

/// Returns the warning about processes that were ended since they outlived their command.
fn ended_warning(options: &ToolOptions, ended: &EndedProcesses) -> String {
    let count = match ended.count {
        1 => "1 process was".to_owned(),
        count => format!("{count} processes were"),
    };
    let lines = ended.command_lines.iter().map(|line| one_line(line));
    let mut names: Vec<String> = lines.collect();
    if usize::try_from(ended.count).is_ok_and(|count| count > names.len()) {
        names.push("…".to_owned());
    }
    let advice = match options.offers_in_workspace("workspace_exec") {
        true => "start servers with workspace_exec and background",
        false => "use a server in the command that starts it",
    };
    format!(
        "{count} ended with this command ({}): {advice}",
        names.join(", ")
    )
}

/// Returns the warning about a file system without room.
fn disk_warning(disk: &FullDisk) -> String {
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
    format!("{} is full ({size}): {advice}", disk.path)
}

#[cfg(test)]
mod tests {
    use skilld_client::Outcome;
    use skilld_client::v1::ExitReason;

    use super::*;
    use crate::tool_definition::Family;

    fn describe(result: &ExecResult) -> Vec<String> {
        describe_run(
            &ToolOptions::default(),
            result,
            &ExecSpec::default(),
            &["", ""],
        )
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
            let warnings = describe(&result);
            assert_eq!(warnings.len(), 1, "{warnings:?}");
            assert!(warnings[0].starts_with(begins), "{warnings:?}");
        }
        assert!(describe(&ExecResult::default()).is_empty());
    }

    #[test]
    fn refused_forks_cause_a_warning_despite_exit_code_0() {
        let result = ExecResult {
            refused_forks: Some(3),
            ..ExecResult::new(ExitReason::Exited, Some(Outcome::ExitCode(0)))
        };
        let warnings = describe(&result);
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        assert!(warnings[0].ends_with("start fewer at once"), "{warnings:?}");
    }

    #[test]
    fn processes_ended_with_their_command_are_named_with_advice() {
        let result = |count, lines: &[&str]| ExecResult {
            ended_processes: Some(EndedProcesses {
                count,
                command_lines: lines.iter().map(|line| (*line).to_owned()).collect(),
            }),
            ..ExecResult::default()
        };
        let one = result(1, &["python3 -m http.server 8123"]);
        let said = "1 process was ended with this command (python3 -m http.server 8123): start servers with \
                    workspace_exec and background";
        assert_eq!(describe(&one), [said]);
        let many = result(7, &["a", "b\u{202e}"]);
        let options = ToolOptions {
            family: Family::AgentZero,
            ..ToolOptions::default()
        };
        let said = "7 processes were ended with this command (a, b, …): use a server in the command that starts it";
        assert_eq!(describe_end(&options, &many), [said]);
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
        let streams = ["", "cat: write error: No space left on device"];
        let warnings = describe_run(
            &ToolOptions::default(),
            &result,
            &ExecSpec::default(),
            &streams,
        );
        assert_eq!(
            warnings,
            [
                "/tmp is full (64 MiB): remove files there, or set TMPDIR=$WORK_DIR; what fills it stays for later commands",
                "/workspace is full (256 MiB): delete files of the workspace that are no longer needed",
            ]
        );
        // The file was gone before the end.
        let warnings = describe_run(
            &ToolOptions::default(),
            &ExecResult::default(),
            &ExecSpec::default(),
            &streams,
        );
        assert_eq!(
            warnings,
            [output_signs::room_warning(&streams).expect("a sign")]
        );
    }
}
