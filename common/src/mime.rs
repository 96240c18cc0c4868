//! Media type of a file, from its first bytes, with its name as tie-breaker. Guest and daemon share the rule, so that
//! a skill's file has the same type before and after it is staged.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Maximum length of a media type that a client states, in bytes.
pub const TYPE_BYTES_MAX: usize = 255;

/// Number of leading bytes that decide whether a file is text.
const TEXT_BYTES: usize = 8 * 1024;

/// Prefixes of text documents with a type of their own, in lower case and without leading blanks.
const MARKUP: &[(&[u8], &str)] = &[
    (b"%pdf-", "application/pdf"),
    (b"%!ps", "application/postscript"),
    (b"{\\rtf", "application/rtf"),
    (b"<!doctype html", HTML),
    (b"<html", HTML),
    (b"<svg", "image/svg+xml"),
    (b"<?xml", "text/xml"),
];

/// Types of RIFF files, by the tag at offset 8.
const RIFF: &[(&[u8], &str)] = &[
    (b"WEBP", "image/webp"),
    (b"WAVE", "audio/wav"),
    (b"AVI ", "video/x-msvideo"),
];

/// Signatures of binary files: offset, bytes and type.
const MAGIC: &[(usize, &[u8], &str)] = &[
    (0, b"\x89PNG\r\n\x1a\n", "image/png"),
    (0, b"\xff\xd8\xff", "image/jpeg"),
    (0, b"GIF87a", "image/gif"),
    (0, b"GIF89a", "image/gif"),
    (0, b"BM", "image/bmp"),
    (0, b"II*\0", "image/tiff"),
    (0, b"MM\0*", "image/tiff"),
    (4, b"ftypavif", "image/avif"),
    (4, b"ftypheic", "image/heic"),
    (4, b"ftyp", "video/mp4"),
    (0, b"PK\x03\x04", ZIP),
    (0, b"PK\x05\x06", ZIP),
    (0, b"\x1f\x8b", "application/gzip"),
    (0, b"BZh", "application/x-bzip2"),
    (0, b"\xfd7zXZ\0", "application/x-xz"),
    (0, b"\x28\xb5\x2f\xfd", "application/zstd"),
    (0, b"7z\xbc\xaf\x27\x1c", "application/x-7z-compressed"),
    (0, b"Rar!\x1a\x07", "application/vnd.rar"),
    (257, b"ustar", "application/x-tar"),
    (0, b"\x7fELF", "application/x-executable"),
    (0, b"\0asm", "application/wasm"),
    (0, b"SQLite format 3\0", "application/vnd.sqlite3"),
    (0, b"PAR1", "application/vnd.apache.parquet"),
    (0, b"ARROW1", "application/vnd.apache.arrow.file"),
    (0, b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", OLE),
    (0, b"OggS", "audio/ogg"),
    (0, b"ID3", "audio/mpeg"),
    (0, b"\xff\xfb", "audio/mpeg"),
    (0, b"fLaC", "audio/flac"),
    (0, b"\x1a\x45\xdf\xa3", "video/webm"),
    (0, b"wOFF", "font/woff"),
    (0, b"wOF2", "font/woff2"),
    (0, b"OTTO", "font/otf"),
    (0, b"\0\x01\0\0\0", "font/ttf"),
];

/// Container formats. The name of the file decides what a container holds.
const ZIP: &str = "application/zip";
const OLE: &str = "application/x-ole-storage";
const HTML: &str = "text/html";
const UNKNOWN: &str = "application/octet-stream";
const TEXT: &str = "text/plain";

/// Returns `true` if the beginning of a file is UTF-8 text without control characters.
pub fn is_text(start: &[u8]) -> bool {
    let start = start.get(..TEXT_BYTES).unwrap_or(start);
    let controls = |byte: &u8| *byte < b' ' && !b"\t\n\r\x0c\x1b\x08".contains(byte);
    if start.iter().any(controls) {
        return false;
    }
    // A character may be cut off at the end.
    str::from_utf8(start).map_or_else(|error| error.error_len().is_none(), |_| true)
}

/// Returns the media type of a file with this path and beginning.
pub fn mime_type(path: &[u8], start: &[u8]) -> &'static str {
    let guess = mime_guess::from_path(Path::new(OsStr::from_bytes(path))).first_raw();
    if start.is_empty() {
        return guess.unwrap_or(TEXT);
    }
    let utf16 = [b"\xff\xfe", b"\xfe\xff"]
        .iter()
        .any(|mark| start.starts_with(*mark));
    if is_text(start) || utf16 {
        return type_of_text(guess, start);
    }
    match (type_by_signature(start), guess) {
        (Some(container), Some(guess)) if is_kept_in(guess, container) => guess,
        (Some(found), _) => found,
        (None, Some(guess)) if !is_textual(guess) => guess,
        (None, _) => UNKNOWN,
    }
}

/// Returns `true` if a text has the form of a media type: `type/subtype` with parameters, printable.
pub fn is_type(text: &str) -> bool {
    let printable = |byte: u8| byte.is_ascii_graphic() || byte == b' ';
    text.len() <= TYPE_BYTES_MAX && text.contains('/') && text.bytes().all(printable)
}

