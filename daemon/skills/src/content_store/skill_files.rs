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
use skilld_common::mime;
use skilld_common::text_decoding::decode_text;

use crate::error::{Error, Result, read_chunk};
use crate::openat2;
use crate::parse::document::SKILL_MD_BYTES_MAX;
use crate::placeholders::{self, SkillFolder};
use crate::skill_path::compose_disk_path;

mod file_lookup;
mod file_purpose;

pub use file_purpose::FilePurpose;
pub(crate) use file_purpose::is_reference;

/// Number of bytes at a file's beginning that decide its type.
const START_BYTES: usize = 8 * 1024;
/// Maximum size of a chunk, in bytes.
pub const CHUNK_BYTES_MAX: usize = 256 << 10;

/// A file of a skill.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SkillFile {
    /// Relative to the skill's root, as it is staged; bytes that are not UTF-8 are replaced.
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
    /// `true` if its beginning is text, in whatever encoding.
    pub is_text: bool,
    /// Encoding of a text in another one than UTF-8; else empty.
    pub encoding: &'static str,
    /// Path in the store.
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
        let top = Path::new("");
        list_files(&root, dir, (top, top), &mut files)?;
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
    pub fn files(&self) -> &[SkillFile] {
        &self.files
    }

    /// Opens a file of this manifest.
    ///
    /// # Errors
    /// `Io` when the store lost it.
    pub fn open(&self, file: &SkillFile) -> Result<File> {
        let failed = Error::io(format!("open {} in {}", file.path, self.dir.display()));
        File::open(&self.dir)
            .and_then(|root| open_regular_file(&root, Path::new(&file.disk_path)))
            .and_then(|opened| opened.ok_or(io::ErrorKind::NotFound.into()))
            .map(|(file, _)| file)
            .map_err(failed)
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
    /// Decodes a text and replaces placeholders of the skill's folder in it. The description gets its size and encoding.
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
        let decoded = decode_text(&bytes, true);
        let encoding = name_encoding(decoded.encoding);
        let text = decoded
            .is_text
            .then(|| placeholders::resolve_placeholders(&decoded.text, folder));
        if let Some(text) = text {
            described.encoding = encoding;
            bytes = text.into_bytes();
        }
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

/// Describes the files beneath a directory, whose path in the store and whose staged path are given.
fn list_files(
    root: &File,
    dir: &Path,
    (at, staged_at): (&Path, &Path),
    files: &mut Vec<SkillFile>,
) -> io::Result<()> {
    let folder = dir.join(at);
    for entry in fs::read_dir(&folder)? {
        let entry = entry?;
        let name = entry.file_name();
        let (path, staged) = (at.join(&name), staged_at.join(staged_name(&folder, &name)));
        let paths = (path.as_path(), staged.as_path());
        if entry.file_type()?.is_dir() {
            list_files(root, dir, paths, files)?;
        } else if let Some((file, mode)) = open_regular_file(root, &path)? {
            files.push(describe_file(paths, file, mode)?);
        }
    }
    Ok(())
}

/// Returns the name that a file or folder in a folder of the store has where it is staged: composed, as documents and
/// commands write it, unless another one has that name.
pub(super) fn staged_name(folder: &Path, name: &OsStr) -> OsString {
    let composed = compose_disk_path(name);
    match composed != name && folder.join(&composed).symlink_metadata().is_ok() {
        true => name.to_owned(),
        false => composed,
    }
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

/// Returns the name of an encoding other than UTF-8; else an empty text.
fn name_encoding(encoding: &'static str) -> &'static str {
    match encoding {
        "UTF-8" => "",
        other => other,
    }
}

fn describe_file(
    (path, staged): (&Path, &Path),
    mut file: File,
    mode: u32,
) -> io::Result<SkillFile> {
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
    let name = staged.as_os_str();
    let shown = OsStr::to_string_lossy(name).into_owned();
    let decoded = decode_text(&start, false);
    let encoding = match decoded.is_text {
        true => name_encoding(decoded.encoding),
        false => "",
    };
    let sniffed = match encoding {
        "" => start.as_slice(),
        _ => decoded.text.as_bytes(),
    };
    Ok(SkillFile {
        size,
        mode,
        mime_type: mime::mime_type(name.as_bytes(), sniffed),
        purpose: file_purpose::classify_file(&shown, sniffed, mode),
        sha256: HEXLOWER.encode(&hash.finalize()),
        is_text: decoded.is_text,
        encoding,
        disk_path: path.as_os_str().to_owned(),
        path: shown,
    })
}

#[cfg(test)]
mod tests;
