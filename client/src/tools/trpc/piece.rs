//! What a call hands over of a command's output: each byte once, characters whole, no more lines than asked for.

use skilld_proto::v1::exec_event::Output;
use skilld_proto::v1::{ExecState, OutputStream, PollExecResponse};

use crate::tools::shown::{bytes, whole_end, whole_start};
use crate::tools::trpc::look::Look;
use crate::tools::trpc::sessions::Running;

/// What is handed over. The streams are apart, so that no line of one is torn by the other.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Handed {
    pub(super) stdout: String,
    pub(super) stderr: String,
    /// Bytes that are gone before anybody asked for them.
    pub(super) lost: u64,
    /// Some of what there is stays for the next call.
    pub(super) more: bool,
}

/// Takes from an answer what is handed over now, and moves on to where the next one starts. `is_full`: it has as much as
/// was asked for, so that there may be more behind it.
pub(super) fn hand(
    running: &mut Running,
    answer: &PollExecResponse,
    look: &Look,
    is_full: bool,
) -> Handed {
    let mut handed = Handed::default();
    for gap in &answer.gaps {
        handed.lost += gap.to.saturating_sub(gap.from);
        *offset(running, gap.stream()) = gap.to;
    }
    let mut lines = look.lines.unwrap_or(usize::MAX);
    let goes_on = is_full || answer.state() != ExecState::Closed;
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    for (index, piece) in answer.output.iter().enumerate() {
        let data = bytes(piece);
        let text = match piece.stream() {
            OutputStream::Stderr => &mut stderr,
            OutputStream::Stdout | OutputStream::Unspecified => &mut stdout,
        };
        let start = match look.is_tail && text.is_empty() {
            true => whole_start(data),
            false => 0,
        };
        handed.lost += start as u64;
        let mut end = within_lines(data, &mut lines);
        handed.more = end < data.len();
        if !handed.more && goes_on && is_last(answer, index, piece.stream()) {
            // The rest of a character is on its way.
            end = whole_end(data);
        }
        text.extend_from_slice(data.get(start..end).unwrap_or_default());
        *offset(running, piece.stream()) = piece.offset.saturating_add(end as u64);
        if handed.more {
            break;
        }
    }
    handed.stdout = String::from_utf8_lossy(&stdout).into_owned();
    handed.stderr = String::from_utf8_lossy(&stderr).into_owned();
    handed
}

fn is_last(answer: &PollExecResponse, index: usize, stream: OutputStream) -> bool {
    let later = answer.output.get(index + 1..).unwrap_or_default();
    !later.iter().any(|piece: &Output| piece.stream() == stream)
}

/// How much of the bytes belongs to so many lines, which are counted down.
fn within_lines(data: &[u8], lines: &mut usize) -> usize {
    if *lines == 0 {
        return 0;
    }
    for (index, byte) in data.iter().enumerate() {
        if *byte == b'\n' {
            *lines -= 1;
            if *lines == 0 {
                return index + 1;
            }
        }
    }
    data.len()
}

fn offset(running: &mut Running, stream: OutputStream) -> &mut u64 {
    match stream {
        OutputStream::Stderr => &mut running.stderr,
        OutputStream::Stdout | OutputStream::Unspecified => &mut running.stdout,
    }
}

#[cfg(test)]
mod tests {
    use skilld_proto::v1::ExecResult;
    use skilld_proto::v1::exec_event::{Gap, output::Content};

    use super::*;

    fn piece(stream: OutputStream, offset: u64, data: &[u8]) -> Output {
        Output {
            stream: stream.into(),
            offset,
            content: Some(Content::Data(data.to_vec().into())),
            ..Output::default()
        }
    }

    fn stdout(offset: u64, data: &[u8]) -> PollExecResponse {
        PollExecResponse {
            output: vec![piece(OutputStream::Stdout, offset, data)],
            ..PollExecResponse::default()
        }
    }

    fn look(lines: Option<usize>) -> Look {
        Look {
            name: String::new(),
            wait: std::time::Duration::ZERO,
            lines,
            is_tail: false,
        }
    }

    #[test]
    fn a_line_without_its_end_is_handed_over_and_not_again() {
        let mut running = Running::default();
        let handed = hand(&mut running, &stdout(0, b"Name: "), &look(Some(40)), false);
        assert_eq!(handed.stdout, "Name: ");
        assert_eq!(running.stdout, 6);
    }

    #[test]
    fn no_more_lines_than_asked_for_and_the_rest_stays() {
        let mut running = Running::default();
        let mut answer = stdout(0, b"1\n2\n3\n");
        let other = piece(OutputStream::Stderr, 0, b"e\n");
        answer.output.push(other);
        let handed = hand(&mut running, &answer, &look(Some(2)), false);
        assert_eq!((handed.stdout.as_str(), handed.more), ("1\n2\n", true));
        assert_eq!((running.stdout, running.stderr), (4, 0));
        let handed = hand(&mut running, &stdout(4, b"3\n"), &look(Some(2)), false);
        assert_eq!((handed.stdout.as_str(), handed.more), ("3\n", false));
    }

    #[test]
    fn a_line_of_one_stream_is_not_torn_by_the_other() {
        let mut running = Running::default();
        let mut first = stdout(0, b"abc");
        first.output.push(piece(OutputStream::Stderr, 0, b"err\n"));
        let first = hand(&mut running, &first, &look(None), false);
        assert_eq!((&*first.stdout, &*first.stderr), ("abc", "err\n"));
        let second = hand(&mut running, &stdout(3, b"def\n"), &look(None), false);
        assert_eq!((&*second.stdout, &*second.stderr), ("def\n", ""));
        assert_eq!((running.stdout, running.stderr), (7, 4));
    }

    #[test]
    fn a_character_waits_until_it_is_whole_or_nothing_more_comes() {
        let mut running = Running::default();
        let handed = hand(&mut running, &stdout(0, b"a\xe2\x82"), &look(None), false);
        assert_eq!((handed.stdout.as_str(), running.stdout), ("a", 1));
        let mut last = stdout(1, b"\xe2\x82");
        last.result = Some(ExecResult::default());
        last.set_state(ExecState::Closed);
        // It has ended, and there is more to hand over than fits.
        let handed = hand(&mut running, &last, &look(None), true);
        assert_eq!((handed.stdout.as_str(), running.stdout), ("", 1));
        let handed = hand(&mut running, &last, &look(None), false);
        assert_eq!((handed.stdout.as_str(), running.stdout), ("\u{fffd}", 3));
    }

    #[test]
    fn the_end_of_an_output_begins_with_a_whole_character() {
        let mut running = Running::default();
        let mut tail = stdout(4, b"\x82\xacend");
        tail.set_state(ExecState::Closed);
        let wanted = Look {
            is_tail: true,
            ..look(None)
        };
        let handed = hand(&mut running, &tail, &wanted, false);
        assert_eq!((handed.stdout.as_str(), handed.lost), ("end", 2));
        assert_eq!(running.stdout, 9);
    }

    #[test]
    fn what_is_lost_is_counted() {
        let mut running = Running::default();
        let mut answer = stdout(10, b"x");
        answer.gaps.push(Gap {
            stream: OutputStream::Stdout.into(),
            from: 0,
            to: 10,
        });
        let handed = hand(&mut running, &answer, &look(None), false);
        assert_eq!((handed.stdout.as_str(), handed.lost), ("x", 10));
        assert_eq!(running.stdout, 11);
    }
}
