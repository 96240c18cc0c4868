//! Archives of skills, unpacked with suspicion: tar, tar.gz, zip, or a SKILL.md alone.
//!
//! ```text
//! file ─ magic bytes ─► tarball.rs ─┐  entries, one at a time
//!                       zipfile.rs ──┴─► unpack_tree.rs: names, collisions, bounds ─► files and directories, then links
//! ```
//!
//! No library writes anything: each entry is judged in `unpack_tree.rs` first. Links are made last, so that nothing is
//! ever written through one. An entry that no skill can have is left out and named. A damaged or ambiguous archive
//! fails as a whole, and nothing is left of it.
//!
//! | kept | left out and named | refused |
//! |---|---|---|
//! | files, mode 0644 or 0755; directories 0755 | devices, FIFOs, sparse files | encrypted files; FIFOs with data |
//! | relative links that stay inside, `..` only at their beginning | other links | names beneath a link |
//! | hard links to earlier files, as copies | other hard links | two entries of a name, also if one is left out |
//! | one folder around everything, and taken off | absolute names, too long ones | `..` or NUL in names |
//! | names of zip files in the encoding of a country | control characters; an unknown encoding | |
//! | backslashes of zip files from Windows, as separators | | other backslashes |
//! | PAX and GNU long names, git's global header, zip64 | | bytes after the end, or no end |
//!
//! What macOS adds, `__MACOSX/` and `._x`, is left out without being named.

use std::cell::Cell;
use std::fs::{self, File};
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use flate2::read::MultiGzDecoder;
use skilld_common::tar_reader::is_tar_header;
use skilld_common::text_decoding::decode_text;

use crate::content_store::content_hashing::make_directory;
use crate::error::{Error, Result};
use crate::parse::problem::{LeftOutEntries, Problem};
use crate::skill_path::printable_name;
use crate::skills_options::ArchiveBounds;

mod tarball;
mod unpack_tree;
mod zipfile;

use unpack_tree::{ArchiveEntry, EntryKind, UnpackTree};

/// Size in bytes to which an archive may always expand, whatever its ratio: small and regular files compress very well.
const RATIO_FREE_BYTES: u64 = 4 << 20;
/// Number of bytes at a file's beginning that decide its format: a tar header.
const MAGIC_BYTES: usize = 512;
/// Size of a tar entry's headers and padding in bytes, counted on top of the contents.
const OVERHEAD_BYTES: u64 = 4096;
/// Name of the bound that follows from [`ArchiveBounds::ratio`].
const EXPANSION: &str = "bytes that an archive of this size expands to";

/// Format of an uploaded or fetched file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ArchiveKind {
    /// `.tar`.
    Tar,
    /// `.tar.gz`, `.tgz`.
    TarGz,
    /// `.zip`.
    Zip,
    /// No archive: the document alone.
    SkillMd,
}

/// Directory into which an archive was unpacked, and its counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnpackedArchive {
    /// Directory of the archive's files, without a folder around them.
    pub root: PathBuf,
    /// Name of that folder: the archive's only entry at its top, a directory.
    pub wrapper: Option<String>,
    /// Number of regular files and links.
    pub files: u64,
    /// Number of files, links and directories.
    pub entries: u64,
    /// Size of its files, in bytes.
    pub bytes: u64,
    /// Two paths that differ only in case.
    pub(crate) case_clash: Option<(String, String)>,
    /// Entries that no skill can have.
    pub(crate) left_out: LeftOutEntries,
}

impl UnpackedArchive {
    /// Checks that no two paths differ only in case: other systems would take them for one file.
    ///
    /// # Errors
    /// `ArchiveInvalid`.
    pub(crate) fn check_case(&self) -> Result<()> {
        match &self.case_clash {
            None => Ok(()),
            Some((path, other)) => {
                let other = printable_name(other.as_bytes());
                Err(entry_error(
                    path,
                    format!("differs only in case from {other}"),
                ))
            }
        }
    }
}

/// Error of a [`LimitedReader`] at its limit.
#[derive(Debug, thiserror::Error)]
#[error("more than {limit} bytes")]
struct LimitReached {
    what: &'static str,
    limit: u64,
}

/// Reader that fails beyond a number of bytes, which several readers may share.
struct LimitedReader<R> {
    inner: R,
    /// Number of bytes that can still be read.
    left: Rc<Cell<u64>>,
    what: &'static str,
    /// Limit that the error names.
    limit: u64,
}

/// Unpacks a file into `into`, which must not exist and does not exist after a failure. Without `kind` the format is
/// detected. Blocks.
///
/// # Errors
/// `ArchiveInvalid` for an invalid or hostile archive, `LimitExceeded`, `Io`.
pub fn unpack_archive(
    file: &mut File,
    kind: Option<ArchiveKind>,
    into: &Path,
    bounds: &ArchiveBounds,
) -> Result<UnpackedArchive> {
    let kind = match kind {
        Some(kind) => kind,
        None => detect_archive_kind(file)?,
    };
    make_directory(into).map_err(host_error("make", into))?;
    let unpacked = unpack_into(file, kind, into, bounds);
    if unpacked.is_err()
        && let Err(error) = fs::remove_dir_all(into)
    {
        tracing::warn!(dir = %into.display(), %error, "files of a refused archive were not removed");
    }
    unpacked
}

