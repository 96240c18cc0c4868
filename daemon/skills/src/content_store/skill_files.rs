//! Files of a skill for reading without a workspace: the listing, and the bytes.
//!
//! They are served from the store's copy, which never changes and holds regular files and links that stay inside only:
//! what a listing says is what is read, whatever happens to the folder that the skill came from. A request's path is
//! looked up in the listing and never handed to the file system; what is opened is beneath the copy in any case
//! (openat2, RESOLVE_BENEATH).

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use data_encoding::HEXLOWER;
use nix::errno::Errno;
use nix::fcntl::OFlag;
use sha2::{Digest, Sha256};

use crate::error::{Error, Result, read_chunk};
use crate::parse::document::SKILL_MD_BYTES_MAX;
use crate::placeholders::{self, SkillFolder};
use crate::{mime, openat2};

mod file_lookup;
mod file_purpose;

pub use file_purpose::FilePurpose;

/// Number of bytes at a file's beginning that decide its type.
const START_BYTES: usize = 8 * 1024;
/// Maximum size of a chunk, in bytes.
pub const CHUNK_BYTES_MAX: usize = 256 << 10;

/// A file of a skill.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SkillFile {
    /// Relative to the skill's root; bytes that are not UTF-8 are replaced.
    pub path: String,
    /// Size in bytes.
    pub size: u64,
    /// Permission bits, as staging gives them.
    pub mode: u32,
    /// Media type by content, with the name as tie-breaker.
    pub mime_type: &'static str,
    /// Purpose of the file.
    pub purpose: FilePurpose,
    /// SHA-256 of the bytes, 64 hex digits.
    pub sha256: String,
    /// `true` if its beginning is text.
    pub is_text: bool,
    /// Path as it is on disk.
    disk_path: OsString,
}

/// All files of one version of a skill.
#[derive(Debug)]
pub struct Manifest {
    /// Directory in the store.
    dir: PathBuf,
    /// Files sorted by path.
    files: Vec<SkillFile>,
}

impl Manifest {
    /// Reads and hashes what is in a directory of the store.
    ///
    /// # Errors
    /// Fails with the error of the file system.
    pub fn read(dir: &Path) -> io::Result<Self> {
        let root = File::open(dir)?;
        let mut files = Vec::new();
        list_files(&root, dir, Path::new(""), &mut files)?;
        files.sort_unstable_by(|a, b| a.path.cmp(&b.path));
        Ok(Self {
            dir: dir.to_owned(),
            files,
        })
    }

    /// Removes the files that a card does not allow, by path.
    pub(crate) fn restricted(mut self, allows: impl Fn(&str) -> bool) -> Self {
        self.files.retain(|file| allows(&file.path));
        self
    }

    /// Returns all files, sorted by path: exactly those that are staged.
    #[must_use]
    pub fn files(&self) -> &[SkillFile] {
        &self.files
    }

    /// Opens a file of this manifest.
    ///
    /// # Errors
    /// `Io` when the store lost it.
    pub fn open(&self, file: &SkillFile) -> Result<File> {
        let opened = File::open(&self.dir)
            .and_then(|root| open_regular_file(&root, Path::new(&file.disk_path)));
        let opened = opened.and_then(|opened| opened.ok_or(io::ErrorKind::NotFound.into()));
        let failed = Error::io(format!("open {} in {}", file.path, self.dir.display()));
        opened.map(|(file, _)| file).map_err(failed)
    }
}

/// Content of a file of a skill, ready to be read.
#[derive(Debug)]
pub enum FileContent {
    /// The file in the store.
    Stored(File),
    /// Text of the file with placeholders replaced.
    Text(io::Cursor<Vec<u8>>),
}

impl FileContent {
    /// Replaces placeholders of the skill's folder in a text, and the size in its description.
    ///
    /// # Errors
    /// `Io`.
    pub(crate) fn with_workspace_paths(
        mut file: File,
        described: &mut SkillFile,
        folder: &SkillFolder,
    ) -> Result<Self> {
        if !described.is_text || described.size > SKILL_MD_BYTES_MAX as u64 {
            return Ok(Self::Stored(file));
        }
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(unreadable)?;
        let bytes = match String::from_utf8(bytes) {
            Ok(text) => placeholders::resolve_placeholders(&text, folder).into_bytes(),
            Err(error) => error.into_bytes(),
        };
        described.size = bytes.len() as u64;
        Ok(Self::Text(io::Cursor::new(bytes)))
    }
}

