//! Local file or directory as a stream of bytes: a file as it is, a directory as a tar that is made on the way, so that
//! nothing is held in memory or written to disk.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;
use std::vec;

use bytes::{Bytes, BytesMut};
use futures::{Stream, stream};
use rustix::fs::{Access, access};
use skilld_proto::v1::SkippedFile;
use skilld_proto::v1::skipped_file::Reason;
use tokio::fs::{self, File};
use tokio::io::{AsyncReadExt, Take};

use crate::Error;

/// Maximum number of entries, more than any server takes; it ends a walk over `/`.
const ENTRIES_MAX: usize = 1_000_000;
/// Maximum number of skipped entries that are named.
const SKIPPED_MAX: usize = 1000;
/// Size of a tar's header in bytes; contents are padded to a multiple of it.
const BLOCK_BYTES: u64 = 512;
/// Number of zeros that end an archive.
const END_BYTES: usize = 1024;

/// Local file, or directory with everything beneath it that can be sent.
#[derive(Debug)]
pub(crate) struct LocalTree {
    entries: Vec<TreeEntry>,
    single: bool,
    /// Entries that cannot be sent: what may not be read, then special files. The paths are relative to the tree.
    pub(crate) skipped: Vec<SkippedFile>,
    /// Number of all of them; `skipped` is bounded.
    pub(crate) skipped_total: usize,
}

#[derive(Debug)]
struct TreeEntry {
    local: PathBuf,
    /// Path in the archive.
    path: PathBuf,
    kind: EntryKind,
    mode: u32,
    mtime: u64,
    modified: Option<SystemTime>,
}

#[derive(Debug)]
enum EntryKind {
    Directory,
    File { size: u64 },
    Link { target: PathBuf },
}

impl LocalTree {
    /// Lists a file, or everything beneath a directory. A link given by name is followed, links beneath it are not.
    pub(crate) async fn walk(root: &Path) -> Result<Self, Error> {
        let metadata = fs::metadata(root).await.map_err(io_error(root))?;
        let mut tree = Self {
            entries: Vec::new(),
            single: metadata.is_file(),
            skipped: Vec::new(),
            skipped_total: 0,
        };
        if tree.single {
            let size = metadata.len();
            let kind = EntryKind::File { size };
            let entry = TreeEntry::new(root.to_owned(), PathBuf::new(), kind, &metadata);
            tree.entries.push(entry);
            return Ok(tree);
        }
        if !metadata.is_dir() {
            let problem =
                "is neither a file nor a directory: send its bytes by stdin, with - as the source";
            return Err(io_error(root)(io::Error::other(problem)));
        }
        // The directory itself, whose mode and time a new target gets.
        let itself = PathBuf::from(".");
        let entry = TreeEntry::new(root.to_owned(), itself, EntryKind::Directory, &metadata);
        tree.entries.push(entry);
        let mut open = vec![PathBuf::new()];
        while let Some(directory) = open.pop() {
            tree.list_directory(root, &directory, &mut open).await?;
        }
        // The same directory always makes the same archive, and a directory comes before what is in it.
        tree.entries.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(tree)
    }

    /// Adds the entries of one directory, and its directories to `open`.
    async fn list_directory(
        &mut self,
        root: &Path,
        directory: &Path,
        open: &mut Vec<PathBuf>,
    ) -> Result<(), Error> {
        let local = root.join(directory);
        let mut listing = match fs::read_dir(&local).await {
            Ok(listing) => listing,
            Err(error) if !directory.as_os_str().is_empty() => {
                return self.skip_or_fail(&local, directory, error);
            }
            Err(error) => return Err(io_error(root)(error)),
        };
        while let Some(found) = listing.next_entry().await.map_err(io_error(&local))? {
            let (path, local) = (directory.join(found.file_name()), found.path());
            match entry_of(&local, &path).await {
                Ok(Some(entry)) => {
                    if matches!(entry.kind, EntryKind::Directory) {
                        open.push(path);
                    }
                    self.entries.push(entry);
                }
                Ok(None) => self.skip(&path, Reason::FileType),
                Err(error) => self.skip_or_fail(&local, &path, error)?,
            }
            if self.entries.len() > ENTRIES_MAX {
                let problem = format!("more than {ENTRIES_MAX} files");
                return Err(io_error(root)(io::Error::other(problem)));
            }
        }
        Ok(())
    }

