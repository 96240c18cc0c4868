//! Tar writer for collected files, plain or gzip, in memory. The collector sends its output on piece by piece.

use std::ffi::OsStr;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;

use flate2::Compression;
use flate2::write::GzEncoder;
use nix::sys::stat::FileStat;
use tar::{Builder, EntryType, Header};
use tonic::codegen::Bytes;

use crate::files::permission_bits;

/// Size of a tar block, in bytes.
const BLOCK_BYTES: usize = 512;

/// Archive that is being written.
pub(crate) struct CollectedArchive {
    /// Writes headers, long names and the end mark; `None` once the archive has ended.
    builder: Option<Builder<ArchiveBuffer>>,
    /// The last bytes, once the archive has ended.
    rest: Vec<u8>,
}

/// Bytes of the archive that were not sent yet.
enum ArchiveBuffer {
    Plain(Vec<u8>),
    Gzip(GzEncoder<Vec<u8>>),
}

impl Write for ArchiveBuffer {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(buffer) => buffer.write(data),
            Self::Gzip(encoder) => encoder.write(data),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl CollectedArchive {
    /// Returns an uncompressed archive.
    pub(crate) fn plain() -> Self {
        Self::new(ArchiveBuffer::Plain(Vec::new()))
    }

    /// Returns an archive that is compressed with gzip.
    pub(crate) fn gzip() -> Self {
        let encoder = GzEncoder::new(Vec::new(), Compression::fast());
        Self::new(ArchiveBuffer::Gzip(encoder))
    }

    fn new(buffer: ArchiveBuffer) -> Self {
        Self {
            builder: Some(Builder::new(buffer)),
            rest: Vec::new(),
        }
    }

    /// Returns `true` if the archive is compressed.
    pub(crate) fn is_gzip(&self) -> bool {
        let buffer = self.builder.as_ref().map(Builder::get_ref);
        matches!(buffer, Some(ArchiveBuffer::Gzip(_)))
    }

    /// Starts a file of exactly `size` bytes. The caller then appends that many bytes and ends the file.
    ///
    /// # Errors
    /// Fails for a path that no tar header can name.
    pub(crate) fn start_file(&mut self, path: &[u8], stat: &FileStat, size: u64) -> io::Result<()> {
        let Some(builder) = &mut self.builder else {
            return Ok(());
        };
        let mut header = new_header(EntryType::Regular, stat, size);
        // The contents follow in slices; the builder pads for the none that it is given here.
        builder.append_data(&mut header, OsStr::from_bytes(path), io::empty())
    }

    /// Appends bytes of the file that was started.
    pub(crate) fn append(&mut self, data: &[u8]) {
        // Writing to memory does not fail.
        let _infallible = self
            .builder
            .as_mut()
            .map(|builder| builder.get_mut().write_all(data));
    }

    /// Ends a file of `size` bytes with its padding.
    pub(crate) fn end_file(&mut self, size: u64) {
        let excess = usize::try_from(size % BLOCK_BYTES as u64).unwrap_or(0);
        if excess > 0 {
            self.append(&vec![0; BLOCK_BYTES - excess]);
        }
    }

    /// Appends a symbolic link.
    ///
    /// # Errors
    /// Fails for a path that no tar header can name.
    pub(crate) fn append_link(
        &mut self,
        path: &[u8],
        stat: &FileStat,
        target: &[u8],
    ) -> io::Result<()> {
        let Some(builder) = &mut self.builder else {
            return Ok(());
        };
        let mut header = new_header(EntryType::Symlink, stat, 0);
        let (path, target) = (OsStr::from_bytes(path), OsStr::from_bytes(target));
        builder.append_link(&mut header, path, target)
    }

    /// Appends a directory.
    ///
    /// # Errors
    /// Fails for a path that no tar header can name.
    pub(crate) fn append_directory(&mut self, path: &[u8], stat: &FileStat) -> io::Result<()> {
        let Some(builder) = &mut self.builder else {
            return Ok(());
        };
        let mut header = new_header(EntryType::Directory, stat, 0);
        builder.append_data(&mut header, OsStr::from_bytes(path), io::empty())
    }

    /// Writes the end mark.
    pub(crate) fn finish(&mut self) {
        let buffer = self.builder.take().map(Builder::into_inner);
        let rest = match buffer {
            Some(Ok(ArchiveBuffer::Plain(buffer))) => Ok(buffer),
            Some(Ok(ArchiveBuffer::Gzip(encoder))) => encoder.finish(),
            // Writing to memory does not fail.
            Some(Err(error)) => Err(error),
            None => return,
        };
        self.rest = rest.unwrap_or_default();
    }

    /// Takes at most `most` unsent bytes, if there are more than `keep`.
    pub(crate) fn take(&mut self, keep: usize, most: usize) -> Option<Bytes> {
        let buffer = match self.builder.as_mut().map(Builder::get_mut) {
            Some(ArchiveBuffer::Plain(buffer)) => buffer,
            Some(ArchiveBuffer::Gzip(encoder)) => encoder.get_mut(),
            None => &mut self.rest,
        };
        if buffer.len() <= keep {
            return None;
        }
        let rest = buffer.split_off(buffer.len().min(most));
        Some(std::mem::replace(buffer, rest).into())
    }
}

/// Header without a name, owned by root, with the permission bits and the modification time of `stat`.
fn new_header(kind: EntryType, stat: &FileStat, size: u64) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_size(size);
    header.set_mode(permission_bits(stat) & 0o777);
    header.set_mtime(u64::try_from(stat.st_mtime).unwrap_or(0));
    header.set_uid(0);
    header.set_gid(0);
    header
}
