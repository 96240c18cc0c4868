//! Buffers of a command's output as a result shows it. The text is without what is for a terminal and without secrets,
//! and whole, or its beginning and its end. The memory use is bounded, however much the command prints.

use std::collections::VecDeque;

use skilld_client::v1::OutputStream;
use skilld_client::v1::exec_event::Event;
use skilld_client::v1::{OutputEvent, output_event};
use skilld_common::text_decoding::is_cut_character;

use crate::secret_mask::{MaskedText, SecretMask};
use crate::terminal_output::TerminalCleaner;

/// Output streams of a command.
#[derive(Debug)]
pub(crate) struct OutputStreams {
    pub(crate) stdout: OutputBuffer,
    pub(crate) stderr: OutputBuffer,
}

impl OutputStreams {
    /// Creates buffers that hold at most `bytes_max` bytes of each stream, in which secrets are masked.
    pub(crate) fn new(bytes_max: usize, mask: SecretMask) -> Self {
        Self {
            stdout: OutputBuffer::new(bytes_max, mask.clone()),
            stderr: OutputBuffer::new(bytes_max, mask),
        }
    }

    /// Adds the output, or the gap in it, that an event reports.
    pub(crate) fn take(&mut self, event: &Event) {
        match event {
            Event::Output(piece) => self.stream_mut(piece.stream()).push(output_bytes(piece)),
            Event::Gap(gap) => self.stream_mut(gap.stream()).add_gap(gap.lost_bytes()),
            Event::Started(_)
            | Event::Heartbeat(_)
            | Event::Exited(_)
            | Event::Closed(_)
            | Event::Workspace(_)
            | Event::Staged(_)
            | Event::File(_)
            | Event::FileData(_)
            | Event::FileEnd(_)
            | Event::Summary(_) => {}
        }
    }

    /// Ends both streams: no more output may follow.
    pub(crate) fn finish(&mut self) {
        self.stdout.finish();
        self.stderr.finish();
    }

    fn stream_mut(&mut self, stream: OutputStream) -> &mut OutputBuffer {
        match stream {
            OutputStream::Stderr => &mut self.stderr,
            OutputStream::Stdout | OutputStream::Unspecified => &mut self.stdout,
        }
    }
}

/// Returns the bytes of a piece of output.
pub(crate) fn output_bytes(piece: &OutputEvent) -> &[u8] {
    match &piece.content {
        Some(output_event::Content::Data(data)) => data,
        Some(output_event::Content::Text(text)) => text.as_bytes(),
        None => &[],
    }
}

/// Buffer of one stream: the beginning and the end of its text.
#[derive(Debug)]
pub(crate) struct OutputBuffer {
    cleaner: TerminalCleaner,
    masked: MaskedText,
    ends: TextEnds,
    /// Bytes that were printed or lost.
    total: u64,
    lost: u64,
}

impl OutputBuffer {
    /// Creates a buffer that holds at most `bytes_max` bytes of text.
    pub(crate) fn new(bytes_max: usize, mask: SecretMask) -> Self {
        Self {
            cleaner: TerminalCleaner::new(),
            masked: MaskedText::new(mask),
            ends: TextEnds::new(bytes_max),
            total: 0,
            lost: 0,
        }
    }

    /// Adds printed bytes and keeps the first and the last of their text.
    pub(crate) fn push(&mut self, data: &[u8]) {
        self.total += data.len() as u64;
        let (masked, ends) = (&mut self.masked, &mut self.ends);
        self.cleaner.push(data, &mut |text: &[u8]| {
            masked.push(text, &mut |text: &[u8]| ends.push(text));
        });
    }

    /// Counts bytes that the daemon has dropped.
    pub(crate) fn add_gap(&mut self, bytes: u64) {
        self.total += bytes;
        self.lost += bytes;
    }

