//! What a file is: by its first bytes where those tell, with its name as tie-breaker.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// How much of a file says whether it is text.
const TEXT_BYTES: usize = 8 * 1024;

/// Where, what, and what it means.
const MAGIC: &[(usize, &[u8], &str)] = &[
    (0, b"\x89PNG\r\n\x1a\n", "image/png"),
    (0, b"\xff\xd8\xff", "image/jpeg"),
    (0, b"GIF87a", "image/gif"),
    (0, b"GIF89a", "image/gif"),
    (8, b"WEBP", "image/webp"),
    (8, b"WAVE", "audio/wav"),
    (8, b"AVI ", "video/x-msvideo"),
    (0, b"BM", "image/bmp"),
    (0, b"II*\0", "image/tiff"),
    (0, b"MM\0*", "image/tiff"),
    (4, b"ftypavif", "image/avif"),
    (4, b"ftypheic", "image/heic"),
    (4, b"ftyp", "video/mp4"),
    (0, b"%PDF-", "application/pdf"),
    (0, b"%!PS", "application/postscript"),
    (0, b"{\\rtf", "application/rtf"),
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

/// Containers: what is in them shows in the name.
const ZIP: &str = "application/zip";
const OLE: &str = "application/x-ole-storage";
const UNKNOWN: &str = "application/octet-stream";
const TEXT: &str = "text/plain";

/// By the beginning of a file.
pub(crate) fn is_text(start: &[u8]) -> bool {
    let start = start.get(..TEXT_BYTES).unwrap_or(start);
    let controls = |byte: &u8| *byte < b' ' && !b"\t\n\r\x0c\x1b\x08".contains(byte);
    if start.iter().any(controls) {
        return false;
    }
    // A character may be cut off at the end.
    str::from_utf8(start).map_or_else(|error| error.error_len().is_none(), |_| true)
}

/// By the beginning of a file and its path.
pub(crate) fn mime_type(path: &[u8], start: &[u8]) -> &'static str {
    let guess = mime_guess::from_path(Path::new(OsStr::from_bytes(path))).first_raw();
    let by_content = MAGIC
        .iter()
        .find(|(at, magic, _)| start.get(*at..).is_some_and(|rest| rest.starts_with(magic)));
    match (by_content, guess) {
        (Some((_, _, container)), Some(guess)) if is_kept_in(guess, container) => guess,
        // Two letters are little evidence against text that says what it is.
        (Some((_, magic, found)), _) if magic.len() > 2 || !is_text(start) => found,
        (_, Some(guess)) if is_text(start) == is_textual(guess) || start.is_empty() => guess,
        _ if is_text(start) => TEXT,
        _ => UNKNOWN,
    }
}

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
