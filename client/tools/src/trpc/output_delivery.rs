//! Takes the output that a call hands over from polls. Each byte is handed over once, in whole characters, in no more
//! lines than requested, and without what is for a terminal.

use skilld_client::count_from_int64;
use skilld_client::v1::OutputEvent;
use skilld_client::v1::{ExecState, OutputStream, PollExecResponse};

use super::remembered_commands::SessionCommand;
use crate::output_buffer::{output_bytes, whole_end, whole_start};
use crate::secret_mask::SecretMask;
use crate::terminal_output::TerminalCleaner;

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

/// Output of one call, which may take several answers.
#[derive(Debug)]
pub(super) struct OutputDelivery {
    stdout: StreamDelivery,
    stderr: StreamDelivery,
    /// Number of lines that may still be handed over.
    lines: usize,
    /// `true` if output before the offsets was left out, so that it may begin within a character.
    is_tail: bool,
    /// Secrets, of which no answer ends with a part.
    mask: SecretMask,
    lost: u64,
    more: bool,
}

/// Output of one stream.
#[derive(Debug)]
struct StreamDelivery {
    cleaner: TerminalCleaner,
    /// Text that the program cannot redraw any more.
    text: Vec<u8>,
    /// Bytes that were taken.
    taken: u64,
}

impl OutputDelivery {
    /// Creates a delivery of at most so many lines.
    pub(super) fn new(lines: Option<usize>, is_tail: bool, mask: SecretMask) -> Self {
        Self {
            stdout: StreamDelivery::new(),
            stderr: StreamDelivery::new(),
            lines: lines.unwrap_or(usize::MAX),
            is_tail,
            mask,
            lost: 0,
            more: false,
        }
    }

    /// Takes the output of an answer, and advances the offsets by it. `is_full` is `true` if the answer has as much as
    /// was requested, so that more may follow.
    pub(super) fn take(
        &mut self,
        command: &mut SessionCommand,
        answer: &PollExecResponse,
        is_full: bool,
    ) {
        for gap in &answer.gaps {
            self.lost += gap.lost_bytes();
            *offset_mut(command, gap.stream()) = count_from_int64(gap.end_offset);
        }
        let goes_on = is_full || answer.state() != ExecState::Closed;
        for (index, piece) in answer.outputs.iter().enumerate() {
            let data = output_bytes(piece);
            let is_tail = self.is_tail;
            let mut end = count_within_lines(data, &mut self.lines);
            self.more = end < data.len();
            if !self.more && goes_on && is_last(answer, index, piece.stream()) {
                // The rest of a character is on its way.
                end = whole_end(data);
                let held = self.mask.open_bytes(data.get(..end).unwrap_or_default());
                // So is the rest of a secret. Only one that a whole call has no room for is cut.
                if is_full && (held < end || self.text_bytes() > 0) {
                    end -= held;
                    self.more = held > 0;
                }
            }
            let stream = self.stream_mut(piece.stream());
            let start = match is_tail && stream.taken == 0 {
                true => whole_start(data),
                false => 0,
            };
            stream.push(data.get(start..end).unwrap_or_default());
            self.lost += start as u64;
            *offset_mut(command, piece.stream()) =
                count_from_int64(piece.offset).saturating_add(end as u64);
            if self.more {
                break;
            }
        }
    }

    /// Returns the number of bytes of text so far.
    pub(super) fn text_bytes(&self) -> usize {
        let streams = [&self.stdout, &self.stderr];
        let bytes = streams.map(|stream| stream.text.len() + stream.cleaner.held_bytes());
        bytes.into_iter().sum()
    }

    /// Returns `true` if no more lines may be handed over.
    pub(super) fn is_at_its_lines(&self) -> bool {
        self.more || self.lines == 0
    }