    /// Skips an entry that may not be read, or that is gone meanwhile; any other error is one of the walk.
    fn skip_or_fail(&mut self, local: &Path, path: &Path, error: io::Error) -> Result<(), Error> {
        if error.kind() == io::ErrorKind::PermissionDenied {
            self.skip(path, Reason::Permission);
        } else if error.kind() == io::ErrorKind::NotFound {
            self.skip(path, Reason::Gone);
        } else {
            return Err(io_error(local)(error));
        }
        Ok(())
    }

    fn skip(&mut self, path: &Path, reason: Reason) {
        self.skipped_total += 1;
        // What may not be read was to be sent, so it is named before all kinds that cannot be sent.
        let at = match reason == Reason::Permission {
            true => 0,
            false => self.skipped.len(),
        };
        let entry = SkippedFile {
            path: path.display().to_string(),
            reason: reason.into(),
        };
        self.skipped.insert(at, entry);
        self.skipped.truncate(SKIPPED_MAX);
    }

    /// Returns the permission bits if this is one file.
    pub(crate) fn single_file_mode(&self) -> Option<u32> {
        self.entries
            .first()
            .filter(|_| self.single)
            .map(|entry| entry.mode)
    }

    /// Returns the modification time if this is one file.
    pub(crate) fn single_file_time(&self) -> Option<SystemTime> {
        let entry = self.entries.first().filter(|_| self.single);
        entry.and_then(|entry| entry.modified)
    }

    /// Returns the approximate number of bytes of the stream; long names add a few.
    pub(crate) fn bytes(&self) -> u64 {
        let sizes = self.entries.iter().map(|entry| match entry.kind {
            EntryKind::File { size } if self.single => size,
            EntryKind::File { size } => BLOCK_BYTES + size.next_multiple_of(BLOCK_BYTES),
            EntryKind::Directory | EntryKind::Link { .. } => BLOCK_BYTES,
        });
        sizes.sum::<u64>() + if self.single { 0 } else { END_BYTES as u64 }
    }

    /// Returns the file, or the tar of the directory, in pieces of about `chunk_bytes`.
    pub(crate) fn into_chunks(
        self,
        chunk_bytes: usize,
    ) -> impl Stream<Item = Result<Bytes, Error>> + Send {
        let packer = TarStream {
            entries: self.entries.into_iter(),
            archive: !self.single,
            current: None,
            ended: false,
        };
        stream::try_unfold(packer, move |mut packer| async move {
            let chunk = packer.fill(chunk_bytes).await?;
            Ok((!chunk.is_empty()).then_some((chunk, packer)))
        })
    }
}

/// Returns an entry of a directory; `None` for a FIFO, a socket or a device.
async fn entry_of(local: &Path, path: &Path) -> io::Result<Option<TreeEntry>> {
    let metadata = fs::symlink_metadata(local).await?;
    let kind = if metadata.is_dir() {
        EntryKind::Directory
    } else if metadata.is_file() {
        // A file that may not be read would break off the stream that it is part of.
        access(local, Access::READ_OK)?;
        EntryKind::File {
            size: metadata.len(),
        }
    } else if metadata.is_symlink() {
        EntryKind::Link {
            target: fs::read_link(local).await?,
        }
    } else {
        return Ok(None);
    };
    let (local, path) = (local.to_owned(), path.to_owned());
    Ok(Some(TreeEntry::new(local, path, kind, &metadata)))
}

impl TreeEntry {
    fn new(local: PathBuf, path: PathBuf, kind: EntryKind, metadata: &std::fs::Metadata) -> Self {
        Self {
            local,
            path,
            kind,
            mode: metadata.mode() & 0o777,
            mtime: u64::try_from(metadata.mtime()).unwrap_or(0),
            modified: metadata.modified().ok(),
        }
    }

