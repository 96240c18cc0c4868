//! Turns a command's output into text for a model, without what is for a terminal. Escape sequences are removed, and of
//! a line that the program redraws only its last state remains. The memory use is bounded, whatever a command prints.

use std::collections::VecDeque;

use anstyle_parse::state::{Action, State, state_change};

/// Number of last lines that a program can still redraw: one for each of several progress bars.
const ROWS_MAX: usize = 64;
/// Maximum length of a line that a program can still redraw, in bytes.
const ROW_BYTES_MAX: usize = 8 * 1024;
/// Maximum length of an escape sequence, in bytes. The bytes of a longer one are text.
const SEQUENCE_BYTES_MAX: usize = 4 * 1024;
/// Characters that control a terminal.
const BELL: u8 = 0x07;
const BACKSPACE: u8 = 0x08;
const ESCAPE: u8 = 0x1b;

/// Converts printed bytes to text as a terminal would show it. Text that nothing redraws any more is handed to a
/// function, in order; the last lines are held back until [`finish`](Self::finish).
#[derive(Debug)]
pub(crate) struct TerminalCleaner {
    /// Last lines, the oldest first; never empty.
    rows: VecDeque<Vec<u8>>,
    /// Index in `rows` of the line with the cursor.
    row: usize,
    /// `true` if the cursor is at the beginning of its line, so that text replaces the line.
    is_at_start: bool,
    /// State of the parser of escape sequences; `Ground` outside of any.
    state: State,
    /// Bytes of the current escape sequence, without the escape character.
    sequence: Vec<u8>,
}

impl TerminalCleaner {
    pub(crate) fn new() -> Self {
        Self {
            rows: VecDeque::from([Vec::new()]),
            row: 0,
            is_at_start: true,
            state: State::Ground,
            sequence: Vec::new(),
        }
    }

    /// Takes printed bytes.
    pub(crate) fn push(&mut self, data: &[u8], settle: &mut impl FnMut(&[u8])) {
        let mut rest = data;
        while let Some((&byte, after)) = rest.split_first() {
            rest = if self.state != State::Ground {
                self.continue_sequence(byte, settle);
                after
            } else if is_control(byte) {
                self.execute(byte);
                after
            } else {
                let length = rest.iter().position(|byte| is_control(*byte));
                let (text, others) = rest.split_at(length.unwrap_or(rest.len()));
                self.put_text(text, settle);
                others
            };
        }
    }

    /// Hands over the lines that were held back. An escape sequence that has no end is left out.
    pub(crate) fn finish(&mut self, settle: &mut impl FnMut(&[u8])) {
        self.settle_rows(settle);
        self.state = State::Ground;
    }

    /// Returns the number of bytes of the lines that are held back.
    pub(crate) fn held_bytes(&self) -> usize {
        let bytes: usize = self.rows.iter().map(Vec::len).sum();
        bytes + self.rows.len() - 1
    }

    /// Returns the number of bytes at the end that may be the beginning of an escape sequence.
    pub(crate) fn open_bytes(&self) -> usize {
        match self.state == State::Ground {
            true => 0,
            false => self.sequence.len() + 1,
        }
    }

    /// Puts text, which has no control character but line ends, at the cursor.
    fn put_text(&mut self, text: &[u8], settle: &mut impl FnMut(&[u8])) {
        let mut text = text;
        let is_last = self.row + 1 == self.rows.len();
        if let Some(start) = last_rows_start(text).filter(|_| is_last) {
            // Lines that later ones push out of reach need no rows of their own.
            if self.is_at_start && !text.starts_with(b"\n") {
                self.clear_row();
            }
            self.settle_rows(settle);
            let (settled, rest) = text.split_at(start);
            settle(settled);
            self.is_at_start = true;
            text = rest;
        }
        for line in text.split_inclusive(|byte| *byte == b'\n') {
            match line.strip_suffix(b"\n") {
                Some(line) => {
                    self.put(line, settle);
                    self.feed_line(settle);
                }
                None => self.put(line, settle),
            }
        }
    }

    /// Puts text within a line.
    fn put(&mut self, text: &[u8], settle: &mut impl FnMut(&[u8])) {
        if text.is_empty() {
            return;
        }
        if self.is_at_start {
            self.clear_row();
            self.is_at_start = false;
        }
        let is_last = self.row + 1 == self.rows.len();
        let Some(row) = self.rows.get_mut(self.row) else {
            return;
        };
        row.extend_from_slice(text);
        if row.len() > ROW_BYTES_MAX {
            self.settle_rows(settle);
            if !is_last {
                settle(b"\n");
            }
        }
    }

    fn feed_line(&mut self, settle: &mut impl FnMut(&[u8])) {
        self.is_at_start = true;
        self.row += 1;
        if self.row < self.rows.len() {
            return;
        }
        let mut next = Vec::new();
        if self.rows.len() >= ROWS_MAX
            && let Some(oldest) = self.rows.pop_front()
        {
            settle(&oldest);
            settle(b"\n");
            next = oldest;
            next.clear();
        }
        self.rows.push_back(next);
        self.row = self.rows.len() - 1;
    }

