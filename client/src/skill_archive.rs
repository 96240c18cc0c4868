//! Archives of skills to publish. A folder is packed beforehand into an unnamed file, so that a refusal comes before
//! anything is sent, the bytes do not change while they are sent, and memory is constant.
//!
//! The same folder makes the same bytes: entries are sorted, times and owners are 0, modes are 0644 or 0755.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, BufWriter, Seek, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use data_encoding::HEXLOWER;
use flate2::{Compression, GzBuilder};
use futures::{Stream, TryStreamExt as _, stream};
use sha2::{Digest, Sha256};
use tokio_util::io::ReaderStream;

use crate::Error;
use crate::error::io_error;
use crate::files::collect::SkippedFile;
use crate::files::upload::CHUNK_BYTES;
use crate::pack::{ArchivePlan, IgnoreRules, PackLimits, SkillRules};

/// File name of a skill card.
const CARD: &str = "skill-card.json";
/// Endings of the file names of archives.
const ENDINGS: [&str; 4] = [".tar.gz", ".tgz", ".tar", ".zip"];
/// Maximum number of documents that an error names when none is at the top.
const SHOWN_MAX: usize = 3;
/// Operating system "unknown" in a gzip header, so that the bytes do not depend on the machine.
const NO_SYSTEM: u8 = 255;

/// Archive of one skill, ready to be published any number of times.
#[derive(Debug)]
pub struct SkillArchive {
    file: File,
    path: PathBuf,
    name: String,
    skipped: Vec<SkippedFile>,
    bytes: u64,
    sha256: String,
}

impl SkillArchive {
    /// Packs a folder. Links within it become what they lead to. What a skill can't have is left out: other links,
    /// FIFOs, sockets and devices; [`Self::skipped`] names it. Also left out, without being named, are folders of version
    /// control, caches, `node_modules`, `.venv`, backups of editors, and the files that a `.skillignore` in the folder
    /// names. A `.skillignore` has the syntax of `.gitignore`; `!name` takes something back in.
    ///
    /// Blocking: it reads every file once and needs as much room in the directory for temporary files as the archive
    /// has bytes.
    ///
    /// # Errors
    ///
    /// [`Error::Pack`] names a file that cannot be packed, [`Error::Io`] one that cannot be read or that changes
    /// meanwhile.
    pub fn pack(folder: &Path, limits: PackLimits) -> Result<Self, Error> {
        // `.` and links have names elsewhere.
        let real_root = fs::canonicalize(folder).map_err(io_error(folder))?;
        let name = file_name(&real_root);
        let ignored = IgnoreRules::read(&real_root)?;
        let rules = SkillRules {
            limits,
            ignored,
            real_root,
        };
        let plan = ArchivePlan::walk(folder, Some(rules))?;
        check_names(folder, &plan)?;
        let spool = std::env::temp_dir();
        let file = tempfile::tempfile().map_err(io_error(&spool))?;
        let header = GzBuilder::new().mtime(0).operating_system(NO_SYSTEM);
        let encoder = header.write(BufWriter::new(&file), Compression::default());
        let finished = plan.write(encoder)?.finish();
        let flushed = finished.and_then(|mut spooled| spooled.flush());
        flushed.map_err(io_error(&spool))?;
        let skipped = plan.skipped.into_iter().map(|entry| SkippedFile {
            path: entry.path,
            skip_reason: entry.skip_reason,
            is_blocked: false,
        });
        Self::hash(file, folder, name, skipped.collect())
    }

    /// Opens an archive (tar, tar.gz or zip) to publish it as it is. Blocking: it is read once.
    ///
    /// # Errors
    ///
    /// [`Error::Pack`] if it is no file, [`Error::Io`] if it cannot be read.
    pub fn open(path: &Path) -> Result<Self, Error> {
        // Opening a FIFO waits for its writer.
        if !fs::metadata(path).map_err(io_error(path))?.is_file() {
            return Err(Error::pack(path, "it is neither a folder nor a file"));
        }
        let file = File::open(path).map_err(io_error(path))?;
        Self::hash(file, path, archive_stem(path), Vec::new())
    }