    /// Returns the tar header blocks that precede the contents of an entry.
    fn header(&self) -> io::Result<Vec<u8>> {
        let mut header = tar::Header::new_gnu();
        header.set_mode(self.mode);
        header.set_mtime(self.mtime);
        header.set_size(0);
        let mut builder = tar::Builder::new(Vec::new());
        match &self.kind {
            EntryKind::Directory => {
                header.set_entry_type(tar::EntryType::Directory);
                builder.append_data(&mut header, self.path.join(""), io::empty())?;
            }
            EntryKind::File { size } => {
                header.set_entry_type(tar::EntryType::Regular);
                header.set_size(*size);
                // The contents follow from `TarStream`.
                builder.append_data(&mut header, &self.path, io::empty())?;
            }
            EntryKind::Link { target } => {
                header.set_entry_type(tar::EntryType::Symlink);
                builder.append_link(&mut header, &self.path, target)?;
            }
        }
        Ok(std::mem::take(builder.get_mut()))
    }
}

/// State of the stream: entries to come, and the file that is being read.
struct TarStream {
    entries: vec::IntoIter<TreeEntry>,
    archive: bool,
    current: Option<FileContents>,
    ended: bool,
}

/// File whose contents are being read for the stream.
struct FileContents {
    path: PathBuf,
    file: Take<File>,
    padding: usize,
}

impl TarStream {
    /// Returns at least `chunk_bytes` bytes unless the archive ends; empty at the end.
    async fn fill(&mut self, chunk_bytes: usize) -> Result<Bytes, Error> {
        let mut chunk = BytesMut::with_capacity(chunk_bytes);
        while chunk.len() < chunk_bytes && !self.ended {
            match self.current.take() {
                Some(contents) => self.current = contents.read(&mut chunk, chunk_bytes).await?,
                None => self.next_entry(&mut chunk).await?,
            }
        }
        Ok(chunk.freeze())
    }

    async fn next_entry(&mut self, chunk: &mut BytesMut) -> Result<(), Error> {
        let Some(entry) = self.entries.next() else {
            self.ended = true;
            if self.archive {
                chunk.resize(chunk.len() + END_BYTES, 0);
            }
            return Ok(());
        };
        if self.archive {
            chunk.extend_from_slice(&entry.header().map_err(io_error(&entry.local))?);
        }
        if let EntryKind::File { size } = entry.kind {
            let file = File::open(&entry.local)
                .await
                .map_err(io_error(&entry.local))?;
            let padding = if self.archive {
                size.next_multiple_of(BLOCK_BYTES) - size
            } else {
                0
            };
            self.current = Some(FileContents {
                path: entry.local,
                file: file.take(size),
                padding: usize::try_from(padding).unwrap_or(0),
            });
        }
        Ok(())
    }
}

impl FileContents {
    /// Reads more of the file into a chunk; `None` once all was read. A file that became shorter is an error, one that
    /// became longer is sent as long as it was.
    async fn read(
        mut self,
        chunk: &mut BytesMut,
        chunk_bytes: usize,
    ) -> Result<Option<Self>, Error> {
        while self.file.limit() > 0 && chunk.len() < chunk_bytes {
            let read = self.file.read_buf(chunk).await;
            if read.map_err(io_error(&self.path))? == 0 {
                let problem = io::Error::other("became shorter while it was sent");
                return Err(io_error(&self.path)(problem));
            }
        }
        if self.file.limit() > 0 {
            return Ok(Some(self));
        }
        chunk.resize(chunk.len() + self.padding, 0);
        Ok(None)
    }
}

pub(crate) fn io_error(path: &Path) -> impl FnOnce(io::Error) -> Error {
    let path = path.to_owned();
    |source| Error::Io { path, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unreadable_file_is_named_among_any_number_of_others() {
        let mut tree = LocalTree {
            entries: Vec::new(),
            single: false,
            skipped: Vec::new(),
            skipped_total: 0,
        };
        for _ in 0..=SKIPPED_MAX {
            tree.skip(Path::new("socket"), Reason::FileType);
        }
        tree.skip(Path::new("secret"), Reason::Permission);
        assert_eq!(tree.skipped[0].path, "secret");
        assert_eq!(
            (tree.skipped.len(), tree.skipped_total),
            (SKIPPED_MAX, SKIPPED_MAX + 2)
        );
    }
}
