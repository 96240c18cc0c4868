//! Searches an exec's output for a report that a file system is full. Only the output has it if the program's temporary
//! files are gone at its end.

use skilld_client::v1::OutputEvent;
use skilld_client::v1::OutputStream;

use crate::output::transcript::output_bytes;

/// Number of bytes of a stream that are searched again with the next ones: as many as a report has at most.
const REPORT_BYTES_MAX: usize = 64;

/// Search of both output streams of one exec, piece by piece.
#[derive(Debug, Default)]
pub(crate) struct RoomReportSearch {
    /// End of each stream, in which a report may begin.
    stdout: Vec<u8>,
    stderr: Vec<u8>,
    /// Set once a report was found.
    pub(crate) is_found: bool,
}

impl RoomReportSearch {
    /// Searches the next piece of output.
    pub(crate) fn add(&mut self, piece: &OutputEvent) {
        if self.is_found {
            return;
        }
        let end = match piece.stream() {
            OutputStream::Stderr => &mut self.stderr,
            OutputStream::Stdout | OutputStream::Unspecified => &mut self.stdout,
        };
        let bytes = output_bytes(piece);
        let (begin, rest) = bytes.split_at(bytes.len().min(REPORT_BYTES_MAX));
        end.extend_from_slice(begin);
        self.is_found = skilld_tools::lacks_room(end) || skilld_tools::lacks_room(bytes);
        let last = rest.len().saturating_sub(REPORT_BYTES_MAX);
        end.extend_from_slice(rest.get(last..).unwrap_or_default());
        end.drain(..end.len().saturating_sub(REPORT_BYTES_MAX));
    }
}

#[cfg(test)]
mod tests {
    use skilld_client::v1::output_event::Content;

    use super::*;

    fn piece(stream: OutputStream, text: &str) -> OutputEvent {
        OutputEvent {
            stream: stream.into(),
            content: Some(Content::Text(text.to_owned())),
            ..Default::default()
        }
    }

    #[test]
    fn a_report_is_found_wherever_its_pieces_are_cut() {
        let report = "OSError: [Errno 28] No space left on device\n";
        for cut in 0..report.len() {
            let mut search = RoomReportSearch::default();
            let long = "x".repeat(1000);
            search.add(&piece(
                OutputStream::Stdout,
                &(long.clone() + &report[..cut]),
            ));
            search.add(&piece(OutputStream::Stderr, "between"));
            search.add(&piece(
                OutputStream::Stdout,
                &(report[cut..].to_owned() + &long),
            ));
            assert!(search.is_found, "{cut}");
        }
        let mut search = RoomReportSearch::default();
        search.add(&piece(OutputStream::Stdout, "No space left"));
        search.add(&piece(OutputStream::Stderr, " on device"));
        assert!(!search.is_found, "of two streams");
    }
}
