//! Pieces of output that readers take from a window: bytes or text from an offset on, or the gap before them. Event
//! streams and polls deliver the same pieces.

use skilld_proto::int64_from_count;
use skilld_proto::v1::output_event::Content;
use skilld_proto::v1::{self, GapEvent, OutputEvent};

use super::{ExecPhase, ExecState, STREAMS};
use crate::error::Error;
use crate::output_window::{CHUNK_BYTES, OutputWindow};

/// Maximum bytes that become one piece of TEXT. Each may grow to three bytes when it is replaced.
const TEXT_BYTES: usize = CHUNK_BYTES / 4;
/// Length of the longest character, in bytes.
const CHARACTER_BYTES_MAX: usize = 4;

/// Options of an output read: text or bytes, and whether gaps are reported or fail.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OutputReadOptions {
    pub(crate) format: v1::OutputFormat,
    pub(crate) gap_policy: v1::GapPolicy,
}

/// Piece of output, or a gap in it.
#[derive(Debug)]
pub(crate) enum OutputPiece {
    Output(OutputEvent),
    Gap(GapEvent),
}

/// Refuses offsets at which a reader cannot start.
pub(crate) fn check_offsets(
    state: &ExecState,
    offsets: [u64; 2],
    gaps: v1::GapPolicy,
) -> Result<(), Error> {
    for (stream, (window, offset)) in state.windows.iter().zip(offsets).enumerate() {
        if offset > window.end() {
            let problem = "lies beyond the end of the output";
            return Err(Error::invalid("offsets", problem));
        }
        if offset < window.start() && gaps == v1::GapPolicy::Refuse {
            return Err(output_dropped(stream, window.start()));
        }
    }
    Ok(())
}

/// Returns the piece of a stream at `from`, of at most `most` bytes, and the offset behind it; `None` if there is none
/// yet. `most` must be at least four, the length of the longest character.
pub(crate) fn take_piece(
    state: &ExecState,
    stream: usize,
    from: u64,
    style: OutputReadOptions,
    most: usize,
) -> Result<Option<(OutputPiece, u64)>, Error> {
    let (Some(window), Some(api_stream)) = (state.windows.get(stream), STREAMS.get(stream)) else {
        return Ok(None);
    };
    let api_stream: i32 = (*api_stream).into();
    if from >= window.end() {
        return Ok(None);
    }
    if from < window.start() {
        let to = window.start();
        if style.gap_policy == v1::GapPolicy::Refuse {
            return Err(output_dropped(stream, to));
        }
        let gap = GapEvent {
            stream: api_stream,
            start_offset: int64_from_count(from),
            end_offset: int64_from_count(to),
        };
        return Ok(Some((OutputPiece::Gap(gap), to)));
    }
    let text = style.format == v1::OutputFormat::Text;
    let (content, length, replaced) = if text {
        let bytes = window.read_joined(from, most.min(TEXT_BYTES));
        let whole = from + bytes.len() as u64 == window.end();
        let last = whole && state.phase == ExecPhase::Closed;
        let mut piece = decode_text(&bytes, last);
        // Exited follows what the leader wrote and does not wait for a straggler to complete a character.
        let exit = state.exit_offsets.get(stream).copied().unwrap_or_default();
        if whole && state.phase == ExecPhase::Exited && from + (piece.1 as u64) < exit {
            piece = decode_text(&bytes, true);
        }
        let (text, length, replaced) = piece;
        (Content::Text(text), length, replaced)
    } else {
        let data = window.read(from, most.min(CHUNK_BYTES));
        let length = data.len();
        (Content::Data(data), length, false)
    };
    if length == 0 {
        return Ok(None);
    }
    let next = from + length as u64;
    let output = OutputEvent {
        stream: api_stream,
        offset: int64_from_count(from),
        content: Some(content),
        next_offset: int64_from_count(next),
        replaced,
    };
    Ok(Some((OutputPiece::Output(output), next)))
}

/// Returns `true` if the bytes from `from` on are only the beginning of a character. A reader of text takes none of
/// them until the rest comes.
pub(super) fn is_rest_incomplete(window: &OutputWindow, from: u64) -> bool {
    let held = window.end().saturating_sub(from);
    let is_short = from >= window.start() && held < CHARACTER_BYTES_MAX as u64;
    is_short && is_incomplete_character(&window.read_joined(from, CHARACTER_BYTES_MAX))
}

/// Returns the error for a read of output that was dropped.
fn output_dropped(stream: usize, oldest: u64) -> Error {
    let stream = if stream == 0 { "stdout" } else { "stderr" };
    Error::OutputDropped { stream, oldest }
}

/// Decodes bytes as text. Returns the text, the number of bytes it stands for, and `true` if some were replaced. Keeps
/// an incomplete character at the end for later, unless these are the last bytes.
fn decode_text(bytes: &[u8], last: bool) -> (String, usize, bool) {
    let mut text = String::with_capacity(bytes.len());
    let mut length = 0;
    let mut replaced = false;
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        length += chunk.valid().len();
        let invalid = chunk.invalid();
        if invalid.is_empty() {
            continue;
        }
        let at_end = length + invalid.len() == bytes.len();
        if at_end && !last && is_incomplete_character(invalid) {
            break;
        }
        text.push(char::REPLACEMENT_CHARACTER);
        length += invalid.len();
        replaced = true;
    }
    (text, length, replaced)
}

/// Returns `true` if more bytes could complete these to one character.
fn is_incomplete_character(bytes: &[u8]) -> bool {
    let error = str::from_utf8(bytes).err();
    error.is_some_and(|error| error.valid_up_to() == 0 && error.error_len().is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_cut_between_characters_and_says_what_it_replaced() {
        let check = |bytes: &[u8], last, text: &str, length, replaced| {
            assert_eq!(
                decode_text(bytes, last),
                (text.to_owned(), length, replaced)
            );
        };
        check("aé".as_bytes(), false, "aé", 3, false);
        check(b"a\xc3", false, "a", 1, false);
        check(b"a\xc3", true, "a\u{fffd}", 2, true);
        check(b"\xe2\x82", false, "", 0, false);
        check(b"a\xffb", false, "a\u{fffd}b", 3, true);
        check(b"\xff", false, "\u{fffd}", 1, true);
        check(b"", true, "", 0, false);
    }
}
