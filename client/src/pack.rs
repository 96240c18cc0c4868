//! A skill's folder as an archive to publish: packed beforehand into a file without a name, so that what is refused is
//! refused before anything is sent, what is sent does not change meanwhile, and memory is constant.
//!
//! ```text
//! folder ─ pack/walk.rs: what belongs to the skill ─► pack/write.rs: tar.gz, its sha256 ─► PublishSkill
//! ```
//!
//! The same folder makes the same bytes: entries are sorted, times and owners are 0, modes are 0644 or 0755.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use data_encoding::HEXLOWER;
use rustix::fs::OFlags;
use sha2::{Digest, Sha256};

use crate::Error;
use crate::files::tree::io_error;

mod ignored;
mod named;
mod walk;
mod write;

/// How much may be packed. The default is more than a skill needs; a server's own limits are in its `ServerInfo`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PackLimits {
    /// Files.
    pub files: u64,
    /// Bytes of all files, not compressed.
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

/// An archive of one skill, ready to be published any number of times.
#[derive(Debug)]
pub struct SkillArchive {
    file: File,
    path: PathBuf,
    name: String,
    bytes: u64,
    sha256: String,
}

impl SkillArchive {
    /// Packs a folder. Links within it become what they lead to; one that leads out, and what is no file, is refused.
    /// Left out are the folders of version control, caches, `node_modules`, `.venv` and what editors leave, and what
    /// a `.skillignore` in the folder names, in the language of `.gitignore`; there `!name` takes something back in.
    ///
    /// Blocking: it reads every file once and needs as much room in the directory for temporary files as the archive
    /// has bytes.
    ///
    /// # Errors
    /// [`Error::Pack`] names what cannot be packed, [`Error::Io`] what cannot be read.
    pub fn pack(folder: &Path, limits: PackLimits) -> Result<Self, Error> {
        let packed = walk::Root::open(folder)?.walk(limits)?;
        let mut file = tempfile::tempfile().map_err(io_error(&std::env::temp_dir()))?;
        let (bytes, sha256) = write::write(&packed, &mut file)?;
        Ok(Self {
            file,
            path: folder.to_owned(),
            name: named::of_folder(&packed),
            bytes,
            sha256,
        })
    }

    /// Takes an archive as it is: tar, tar.gz or zip. The server looks into it. Blocking: it is read once.
    ///
    /// # Errors
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
        let (bytes, sha256) = hash(&mut file).map_err(failed())?;
        Ok(Self {
            file,
            path: path.to_owned(),
            name: named::of_archive(path),
            bytes,
            sha256,
        })
    }

    /// What the skill is called as far as can be told from here, for those who do not say it: as its card or its
    /// SKILL.md says, else as its folder or its file. The server refuses a name that is not the skill's.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Of the archive.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Of the archive, 64 hex digits.
    #[must_use]
    pub fn sha256(&self) -> &str {
        &self.sha256
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// From its first byte on, whoever else reads it.
    pub(crate) fn reader(&self) -> io::Result<tokio::fs::File> {
        // A clone of the descriptor would share its offset, and the file may have no name.
        let own = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        File::open(own).map(tokio::fs::File::from_std)
    }
}

fn refused(path: &Path, problem: String) -> Error {
    Error::Pack {
        path: path.to_owned(),
        problem,
    }
}

/// How many bytes a file has, and their sha256.
fn hash(file: &mut File) -> io::Result<(u64, String)> {
    let (mut hash, mut buffer, mut bytes) = (Sha256::new(), vec![0; 64 << 10], 0);
    loop {
        let count = match file.read(&mut buffer) {
            Ok(0) => return Ok((bytes, HEXLOWER.encode(&hash.finalize()))),
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        hash.update(buffer.get(..count).unwrap_or_default());
        bytes += count as u64;
    }
}

/// Whether a file says what a skill is.
fn is_document(name: &OsStr) -> bool {
    ["SKILL.md", named::CARD]
        .iter()
        .any(|document| name.eq_ignore_ascii_case(document))
}