fn unpack_into(
    file: &mut File,
    kind: ArchiveKind,
    into: &Path,
    bounds: &ArchiveBounds,
) -> Result<UnpackedArchive> {
    let size = file.seek(SeekFrom::End(0)).map_err(read_error)?;
    file.rewind().map_err(read_error)?;
    let mut tree = UnpackTree::new(into, *bounds);
    let expanded_max = RATIO_FREE_BYTES.max(size.saturating_mul(bounds.ratio));
    match kind {
        ArchiveKind::Tar => tarball::unpack_tar(file, &mut tree)?,
        ArchiveKind::TarGz => {
            let overhead = bounds.entries.saturating_mul(OVERHEAD_BYTES);
            let bytes_max = bounds.bytes.saturating_add(overhead);
            let inflated = MultiGzDecoder::new(BufReader::new(file));
            let what = "bytes of the archive, unpacked";
            let inflated = LimitedReader::new(inflated, what, bytes_max);
            let inflated = LimitedReader::new(inflated, EXPANSION, expanded_max);
            tarball::unpack_tar(inflated, &mut tree)?;
        }
        ArchiveKind::Zip => zipfile::unpack_zip(file, &mut tree, expanded_max)?,
        ArchiveKind::SkillMd => {
            let is_executable = false;
            let document = ArchiveEntry {
                name: b"SKILL.md",
                kind: EntryKind::File { is_executable },
                size,
            };
            tree.add_entry(&document, file)?;
        }
    }
    tree.finish()
}

/// Detects the format of a file by its first bytes.
///
/// # Errors
/// `ArchiveInvalid` for any other format; `Io`.
pub fn detect_archive_kind(file: &mut File) -> Result<ArchiveKind> {
    let mut start = Vec::with_capacity(MAGIC_BYTES);
    file.rewind().map_err(read_error)?;
    let mut head = Read::by_ref(file).take(MAGIC_BYTES as u64);
    head.read_to_end(&mut start).map_err(read_error)?;
    if start.starts_with(b"PK\x03\x04") || start.starts_with(b"PK\x05\x06") {
        return Ok(ArchiveKind::Zip);
    }
    if start.starts_with(&[0x1f, 0x8b]) {
        return Ok(ArchiveKind::TarGz);
    }
    if is_tar_header(&start) {
        return Ok(ArchiveKind::Tar);
    }
    if !start.is_empty() && decode_text(&start, false).is_text {
        return Ok(ArchiveKind::SkillMd);
    }
    Err(archive_error(
        "is neither tar, tar.gz nor zip, nor a SKILL.md",
    ))
}

// === errors ===

/// Makes the error of one entry.
fn entry_error(name: impl AsRef<[u8]>, problem: impl Into<String>) -> Error {
    Error::ArchiveInvalid {
        entry: printable_name(name.as_ref()),
        problem: problem.into(),
    }
}

/// Makes the error of a whole archive.
pub(crate) fn archive_error(problem: impl Into<String>) -> Error {
    entry_error("", problem)
}

/// Makes the error of an operation on an unpacked file.
fn host_error(verb: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error + use<> {
    Error::io(format!("{verb} {}", path.display()))
}

/// Classifies a failed read: errors of decoders have no OS error number, errors of the system have one.
fn read_error(error: io::Error) -> Error {
    if let Some(reached) = error.get_ref().and_then(|inner| inner.downcast_ref()) {
        let LimitReached { what, limit } = reached;
        return Error::LimitExceeded {
            what: (*what).to_owned(),
            limit: *limit,
        };
    }
    if error.raw_os_error().is_some() {
        return Error::io("read an archive")(error);
    }
    if error.kind() == io::ErrorKind::UnexpectedEof {
        return archive_error("is cut off");
    }
    archive_error(format!("cannot be decompressed: {error}"))
}

/// Adds the name of the entry, where it is not known yet.
fn with_entry(error: Error, name: &[u8]) -> Error {
    if let Error::ArchiveInvalid { entry, problem } = &error
        && entry.is_empty()
    {
        return entry_error(name, problem);
    }
    error
}

/// Converts an error of an archive to a problem of a root or a skill.
pub fn archive_problem(error: &Error) -> Problem {
    let code = if matches!(error, Error::ArchiveInvalid { .. }) {
        "archive.invalid"
    } else if matches!(error, Error::LimitExceeded { .. }) {
        "archive.too_large"
    } else {
        "archive.failed"
    };
    Problem::error(code, error.to_string())
}

// === impl LimitedReader ===

impl<R> LimitedReader<R> {
    fn new(inner: R, what: &'static str, limit: u64) -> Self {
        Self {
            inner,
            left: Rc::new(Cell::new(limit)),
            what,
            limit,
        }
    }
}

impl<R: Read> Read for LimitedReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        let left = self.left.get().checked_sub(count as u64);
        let (what, limit) = (self.what, self.limit);
        let reached = || io::Error::other(LimitReached { what, limit });
        self.left.set(left.ok_or_else(reached)?);
        Ok(count)
    }
}

impl<R: Seek> Seek for LimitedReader<R> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.inner.seek(to)
    }
}

#[cfg(test)]
mod tests;
