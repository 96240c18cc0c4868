//! Replaces the `:authority` of every request by one that the HTTP/2 library accepts, and changes nothing else.
//!
//! A Unix socket has no host name, so clients invent one: grpcio sends the socket's path percent-encoded, grpc-java and
//! older grpc-go (grpcurl) the path itself, others nothing. h2 answers all of these with RST_STREAM (PROTOCOL_ERROR)
//! before any of our code runs (<https://github.com/hyperium/h2/pull/487>), and nothing in skilld reads the value.
//!
//! HPACK is stateful, but this filter needs no state. The replacement is one byte long, so what h2 stores in its
//! dynamic table is at most as large as what the client stores in its own, and every index that the client sends still
//! names the same entry. The one exception, an empty value that the client asks to store, makes h2's entry one byte
//! larger; no known client stores it, because the static table has it.

use bytes::BytesMut;

/// Value that replaces the `:authority` of a client's request.
const AUTHORITY: u8 = b'x';
const FRAME_HEADER: usize = 9;
const HEADERS: u8 = 1;
const END_HEADERS: u8 = 0x4;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;
/// Index of `:authority` in the static table; its value there is empty.
const STATIC_AUTHORITY: usize = 1;
const NAME: &[u8] = b":authority";
/// Name `:authority` in HPACK's Huffman code.
const NAME_HUFFMAN: &[u8] = &[0xb8, 0x3b, 0x53, 0x39, 0xec, 0x32, 0x7d, 0x7f];

/// Replaces the `:authority` of each request in the bytes of one client. It holds back at most one frame.
#[derive(Debug)]
pub(super) struct AuthorityRewriter {
    /// Start of a frame that is not complete.
    held: Vec<u8>,
    /// Number of bytes that pass unchanged before the next frame begins.
    passing: usize,
    /// Largest HEADERS frame that is rewritten, in bytes; h2 refuses a larger one.
    frame_bytes_max: usize,
}

impl AuthorityRewriter {
    /// Creates a filter for a connection that begins with `preface` bytes before its first frame.
    pub(super) fn new(preface: usize, frame_bytes_max: usize) -> Self {
        Self {
            held: Vec::new(),
            passing: preface,
            frame_bytes_max,
        }
    }

    /// Filters `input`, and appends to `output` the bytes that h2 may read.
    ///
    /// A header block that spans several frames passes unchanged: only headers larger than a server accepts by default
    /// need that.
    pub(super) fn feed(&mut self, mut input: &[u8], output: &mut BytesMut) {
        while !input.is_empty() {
            if self.passing > 0 {
                output.extend_from_slice(take(&mut input, &mut self.passing));
                continue;
            }
            let mut missing = FRAME_HEADER.saturating_sub(self.held.len());
            self.held.extend_from_slice(take(&mut input, &mut missing));
            let &[high, middle, low, kind, flags, _, _, _, _, ..] = self.held.as_slice() else {
                return;
            };
            let length = usize::from(high) << 16 | usize::from(middle) << 8 | usize::from(low);
            if kind != HEADERS || flags & END_HEADERS == 0 || length > self.frame_bytes_max {
                output.extend_from_slice(&self.held);
                self.held.clear();
                self.passing = length;
                continue;
            }
            let mut missing = (FRAME_HEADER + length).saturating_sub(self.held.len());
            self.held.extend_from_slice(take(&mut input, &mut missing));
            if missing == 0 {
                match rewrite_frame(&self.held, flags) {
                    Some(frame) => output.extend_from_slice(&frame),
                    None => output.extend_from_slice(&self.held),
                }
                self.held.clear();
            }
        }
    }
}

/// Splits up to `left` bytes off the front of `input`, and subtracts their number from `left`.
fn take<'a>(input: &mut &'a [u8], left: &mut usize) -> &'a [u8] {
    let (taken, rest) = input.split_at((*left).min(input.len()));
    *input = rest;
    *left -= taken.len();
    taken
}

