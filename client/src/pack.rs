//! Archives of skills to publish. A folder is packed beforehand into an unnamed file, so that a refusal comes before
//! anything is sent, the bytes do not change while they are sent, and memory is constant.
//!
//! ```text
//! folder ─ pack/folder_walk.rs: what belongs to the skill ─► pack/archive_writer.rs: tar.gz, its sha256 ─► PublishSkill
//! ```
//!
//! The same folder makes the same bytes: entries are sorted, times and owners are 0, modes are 0644 or 0755.

use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use futures::{Stream, StreamExt as _, TryStreamExt as _, stream};
use rustix::fs::OFlags;
use tokio_util::io::ReaderStream;

use crate::Error;
use crate::files::collect::SkippedFile;
use crate::files::local_tree::io_error;
use crate::files::upload::CHUNK_BYTES;

mod archive_writer;
mod folder_walk;
mod ignore_rules;

/// Limits of an archive. The defaults exceed what a skill needs; a server's own limits are in its `ServerInfo`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PackLimits {
    /// Maximum number of files.
    pub files: u64,
    /// Maximum size of all files together in bytes, not compressed.
    pub bytes: u64,
}

impl Default for PackLimits {
    fn default() -> Self {
        Self {
            files: 20_000,
            bytes: 1 << 30,
        }
    }
}

/// File name of a skill card.
const CARD: &str = "skill-card.json";
/// Endings of the file names of archives.
const ENDINGS: [&str; 4] = [".tar.gz", ".tgz", ".tar", ".zip"];

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
    /// Packs a folder. Links within it become what they lead to. What a skill can't have is left out: other links, FIFOs,
    /// sockets and devices; [`Self::skipped`] names it. Also left out, without being named, are folders of version
    /// control, caches, `node_modules`, `.venv`, backups of editors, and the files that a `.skillignore` in the folder
    /// names. A `.skillignore` has the syntax of `.gitignore`; `!name` takes something back in.
    ///
    /// Blocking: it reads every file once and needs as much room in the directory for temporary files as the archive
    /// has bytes.
    ///
    /// # Errors
    ///
    /// [`Error::Pack`] names a file that cannot be packed, [`Error::Io`] one that cannot be read.
    pub fn pack(folder: &Path, limits: PackLimits) -> Result<Self, Error> {
        let packed = folder_walk::SkillFolder::open(folder)?.walk(limits)?;
        // `.` and links have names elsewhere.
        let real = folder.canonicalize().unwrap_or_default();
        let mut file = tempfile::tempfile().map_err(io_error(&std::env::temp_dir()))?;
        let (bytes, sha256) = archive_writer::write_archive(&packed, &mut file)?;
        Ok(Self {
            file,
            path: folder.to_owned(),
            name: file_name(&real),
            skipped: packed.skipped,
            bytes,
            sha256,
        })
    }

    /// Opens an archive (tar, tar.gz or zip) to publish it as it is. Blocking: it is read once.
    ///
    /// # Errors
    ///
    /// [`Error::Pack`] if it is no file, [`Error::Io`] if it cannot be read.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let failed = || io_error(path);
        // Without waiting for a FIFO's writer.
        let flags = i32::try_from(OFlags::NONBLOCK.bits()).unwrap_or_default();
        let opened = File::options().read(true).custom_flags(flags).open(path);
        let mut file = opened.map_err(failed())?;
        if !file.metadata().map_err(failed())?.is_file() {
            let problem = "it is neither a folder nor a file".to_owned();
            return Err(refused(path, problem));
        }
        let (bytes, sha256) = archive_writer::hash_file(&mut file).map_err(failed())?;
        Ok(Self {
            file,
            path: path.to_owned(),
            name: archive_stem(path),
            skipped: Vec::new(),
            bytes,
            sha256,
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
        let path = self.path.clone();
        // A clone of the descriptor would share its offset, and the file may have no name.
        let chunks = match File::open(format!("/proc/self/fd/{}", self.file.as_raw_fd())) {
            Ok(own) => {
                let own = tokio::fs::File::from_std(own);
                ReaderStream::with_capacity(own, CHUNK_BYTES).left_stream()
            }
            Err(error) => stream::iter([Err(error)]).right_stream(),
        };
        chunks.map_err(move |error| io_error(&path)(error))
    }
}

fn refused(path: &Path, problem: String) -> Error {
    Error::Pack {
        path: path.to_owned(),
        problem,
    }
}

/// Returns `true` for the names of files that describe a skill.
fn is_document(name: &OsStr) -> bool {
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
