//! What is kept of a stream of output: its beginning and its end, and how much there was.

use std::collections::VecDeque;

/// The first and the last bytes of a stream.
#[derive(Debug)]
pub(super) struct Kept {
    half: usize,
    head: Vec<u8>,
    tail: VecDeque<u8>,
    total: u64,
}

impl Kept {
    /// Of which at most `max` bytes are kept.
    pub(super) fn new(max: usize) -> Self {
        Self {
            half: max / 2,
            head: Vec::new(),
            tail: VecDeque::new(),
            total: 0,
        }
    }

    pub(super) fn add(&mut self, data: &[u8]) {
        self.total += data.len() as u64;
        let room = self.half.saturating_sub(self.head.len()).min(data.len());
        let (first, rest) = data.split_at(room);
        self.head.extend_from_slice(first);
        self.tail.extend(rest);
        let over = self.tail.len().saturating_sub(self.half);
        self.tail.drain(..over);
    }

    /// Bytes that came.
    pub(super) fn total(&self) -> u64 {
        self.total
    }

    pub(super) fn is_truncated(&self) -> bool {
        self.total > self.kept()
    }

    fn kept(&self) -> u64 {
        (self.head.len() + self.tail.len()) as u64
    }

    /// What was kept, with a line that counts what was not.
    pub(super) fn text(&self) -> String {
        let tail: Vec<u8> = self.tail.iter().copied().collect();
        if !self.is_truncated() {
            let whole = [self.head.as_slice(), &tail].concat();
            return String::from_utf8_lossy(&whole).into_owned();
        }
        let end = self.head.utf8_chunks().fold(0, |end, chunk| {
            end + chunk.valid().len() + chunk.invalid().len()
        });
        // A character that was cut at the end of the head, or at the start of the tail, is left out.
        let cut = match self.head.utf8_chunks().last() {
            Some(last) if last.invalid().len() < 4 => end - last.invalid().len(),
            Some(_) | None => end,
        };
        let head = self.head.get(..cut).unwrap_or(&self.head);
        let from = tail
            .iter()
            .position(|byte| byte & 0xc0 != 0x80)
            .unwrap_or(0);
        let tail = tail.get(from..).unwrap_or(&tail);
        format!(
            "{}\n[{} bytes left out]\n{}",
            String::from_utf8_lossy(head),
            self.total - (head.len() + tail.len()) as u64,
            String::from_utf8_lossy(tail)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(max: usize, pieces: &[&str]) -> (String, bool) {
        let mut kept = Kept::new(max);
        for piece in pieces {
            kept.add(piece.as_bytes());
        }
        (kept.text(), kept.is_truncated())
    }

    #[test]
    fn the_beginning_and_the_end_of_an_output_are_kept_and_the_rest_is_counted() {
        assert_eq!(kept(8, &["abc", "defgh"]), ("abcdefgh".into(), false));
        assert_eq!(
            kept(8, &["abcdefghi"]),
            ("abcd\n[1 bytes left out]\nfghi".into(), true)
        );
        assert_eq!(
            kept(8, &["ab", "cdef", "", "ghijklmn"]).0,
            "abcd\n[6 bytes left out]\nklmn"
        );
        assert_eq!(kept(8, &[]), (String::new(), false));
    }

    #[test]
    fn no_character_is_cut_in_two() {
        assert_eq!(kept(8, &["abc😀😀😀"]).0, "abc\n[8 bytes left out]\n😀");
        assert_eq!(kept(10, &["😀é😀é😀"]).0, "😀\n[8 bytes left out]\n😀");
    }
}
