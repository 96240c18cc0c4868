//! What bytes are, by their beginning with their name as tie-breaker: the guest's rule for what it collects, word for
//! word, so that a file has the same type wherever it is looked at.
//!
//! The file is the guest's and is compiled here too. The daemon does not depend on the guest's crate, which is PID 1 of
//! another target; proto is the wire and nothing else; and a crate for this alone would be one more that both depend on,
//! for a table. A copy would drift.

#[path = "../../images/guest/src/collect/mime.rs"]
mod rule;

pub(crate) use rule::{is_text, mime_type};

/// Longest type that is taken from anybody, bytes.
pub(crate) const TYPE_BYTES_MAX: usize = 255;

/// Whether a text may stand for a type: `type/subtype` with parameters, of printable characters.
pub(crate) fn is_type(text: &str) -> bool {
    let printable = |byte: u8| byte.is_ascii_graphic() || byte == b' ';
    text.len() <= TYPE_BYTES_MAX && text.contains('/') && text.bytes().all(printable)
}