    /// Reads an archive once, for its size and SHA-256.
    fn hash(
        mut file: File,
        path: &Path,
        name: String,
        skipped: Vec<SkippedFile>,
    ) -> Result<Self, Error> {
        file.rewind().map_err(io_error(path))?;
        let mut reader = BufReader::with_capacity(CHUNK_BYTES, &file);
        let (mut bytes, mut hash) = (0, Sha256::new());
        loop {
            let data = reader.fill_buf().map_err(io_error(path))?;
            if data.is_empty() {
                break;
            }
            hash.update(data);
            let count = data.len();
            bytes += count as u64;
            reader.consume(count);
        }
        Ok(Self {
            file,
            path: path.to_owned(),
            name,
            skipped,
            bytes,
            sha256: HEXLOWER.encode(&hash.finalize()),
        })
    }

    /// Returns the name of the folder or archive, for a skill whose documents name none.
    #[must_use]
    pub fn file_name(&self) -> &str {
        &self.name
    }

    /// Returns what the folder has and the archive does not because a skill can't have it, sorted by path.
    #[must_use]
    pub fn skipped(&self) -> &[SkippedFile] {
        &self.skipped
    }

    /// Returns the size of the archive in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the SHA-256 of the archive in 64 hex digits.
    #[must_use]
    pub fn sha256(&self) -> &str {
        &self.sha256
    }

    /// Returns the bytes in chunks of one message each. Streams of one archive do not disturb each other.
    pub(crate) fn chunks(&self) -> impl Stream<Item = Result<Bytes, Error>> + Send + 'static {
        // A clone of the descriptor would share its offset, and the file may have no name.
        let opened = File::open(format!("/proc/self/fd/{}", self.file.as_raw_fd()));
        let reader = opened
            .map(tokio::fs::File::from_std)
            .map(|own| ReaderStream::with_capacity(own, CHUNK_BYTES));
        let path = self.path.clone();
        stream::iter([reader])
            .try_flatten()
            .map_err(move |error| io_error(&path)(error))
    }
}

/// Refuses a skill whose names the server would refuse.
fn check_names(folder: &Path, plan: &ArchivePlan) -> Result<(), Error> {
    let mut seen = HashSet::new();
    for entry in &plan.entries {
        let path = entry.path.to_string_lossy();
        if !seen.insert(path.to_lowercase()) {
            let problem = format!("{path} differs from another file in case only");
            return Err(Error::pack(folder, problem));
        }
    }
    let paths = plan.entries.iter().map(|entry| entry.path.as_path());
    let documents: Vec<&Path> = paths.filter(|path| is_document(path)).collect();
    if documents
        .iter()
        .any(|path| path.parent() == Some(Path::new("")))
    {
        return Ok(());
    }
    let mut problem = "there is no SKILL.md in it".to_owned();
    for path in documents.iter().take(SHOWN_MAX) {
        problem.push_str(&format!("; there is {}", path.display()));
    }
    if !documents.is_empty() {
        problem.push_str(": publish each of these folders by itself");
    }
    let skipped = plan.skipped.iter();
    for entry in skipped.filter(|entry| is_document(Path::new(&entry.path))) {
        problem.push_str(&format!("; {} {}", entry.path, entry.skip_reason));
    }
    Err(Error::pack(folder, problem))
}

/// Returns `true` for files that describe a skill.
fn is_document(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default();
    ["SKILL.md", CARD]
        .iter()
        .any(|document| name.eq_ignore_ascii_case(document))
}

fn file_name(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

/// Returns the archive's file name without the ending that marks an archive.
fn archive_stem(path: &Path) -> String {
    let name = file_name(path);
    let stems = ENDINGS.iter().filter_map(|end| name.strip_suffix(end));
    stems
        .min_by_key(|stem| stem.len())
        .unwrap_or(&name)
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_is_called_as_its_file() {
        for path in ["a/csv.tar.gz", "csv.tgz", "csv.zip", "csv.tar", "csv"] {
            assert_eq!(archive_stem(Path::new(path)), "csv");
        }
    }
}