/// Returns the type of a text. A document's prefix decides, and the name for all other text.
fn type_of_text(guess: Option<&'static str>, start: &[u8]) -> &'static str {
    let start = start.trim_ascii_start();
    let begins = |mark: &[u8]| {
        start
            .get(..mark.len())
            .is_some_and(|start| start.eq_ignore_ascii_case(mark))
    };
    let found = MARKUP.iter().find(|(mark, _)| begins(mark));
    match (found, guess.filter(|guess| is_textual(guess))) {
        (Some((_, document)), None) => document,
        (Some((_, document)), Some(_)) if !is_textual(document) => document,
        (_, Some(guess)) => guess,
        (None, None) => TEXT,
    }
}

/// Returns the type whose signature a binary file begins with.
fn type_by_signature(start: &[u8]) -> Option<&'static str> {
    let has = |at: usize, magic: &[u8]| start.get(at..).is_some_and(|rest| rest.starts_with(magic));
    if has(0, b"%PDF-") {
        return Some("application/pdf");
    }
    if has(0, b"RIFF") {
        let kind = RIFF.iter().find(|(magic, _)| has(8, magic));
        return kind.map(|(_, found)| *found);
    }
    let found = MAGIC.iter().find(|(at, magic, _)| has(*at, magic));
    found.map(|(_, _, found)| *found)
}

/// Returns `true` if files of the guessed type are containers of this format.
fn is_kept_in(guess: &str, container: &str) -> bool {
    let office = guess.starts_with("application/vnd.");
    match container {
        ZIP => office || guess.ends_with("+zip") || guess == "application/java-archive",
        OLE => office || guess == "application/msword",
        "application/gzip" => guess.ends_with("+gzip") || guess == "application/x-compressed-tar",
        "video/mp4" => guess.starts_with("audio/") || guess.starts_with("video/"),
        "audio/ogg" | "video/webm" => guess.starts_with("video/") || guess.starts_with("audio/"),
        _ => false,
    }
}

/// Returns `true` if files of the guessed type are text.
fn is_textual(guess: &str) -> bool {
    let endings = [
        "json",
        "xml",
        "javascript",
        "yaml",
        "toml",
        "sh",
        "sql",
        "+json",
        "+xml",
        "x-python",
    ];
    guess.starts_with("text/") || endings.iter().any(|ending| guess.ends_with(ending))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_decides_and_the_name_breaks_ties() {
        let check = |path: &str, start: &[u8], expected| {
            assert_eq!(mime_type(path.as_bytes(), start), expected, "{path}");
        };
        check("out/a.png", b"\x89PNG\r\n\x1a\nrest", "image/png");
        check("out/wrong.txt", b"\x89PNG\r\n\x1a\nrest", "image/png");
        check(
            "a.docx",
            b"PK\x03\x04",
            "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
        );
        check("a.zip", b"PK\x03\x04", "application/zip");
        check("a.csv", b"a,b\n1,2\n", "text/csv");
        check("a.json", b"{}", "application/json");
        check("README", b"hello", "text/plain");
        check("a.png", b"not a picture", "text/plain");
        check("x.bin", b"\0\x01\x02", "application/octet-stream");
        check("data", b"\0\x01\x02", "application/octet-stream");
        check("BM.txt", b"BMW is a car", "text/plain");
        check("empty.csv", b"", "text/csv");
        check("empty", b"", "text/plain");
        check("a.webp", b"RIFF\x24\0\0\0WEBPVP8 ", "image/webp");
        check("note", b"12345678WEBP is a format", "text/plain");
        check("note", b"abcdftyp", "text/plain");
        check("report", b"%PDF-1.7\n%\xe2\xe3\xcf\xd3", "application/pdf");
        check("report.txt", b"%PDF-1.4\nonly text", "application/pdf");
        check("page", b"\n<!DOCTYPE HTML><p>", "text/html");
        check("page.md", b"<html>kept as it is named", "text/markdown");
        check("picture", b"<svg xmlns=''/>", "image/svg+xml");
        check("feed", b"<?xml version='1.0'?>", "text/xml");
        check("a.ts", b"const a = 1;", "text/plain");
        check("a.ts", b"G\x40\0\x10", "video/vnd.dlna.mpeg-tts");
        check("a.jar", b"PK\x03\x04", "application/java-archive");
        check("sheet.csv", b"\xff\xfea\0,\0b\0", "text/csv");
        check("archive.csv", b"\x1f\x8b\x08", "application/gzip");
        check("script", b"#!/bin/sh\necho \x1b[1mhi", "text/plain");
    }

    #[test]
    fn text_is_utf8_without_controls() {
        assert!(is_text(b""));
        assert!(is_text("gr\u{fc}n\n\t".as_bytes()));
        assert!(is_text(b"cut \xe2\x82"));
        assert!(!is_text(b"a\0b"));
        assert!(!is_text(b"latin \xfcx"));
    }
}
