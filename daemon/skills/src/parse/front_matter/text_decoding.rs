//! Decodes the bytes of a SKILL.md: encodings, byte order marks, line ends.

use crate::finding::{self, Findings};

/// Decodes a SKILL.md; lines end with `\n`. Never fails: what cannot be decoded is replaced and is a finding.
pub(super) fn decode_text(bytes: &[u8], findings: &mut Findings) -> String {
    let text = match bytes {
        [0xff, 0xfe, rest @ ..] => decode_utf16(rest, u16::from_le_bytes, findings),
        [0xfe, 0xff, rest @ ..] => decode_utf16(rest, u16::from_be_bytes, findings),
        [0xef, 0xbb, 0xbf, rest @ ..] => {
            findings.add(finding::BOM, 1, "SKILL.md begins with a byte order mark");
            decode_utf8(rest, findings)
        }
        _ => decode_utf8(bytes, findings),
    };
    if let Some(at) = text.find('\0') {
        let line = line_of(text.as_bytes(), at);
        findings.add(finding::NUL, line, "SKILL.md contains a NUL");
    }
    if text.contains('\r') {
        text.replace("\r\n", "\n").replace('\r', "\n")
    } else {
        text
    }
}

fn decode_utf8(bytes: &[u8], findings: &mut Findings) -> String {
    if let Err(error) = std::str::from_utf8(bytes) {
        let line = line_of(bytes, error.valid_up_to());
        findings.add(finding::NOT_UTF8, line, "SKILL.md is not all UTF-8");
    }
    String::from_utf8_lossy(bytes).into_owned()
}

fn decode_utf16(bytes: &[u8], unit: fn([u8; 2]) -> u16, findings: &mut Findings) -> String {
    findings.add(finding::UTF16, 1, "SKILL.md is UTF-16");
    let units = bytes.chunks(2).map(|pair| match pair {
        [a, b] => unit([*a, *b]),
        // The last UTF-16 unit is incomplete.
        _ => 0xfffd,
    });
    char::decode_utf16(units)
        .map(|char| char.unwrap_or(char::REPLACEMENT_CHARACTER))
        .collect()
}

fn line_of(bytes: &[u8], at: usize) -> usize {
    bytes.iter().take(at).filter(|byte| **byte == b'\n').count() + 1
}
