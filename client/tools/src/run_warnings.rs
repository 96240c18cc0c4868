//! Warnings about a run: what skilld or the kernel ended during it, and what its output shows that a workspace lacks. Pure;
//! every family adds them to its results.

mod missing_software;
mod output_signs;
mod read_only_skill;

use skilld_client::v1::{ExecSpec, Problem};

pub(crate) use output_signs::lacks_package;
pub use output_signs::lacks_room;

use crate::prompt::untrusted_text::one_line;
use crate::tool_options::ToolOptions;

/// Code of the warning about processes that ended with their command.
const ENDED_CODE: &str = "run.ended_processes";

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

/// Returns the daemon's warnings about the end of a run, whatever it printed, with what a model can do about ended
/// processes.
pub(crate) fn describe_end(options: &ToolOptions, warnings: &[Problem]) -> Vec<String> {
    let described = warnings.iter().map(|warning| {
        let message = one_line(&warning.message);
        match (
            &*warning.code,
            options.offers_in_workspace("workspace_exec"),
        ) {
            (ENDED_CODE, true) => {
                format!("{message}: start servers with workspace_exec and background")
            }
            (ENDED_CODE, false) => {
                format!("{message}: use a server in the command that starts it")
            }
            _ => message,
        }
    });
    described.collect()
}

#[cfg(test)]
mod tests {
    use skilld_client::v1::{EndedProcesses, ExecResult};

    use super::*;
    use crate::tool_definition::Family;

    #[test]
    fn processes_ended_with_their_command_are_named_with_advice() {
        let result = ExecResult {
            ended_processes: Some(EndedProcesses {
                count: 7,
                command_lines: vec!["a".into(), "b\u{202e}".into()],
            }),
            ..ExecResult::default()
        };
        for (family, advice) in [
            (
                Family::Trpc,
                "start servers with workspace_exec and background",
            ),
            (
                Family::AgentZero,
                "use a server in the command that starts it",
            ),
        ] {
            let options = ToolOptions {
                family,
                ..ToolOptions::default()
            };
            let said = format!("7 processes were ended with this command (a, b, …): {advice}");
            assert_eq!(describe_end(&options, &result.warnings()), [said]);
        }
    }

    #[test]
    fn a_full_file_system_that_the_end_names_is_no_sign() {
        let (spec, streams) = (ExecSpec::default(), ["", "cat: No space left on device"]);
        let sign = output_signs::room_warning(&streams).expect("a sign");
        assert_eq!(describe_output(&spec, &streams, false), [sign]);
        assert_eq!(describe_output(&spec, &streams, true), [""; 0]);
    }
}
