//! Text of a file as it arrives. The encoding is recognised by the file's beginning; text in another one than UTF-8 is
//! decoded, so that lines and offsets are those of the text.

use bytes::{Bytes, BytesMut};
use encoding_rs::{Decoder, Encoding, UTF_8};
use futures::TryStreamExt;
use futures::stream::BoxStream;
use skilld_client::Error;
use skilld_common::text_decoding::{DecodedText, decode_text};

/// Size of the beginning that tells whether a file is text, and in which encoding, whichever part of it is read.
const HEAD_BYTES: usize = 8 * 1024;

/// Text of a file, in pieces.
pub(super) struct FileText {
    /// Name of the file's encoding.
    pub(super) encoding: &'static str,
    /// Beginning that was read to recognise the encoding and that is not returned yet.
    head: Option<Bytes>,
    data: BoxStream<'static, Result<Bytes, Error>>,
    /// Decoder to UTF-8; `None` if the text is in it.
    decoder: Option<Decoder>,
}

impl FileText {
    /// Reads the beginning of a file; `None` if the file is no text.
    pub(super) async fn open(
        mut data: BoxStream<'static, Result<Bytes, Error>>,
    ) -> Result<Option<Self>, Error> {
        let mut head = BytesMut::new();
        let mut has_more = true;
        while has_more && head.len() < HEAD_BYTES {
            match data.try_next().await? {
                Some(piece) => head.extend_from_slice(&piece),
                None => has_more = false,
            }
        }
        let is_whole = !has_more && head.len() <= HEAD_BYTES;
        let start = head.get(..HEAD_BYTES).unwrap_or(&head);
        let encoding = match decode_shown(start, is_whole) {
            Some(decoded) => decoded.encoding,
            None => return Ok(None),
        };
        let other = Encoding::for_label(encoding.as_bytes()).filter(|other| *other != UTF_8);
        Ok(Some(Self {
            encoding,
            decoder: other.map(Encoding::new_decoder_with_bom_removal),
            head: Some(head.freeze()),
            data,
        }))
    }

    /// Returns the next piece of the text as UTF-8; `None` at its end.
    pub(super) async fn next(&mut self) -> Result<Option<Bytes>, Error> {
        let piece = match self.head.take() {
            Some(head) => Some(head),
            None => self.data.try_next().await?,
        };
        Ok(match (piece, &mut self.decoder) {
            (Some(piece), Some(decoder)) => Some(decode_piece(decoder, &piece)),
            (piece, _) => piece,
        })
    }
}

/// Decodes a part of a text that a result shows; `None` if it is that of a binary file.
pub(super) fn decode_shown(bytes: &[u8], is_whole: bool) -> Option<DecodedText<'_>> {
    let decoded = decode_text(bytes, is_whole);
    // UTF-8 with control characters is shown; only NUL is in no text.
    let is_utf8 = decoded.encoding == UTF_8.name() && !bytes.contains(&0);
    (decoded.is_text || is_utf8).then_some(decoded)
}

/// Returns the end of the bytes without an incomplete character of the encoding that they have.
pub(super) fn whole_characters_end(bytes: &[u8]) -> usize {
    // With an incomplete character a whole text would be taken for one of another encoding.
    let shown = decode_shown(bytes, false);
    let encoding = shown.and_then(|shown| Encoding::for_label(shown.encoding.as_bytes()));
    let is_whole = |end: &usize| {
        let beginning = bytes.get(..*end).unwrap_or_default();
        encoding.is_some_and(|encoding| {
            let text = encoding.decode_without_bom_handling_and_without_replacement(beginning);
            text.is_some()
        })
    };
    // A character has at most four bytes.
    let mut ends = (bytes.len().saturating_sub(3)..=bytes.len()).rev();
    ends.find(is_whole).unwrap_or(bytes.len())
}

/// Decodes a piece of a text; a character that is cut off at its end comes with the next one.
fn decode_piece(decoder: &mut Decoder, piece: &[u8]) -> Bytes {
    let size = decoder.max_utf8_buffer_length(piece.len());
    let mut text = String::with_capacity(size.unwrap_or_default());
    // With this capacity one call reads all.
    let _ = decoder.decode_to_string(piece, &mut text, false);
    Bytes::from(text)
}

#[cfg(test)]
mod tests {
    use futures::stream::{self, StreamExt};

    use super::*;

    async fn read(bytes: &[u8], size: usize) -> Option<(String, &'static str)> {
        let pieces: Vec<Result<Bytes, Error>> = bytes
            .chunks(size)
            .map(|piece| Ok(Bytes::copy_from_slice(piece)))
            .collect();
        let opened = FileText::open(stream::iter(pieces).boxed()).await;
        let mut file = opened.expect("is read")?;
        let mut text = Vec::new();
        while let Some(piece) = file.next().await.expect("is read") {
            text.extend_from_slice(&piece);
        }
        Some((String::from_utf8(text).expect("UTF-8"), file.encoding))
    }

    #[tokio::test]
    async fn text_of_every_encoding_is_the_same_in_pieces_of_any_size() {
        let text = "Größe;城市\n".repeat(1_000);
        let utf16: Vec<u8> = ["\u{feff}", text.as_str()]
            .iter()
            .flat_map(|text| text.encode_utf16())
            .flat_map(u16::to_le_bytes)
            .collect();
        let table = "城市,数量\n".repeat(1_000);
        let (gbk, _, _) = encoding_rs::GBK.encode(&table);
        for (bytes, wanted, encoding) in [
            (text.as_bytes(), &text, "UTF-8"),
            (utf16.as_slice(), &text, "UTF-16LE"),
            (&*gbk, &table, "GBK"),
        ] {
            for size in [1, 1021, 70_000] {
                let read = read(bytes, size).await.expect("text");
                assert!(read.0 == *wanted, "{encoding} in pieces of {size}");
                assert_eq!(read.1, encoding);
            }
        }
        assert_eq!(read(b"", 1).await, Some((String::new(), "UTF-8")));
        assert_eq!(read(b"\x89PNG\r\n\x1a\n\0\0", 3).await, None);
    }
}