    /// Hands over all lines. The cursor stays where the last one ends.
    fn settle_rows(&mut self, settle: &mut impl FnMut(&[u8])) {
        for (index, row) in self.rows.iter().enumerate() {
            if index > 0 {
                settle(b"\n");
            }
            settle(row);
        }
        self.rows.clear();
        self.rows.push_back(Vec::new());
        self.row = 0;
    }

    fn clear_row(&mut self) {
        if let Some(row) = self.rows.get_mut(self.row) {
            row.clear();
        }
    }

    /// Obeys a control character.
    fn execute(&mut self, byte: u8) {
        match byte {
            b'\r' => self.is_at_start = true,
            BACKSPACE if !self.is_at_start => self.erase_character(),
            ESCAPE => {
                self.state = State::Escape;
                self.sequence.clear();
            }
            _ => {}
        }
    }

    fn erase_character(&mut self) {
        let Some(row) = self.rows.get_mut(self.row) else {
            return;
        };
        while let Some(byte) = row.pop() {
            // Back to the first byte of the character.
            if !matches!(byte, 0x80..=0xBF) {
                break;
            }
        }
    }

    /// Takes one more byte of an escape sequence.
    fn continue_sequence(&mut self, byte: u8, settle: &mut impl FnMut(&[u8])) {
        let is_string = matches!(self.state, State::OscString | State::SosPmApcString);
        let is_too_long = self.sequence.len() >= SEQUENCE_BYTES_MAX;
        // The text of a title or a link has no line end: this is something else.
        if is_too_long || (is_string && byte == b'\n') {
            self.state = State::Ground;
            let mut text = std::mem::take(&mut self.sequence);
            text.push(byte);
            self.push(&text, settle);
            return;
        }
        let (next, action) = state_change(self.state, byte);
        match byte {
            ESCAPE => self.sequence.clear(),
            _ => self.sequence.push(byte),
        }
        if next != State::Anywhere {
            self.state = next;
        }
        if action == Action::CsiDispatch {
            self.move_cursor(byte, settle);
        } else if action == Action::Execute {
            match byte {
                b'\n' => self.feed_line(settle),
                other => self.execute(other),
            }
        }
    }

    /// Obeys a control sequence, as far as it moves the cursor or erases something.
    fn move_cursor(&mut self, last: u8, settle: &mut impl FnMut(&[u8])) {
        let number = self.parameter();
        let (count, mode) = (number.unwrap_or(1).max(1), number.unwrap_or(0));
        match last {
            b'A' | b'F' => {
                self.row = self.row.saturating_sub(count);
                self.is_at_start = true;
            }
            b'B' | b'E' => {
                self.row = self.row.saturating_add(count).min(self.rows.len() - 1);
                self.is_at_start = true;
            }
            b'G' if count == 1 => self.is_at_start = true,
            b'C' | b'G' => self.leave_blank(),
            b'K' if mode > 0 || self.is_at_start => self.clear_row(),
            b'J' if mode == 0 => {
                if self.is_at_start {
                    self.clear_row();
                }
                self.rows.truncate(self.row + 1);
            }
            b'J' => {
                // What stood on the cleared screen stays above.
                self.row = self.rows.len() - 1;
                if self.rows.back().is_some_and(|row| !row.is_empty()) {
                    self.feed_line(settle);
                }
            }
            _ => {}
        }
    }

    /// Separates text by a blank where a program moves the cursor to the right.
    fn leave_blank(&mut self) {
        self.is_at_start = false;
        if let Some(row) = self.rows.get_mut(self.row)
            && row.last().is_some_and(|byte| *byte != b' ')
        {
            row.push(b' ');
        }
    }

    /// Returns the first parameter of the control sequence; `None` if it has none.
    fn parameter(&self) -> Option<usize> {
        let text = self.sequence.strip_prefix(b"[")?;
        let end = text.iter().position(|byte| !byte.is_ascii_digit())?;
        std::str::from_utf8(text.get(..end)?).ok()?.parse().ok()
    }
}

/// Returns a text as a terminal would show it if it has an escape sequence, else as it is.
pub(crate) fn without_escapes(text: String) -> String {
    if !text.as_bytes().contains(&ESCAPE) {
        return text;
    }
    let (mut cleaner, mut shown) = (TerminalCleaner::new(), Vec::new());
    let mut settle = |settled: &[u8]| shown.extend_from_slice(settled);
    cleaner.push(text.as_bytes(), &mut settle);
    cleaner.finish(&mut settle);
    String::from_utf8_lossy(&shown).into_owned()
}

fn is_control(byte: u8) -> bool {
    matches!(byte, BELL | BACKSPACE | b'\r' | ESCAPE)
}