    /// Takes the lines that the program could still redraw; no more output may follow.
    pub(crate) fn finish(&mut self) {
        let (masked, ends) = (&mut self.masked, &mut self.ends);
        self.cleaner.finish(&mut |text: &[u8]| {
            masked.push(text, &mut |text: &[u8]| ends.push(text));
        });
        masked.finish(&mut |text: &[u8]| ends.push(text));
    }

    /// Returns the number of bytes that were printed.
    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    /// Returns `true` if text was dropped, once the buffer is finished.
    pub(crate) fn is_cut(&self) -> bool {
        self.lost > 0 || self.ends.held() != self.ends.total
    }

    /// Returns the text of the output; adds a warning for text that is left out, and one that ends with `advice` for
    /// bytes that are no text.
    pub(crate) fn into_text(
        mut self,
        name: &str,
        advice: &str,
        warnings: &mut Vec<String>,
    ) -> String {
        self.finish();
        let (lost, ends) = (self.lost, self.ends);
        let is_whole = ends.held() == ends.total;
        let (head, tail): (Vec<u8>, Vec<u8>) = (ends.head, ends.tail.into());
        let (bytes, text);
        if is_whole {
            bytes = [head, tail].concat();
            text = String::from_utf8_lossy(&bytes).into_owned();
        } else {
            let beginning = head.get(..whole_end(&head)).unwrap_or_default();
            let end = tail.get(whole_start(&tail)..).unwrap_or_default();
            let shown = beginning.len() + end.len();
            let left = ends.total - shown as u64;
            let all = ends.total + lost;
            warnings.push(format!(
                "{name} truncated: its first and last bytes are shown, {shown} of {all}; print less, or into a file in \
                 $OUTPUT_DIR"
            ));
            text = format!(
                "{}\n[… {left} bytes of {name} left out …]\n{}",
                String::from_utf8_lossy(beginning),
                String::from_utf8_lossy(end)
            );
            bytes = [beginning, end].concat();
        }
        if lost > 0 {
            warnings.push(format!("{lost} bytes of {name} are no longer kept"));
        }
        if std::str::from_utf8(&bytes).is_err() {
            warnings.push(format!(
                "{name} is not all UTF-8: other bytes show as U+FFFD{advice}"
            ));
        }
        text
    }
}

/// Beginning and end of a text.
#[derive(Debug)]
struct TextEnds {
    head_max: usize,
    tail_max: usize,
    head: Vec<u8>,
    tail: VecDeque<u8>,
    /// Bytes of the whole text.
    total: u64,
}

impl TextEnds {
    fn new(bytes_max: usize) -> Self {
        let tail_max = bytes_max / 2;
        Self {
            head_max: bytes_max - tail_max,
            tail_max,
            head: Vec::new(),
            tail: VecDeque::new(),
            total: 0,
        }
    }

    fn push(&mut self, data: &[u8]) {
        self.total += data.len() as u64;
        let room = self.head_max.saturating_sub(self.head.len());
        let (first, rest) = data.split_at(room.min(data.len()));
        self.head.extend_from_slice(first);
        let skipped = rest.len().saturating_sub(self.tail_max);
        let last = rest.get(skipped..).unwrap_or_default();
        let over = (self.tail.len() + last.len()).saturating_sub(self.tail_max);
        self.tail.drain(..over.min(self.tail.len()));
        self.tail.extend(last);
    }

    fn held(&self) -> u64 {
        (self.head.len() + self.tail.len()) as u64
    }
}

/// Returns the end of the bytes without an incomplete character.
pub(crate) fn whole_end(bytes: &[u8]) -> usize {
    // A character has at most four bytes.
    let last = bytes
        .get(bytes.len().saturating_sub(3)..)
        .unwrap_or_default()
        .utf8_chunks()
        .last();
    let end = last.map(|chunk| chunk.invalid());
    let cut = end.filter(|end| is_cut_character(end));
    bytes.len() - cut.map_or(0, <[u8]>::len)
}

