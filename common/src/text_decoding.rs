//! The decoder for text files: UTF-8 and UTF-16 with and without a byte order mark, and legacy encodings. The list of
//! characters that are invisible or change the direction of text. Pure.
//!
//! ```text
//! byte order mark ─► UTF-8, UTF-16     mostly UTF-8 ─► UTF-8, broken bytes become U+FFFD     else ─► what chardetng guesses
//! ```
//!
//! The daemon decodes files of skills, client/tools files that commands wrote.

use std::borrow::Cow;

use chardetng::{EncodingDetector, Iso2022JpDetection, Utf8Detection};
use encoding_rs::{Encoding, UTF_8};

/// Maximum number of bytes that decide which legacy encoding a text has.
const DETECTED_BYTES_MAX: usize = 256 << 10;

/// Text of a file, and the encoding of its bytes.
#[derive(Debug)]
pub struct DecodedText<'a> {
    /// Text without its byte order mark. What does not fit the encoding is U+FFFD.
    pub text: Cow<'a, str>,
    /// Name of the encoding as browsers know it: `UTF-8`, `UTF-16LE`, `windows-1252`, `GBK`.
    pub encoding: &'static str,
    /// `false` if the bytes are those of no text: they have control characters, or do not fit the encoding.
    pub is_text: bool,
}

/// Decodes a text file. With `is_whole` false the bytes are the beginning of one, and a character that is cut off at
/// their end is left out. Takes time linear in the number of bytes.
pub fn decode_text(bytes: &[u8], is_whole: bool) -> DecodedText<'_> {
    let (encoding, rest) = match Encoding::for_bom(bytes) {
        Some((encoding, mark)) => (encoding, bytes.get(mark..).unwrap_or_default()),
        // Bytes with control characters are no text in any legacy encoding: a guess, which is slow, changes nothing.
        None if bytes.iter().copied().map(char::from).any(is_control)
            || is_mostly_utf8(bytes, is_whole) =>
        {
            (UTF_8, bytes)
        }
        None => (guess_encoding(bytes, is_whole), bytes),
    };
    let (text, has_errors) = decode_bytes(encoding, rest, is_whole);
    DecodedText {
        // Text in UTF-8 with some broken bytes is still text; the other encodings are guesses.
        is_text: !text.contains(is_control) && (encoding == UTF_8 || !has_errors),
        text,
        encoding: encoding.name(),
    }
}

/// Decodes all bytes; returns `true` with the text if some do not fit the encoding.
fn decode_bytes<'a>(
    encoding: &'static Encoding,
    bytes: &'a [u8],
    is_whole: bool,
) -> (Cow<'a, str>, bool) {
    if encoding == UTF_8
        && let Ok(text) = str::from_utf8(bytes)
    {
        return (Cow::Borrowed(text), false);
    }
    let mut decoder = encoding.new_decoder_without_bom_handling();
    let size = decoder.max_utf8_buffer_length(bytes.len());
    let mut text = String::with_capacity(size.unwrap_or_default());
    // With this capacity one call reads all.
    let (_, _, has_errors) = decoder.decode_to_string(bytes, &mut text, is_whole);
    (Cow::Owned(text), has_errors)
}

/// Returns `true` if all bytes are UTF-8, or more characters beyond ASCII are than are not: in text of a legacy encoding
/// few bytes are UTF-8 by chance.
fn is_mostly_utf8(bytes: &[u8], is_whole: bool) -> bool {
    let (mut good, mut broken) = (0_usize, 0_usize);
    let mut chunks = bytes.utf8_chunks().peekable();
    while let Some(chunk) = chunks.next() {
        good += chunk.valid().chars().filter(|c| !c.is_ascii()).count();
        let invalid = chunk.invalid();
        let is_cut = !is_whole && chunks.peek().is_none() && is_cut_character(invalid);
        broken += usize::from(!invalid.is_empty() && !is_cut);
    }
    broken == 0 || good > broken
}

/// Returns `true` for the first bytes of a longer UTF-8 character.
pub fn is_cut_character(bytes: &[u8]) -> bool {
    str::from_utf8(bytes).is_err_and(|error| error.error_len().is_none())
}

