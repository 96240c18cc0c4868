//! Warnings about a run that its exit code does not show.

use skilld_proto::v1 as pb;

use super::convert::skill::problem_messages;
use crate::skills::Problem;

/// Number of bytes of a MiB.
const MIB: i64 = 1 << 20;

/// Returns the warnings about an exec that has ended.
pub(super) fn describe_run(result: &pb::ExecResult) -> Vec<pb::Problem> {
    let disks = result.full_disks.iter().map(disk_warning);
    let ended = result.ended_processes.as_ref().map(ended_warning);
    let warnings = oom_warning(result).into_iter().chain(fork_warning(result));
    let warnings: Vec<Problem> = warnings.chain(ended).chain(disks).collect();
    problem_messages(&warnings)
}

fn oom_warning(result: &pb::ExecResult) -> Option<Problem> {
    let killed = match result.oom_kills() {
        0 => return None,
        1 => "1 process was".to_owned(),
        kills => format!("{kills} processes were"),
    };
    let message = format!(
        "{killed} killed for memory in the workspace while this ran, whatever the exit code says: the output may be \
         incomplete; use less memory at once, and run nothing beside it"
    );
    Some(Problem::warning("run.oom_kills", message))
}

fn fork_warning(result: &pb::ExecResult) -> Option<Problem> {
    let message = "the workspace reached its limit of processes while this ran, whatever the exit code says: start \
                   fewer at once";
    (result.refused_forks() > 0).then(|| Problem::warning("run.refused_forks", message.to_owned()))
}

fn ended_warning(ended: &pb::EndedProcesses) -> Problem {
    let count = match ended.count {
        1 => "1 process was".to_owned(),
        count => format!("{count} processes were"),
    };
    let mut names = ended.command_lines.clone();
    if usize::try_from(ended.count).is_ok_and(|count| count > names.len()) {
        names.push("…".to_owned());
    }
    let message = format!("{count} ended with this command ({})", names.join(", "));
    Problem::warning("run.ended_processes", message)
}

fn disk_warning(disk: &pb::FullDisk) -> Problem {
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
    Problem::warning("run.disk_full", message)
}
