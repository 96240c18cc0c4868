//! Values from extension headers, which replace those of the next header: long names of GNU, and records of PAX.

use std::time::{Duration, SystemTime};

use tar::{EntryType, Header};

use super::{TarError, archive_error};

/// Digits of a fraction of a second that a file time keeps.
const FRACTION_DIGITS: usize = 9;

/// Values for the next entry; `None` for those of its own header.
#[derive(Debug, Default)]
pub(super) struct EntryOverrides {
    pub(super) path: Option<Vec<u8>>,
    pub(super) link: Option<Vec<u8>>,
    pub(super) size: Option<u64>,
    pub(super) modified: Option<SystemTime>,
    /// The contents are the parts of a sparse file, and a list of them.
    pub(super) is_sparse: bool,
}

impl EntryOverrides {
    /// Returns `true` if values wait for an entry that they name or size.
    pub(super) fn is_pending(&self) -> bool {
        self.path.is_some() || self.link.is_some() || self.size.is_some()
    }

    /// Adds the values of an extension header.
    ///
    /// # Errors
    /// [`TarError`] for a damaged header, or for a global one that names or sizes all entries: some programs ignore it.
    pub(super) fn add_extension(
        &mut self,
        kind: EntryType,
        mut data: Vec<u8>,
    ) -> Result<(), TarError> {
        if kind.is_gnu_longname() || kind.is_gnu_longlink() {
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
        let mut rest = data.as_slice();
        while !rest.is_empty() {
            let record = split_pax_record(rest);
            let (key, value, after) =
                record.ok_or_else(|| archive_error("has a damaged PAX header"))?;
            rest = after;
            let is_sparse = key.starts_with(b"GNU.sparse.");
            if kind.is_pax_global_extensions() {
                if is_sparse || matches!(key, b"path" | b"linkpath" | b"size") {
                    let problem = "has a PAX header that names or sizes all of its entries";
                    return Err(archive_error(problem));
                }
                continue;
            }
            match key {
                b"path" => self.path = Some(value.to_vec()),
                b"linkpath" => self.link = Some(value.to_vec()),
                b"mtime" => self.modified = parse_time(value),
                b"size" => {
                    let size = parse_size(value);
                    self.size = Some(size.ok_or_else(|| archive_error("has a bad PAX size"))?);
                }
                b"GNU.sparse.name" => sparse_name = Some(value.to_vec()),
                _ => self.is_sparse |= is_sparse,
            }
        }
        // Instead of it `path` has a name for programs that do not know sparse files.
        if sparse_name.is_some() {
            self.path = sparse_name;
        }
        Ok(())
    }
}

/// Returns key and value of the first PAX record, `LENGTH KEY=VALUE\n`, and the bytes after it. The length counts all
/// of the record, so a value may hold any byte.
fn split_pax_record(data: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let space = data.iter().take(8).position(|byte| *byte == b' ')?;
    let length: usize = str::from_utf8(data.get(..space)?).ok()?.parse().ok()?;
    let (whole, rest) = data.split_at_checked(length)?;
    let pair = whole.get(space + 1..)?.strip_suffix(b"\n")?;
    let equals = pair.iter().position(|byte| *byte == b'=')?;
    let (key, value) = pair.split_at_checked(equals)?;
    (!key.is_empty()).then_some((key, value.get(1..)?, rest))
}

fn parse_size(value: &[u8]) -> Option<u64> {
    let is_number = !value.is_empty() && value.iter().all(u8::is_ascii_digit);
    str::from_utf8(value)
        .ok()
        .filter(|_| is_number)?
        .parse()
        .ok()
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
    let digits: Vec<u8> = fraction
        .bytes()
        .chain(std::iter::repeat(b'0'))
        .take(FRACTION_DIGITS)
        .collect();
    let nanos = str::from_utf8(&digits).ok()?.parse().ok()?;
    file_time(Duration::new(seconds.parse().ok()?, nanos))
}

/// Converts the time since 1970; `None` if the clock has no such time.
fn file_time(since: Duration) -> Option<SystemTime> {
    SystemTime::UNIX_EPOCH.checked_add(since)
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
