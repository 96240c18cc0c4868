//! Archives of skills, unpacked with suspicion: tar, tar.gz, zip, or a SKILL.md alone.
//!
//! ```text
//! file ─ magic bytes ─► tarball.rs ─┐  entries, one at a time
//!                       zipped.rs ──┴─► tree.rs: names, collisions, bounds ─► files and directories, then links
//! ```
//!
//! No library writes anything: each entry is judged in `tree.rs` first. Links are made last, so that nothing is ever
//! written through one. What must not be unpacked fails the whole archive, and nothing is left of it.
//!
//! | kept | refused |
//! |---|---|
//! | files, mode 0644 or 0755; directories 0755 | devices, FIFOs, sparse files, encrypted ones |
//! | relative links that stay inside, `..` only at their beginning | other links |
//! | hard links to earlier files, as copies | other hard links |
//! | one folder around everything, and taken off | absolute names, `..`, control characters, no UTF-8 |
//! | backslashes of zip files from Windows, as separators | other backslashes |
//! | PAX and GNU long names, git's global header, zip64 | two entries of a name, or of names that differ in case |
//! | what macOS adds: `__MACOSX/`, `._x`, left out | bytes after the end, or an end that does not come |

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use flate2::read::MultiGzDecoder;

use super::Problem;
use crate::error::Error;

mod tarball;
mod tree;
mod zipped;

use tree::Tree;

/// Bytes that an archive may always expand to, whatever its ratio: small and regular files compress very well.
const RATIO_FREE_BYTES: u64 = 4 << 20;
/// First bytes of a file that are looked at to tell what it is; a tar header.
const MAGIC_BYTES: usize = 512;
/// Of a tar entry's headers and padding, counted on top of the contents.
const OVERHEAD_BYTES: u64 = 4096;

/// What the bytes of a file are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// `.tar`.
    Tar,
    /// `.tar.gz`, `.tgz`.
    TarGz,
    /// `.zip`.
    Zip,
    /// No archive: the document alone.
    SkillMd,
}

/// What an archive may hold.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Of all files, unpacked.
    pub bytes: u64,
    /// Of one file, unpacked.
    pub file_bytes: u64,
    /// Files, links and directories, those included that are only part of a name.
    pub entries: u64,
    /// Names in a path.
    pub depth: usize,
    /// Unpacked bytes for each packed one.
    pub ratio: u64,
}

/// A directory that an archive was unpacked into.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unpacked {
    /// What the archive holds, without a folder around it.
    pub root: PathBuf,
    /// The name of that folder: the archive's only entry at its top, a directory.
    pub wrapper: Option<String>,
    /// Regular files and links.
    pub files: u64,
    /// Files, links and directories.
    pub entries: u64,
    /// Of its files.
    pub bytes: u64,
}

/// Why an archive was not unpacked.
#[derive(Debug)]
pub enum Refused {
    /// It must not be, or cannot.
    Invalid {
        /// Name in the archive, made printable; empty if it is about the whole.
        entry: String,
        /// Fits after the name.
        problem: String,
    },
    /// It is more than a bound allows.
    Limit {
        /// What is too much.
        what: String,
        /// The bound.
        limit: u64,
    },
    /// The host's fault.
    Host(Error),
}

/// The bytes of a stream are more than they may be.
#[derive(Debug, thiserror::Error)]
#[error("more than {limit} bytes")]
struct Over {
    what: &'static str,
    limit: u64,
}

/// A reader that fails beyond a number of bytes.
struct Capped<R> {
    inner: R,
    left: u64,
    what: &'static str,
    limit: u64,
}

/// Unpacks a file into `into`, which must not exist and is not there after a failure. `kind` is found out if not given.
/// Blocking.
///
/// # Errors
/// See [`Refused`].
pub fn unpack(
    file: &mut File,
    kind: Option<Kind>,
    into: &Path,
    bounds: &Bounds,
) -> Result<Unpacked, Refused> {
    let kind = match kind {
        Some(kind) => kind,
        None => detect(file)?,
    };
    tree::make_directory(into).map_err(Refused::host("make", into))?;
    let unpacked = unpack_into(file, kind, into, bounds);
    if unpacked.is_err()
        && let Err(error) = fs::remove_dir_all(into)
    {
        tracing::warn!(dir = %into.display(), %error, "what was unpacked of a refused archive is left");
    }
    unpacked
}

