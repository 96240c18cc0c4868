//! What a reader takes from a window next: bytes or text from a position on, or the gap in front of them. Streams
//! (`reader`) and polls (`poll`) hand over the same pieces.

use skilld_proto::v1;
use skilld_proto::v1::exec_event::output::Content;
use skilld_proto::v1::exec_event::{Gap, Output};

use super::{Phase, STREAMS, State};
use crate::error::Error;
use crate::output::{CHUNK_BYTES, Window};

/// Bytes that become one piece of TEXT: each may grow to three when it is replaced.
const TEXT_BYTES: usize = CHUNK_BYTES / 4;
/// Length of the longest character, in bytes.
const CHARACTER_BYTES_MAX: usize = 4;

/// How a reader wants its pieces.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Style {
    pub(crate) format: v1::OutputFormat,
    pub(crate) gaps: v1::Gaps,
}

/// One of them.
#[derive(Debug)]
pub(crate) enum Piece {
    Output(Output),
    Gap(Gap),
}

/// Refuses positions at which nobody can begin to read.
pub(crate) fn check(state: &State, offsets: [u64; 2], gaps: v1::Gaps) -> Result<(), Error> {
    for (stream, (window, offset)) in state.windows.iter().zip(offsets).enumerate() {
        if offset > window.end() {
            return Err(Error::Invalid {
                field: "offsets",
                problem: "lies beyond the end of the output",
            });
        }
        if offset < window.start() && gaps == v1::Gaps::Refuse {
            return Err(dropped(stream, window.start()));
        }
    }
    Ok(())
}

/// The piece of a stream at `from`, of at most `most` bytes, and where the one after it begins; `None` if there
/// is none yet. At least four bytes are needed to make sure of a character.
pub(crate) fn take(
    state: &State,
    stream: usize,
    from: u64,
    style: Style,
    most: usize,
) -> Result<Option<(Piece, u64)>, Error> {
    let (Some(window), Some(api_stream)) = (state.windows.get(stream), STREAMS.get(stream)) else {
        return Ok(None);
    };
    let api_stream: i32 = (*api_stream).into();
    if from >= window.end() {
        return Ok(None);
    }
    if from < window.start() {
        let to = window.start();
        if style.gaps == v1::Gaps::Refuse {
            return Err(dropped(stream, to));
        }
        let stream = api_stream;
        return Ok(Some((Piece::Gap(Gap { stream, from, to }), to)));
    }
    let text = style.format == v1::OutputFormat::Text;
    let (content, length, replaced) = if text {
        let bytes = window.read_joined(from, most.min(TEXT_BYTES));
        let whole = from + bytes.len() as u64 == window.end();
        let last = whole && state.phase == Phase::Closed;
        let mut piece = decode(&bytes, last);
        // Exited comes after what the leader wrote, and waits for nobody else to complete it.
        let exit = state.exit_offsets.get(stream).copied().unwrap_or_default();
        if whole && state.phase == Phase::Exited && from + (piece.1 as u64) < exit {
            piece = decode(&bytes, true);
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
    let output = Output {
        stream: api_stream,
        offset: from,
        content: Some(content),
        next_offset: if text { next } else { 0 },
        replaced,
    };
    Ok(Some((Piece::Output(output), next)))
}

/// Returns `true` if all that follows `from` is the beginning of a character: a reader of text takes nothing of it until
/// the rest comes.
pub(super) fn is_rest_cut_off(window: &Window, from: u64) -> bool {
    let held = window.end().saturating_sub(from);
    let is_short = from >= window.start() && held < CHARACTER_BYTES_MAX as u64;
    is_short && is_cut_off(&window.read_joined(from, CHARACTER_BYTES_MAX))
}

fn dropped(stream: usize, oldest: u64) -> Error {
    let stream = if stream == 0 { "stdout" } else { "stderr" };
    Error::OutputDropped { stream, oldest }
}

/// Bytes as text, how many of them it stands for, and whether some were replaced. A character that is cut
/// off at the end is left for later, unless these are the last bytes.
fn decode(bytes: &[u8], last: bool) -> (String, usize, bool) {
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
        if at_end && !last && is_cut_off(invalid) {
            break;
        }
        text.push(char::REPLACEMENT_CHARACTER);
        length += invalid.len();
        replaced = true;
    }
    (text, length, replaced)
}

/// Returns `true` if these bytes could still become one character.
fn is_cut_off(bytes: &[u8]) -> bool {
    let error = str::from_utf8(bytes).err();
    error.is_some_and(|error| error.valid_up_to() == 0 && error.error_len().is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_cut_between_characters_and_says_what_it_replaced() {
        let check = |bytes: &[u8], last, text: &str, length, replaced| {
            assert_eq!(decode(bytes, last), (text.to_owned(), length, replaced));
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