/// Returns a complete HEADERS frame with the new authority; `None` if the frame is malformed, which h2 then reports.
fn rewrite_frame(frame: &[u8], flags: u8) -> Option<Vec<u8>> {
    let (head, payload) = frame.split_at_checked(FRAME_HEADER)?;
    let (padding, prefix) = if flags & PADDED == 0 {
        (0, 0)
    } else {
        (usize::from(*payload.first()?), 1)
    };
    let prefix = prefix + if flags & PRIORITY == 0 { 0 } else { 5 };
    let (prefix, rest) = payload.split_at_checked(prefix)?;
    let (block, padding) = rest.split_at_checked(rest.len().checked_sub(padding)?)?;
    let mut new = Vec::with_capacity(frame.len() + 1);
    new.extend_from_slice(head);
    new.extend_from_slice(prefix);
    rewrite_block(block, &mut new)?;
    new.extend_from_slice(padding);
    let length = u32::try_from(new.len() - FRAME_HEADER).ok()?.to_be_bytes();
    new.get_mut(..3)?.copy_from_slice(length.get(1..)?);
    Some(new)
}

/// Appends a header block with the new authority; `None` if it is malformed (RFC 7541, section 6).
fn rewrite_block(mut block: &[u8], output: &mut Vec<u8>) -> Option<()> {
    while let Some(&first) = block.first() {
        let field = block;
        if first & 0x80 != 0 {
            // Indexed. The static `:authority` is empty: without it h2 accepts the request.
            if integer(&mut block, 7)? != STATIC_AUTHORITY {
                output.extend_from_slice(before(field, block));
            }
            continue;
        }
        if first & 0xe0 == 0x20 {
            integer(&mut block, 5)?;
            output.extend_from_slice(before(field, block));
            continue;
        }
        let is_stored = first & 0x40 != 0;
        let index = integer(&mut block, if is_stored { 6 } else { 4 })?;
        let is_authority = if index == 0 {
            matches!(string(&mut block)?, (false, NAME) | (true, NAME_HUFFMAN))
        } else {
            index == STATIC_AUTHORITY
        };
        let name = before(field, block);
        let (_, value) = string(&mut block)?;
        if !is_authority {
            output.extend_from_slice(before(field, block));
        } else if is_stored || !value.is_empty() {
            output.extend_from_slice(name);
            output.extend_from_slice(&[1, AUTHORITY]);
        }
    }
    Some(())
}

/// Returns the part of `all` that comes before `rest`, which is its end.
fn before<'a>(all: &'a [u8], rest: &[u8]) -> &'a [u8] {
    all.get(..all.len() - rest.len()).unwrap_or_default()
}

