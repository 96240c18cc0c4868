//! Decodes the bytes of a SKILL.md: what is wrong with its encoding becomes findings, and lines end with `\n`.

use skilld_common::text_decoding;

use crate::parse::finding::{self, Findings};

/// Decodes a SKILL.md. Never fails: what cannot be decoded is replaced and is a finding.
pub(super) fn decode_text(bytes: &[u8], findings: &mut Findings) -> String {
    let decoded = text_decoding::decode_text(bytes, true);
    match decoded.encoding {
        "UTF-8" => add_utf8_findings(bytes, findings),
        encoding @ ("UTF-16LE" | "UTF-16BE") => {
            findings.add(finding::UTF16, 1, format!("SKILL.md is {encoding}"));
        }
        encoding => {
            let message = format!("SKILL.md is not UTF-8: it was read as {encoding}");
            findings.add(finding::NOT_UTF8, broken_line(bytes), message);
        }
    }
    let text = decoded.text.into_owned();
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

fn add_utf8_findings(bytes: &[u8], findings: &mut Findings) {
    if bytes.starts_with(b"\xef\xbb\xbf") {
        findings.add(finding::BOM, 1, "SKILL.md begins with a byte order mark");
    }
    if std::str::from_utf8(bytes).is_err() {
        let message = "SKILL.md is not all UTF-8: what could not be read became U+FFFD";
        findings.add(finding::NOT_UTF8, broken_line(bytes), message);
    }
}

/// Returns the first line that is not UTF-8.
fn broken_line(bytes: &[u8]) -> usize {
    let end = std::str::from_utf8(bytes).map_or_else(|error| error.valid_up_to(), str::len);
    line_of(bytes, end)
}

fn line_of(bytes: &[u8], at: usize) -> usize {
    bytes.iter().take(at).filter(|byte| **byte == b'\n').count() + 1
}
