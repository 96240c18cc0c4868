//! Describes processes that outlive the leader of their exec, before the guest kills them. A result names them, because
//! a server that a command left behind would otherwise end without a word.

use std::fs::File;

use nix::unistd::Pid;
use skilld_proto::v1::EndedProcesses;

use crate::files::read_slice;
use crate::supervisor::descendants;

/// Maximum number of processes that are named.
const NAMED_MAX: usize = 5;
/// Maximum size of a command line, in bytes.
const LINE_BYTES_MAX: usize = 200;

/// Describes those of the processes that still run; `None` if none does.
pub(super) fn describe_stragglers(mut pids: Vec<Pid>) -> Option<EndedProcesses> {
    pids.retain(|pid| descendants::is_running(*pid));
    pids.sort_unstable();
    let lines = pids.iter().filter_map(|pid| read_command_line(*pid));
    (!pids.is_empty()).then(|| EndedProcesses {
        count: i32::try_from(pids.len()).unwrap_or(i32::MAX),
        command_lines: lines.take(NAMED_MAX).collect(),
    })
}

/// Reads a process's command line, or its program's name if it has cleared that; `None` if the process is gone.
fn read_command_line(pid: Pid) -> Option<String> {
    let read = |name: &str| {
        let file = File::open(format!("/proc/{pid}/{name}")).ok()?;
        // One byte more shows that the line is longer.
        read_slice(&file, u64::MAX, LINE_BYTES_MAX + 1).ok()
    };
    let line = read("cmdline")?;
    let line = if line.is_empty() { read("comm")? } else { line };
    Some(shorten_line(&line))
}

/// Converts a command line, whose arguments end with a NUL each, to one line of bounded length.
fn shorten_line(line: &[u8]) -> String {
    let printable = String::from_utf8_lossy(line).replace(char::is_control, " ");
    let text = printable.trim_end();
    if text.len() <= LINE_BYTES_MAX {
        return text.to_owned();
    }
    let end = text.floor_char_boundary(LINE_BYTES_MAX - '…'.len_utf8());
    format!("{}…", text.get(..end).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_line_is_one_bounded_line_of_text() {
        assert_eq!(shorten_line(b"sh\0-c\0a\nb\x1b[1m\0"), "sh -c a b [1m");
        let exact = "x".repeat(LINE_BYTES_MAX);
        assert_eq!(shorten_line(exact.as_bytes()), exact);
        for long in ["x".repeat(LINE_BYTES_MAX + 1), "é".repeat(150)] {
            let line = shorten_line(&long.as_bytes()[..LINE_BYTES_MAX + 1]);
            assert!(
                line.len() <= LINE_BYTES_MAX && line.ends_with('…'),
                "{line}"
            );
            assert!(long.starts_with(line.trim_end_matches('…')), "{line}");
        }
        assert_eq!(shorten_line(b"a\xff\0"), "a\u{fffd}");
    }
}
