//! Selection of lines from a text that comes in pieces. The reader stops after the last selected line.

use crate::output_buffer::{whole_end, whole_start};
use crate::result_budget::byte_json_bytes;

/// Collects a range of lines from a text that arrives in pieces, up to a maximum size.
#[derive(Debug)]
pub(super) struct LineSelector {
    first: u64,
    count: u64,
    /// Offset in the first line at which the selection begins, in bytes.
    first_byte: u64,
    /// Remaining bytes of the first line to leave out.
    skip: u64,
    /// Room for more lines, in bytes of JSON.
    room: usize,
    /// Number of the line that the next byte belongs to, from 1.
    line: u64,
    bytes: Vec<u8>,
    /// Index in `bytes` at which the current, incomplete line begins.
    line_start: usize,
    /// `true` if bytes of the current line were left out for want of room.
    truncated: bool,
    /// `true` if there is no room for another line.
    full: bool,
    /// `true` if the text has a line after the selected ones.
    beyond: bool,
}

/// Result of a line selection: the lines, their numbers, and where to continue.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct SelectedLines {
    pub(super) bytes: Vec<u8>,
    /// Number of the first selected line; 0 if there is none.
    pub(super) first: u64,
    /// Offset in the first line at which `bytes` begin.
    first_byte: u64,
    /// Number of the last selected line; 0 if there is none.
    pub(super) last: u64,
    /// Number of the line to continue with; `None` at the end of the text.
    pub(super) next: Option<u64>,
    /// Offset in the last line at which to continue, in bytes; `None` if the line is complete.
    pub(super) next_byte: Option<u64>,
}

impl LineSelector {
    /// Creates a selection of `count` lines from line `first` on, of at most `json_bytes_max` bytes in JSON.
    pub(super) fn new(first: u64, count: u64, json_bytes_max: usize) -> Self {
        Self {
            first,
            count,
            first_byte: 0,
            skip: 0,
            room: json_bytes_max,
            line: 1,
            bytes: Vec::new(),
            line_start: 0,
            truncated: false,
            full: false,
            beyond: false,
        }
    }

    /// Sets the offset in the first line at which the selection begins, in bytes.
    pub(super) fn starting_at(self, first_byte: u64) -> Self {
        Self {
            first_byte,
            skip: first_byte,
            ..self
        }
    }

    /// Takes the part of a piece that is selected. Returns `false` when nothing more is needed.
    pub(super) fn push(&mut self, data: &[u8]) -> bool {
        for line in data.split_inclusive(|byte| *byte == b'\n') {
            if self.full || self.line >= self.first.saturating_add(self.count) {
                self.beyond = true;
                return false;
            }
            if self.line >= self.first {
                let wanted = self.after_skipped(line);
                if !self.keep(wanted) {
                    return false;
                }
            }
            if line.ends_with(b"\n") {
                self.line += 1;
                self.line_start = self.bytes.len();
                // The rest of a line that was too long is passed over.
                self.full = self.truncated;
            }
        }
        true
    }

    /// Returns the part of a piece of the first line that is not skipped; the end of the line always is in it.
    fn after_skipped<'a>(&mut self, line: &'a [u8]) -> &'a [u8] {
        if self.skip == 0 || self.line > self.first {
            return line;
        }
        let text = line.strip_suffix(b"\n").unwrap_or(line);
        let skipped = usize::try_from(self.skip).map_or(text.len(), |skip| skip.min(text.len()));
        self.skip -= skipped as u64;
        line.get(skipped..).unwrap_or_default()
    }

    /// Keeps a selected piece of a line; returns `false` if the selection ends before it.
    fn keep(&mut self, line: &[u8]) -> bool {
        let mut room = self.room;
        let fitting = line.iter().take_while(|byte| {
            let rest = room.checked_sub(byte_json_bytes(**byte));
            room = rest.unwrap_or(room);
            rest.is_some()
        });
        let length = fitting.count();
        if length == line.len() {
            self.bytes.extend_from_slice(line);
            self.room = room;
            return true;
        }
        if self.line_start > 0 {
            // The lines before it are enough.
            self.bytes.truncate(self.line_start);
            self.full = true;
            self.beyond = true;
            return false;
        }
        self.bytes
            .extend_from_slice(line.get(..length).unwrap_or_default());
        self.room = 0;
        self.truncated = true;
        true
    }

    /// Returns the selected lines.
    pub(super) fn take(mut self) -> SelectedLines {
        if self.truncated {
            let end = whole_end(&self.bytes);
            self.bytes.truncate(end);
        }
        let mut first_byte = self.first_byte;
        let next_byte = first_byte.saturating_add(self.bytes.len() as u64);
        let next_byte = self.truncated.then_some(next_byte);
        let start = whole_start(&self.bytes);
        let whole = self.bytes.get(start..).unwrap_or_default();
        // The offset may lie within a character. Text of another encoding than UTF-8 may begin with any byte.
        if first_byte > 0 && str::from_utf8(whole).is_ok() {
            self.bytes.drain(..start);
            first_byte = first_byte.saturating_add(start as u64);
        }
        let newlines = self.bytes.iter().filter(|byte| **byte == b'\n').count() as u64;
        let open = !self.bytes.is_empty() && !self.bytes.ends_with(b"\n");
        let lines = newlines + u64::from(open);
        let last = self.first + lines.saturating_sub(1);
        SelectedLines {
            next: self.beyond.then_some(last + 1),
            first: if lines == 0 { 0 } else { self.first },
            first_byte,
            last: if lines == 0 { 0 } else { last },
            next_byte,
            bytes: self.bytes,
        }
    }
}

