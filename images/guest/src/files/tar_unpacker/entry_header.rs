//! Reads names, link targets, sizes and times of archive entries from their headers and extension headers.

use std::time::{Duration, SystemTime};

use skilld_proto::v1::skipped_file::Reason;
use tar::{EntryType, Header, PaxExtensions};

use crate::error::Error;
use crate::files::root::{NAME_MAX, display_path};

/// Maximum length of a path in bytes.
pub(super) const PATH_MAX: usize = 4096;
const DEPTH_MAX: usize = 128;
/// Digits of a fraction of a second that a file time keeps.
const FRACTION_DIGITS: usize = 9;

/// Values from extension headers, which replace those of the next header.
#[derive(Debug, Default)]
pub(super) struct EntryOverrides {
    pub(super) path: Option<Vec<u8>>,
    pub(super) link: Option<Vec<u8>>,
    pub(super) size: Option<u64>,
    pub(super) mtime: Option<SystemTime>,
    /// The contents are the parts of a sparse file, and a list of them.
    pub(super) is_sparse: bool,
}

/// Returns the error for an archive with an entry that may not be unpacked.
pub(super) fn invalid_entry(entry: &[u8], problem: &'static str) -> Error {
    let entry = display_path(entry).chars().take(256).collect();
    Error::ArchiveInvalid { entry, problem }
}

/// Returns `true` for an entry that only describes the next one.
pub(super) fn is_extension(kind: EntryType) -> bool {
    kind.is_gnu_longname()
        || kind.is_gnu_longlink()
        || kind == EntryType::XHeader
        || kind == EntryType::XGlobalHeader
}

impl EntryOverrides {
    /// Adds the values of an extension header. Ignores those for the rest of the archive.
    pub(super) fn apply_extension(
        &mut self,
        kind: EntryType,
        mut data: Vec<u8>,
    ) -> Result<(), Error> {
        if kind == EntryType::XGlobalHeader {
            return Ok(());
        }
        if kind != EntryType::XHeader {
            while data.last() == Some(&0) {
                data.pop();
            }
            let field = if kind.is_gnu_longname() {
                &mut self.path
            } else {
                &mut self.link
            };
            *field = Some(data);
            return Ok(());
        }
        let mut sparse_name = None;
        for record in PaxExtensions::new(&data) {
            let record = record.map_err(|_| invalid_entry(b"", "has a damaged PAX header"))?;
            let value = record.value_bytes();
            match record.key_bytes() {
                b"path" => self.path = Some(value.to_vec()),
                b"linkpath" => self.link = Some(value.to_vec()),
                b"mtime" => self.mtime = parse_time(value),
                b"size" => {
                    let size = str::from_utf8(value)
                        .ok()
                        .and_then(|text| text.parse().ok());
                    self.size = Some(size.ok_or_else(|| invalid_entry(b"", "has a bad PAX size"))?);
                }
                b"GNU.sparse.name" => sparse_name = Some(value.to_vec()),
                key if key.starts_with(b"GNU.sparse.") => self.is_sparse = true,
                _ => {}
            }
        }
        // Instead of it the header has a name for programs that do not know sparse files.
        if sparse_name.is_some() {
            self.path = sparse_name;
        }
        Ok(())
    }
}

/// Returns the modification time in a header; `None` if it has none or 0, which archives without times have.
pub(super) fn header_time(header: &Header) -> Option<SystemTime> {
    let seconds = header.mtime().ok().filter(|seconds| *seconds > 0)?;
    file_time(Duration::from_secs(seconds))
}

/// Parses a time in a PAX record: seconds since 1970, with a fraction. `None` for other text and for earlier times.
fn parse_time(value: &[u8]) -> Option<SystemTime> {
    let text = str::from_utf8(value).ok()?;
    let (seconds, fraction) = text.split_once('.').unwrap_or((text, ""));
    let digits = fraction.bytes().chain(std::iter::repeat(b'0'));
    let digits: Vec<u8> = digits.take(FRACTION_DIGITS).collect();
    let nanos = str::from_utf8(&digits).ok()?.parse().ok()?;
    file_time(Duration::new(seconds.parse().ok()?, nanos))
}

/// Converts the time since 1970; `None` if the clock has no such time.
fn file_time(since: Duration) -> Option<SystemTime> {
    SystemTime::UNIX_EPOCH.checked_add(since)
}

/// Returns `true` for a text that a link can have as its target.
pub(super) fn is_link_target(target: &[u8]) -> bool {
    !target.is_empty() && target.len() < PATH_MAX && !target.contains(&0)
}

/// Normalises the name of an entry, or returns why no file can have it. Fails if it leads out of the target directory.
pub(super) fn clean_path(given: &[u8]) -> Result<Result<Vec<u8>, Reason>, Error> {
    let names = given.split(|byte| *byte == b'/');
    let names: Vec<&[u8]> = names
        .filter(|name| !name.is_empty() && *name != b".")
        .collect();
    if names.contains(&b"..".as_slice()) {
        return Err(invalid_entry(given, "has .. in its name"));
    }
    let is_too_long = given.len() > PATH_MAX || names.iter().any(|name| name.len() > NAME_MAX);
    if given.starts_with(b"/") || given.contains(&0) || is_too_long {
        return Ok(Err(Reason::Name));
    }
    if names.len() > DEPTH_MAX {
        return Ok(Err(Reason::Depth));
    }
    Ok(Ok(names.join(&b'/')))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_archives_keep_their_fraction() {
        for (text, expected) in [
            ("1577836800", Some(Duration::new(1_577_836_800, 0))),
            ("1.5", Some(Duration::new(1, 500_000_000))),
            ("1.0000000019", Some(Duration::new(1, 1))),
            ("-1", None),
            ("1.x", None),
            ("", None),
            ("99999999999999999999", None),
        ] {
            let expected = expected.and_then(file_time);
            assert_eq!(parse_time(text.as_bytes()), expected, "{text}");
        }
        assert_eq!(file_time(Duration::MAX), None);
        let mut header = Header::new_gnu();
        assert_eq!(header_time(&header), None);
        header.set_mtime(7);
        assert_eq!(header_time(&header), file_time(Duration::from_secs(7)));
    }
}
