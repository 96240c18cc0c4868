//! Media types of files, by their first bytes with the name as tie-breaker: the guest's rule for collected files, so
//! that a file has the same type everywhere.
//!
//! The table is the guest's file, compiled here too: the daemon does not depend on the guest's crate, which is PID 1 of
//! another target, and a copy would drift.

#[path = "../../../images/guest/src/file_collection/mime.rs"]
mod rule;

/// Returns the media type of a file from its beginning, with its name as tie-breaker.
#[must_use]
pub fn mime_type(name: &[u8], start: &[u8]) -> &'static str {
    rule::mime_type(name, start)
}

/// Longest type that is taken from anybody, bytes.
pub const TYPE_BYTES_MAX: usize = 255;

/// Returns `true` if a text has the form of a media type: `type/subtype` with parameters, printable.
pub fn is_type(text: &str) -> bool {
    let printable = |byte: u8| byte.is_ascii_graphic() || byte == b' ';
    text.len() <= TYPE_BYTES_MAX && text.contains('/') && text.bytes().all(printable)
}
