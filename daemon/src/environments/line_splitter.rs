//! Splits the messages of a build into lines of bounded length.

/// Maximum length of a line in bytes; a longer one is sent in parts.
const LINE_BYTES_MAX: usize = 4096;

/// Splitter that calls a function for each line.
pub(super) struct LineSplitter<F> {
    send_line: F,
    /// Beginning of a line whose end has not come yet.
    line_start: Vec<u8>,
}

impl<F: FnMut(&str)> LineSplitter<F> {
    /// Makes a splitter that calls `send_line` without the line's end.
    pub(super) fn new(send_line: F) -> Self {
        Self {
            send_line,
            line_start: Vec::new(),
        }
    }

    /// Adds the next bytes.
    pub(super) fn push(&mut self, piece: &[u8]) {
        for part in piece.split_inclusive(|byte| *byte == b'\n') {
            for chunk in part.chunks(LINE_BYTES_MAX) {
                if self.line_start.len() + chunk.len() > LINE_BYTES_MAX {
                    self.finish();
                }
                self.line_start.extend_from_slice(chunk);
            }
            if part.ends_with(b"\n") {
                self.finish();
            }
        }
    }

    /// Sends a last line that has no end.
    pub(super) fn finish(&mut self) {
        if !self.line_start.is_empty() {
            let line = String::from_utf8_lossy(&self.line_start);
            (self.send_line)(line.trim_end());
            self.line_start.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(pieces: &[&[u8]]) -> Vec<String> {
        let mut lines = Vec::new();
        let mut splitter = LineSplitter::new(|line: &str| lines.push(line.to_owned()));
        for piece in pieces {
            splitter.push(piece);
        }
        splitter.finish();
        lines
    }

    #[test]
    fn lines_are_complete_however_the_bytes_arrive() {
        let lines = ["one", "two", "", "three"];
        assert_eq!(split(&[b"one\ntwo\n\nthree"]), lines);
        assert_eq!(split(&[b"on", b"e\nt", b"wo\n", b"\n", b"three\n"]), lines);
        assert_eq!(split(&[]), [""; 0]);
    }

    #[test]
    fn long_lines_are_sent_in_bounded_parts() {
        let long = vec![b'x'; 3 * LINE_BYTES_MAX + 5];
        for pieces in [vec![&long[..]], long.chunks(1000).collect()] {
            let lines = split(&pieces);
            assert!(lines.iter().all(|line| line.len() <= LINE_BYTES_MAX));
            assert_eq!(lines.concat().len(), long.len());
        }
    }
}