/// Returns `true` for characters, other than control characters and blanks, that show nothing, or change the order in
/// which others are shown.
pub fn is_invisible(c: char) -> bool {
    matches!(c,
        '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}' | '\u{180b}'..='\u{180f}'
        | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{3164}' | '\u{feff}'
        | '\u{ffa0}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e0fff}')
}

fn guess_encoding(bytes: &[u8], is_whole: bool) -> &'static Encoding {
    let mut detector = EncodingDetector::new(Iso2022JpDetection::Deny);
    let start = bytes.get(..DETECTED_BYTES_MAX).unwrap_or(bytes);
    detector.feed(start, is_whole && start.len() == bytes.len());
    detector.guess(None, Utf8Detection::Deny)
}

/// Returns `true` for the control characters that no text has. They are those of the rule for media types.
fn is_control(c: char) -> bool {
    c < ' ' && !matches!(c, '\t' | '\n' | '\r' | '\x0c' | '\x1b' | '\x08')
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes of a text in an encoding of this name.
    fn encoded(text: &str, encoding: &str) -> Vec<u8> {
        let encoding = Encoding::for_label(encoding.as_bytes()).expect("an encoding");
        let (bytes, _, has_errors) = encoding.encode(text);
        assert!(!has_errors, "{text}");
        bytes.into_owned()
    }

    fn utf16(text: &str, mark: [u8; 2], unit: fn(u16) -> [u8; 2]) -> Vec<u8> {
        let units = text.encode_utf16().flat_map(unit);
        mark.into_iter().chain(units).collect()
    }

    #[test]
    fn text_is_decoded_and_its_encoding_is_named() {
        let table = "城市,数量\n北京,3\n";
        let german = "Größe;Stück\n1;2\n";
        for (bytes, text, encoding) in [
            (b"a\tb\n".to_vec(), "a\tb\n", "UTF-8"),
            (Vec::new(), "", "UTF-8"),
            (table.as_bytes().to_vec(), table, "UTF-8"),
            (format!("\u{feff}{table}").into_bytes(), table, "UTF-8"),
            (
                utf16(table, [0xff, 0xfe], u16::to_le_bytes),
                table,
                "UTF-16LE",
            ),
            (
                utf16(table, [0xfe, 0xff], u16::to_be_bytes),
                table,
                "UTF-16BE",
            ),
            (encoded(table, "gbk"), table, "GBK"),
            (encoded(german, "windows-1252"), german, "windows-1252"),
            (b"caf\xe9".to_vec(), "café", "windows-1252"),
            (
                encoded("Отчёт по продажам", "windows-1251"),
                "Отчёт по продажам",
                "windows-1251",
            ),
            (
                encoded("会議の録音から議事録を作ります。", "shift_jis"),
                "会議の録音から議事録を作ります。",
                "Shift_JIS",
            ),
        ] {
            let decoded = decode_text(&bytes, true);
            assert_eq!((&*decoded.text, decoded.encoding), (text, encoding));
            assert!(decoded.is_text, "{text:?}");
        }
    }

    #[test]
    fn a_few_broken_bytes_do_not_change_the_encoding() {
        let mut bytes = "把多个表格文件合并成一个".as_bytes().to_vec();
        bytes.push(0xff);
        let decoded = decode_text(&bytes, true);
        assert_eq!(decoded.encoding, "UTF-8");
        assert!(decoded.is_text && decoded.text.ends_with("一个\u{fffd}"));
    }

    #[test]
    fn a_character_that_is_cut_off_at_the_end_is_left_out() {
        for (text, label) in [("ab表", "utf-8"), ("城市数量北京", "gbk")] {
            let bytes = encoded(text, label);
            let cut = bytes.get(..bytes.len() - 1).expect("some");
            let decoded = decode_text(cut, false);
            let shorter: String = text.chars().take(text.chars().count() - 1).collect();
            assert_eq!(decoded.text, shorter, "{label}");
            assert!(decoded.is_text, "{label}");
        }
    }

    #[test]
    fn binary_files_are_no_text() {
        let scattered: Vec<u8> = (0..=255_u8).collect();
        for bytes in [
            &b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"[..],
            b"\0\xff\xfe binary \n",
            b"\x7fELF\x02\x01\x01",
            b"\xff\xfe\0\xd8\0\xd8",
            b"text\0",
            &scattered,
        ] {
            assert!(!decode_text(bytes, true).is_text, "{bytes:?}");
        }
    }
}
