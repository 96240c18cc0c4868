//! Takes the output that a call hands over from a poll: each byte once, whole characters, no more lines than requested.

use skilld_client::v1::exec_event::Output;
use skilld_client::v1::{ExecState, OutputStream, PollExecResponse};

use super::remembered_commands::SessionCommand;
use super::session_poll::SessionPollRequest;
use crate::output_buffer::{output_bytes, whole_end, whole_start};

/// Output that is handed over. The streams are separate, so that no line of one is torn by the other.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct DeliveredOutput {
    pub(super) stdout: String,
    pub(super) stderr: String,
    /// Bytes that were dropped before any call read them.
    pub(super) lost: u64,
    /// `true` if output is left for the next call.
    pub(super) more: bool,
}

/// Takes from an answer the output that is handed over now, and advances the offsets by it. `is_full` is `true` if the
/// answer has as much as was requested, so that more may follow.
pub(super) fn deliver_output(
    command: &mut SessionCommand,
    answer: &PollExecResponse,
    poll: &SessionPollRequest,
    is_full: bool,
) -> DeliveredOutput {
    let mut handed = DeliveredOutput::default();
    for gap in &answer.gaps {
        handed.lost += gap.to.saturating_sub(gap.from);
        *offset_mut(command, gap.stream()) = gap.to;
    }
    let mut lines = poll.lines.unwrap_or(usize::MAX);
    let goes_on = is_full || answer.state() != ExecState::Closed;
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    for (index, piece) in answer.output.iter().enumerate() {
        let data = output_bytes(piece);
        let text = match piece.stream() {
            OutputStream::Stderr => &mut stderr,
            OutputStream::Stdout | OutputStream::Unspecified => &mut stdout,
        };
        let start = match poll.is_tail && text.is_empty() {
            true => whole_start(data),
            false => 0,
        };
        handed.lost += start as u64;
        let mut end = count_within_lines(data, &mut lines);
        handed.more = end < data.len();
        if !handed.more && goes_on && is_last(answer, index, piece.stream()) {
            // The rest of a character is on its way.
            end = whole_end(data);
        }
        text.extend_from_slice(data.get(start..end).unwrap_or_default());
        *offset_mut(command, piece.stream()) = piece.offset.saturating_add(end as u64);
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

/// Returns the length of the bytes that belong to `lines` lines, and counts them down.
fn count_within_lines(data: &[u8], lines: &mut usize) -> usize {
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

fn offset_mut(command: &mut SessionCommand, stream: OutputStream) -> &mut u64 {
    match stream {
        OutputStream::Stderr => &mut command.stderr,
        OutputStream::Stdout | OutputStream::Unspecified => &mut command.stdout,
    }
}

#[cfg(test)]
mod tests {
    use skilld_client::v1::ExecResult;
    use skilld_client::v1::exec_event::{Gap, output::Content};

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

    fn poll(lines: Option<usize>) -> SessionPollRequest {
        SessionPollRequest {
            name: String::new(),
            wait: std::time::Duration::ZERO,
            lines,
            is_tail: false,
        }
    }

    #[test]
    fn a_line_without_its_end_is_handed_over_and_not_again() {
        let mut running = SessionCommand::default();
        let handed = deliver_output(&mut running, &stdout(0, b"Name: "), &poll(Some(40)), false);
        assert_eq!(handed.stdout, "Name: ");
        assert_eq!(running.stdout, 6);
    }

    #[test]
    fn no_more_lines_than_asked_for_and_the_rest_stays() {
        let mut running = SessionCommand::default();
        let mut answer = stdout(0, b"1\n2\n3\n");
        let other = piece(OutputStream::Stderr, 0, b"e\n");
        answer.output.push(other);
        let handed = deliver_output(&mut running, &answer, &poll(Some(2)), false);
        assert_eq!((handed.stdout.as_str(), handed.more), ("1\n2\n", true));
        assert_eq!((running.stdout, running.stderr), (4, 0));
        let handed = deliver_output(&mut running, &stdout(4, b"3\n"), &poll(Some(2)), false);
        assert_eq!((handed.stdout.as_str(), handed.more), ("3\n", false));
    }

    #[test]
    fn a_line_of_one_stream_is_not_torn_by_the_other() {
        let mut running = SessionCommand::default();
        let mut first = stdout(0, b"abc");
        first.output.push(piece(OutputStream::Stderr, 0, b"err\n"));
        let first = deliver_output(&mut running, &first, &poll(None), false);
        assert_eq!((&*first.stdout, &*first.stderr), ("abc", "err\n"));
        let second = deliver_output(&mut running, &stdout(3, b"def\n"), &poll(None), false);
        assert_eq!((&*second.stdout, &*second.stderr), ("def\n", ""));
        assert_eq!((running.stdout, running.stderr), (7, 4));
    }

    #[test]
    fn a_character_waits_until_it_is_whole_or_nothing_more_comes() {
        let mut running = SessionCommand::default();
        let handed = deliver_output(&mut running, &stdout(0, b"a\xe2\x82"), &poll(None), false);
        assert_eq!((handed.stdout.as_str(), running.stdout), ("a", 1));
        let mut last = stdout(1, b"\xe2\x82");
        last.result = Some(ExecResult::default());
        last.set_state(ExecState::Closed);
        // It has ended, and there is more to hand over than fits.
        let handed = deliver_output(&mut running, &last, &poll(None), true);
        assert_eq!((handed.stdout.as_str(), running.stdout), ("", 1));
        let handed = deliver_output(&mut running, &last, &poll(None), false);
        assert_eq!((handed.stdout.as_str(), running.stdout), ("\u{fffd}", 3));
    }

    #[test]
    fn the_end_of_an_output_begins_with_a_whole_character() {
        let mut running = SessionCommand::default();
        let mut tail = stdout(4, b"\x82\xacend");
        tail.set_state(ExecState::Closed);
        let wanted = SessionPollRequest {
            is_tail: true,
            ..poll(None)
        };
        let handed = deliver_output(&mut running, &tail, &wanted, false);
        assert_eq!((handed.stdout.as_str(), handed.lost), ("end", 2));
        assert_eq!(running.stdout, 9);
    }

    #[test]
    fn what_is_lost_is_counted() {
        let mut running = SessionCommand::default();
        let mut answer = stdout(10, b"x");
        answer.gaps.push(Gap {
            stream: OutputStream::Stdout.into(),
            from: 0,
            to: 10,
        });
        let handed = deliver_output(&mut running, &answer, &poll(None), false);
        assert_eq!((handed.stdout.as_str(), handed.lost), ("x", 10));
        assert_eq!(running.stdout, 11);
    }
}
