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
use crate::files::local_tree::io_error;
use crate::files::upload::CHUNK_BYTES;

mod archive_writer;
mod folder_walk;
mod ignore_rules;
mod skill_name;

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

/// Archive of one skill, ready to be published any number of times.
#[derive(Debug)]
pub struct SkillArchive {
    file: File,
    path: PathBuf,
    name: String,
    bytes: u64,
    sha256: String,
}

impl SkillArchive {
    /// Packs a folder. Links within it become what they lead to; a link that leads out, a FIFO and the like are
    /// refused. Folders of version control, caches, `node_modules`, `.venv`, backups of editors, and the files that a
    /// `.skillignore` in the folder names are left out. A `.skillignore` has the syntax of `.gitignore`; `!name` takes
    /// something back in.
    ///
    /// Blocking: it reads every file once and needs as much room in the directory for temporary files as the archive
    /// has bytes.
    ///
    /// # Errors
    ///
    /// [`Error::Pack`] names a file that cannot be packed, [`Error::Io`] one that cannot be read.
    pub fn pack(folder: &Path, limits: PackLimits) -> Result<Self, Error> {
        let packed = folder_walk::SkillFolder::open(folder)?.walk(limits)?;
        let mut file = tempfile::tempfile().map_err(io_error(&std::env::temp_dir()))?;
        let (bytes, sha256) = archive_writer::write_archive(&packed, &mut file)?;
        Ok(Self {
            file,
            path: folder.to_owned(),
            name: skill_name::name_of_folder(&packed),
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
            name: skill_name::name_of_archive(path),
            bytes,
            sha256,
        })
    }

    /// Returns the name that the card or SKILL.md gives, else that of the folder or archive. The server refuses a name
    /// that is not the skill's.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
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
    ["SKILL.md", skill_name::CARD]
        .iter()
        .any(|document| name.eq_ignore_ascii_case(document))
}