impl SelectedLines {
    /// Selects the first of these lines again, of at most `json_bytes_max` bytes in JSON.
    pub(super) fn shortened(self, json_bytes_max: usize) -> Self {
        let mut lines = LineSelector::new(1, u64::MAX, json_bytes_max);
        lines.push(&self.bytes);
        let part = lines.take();
        let number = |line: u64| self.first.saturating_add(line).saturating_sub(1);
        let next_byte = part
            .next_byte
            .map(|byte| byte.saturating_add(self.first_byte));
        Self {
            first: self.first,
            first_byte: self.first_byte,
            last: number(part.last),
            next: part.next.map(number).or(self.next),
            next_byte: next_byte.or(self.next_byte),
            bytes: part.bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(
        text: &str,
        first: u64,
        count: u64,
        bytes_max: usize,
    ) -> (String, u64, u64, Option<u64>, Option<u64>) {
        take_from(text, first, 0, count, bytes_max)
    }

    fn take_from(
        text: &str,
        first: u64,
        first_byte: u64,
        count: u64,
        bytes_max: usize,
    ) -> (String, u64, u64, Option<u64>, Option<u64>) {
        // In pieces of any size the same.
        let mut all: Vec<SelectedLines> = (1..=text.len().max(1))
            .map(|size| {
                let mut lines = LineSelector::new(first, count, bytes_max).starting_at(first_byte);
                let _ = text.as_bytes().chunks(size).all(|piece| lines.push(piece));
                lines.take()
            })
            .collect();
        let taken = all.pop().expect("one at least");
        for other in all {
            assert_eq!(other, taken, "{text:?} {first} {count} {bytes_max}");
        }
        let text = String::from_utf8(taken.bytes).expect("text");
        (text, taken.first, taken.last, taken.next, taken.next_byte)
    }

    #[test]
    fn lines_are_taken_from_one_on() {
        let text = "1\n2\n3\n4";
        let max = u64::MAX;
        for (first, count, wanted) in [
            (1, max, (text, 1, 4, None, None)),
            (2, 2, ("2\n3\n", 2, 3, Some(4), None)),
            (4, 1, ("4", 4, 4, None, None)),
            (4, 9, ("4", 4, 4, None, None)),
            (9, 1, ("", 0, 0, None, None)),
        ] {
            let (text, first_line, last, next, cut) = wanted;
            assert_eq!(
                take("1\n2\n3\n4", first, count, 100),
                (text.to_owned(), first_line, last, next, cut)
            );
        }
        assert_eq!(take("", 1, max, 100), (String::new(), 0, 0, None, None));
    }

    #[test]
    fn a_selection_over_the_limit_says_where_to_continue() {
        let taken = take("aaaa\nbbbb\ncccc\n", 1, u64::MAX, 12);
        assert_eq!(taken, ("aaaa\nbbbb\n".into(), 1, 2, Some(3), None));
        let taken = take("aaaaaaaaaa\nb\n", 1, u64::MAX, 4);
        assert_eq!(taken, ("aaaa".into(), 1, 1, Some(2), Some(4)));
        let taken = take("€€€\nb\n", 1, u64::MAX, 4);
        assert_eq!(taken, ("€".into(), 1, 1, Some(2), Some(3)));
    }

    #[test]
    fn a_shorter_selection_goes_on_where_it_ends() {
        let select = |first, count, first_byte| {
            let mut lines = LineSelector::new(first, count, 100).starting_at(first_byte);
            lines.push("one\ntwo\nthree\nfour\nä€😀\n".as_bytes());
            lines.take()
        };
        for (selection, max, wanted) in [
            (select(2, 2, 0), 6, ("two\n", 2, 2, Some(3), None)),
            (select(2, 2, 0), 100, ("two\nthree\n", 2, 3, Some(4), None)),
            (select(2, 2, 1), 1, ("w", 2, 2, Some(3), Some(2))),
            (select(3, 1, 2), 2, ("re", 3, 3, Some(4), Some(4))),
            // The selection begins within a character.
            (select(5, 1, 1), 3, ("€", 5, 5, None, Some(5))),
        ] {
            let part = selection.shortened(max);
            let text = str::from_utf8(&part.bytes).expect("text");
            let found = (text, part.first, part.last, part.next, part.next_byte);
            assert_eq!(found, wanted);
        }
    }

    #[test]
    fn a_line_of_any_length_is_read_piece_by_piece() {
        let max = u64::MAX;
        let text = "first\naä€😀bcdefgh\nlast";
        let (mut whole, mut from) = (String::new(), 0);
        loop {
            let (piece, first, last, next, next_byte) = take_from(text, 2, from, 1, 5);
            assert_eq!((first, last, next), (2, 2, Some(3)));
            whole.push_str(&piece);
            match next_byte {
                Some(byte) => from = byte,
                None => break,
            }
        }
        assert_eq!(whole, "aä€😀bcdefgh\n");
        let rest = take_from(text, 2, 10, max, 100);
        assert_eq!(rest, ("bcdefgh\nlast".into(), 2, 3, None, None));
        // The middle of a character, and beyond the end of the line.
        let taken = take_from("ab€c", 1, 3, max, 100);
        assert_eq!(taken, ("c".into(), 1, 1, None, None));
        let taken = take_from("ab\nc", 1, 9, max, 100);
        assert_eq!(taken, ("\nc".into(), 1, 2, None, None));
    }
}