/// Reads an integer whose first byte has `prefix` bits for it (RFC 7541, section 5.1).
fn integer(input: &mut &[u8], prefix: u32) -> Option<usize> {
    let mask = (1 << prefix) - 1;
    let mut value = usize::from(next(input)?) & mask;
    if value < mask {
        return Some(value);
    }
    for shift in [0, 7, 14, 21] {
        let byte = next(input)?;
        value += usize::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

/// Reads a string literal. Returns `true` if it is in Huffman code, and its bytes (RFC 7541, section 5.2).
fn string<'a>(input: &mut &'a [u8]) -> Option<(bool, &'a [u8])> {
    let is_huffman = input.first()? & 0x80 != 0;
    let length = integer(input, 7)?;
    let (text, rest) = input.split_at_checked(length)?;
    *input = rest;
    Some((is_huffman, text))
}

fn next(input: &mut &[u8]) -> Option<u8> {
    let (&first, rest) = input.split_first()?;
    *input = rest;
    Some(first)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

    fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).expect("short").to_be_bytes();
        let mut frame = length[1..].to_vec();
        frame.extend_from_slice(&[kind, flags, 0, 0, 0, 1]);
        frame.extend_from_slice(payload);
        frame
    }

    /// Returns the bytes that h2 reads if the client's bytes arrive in pieces of `piece` bytes.
    fn filtered(input: &[u8], piece: usize) -> Vec<u8> {
        let mut filter = AuthorityRewriter::new(PREFACE.len(), 1000);
        let mut output = BytesMut::new();
        for piece in input.chunks(piece) {
            filter.feed(piece, &mut output);
        }
        output.to_vec()
    }

    fn with_name(name: &[u8], value: &[u8]) -> Vec<u8> {
        let lengths = [name.len(), value.len()].map(|length| u8::try_from(length).expect("short"));
        [&[0x40, lengths[0]][..], name, &[lengths[1]], value].concat()
    }

    #[test]
    fn every_form_of_an_authority_is_replaced_whatever_the_pieces() {
        // :method POST, :scheme http, …, te: trailers as a literal that is not stored.
        let (front, back) = (&[0x83, 0x86][..], &b"\x00\x02te\x08trailers"[..]);
        let huffman = [&[0x40, 0x88][..], NAME_HUFFMAN, &[0x82, 0x1c, 0x7f]].concat();
        let new_huffman = [&[0x40, 0x88][..], NAME_HUFFMAN, b"\x01x"].concat();
        for (sent, expected) in [
            // grpcio: a literal name.
            (with_name(NAME, b"%2Ftmp%2Fx"), with_name(NAME, b"x")),
            (huffman, new_huffman),
            // grpc-go: the static name, stored, never stored, not stored.
            (b"\x41\x06/tmp/x".to_vec(), b"\x41\x01x".to_vec()),
            (b"\x11\x06/tmp/x".to_vec(), b"\x11\x01x".to_vec()),
            (b"\x01\x06/tmp/x".to_vec(), b"\x01\x01x".to_vec()),
            // Empty.
            (vec![0x81], Vec::new()),
            (vec![0x01, 0x00], Vec::new()),
            (vec![0x41, 0x00], b"\x41\x01x".to_vec()),
            // A reference to what an earlier request stored, and a change of the table's size.
            (vec![0xbe], vec![0xbe]),
            (vec![0x3f, 0xe1, 0x1f], vec![0x3f, 0xe1, 0x1f]),
            // Others keep their values.
            (
                with_name(b"x-authority", b"/tmp/x"),
                with_name(b"x-authority", b"/tmp/x"),
            ),
        ] {
            for (flags, prefix, padding) in [
                (0, &b""[..], &b""[..]),
                (PRIORITY, b"\0\0\0\0\x10", b""),
                (PADDED | PRIORITY, b"\x03\0\0\0\0\x10", b"\0\0\0"),
            ] {
                let request = |field: &[u8]| {
                    let block = [prefix, front, field, back, padding].concat();
                    [
                        PREFACE,
                        &frame(4, 0, &[]),
                        &frame(HEADERS, flags | END_HEADERS, &block),
                        &frame(0, 1, b"\0\0\0\0\0"),
                    ]
                    .concat()
                };
                for piece in [1, 7, 10_000] {
                    assert_eq!(
                        filtered(&request(&sent), piece),
                        request(&expected),
                        "{sent:x?}"
                    );
                }
            }
        }
    }

    #[test]
    fn an_incomplete_header_block_passes_unchanged() {
        let authority = b"\x41\x06/tmp/x".as_slice();
        let long = [authority, &[0x83; 1000]].concat();
        for frames in [
            // Cut into two frames; too large; not HPACK; padding beyond the frame.
            [frame(HEADERS, 0, authority), frame(9, END_HEADERS, &[0x83])].concat(),
            frame(HEADERS, END_HEADERS, &long),
            frame(HEADERS, END_HEADERS, b"\x41\x7f\xff\xff\xff\xff\xff\xff"),
            frame(HEADERS, END_HEADERS, b"\x41\x06/tmp"),
            frame(HEADERS, END_HEADERS | PADDED, b"\x7f\x83"),
            frame(HEADERS, END_HEADERS | PADDED, b""),
        ] {
            let sent = [PREFACE, &frames, &frame(6, 0, b"12345678")].concat();
            for piece in [1, 10_000] {
                assert_eq!(filtered(&sent, piece), sent);
            }
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic_and_pieces_make_no_difference(
            input in proptest::collection::vec(any::<u8>(), 0..200),
            kind in 0..3u8,
            flags in any::<u8>(),
            piece in 1..50_usize,
        ) {
            let sent = [PREFACE, &frame(kind, flags, &input), &frame(HEADERS, 5, &input)].concat();
            prop_assert_eq!(filtered(&sent, piece), filtered(&sent, sent.len()));
        }
    }
}