fn unpack_into(
    file: &mut File,
    kind: Kind,
    into: &Path,
    bounds: &Bounds,
) -> Result<Unpacked, Refused> {
    let size = file.seek(SeekFrom::End(0)).map_err(Refused::read)?;
    file.rewind().map_err(Refused::read)?;
    let mut tree = Tree::new(into, *bounds);
    let overhead = bounds.entries.saturating_mul(OVERHEAD_BYTES);
    let bytes = bounds.bytes.saturating_add(overhead);
    let by_ratio = RATIO_FREE_BYTES.max(size.saturating_mul(bounds.ratio));
    match kind {
        Kind::Tar => tarball::read(io::BufReader::new(file), &mut tree)?,
        Kind::TarGz => {
            let inflated = MultiGzDecoder::new(io::BufReader::new(file));
            let inflated = Capped::new(inflated, "bytes of the archive, unpacked", bytes);
            let inflated = Capped::new(inflated, EXPANSION, by_ratio);
            tarball::read(io::BufReader::new(inflated), &mut tree)?;
        }
        Kind::Zip => zipped::read(file, &mut tree, by_ratio)?,
        Kind::SkillMd => {
            if let Some(path) = tree.admit(b"SKILL.md")? {
                tree.file(&path, false, file)?;
            }
        }
    }
    tree.finish()
}

const EXPANSION: &str = "bytes that an archive of this size expands to";

/// What a file is by its first bytes.
pub fn detect(file: &mut File) -> Result<Kind, Refused> {
    let mut start = Vec::with_capacity(MAGIC_BYTES);
    file.rewind().map_err(Refused::read)?;
    let mut head = Read::by_ref(file).take(MAGIC_BYTES as u64);
    head.read_to_end(&mut start).map_err(Refused::read)?;
    if start.starts_with(b"PK\x03\x04") || start.starts_with(b"PK\x05\x06") {
        return Ok(Kind::Zip);
    }
    if start.starts_with(&[0x1f, 0x8b]) {
        return Ok(Kind::TarGz);
    }
    if tarball::is_header(&start) {
        return Ok(Kind::Tar);
    }
    // A character may be cut in two at the end of what was read.
    let text = match str::from_utf8(&start) {
        Ok(_) => !start.is_empty(),
        Err(error) => error.error_len().is_none(),
    };
    if text && !start.contains(&0) {
        return Ok(Kind::SkillMd);
    }
    Err(Refused::whole(
        "is neither tar, tar.gz nor zip, nor a SKILL.md",
    ))
}

// === impl Refused ===

impl Refused {
    fn entry(name: impl AsRef<[u8]>, problem: impl Into<String>) -> Self {
        Self::Invalid {
            entry: show(name.as_ref()),
            problem: problem.into(),
        }
    }

    pub(super) fn whole(problem: impl Into<String>) -> Self {
        Self::entry("", problem)
    }

    fn host(verb: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self + use<> {
        let operation = format!("{verb} {}", path.display());
        move |source| Self::Host(Error::Io { operation, source })
    }

    /// What a failed read of the archive means: the decoders' errors have no number, the system's have.
    fn read(error: io::Error) -> Self {
        if let Some(over) = error.get_ref().and_then(|inner| inner.downcast_ref()) {
            let Over { what, limit } = over;
            return Self::Limit {
                what: (*what).to_owned(),
                limit: *limit,
            };
        }
        if error.raw_os_error().is_some() {
            let operation = "read an archive".to_owned();
            return Self::Host(Error::Io {
                operation,
                source: error,
            });
        }
        if error.kind() == io::ErrorKind::UnexpectedEof {
            return Self::whole("is cut off");
        }
        Self::whole(format!("cannot be decompressed: {error}"))
    }

    /// As a problem of a root or a skill.
    pub fn into_problem(self) -> Problem {
        let code = match &self {
            Self::Invalid { .. } => "archive.invalid",
            Self::Limit { .. } => "archive.too_large",
            Self::Host(_) => "archive.failed",
        };
        Problem::error(code, Error::from(self).to_string())
    }
}

impl From<Refused> for Error {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Invalid { entry, problem } => Self::ArchiveInvalid { entry, problem },
            Refused::Limit { what, limit } => Self::LimitExceeded { what, limit },
            Refused::Host(error) => error,
        }
    }
}

/// A name for people: at most 256 characters, none of them invisible.
fn show(name: &[u8]) -> String {
    let name = name.get(..1024).unwrap_or(name);
    name.escape_ascii().to_string().chars().take(256).collect()
}

// === impl Capped ===

impl<R> Capped<R> {
    fn new(inner: R, what: &'static str, limit: u64) -> Self {
        Self {
            inner,
            left: limit,
            what,
            limit,
        }
    }
}

impl<R: Read> Read for Capped<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.left = self.left.checked_sub(count as u64).ok_or_else(|| {
            io::Error::other(Over {
                what: self.what,
                limit: self.limit,
            })
        })?;
        Ok(count)
    }
}

#[cfg(test)]
mod tests;