/// Returns the start of the bytes without the rest of a character.
pub(crate) fn whole_start(bytes: &[u8]) -> usize {
    let rest = bytes.iter().take(3);
    rest.take_while(|byte| matches!(byte, 0x80..=0xBF)).count()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn shown(max: usize, pieces: &[&[u8]]) -> (String, Vec<String>) {
        let mut shown = OutputBuffer::new(max, SecretMask::default());
        for piece in pieces {
            shown.push(piece);
        }
        let mut warnings = Vec::new();
        let text = shown.into_text("stdout", "; convert it", &mut warnings);
        (text, warnings)
    }

    #[test]
    fn output_that_fits_is_shown_unchanged() {
        assert_eq!(shown(8, &[b"12345", b"678"]), ("12345678".into(), vec![]));
        assert_eq!(shown(8, &[]), (String::new(), vec![]));
    }

    #[test]
    fn beginning_and_end_are_shown_and_the_rest_is_said() {
        let (text, warnings) = shown(8, &[b"abcdefghij", b"klmn"]);
        assert_eq!(text, "abcd\n[… 6 bytes of stdout left out …]\nklmn");
        let said = "stdout truncated: its first and last bytes are shown, 8 of 14; print less, or into a file in $OUTPUT_DIR";
        assert_eq!(warnings, [said]);
    }

    #[test]
    fn secrets_are_masked_before_text_is_left_out() {
        let mut masking = OutputBuffer::new(8, SecretMask::new(["a secret".to_owned()]));
        for piece in ["1 a sec", "ret and a secret 2"] {
            masking.push(piece.as_bytes());
        }
        let text = masking.into_text("stdout", "", &mut Vec::new());
        assert_eq!(text, "1 **\n[… 7 bytes of stdout left out …]\n** 2");
    }

    #[test]
    fn characters_are_never_cut() {
        let text = "ü€😀".repeat(50);
        for max in 2..60 {
            let (text, warnings) = shown(max, &[text.as_bytes()]);
            assert!(!text.contains('\u{fffd}'), "{max}: {text}");
            assert_eq!(warnings.len(), 1, "{warnings:?}");
        }
    }

    #[test]
    fn other_bytes_are_replaced_and_said() {
        let (text, warnings) = shown(8, &[b"a\xff"]);
        assert_eq!(text, "a\u{fffd}");
        assert_eq!(warnings.len(), 1);
        assert!(warnings[0].ends_with("show as U+FFFD; convert it"));
    }

    #[test]
    fn lost_bytes_are_said() {
        let mut lossy = OutputBuffer::new(8, SecretMask::default());
        lossy.add_gap(100);
        lossy.push(b"end");
        let mut warnings = Vec::new();
        assert_eq!(lossy.into_text("stderr", "", &mut warnings), "end");
        assert_eq!(warnings, ["100 bytes of stderr are no longer kept"]);
    }

    #[test]
    fn the_limit_counts_text_and_not_what_is_for_a_terminal() {
        let bar = "\u{1b}[2K\r\u{1b}[32m50%\u{1b}[0m".repeat(100);
        let printed = format!("start\n{bar}\nend\n");
        let (text, warnings) = shown(14, &[printed.as_bytes()]);
        assert_eq!((text.as_str(), warnings), ("start\n50%\nend\n", vec![]));
    }

    proptest! {
        #[test]
        fn no_more_is_held_than_asked_for(
            max in 1_usize..64,
            pieces in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..50), 0..20),
        ) {
            let mut ends = TextEnds::new(max);
            for piece in &pieces {
                ends.push(piece);
                prop_assert!(ends.head.len() + ends.tail.len() <= max);
            }
            let all = pieces.concat();
            prop_assert!(all.starts_with(&ends.head));
            let tail: Vec<u8> = ends.tail.iter().copied().collect();
            prop_assert!(all.ends_with(&tail));
            if all.len() <= max {
                prop_assert_eq!([ends.head, tail].concat(), all);
            }
        }
    }
}