    /// Returns the text. If the output `goes_on`, the beginning of an escape sequence waits for the next call.
    pub(super) fn finish(mut self, command: &mut SessionCommand, goes_on: bool) -> DeliveredOutput {
        if goes_on {
            command.stdout -= self.stdout.open_bytes().min(command.stdout);
            command.stderr -= self.stderr.open_bytes().min(command.stderr);
        }
        DeliveredOutput {
            stdout: self.stdout.finish(),
            stderr: self.stderr.finish(),
            lost: self.lost,
            more: self.more,
        }
    }

    fn stream_mut(&mut self, stream: OutputStream) -> &mut StreamDelivery {
        match stream {
            OutputStream::Stderr => &mut self.stderr,
            OutputStream::Stdout | OutputStream::Unspecified => &mut self.stdout,
        }
    }
}

impl DeliveredOutput {
    /// Cuts each stream to its last `bytes_max` bytes, and counts the others as lost.
    pub(super) fn keep_tail(&mut self, bytes_max: usize) {
        for text in [&mut self.stdout, &mut self.stderr] {
            let start = text.ceil_char_boundary(text.len().saturating_sub(bytes_max));
            text.drain(..start);
            self.lost += start as u64;
        }
    }
}

impl StreamDelivery {
    fn new() -> Self {
        Self {
            cleaner: TerminalCleaner::new(),
            text: Vec::new(),
            taken: 0,
        }
    }

    fn push(&mut self, data: &[u8]) {
        self.taken += data.len() as u64;
        let text = &mut self.text;
        self.cleaner
            .push(data, &mut |settled: &[u8]| text.extend_from_slice(settled));
    }

    /// Returns the number of bytes at the end that begin an escape sequence; 0 if they are all that was taken.
    fn open_bytes(&self) -> u64 {
        let open = self.cleaner.open_bytes() as u64;
        if open < self.taken { open } else { 0 }
    }

    fn finish(&mut self) -> String {
        let text = &mut self.text;
        self.cleaner
            .finish(&mut |settled: &[u8]| text.extend_from_slice(settled));
        String::from_utf8_lossy(text).into_owned()
    }
}