/// Returns the offset of the last lines that fit into all rows; `None` if all of the text does.
fn last_rows_start(text: &[u8]) -> Option<usize> {
    let bytes = text.iter().enumerate().rev();
    let mut ends = bytes.filter(|(_, byte)| **byte == b'\n');
    ends.nth(ROWS_MAX).map(|(index, _)| index + 1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn clean(pieces: &[&[u8]]) -> String {
        let (mut cleaner, mut text) = (TerminalCleaner::new(), Vec::new());
        let mut settle = |settled: &[u8]| text.extend_from_slice(settled);
        for piece in pieces {
            cleaner.push(piece, &mut settle);
            let held: usize = cleaner.rows.iter().map(Vec::len).sum();
            assert!(held <= ROWS_MAX * (ROW_BYTES_MAX + 1) && cleaner.rows.len() <= ROWS_MAX);
        }
        cleaner.finish(&mut settle);
        String::from_utf8(text).expect("UTF-8")
    }

    #[test]
    fn escape_sequences_are_removed_and_their_text_stays() {
        for (printed, wanted) in [
            ("\u{1b}[1;31mred\u{1b}[0m\n", "red\n"),
            ("\u{1b}]0;title\u{7}a\tb\n", "a\tb\n"),
            (
                "\u{1b}]8;;https://a.example\u{1b}\\link\u{1b}]8;;\u{1b}\\ é\n",
                "link é\n",
            ),
            ("\u{1b}(B\u{1b}[?25lé\u{1b}[?25h\u{7}€\u{1b}7\u{1b}8", "é€"),
            ("\u{1b}P1$r0m\u{1b}\\end", "end"),
            // No sequence, but what looks like the beginning of one.
            ("\u{1b}]two\nlines\n", "]two\nlines\n"),
            ("a\u{1b}[3", "a"),
        ] {
            assert_eq!(clean(&[printed.as_bytes()]), wanted, "{printed:?}");
        }
    }

    #[test]
    fn a_redrawn_line_shows_its_last_state() {
        for (printed, wanted) in [
            ("10%\r20%\r100%\nend\n", "100%\nend\n"),
            (" 5%|#    |\r\u{1b}[2K50%|## |\r\n", "50%|## |\n"),
            ("windows\r\nlines\r\n", "windows\nlines\n"),
            ("gone\u{1b}[2K\u{1b}[1Gready", "ready"),
            ("-\u{8}\\\u{8}|\u{8}done", "done"),
            ("é\u{8}è\n", "è\n"),
            ("50%\r\u{1b}[K\nend", "\nend"),
            ("[    ]\u{1b}[60G[ OK ]", "[    ] [ OK ]"),
            ("kept\r", "kept"),
        ] {
            assert_eq!(clean(&[printed.as_bytes()]), wanted, "{printed:?}");
        }
    }

    #[test]
    fn several_bars_that_are_redrawn_show_their_last_state() {
        let mut printed = String::from("pull\na: 0%\nb: 0%\n");
        for percent in 1..=100 {
            printed += &format!(
                "\u{1b}[2A\r\u{1b}[2Ka: {percent}%\n\u{1b}[1B\u{1b}[1A\u{1b}[2Kb: {percent}%\n"
            );
        }
        printed += "done\n";
        assert_eq!(
            clean(&[printed.as_bytes()]),
            "pull\na: 100%\nb: 100%\ndone\n"
        );
        let below = "1\n2\n3\n\u{1b}[2A\u{1b}[Jonly\n";
        assert_eq!(clean(&[below.as_bytes()]), "1\nonly\n");
    }

    #[test]
    fn lines_and_sequences_of_any_length_use_bounded_memory() {
        let long = "x".repeat(100_000);
        assert_eq!(clean(&[long.as_bytes()]), long);
        let title = format!("\u{1b}]0;{}", "y".repeat(10_000));
        let pieces: Vec<&[u8]> = title.as_bytes().chunks(7).collect();
        assert_eq!(clean(&pieces).matches('y').count(), 10_000);
    }

    proptest! {
        #[test]
        fn text_without_controls_stays_as_it_is(
            lines in proptest::collection::vec("[ -~é€]{0,20}", 0..200),
            size in 1_usize..300,
        ) {
            let text = lines.join("\n");
            let pieces: Vec<&[u8]> = text.as_bytes().chunks(size).collect();
            prop_assert_eq!(clean(&pieces), text);
        }

        #[test]
        fn pieces_of_any_size_give_the_same_text(
            parts in proptest::collection::vec(
                "(\r|\n|\x08|\x1b\\[2K|\x1b\\[1A|\x1b\\[1G|\x1b\\[31m|\x1b\\]0;t\x07|[a-z]{1,5}|é)", 0..100),
            size in 1_usize..20,
        ) {
            let text = parts.concat();
            let pieces: Vec<&[u8]> = text.as_bytes().chunks(size).collect();
            prop_assert_eq!(clean(&pieces), clean(&[text.as_bytes()]));
        }
    }
}