impl Read for FileContent {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Stored(file) => file.read(buffer),
            Self::Text(text) => text.read(buffer),
        }
    }
}

impl Seek for FileContent {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        match self {
            Self::Stored(file) => file.seek(to),
            Self::Text(text) => text.seek(to),
        }
    }
}

/// Range of a file, read a chunk at a time.
#[derive(Debug)]
pub struct FileRangeReader {
    file: FileContent,
    left: u64,
}

impl FileRangeReader {
    /// Reads from `offset` at most `length` bytes; `None` reads to the end.
    ///
    /// # Errors
    /// `Io`.
    pub fn new(mut file: FileContent, offset: u64, length: Option<u64>) -> Result<Self> {
        let end = file.seek(SeekFrom::End(0)).map_err(unreadable)?;
        file.seek(SeekFrom::Start(offset.min(end)))
            .map_err(unreadable)?;
        let left = length.unwrap_or(u64::MAX);
        Ok(Self { file, left })
    }

    /// Reads the next bytes; returns `None` at the end.
    ///
    /// # Errors
    /// `Io`.
    pub fn next_chunk(&mut self) -> Result<Option<Vec<u8>>> {
        let most = self.left.min(CHUNK_BYTES_MAX as u64);
        let mut data = Vec::new();
        let read = (&mut self.file).take(most).read_to_end(&mut data);
        self.left -= read.map_err(unreadable)? as u64;
        Ok((!data.is_empty()).then_some(data))
    }
}

/// Makes the error of a failed read.
pub(crate) fn unreadable(source: io::Error) -> Error {
    Error::io("read a file of a skill")(source)
}

/// Describes the files beneath a directory.
fn list_files(root: &File, dir: &Path, at: &Path, files: &mut Vec<SkillFile>) -> io::Result<()> {
    for entry in fs::read_dir(dir.join(at))? {
        let entry = entry?;
        let path = at.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            list_files(root, dir, &path, files)?;
        } else if let Some((file, mode)) = open_regular_file(root, &path)? {
            files.push(describe_file(&path, file, mode)?);
        }
    }
    Ok(())
}

/// Opens a regular file and returns its mode; `None` for a link that leads to no regular file of the skill.
fn open_regular_file(root: impl AsFd, path: &Path) -> io::Result<Option<(File, u32)>> {
    let file = match openat2::open_following_links(root, path, OFlag::empty()) {
        Ok(opened) => File::from(opened),
        // The link is broken, circular, or leads out of the skill.
        Err(Errno::ENOENT | Errno::ELOOP | Errno::ENOTDIR | Errno::EXDEV) => return Ok(None),
        Err(errno) => return Err(errno.into()),
    };
    let metadata = file.metadata()?;
    let mode = metadata.mode() & 0o777;
    Ok(metadata.is_file().then_some((file, mode)))
}

fn describe_file(path: &Path, mut file: File, mode: u32) -> io::Result<SkillFile> {
    let mut start = Vec::with_capacity(START_BYTES);
    (&file).take(START_BYTES as u64).read_to_end(&mut start)?;
    let mut hash = Sha256::new_with_prefix(&start);
    let mut size = start.len() as u64;
    let mut buffer = [0; START_BYTES];
    loop {
        let chunk = read_chunk(&mut file, &mut buffer)?;
        if chunk.is_empty() {
            break;
        }
        hash.update(chunk);
        size += chunk.len() as u64;
    }
    let name = path.as_os_str();
    let shown = OsStr::to_string_lossy(name).into_owned();
    Ok(SkillFile {
        size,
        mode,
        mime_type: mime::mime_type(name.as_bytes(), &start),
        purpose: file_purpose::classify_file(&shown, &start, mode),
        sha256: HEXLOWER.encode(&hash.finalize()),
        is_text: mime::is_text(&start),
        disk_path: name.to_owned(),
        path: shown,
    })
}

#[cfg(test)]
mod tests;