fn is_last(answer: &PollExecResponse, index: usize, stream: OutputStream) -> bool {
    let later = answer.outputs.get(index + 1..).unwrap_or_default();
    !later
        .iter()
        .any(|piece: &OutputEvent| piece.stream() == stream)
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
    use skilld_client::v1::GapEvent;
    use skilld_client::v1::output_event::Content;

    use super::*;

    fn piece(stream: OutputStream, offset: u64, data: &[u8]) -> OutputEvent {
        OutputEvent {
            stream: stream.into(),
            offset: i64::try_from(offset).expect("small"),
            content: Some(Content::Data(data.to_vec().into())),
            ..OutputEvent::default()
        }
    }

    fn stdout(offset: u64, data: &[u8]) -> PollExecResponse {
        PollExecResponse {
            outputs: vec![piece(OutputStream::Stdout, offset, data)],
            ..PollExecResponse::default()
        }
    }

    /// Delivers one answer.
    fn deliver_output(
        command: &mut SessionCommand,
        answer: &PollExecResponse,
        lines: Option<usize>,
        is_full: bool,
    ) -> DeliveredOutput {
        let mut delivery = OutputDelivery::new(lines, false, SecretMask::default());
        delivery.take(command, answer, is_full);
        delivery.finish(command, is_full || answer.state() != ExecState::Closed)
    }

    #[test]
    fn a_line_without_its_end_is_handed_over_and_not_again() {
        let mut running = SessionCommand::default();
        let handed = deliver_output(&mut running, &stdout(0, b"Name: "), Some(40), false);
        assert_eq!(handed.stdout, "Name: ");
        assert_eq!(running.stdout, 6);
    }

    #[test]
    fn no_more_lines_than_requested_are_handed_over() {
        let mut running = SessionCommand::default();
        let mut answer = stdout(0, b"1\n2\n3\n");
        let other = piece(OutputStream::Stderr, 0, b"e\n");
        answer.outputs.push(other);
        let handed = deliver_output(&mut running, &answer, Some(2), false);
        assert_eq!((handed.stdout.as_str(), handed.more), ("1\n2\n", true));
        assert_eq!((running.stdout, running.stderr), (4, 0));
        let handed = deliver_output(&mut running, &stdout(4, b"3\n"), Some(2), false);
        assert_eq!((handed.stdout.as_str(), handed.more), ("3\n", false));
    }

    #[test]
    fn a_line_of_one_stream_is_not_torn_by_the_other() {
        let mut running = SessionCommand::default();
        let mut first = stdout(0, b"abc");
        first.outputs.push(piece(OutputStream::Stderr, 0, b"err\n"));
        let first = deliver_output(&mut running, &first, None, false);
        assert_eq!((&*first.stdout, &*first.stderr), ("abc", "err\n"));
        let second = deliver_output(&mut running, &stdout(3, b"def\n"), None, false);
        assert_eq!((&*second.stdout, &*second.stderr), ("def\n", ""));
        assert_eq!((running.stdout, running.stderr), (7, 4));
    }

    #[test]
    fn a_character_waits_until_it_is_whole_or_nothing_more_comes() {
        let mut running = SessionCommand::default();
        let handed = deliver_output(&mut running, &stdout(0, b"a\xe2\x82"), None, false);
        assert_eq!((handed.stdout.as_str(), running.stdout), ("a", 1));
        let mut last = stdout(1, b"\xe2\x82");
        last.result = Some(ExecResult::default());
        last.set_state(ExecState::Closed);
        // It has ended, and there is more to hand over than fits.
        let handed = deliver_output(&mut running, &last, None, true);
        assert_eq!((handed.stdout.as_str(), running.stdout), ("", 1));
        let handed = deliver_output(&mut running, &last, None, false);
        assert_eq!((handed.stdout.as_str(), running.stdout), ("\u{fffd}", 3));
    }

    #[test]
    fn the_end_of_an_output_begins_with_a_whole_character() {
        let mut running = SessionCommand::default();
        let mut tail = stdout(4, b"\x82\xacend");
        tail.set_state(ExecState::Closed);
        let mut delivery = OutputDelivery::new(None, true, SecretMask::default());
        delivery.take(&mut running, &tail, false);
        let handed = delivery.finish(&mut running, false);
        assert_eq!((handed.stdout.as_str(), handed.lost), ("end", 2));
        assert_eq!(running.stdout, 9);
    }

    #[test]
    fn an_escape_sequence_is_held_until_complete_and_removed() {
        let mut running = SessionCommand::default();
        let handed = deliver_output(&mut running, &stdout(0, b"a\x1b[3"), None, false);
        assert_eq!((handed.stdout.as_str(), running.stdout), ("a", 1));
        let rest = stdout(1, b"\x1b[31mb\rc\n");
        let handed = deliver_output(&mut running, &rest, None, false);
        assert_eq!((handed.stdout.as_str(), running.stdout), ("c\n", 10));
        // One that fills the whole answer must not be waited for again and again.
        let long = stdout(10, b"\x1b]0;title");
        let handed = deliver_output(&mut running, &long, None, true);
        assert_eq!((handed.stdout.as_str(), running.stdout), ("", 19));
    }

    #[test]
    fn the_tail_of_a_text_begins_with_a_whole_character() {
        let mut output = DeliveredOutput {
            stdout: "ab€cd".into(),
            stderr: "e".into(),
            ..DeliveredOutput::default()
        };
        output.keep_tail(4);
        let tail = (output.stdout.as_str(), output.stderr.as_str(), output.lost);
        assert_eq!(tail, ("cd", "e", 5));
    }

    #[test]
    fn lost_output_bytes_are_counted() {
        let mut running = SessionCommand::default();
        let mut answer = stdout(10, b"x");
        answer.gaps.push(GapEvent {
            stream: OutputStream::Stdout.into(),
            start_offset: 0,
            end_offset: 10,
        });
        let handed = deliver_output(&mut running, &answer, None, false);
        assert_eq!((handed.stdout.as_str(), handed.lost), ("x", 10));
        assert_eq!(running.stdout, 11);
    }
}
