//! Unpacks a tar stream into a staging directory while its bytes arrive. `tar` parses headers and PAX records. Its own
//! reader pulls from a blocking source, which the guest's only thread cannot wait for, so this state machine is fed
//! instead. An entry of a kind that is not unpacked, or with a name that no file can have, is left out; one whose name
//! leads up fails the whole archive.
//! Links are made as they are: commands can make the same, and the guest follows none out of the workspace.
//!
//! ```text
//! Header ──file──► Data ──► Pad ──► Header …        Header ──zeros──► End
//!    ├──long name, PAX──► EntryOverrides ──► Pad ──► Header   (the next entry gets it)
//!    └──sparse file──► SparseMap ──► Pad ──► Header           (left out)
//! ```

mod entry_header;

use std::collections::BTreeMap;
use std::io;
use std::time::SystemTime;

use skilld_proto::v1::skipped_file::Reason;
use tar::{EntryType, GnuHeader, Header};

use super::staging::{FinishedFile, StagedFileWriter, StagingDirectory};
use crate::error::Error;
use entry_header::{
    EntryOverrides, PATH_MAX, clean_path, header_time, invalid_entry, is_extension, is_link_target,
};

/// Size of a tar block, in bytes.
const BLOCK_BYTES: usize = 512;
/// Maximum size of a long name or a PAX header, in bytes.
const META_BYTES_MAX: u64 = 256 * 1024;
/// Offset of the byte of a sparse map's block that is 1 if another block follows.
const MAP_CONTINUES_AT: usize = 504;
/// Maximum number of entries that are left out and named.
const SKIPPED_MAX: usize = 1000;

/// Staged form of an archive entry.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum StagedEntry {
    File(FinishedFile),
    /// Name of the link in the staging directory.
    Link(String),
    Directory(StagedDirectory),
}

/// Mode and modification time of a directory in an archive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StagedDirectory {
    pub(crate) mode: u32,
    /// Modification time; `None` for the time of the unpacking.
    pub(crate) mtime: Option<SystemTime>,
}

/// Entries by path, relative to the target directory, which is the empty path. A later entry of the archive replaces an
/// earlier one.
pub(crate) type StagedEntries = BTreeMap<Vec<u8>, StagedEntry>;

/// Entries that were left out.
#[derive(Debug, Default)]
pub(crate) struct SkippedEntries {
    /// First ones, by their paths relative to the target directory.
    pub(crate) named: Vec<(Vec<u8>, Reason)>,
    /// Number of all.
    pub(crate) total: i64,
}

/// Archive whose entries are all in a staging directory.
#[derive(Debug)]
pub(crate) struct UnpackedArchive {
    pub(crate) staging: StagingDirectory,
    pub(crate) entries: StagedEntries,
    pub(crate) skipped: SkippedEntries,
}

/// Limits of one archive.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ArchiveLimits {
    pub(crate) entries: u64,
    pub(crate) bytes: u64,
}

/// Archive that is being unpacked.
#[derive(Debug)]
pub(crate) struct TarUnpacker {
    staging: StagingDirectory,
    limits: ArchiveLimits,
    block: [u8; BLOCK_BYTES],
    filled: usize,
    step: UnpackStep,
    /// Values from extension headers for the next entry.
    next: EntryOverrides,
    entries: StagedEntries,
    skipped: SkippedEntries,
    seen: u64,
    bytes: u64,
    /// Cause of a failed write. `io::Error` cannot carry it through the gzip decoder.
    failure: Option<Error>,
}

/// State of the unpacker.
#[derive(Debug)]
enum UnpackStep {
    Header,
    Data(Box<IncomingFile>),
    Meta {
        kind: EntryType,
        left: u64,
        data: Vec<u8>,
    },
    /// Further blocks of a sparse file's header, before its contents.
    SparseMap {
        contents: u64,
    },
    Pad {
        left: u64,
    },
    End,
}

/// File whose data is arriving.
#[derive(Debug)]
struct IncomingFile {
    path: Vec<u8>,
    mode: u32,
    mtime: Option<SystemTime>,
    left: u64,
    size: u64,
    writing: StagedFileWriter,
}

/// Returns the padding after `size` bytes of data, in bytes.
fn padding_after(size: u64) -> u64 {
    (BLOCK_BYTES as u64 - size % BLOCK_BYTES as u64) % BLOCK_BYTES as u64
}

impl TarUnpacker {
    /// Starts to unpack into `staging`.
    pub(crate) fn new(staging: StagingDirectory, limits: ArchiveLimits) -> Self {
        Self {
            staging,
            limits,
            block: [0; BLOCK_BYTES],
            filled: 0,
            step: UnpackStep::Header,
            next: EntryOverrides::default(),
            entries: StagedEntries::new(),
            skipped: SkippedEntries::default(),
            seen: 0,
            bytes: 0,
            failure: None,
        }
    }

    /// Unpacks the next bytes of the stream.
    pub(crate) fn feed(&mut self, mut data: &[u8]) -> Result<(), Error> {
        while !data.is_empty() {
            let used = match std::mem::replace(&mut self.step, UnpackStep::End) {
                UnpackStep::End => return Ok(()),
                UnpackStep::Header => self.take_header_bytes(data)?,
                UnpackStep::Data(open) => self.take_file_bytes(open, data)?,
                UnpackStep::Meta {
                    kind,
                    left,
                    data: so_far,
                } => self.take_meta_bytes(kind, left, so_far, data)?,
                UnpackStep::SparseMap { contents } => self.take_sparse_map_bytes(contents, data),
                UnpackStep::Pad { left } => {
                    let used = leading_bytes(data, left).len();
                    self.step = Self::padding_step(left - used as u64);
                    used
                }
            };
            data = data.get(used..).unwrap_or_default();
        }
        Ok(())
    }

    /// Ends the archive. Fails if the stream had no end mark.
    pub(crate) fn finish(self) -> Result<UnpackedArchive, Error> {
        match self.step {
            UnpackStep::End => Ok(UnpackedArchive {
                staging: self.staging,
                entries: self.entries,
                skipped: self.skipped,
            }),
            UnpackStep::Data(open) => Err(invalid_entry(&open.path, "is cut off")),
            UnpackStep::Header
            | UnpackStep::Meta { .. }
            | UnpackStep::SparseMap { .. }
            | UnpackStep::Pad { .. } => {
                Err(invalid_entry(b"", "the archive ends without its end mark"))
            }
        }
    }

    fn padding_step(left: u64) -> UnpackStep {
        if left == 0 {
            UnpackStep::Header
        } else {
            UnpackStep::Pad { left }
        }
    }

    /// Collects bytes of a block. Returns how many it used.
    fn fill_block(&mut self, data: &[u8]) -> usize {
        let part = leading_bytes(data, (BLOCK_BYTES - self.filled) as u64);
        if let Some(space) = self.block.get_mut(self.filled..self.filled + part.len()) {
            space.copy_from_slice(part);
        }
        self.filled += part.len();
        part.len()
    }

    /// Takes the block once it is complete.
    fn take_block(&mut self) -> Option<[u8; BLOCK_BYTES]> {
        if self.filled < BLOCK_BYTES {
            return None;
        }
        self.filled = 0;
        Some(self.block)
    }

    /// Collects the bytes of a header and parses it once it is complete.
    fn take_header_bytes(&mut self, data: &[u8]) -> Result<usize, Error> {
        let used = self.fill_block(data);
        self.step = match self.take_block() {
            Some(block) => self.parse_header(&block)?,
            None => UnpackStep::Header,
        };
        Ok(used)
    }

    /// Skips the blocks that list the parts of a sparse file. Each says whether another one follows.
    fn take_sparse_map_bytes(&mut self, contents: u64, data: &[u8]) -> usize {
        let used = self.fill_block(data);
        self.step = match self.take_block() {
            Some(block) if block.get(MAP_CONTINUES_AT) != Some(&1) => Self::padding_step(contents),
            Some(_) | None => UnpackStep::SparseMap { contents },
        };
        used
    }

    /// Parses a header and checks its entry.
    fn parse_header(&mut self, block: &[u8; BLOCK_BYTES]) -> Result<UnpackStep, Error> {
        if block.iter().all(|byte| *byte == 0) {
            return Ok(UnpackStep::End);
        }
        let header = Header::from_byte_slice(block);
        let raw_path = header.path_bytes();
        let checksum = block.iter().enumerate().map(|(at, byte)| {
            let in_field = (148..156).contains(&at);
            u32::from(if in_field { b' ' } else { *byte })
        });
        if header.cksum().ok() != Some(checksum.sum()) {
            return Err(invalid_entry(&raw_path, "has a damaged header"));
        }
        let size = header
            .entry_size()
            .map_err(|_| invalid_entry(&raw_path, "has no valid size"))?;
        let kind = header.entry_type();
        if is_extension(kind) {
            if size > META_BYTES_MAX {
                return Err(invalid_entry(&raw_path, "has an oversized extension"));
            }
            let data = Vec::new();
            return if size == 0 {
                Ok(UnpackStep::Header)
            } else {
                Ok(UnpackStep::Meta {
                    kind,
                    left: size,
                    data,
                })
            };
        }
        let meta = std::mem::take(&mut self.next);
        self.seen += 1;
        if self.seen > self.limits.entries {
            let (what, limit) = ("entries", self.limits.entries);
            return Err(Error::LimitExceeded { what, limit });
        }
        self.take_entry(header, meta, size)
    }

    /// Takes an entry that is no extension of the next one. `size` is that of its header.
    fn take_entry(
        &mut self,
        header: &Header,
        meta: EntryOverrides,
        size: u64,
    ) -> Result<UnpackStep, Error> {
        let kind = header.entry_type();
        let size = meta.size.unwrap_or(size);
        let given = meta
            .path
            .unwrap_or_else(|| header.path_bytes().into_owned());
        // Before POSIX a directory was a file whose name ends with a slash.
        let is_directory = kind.is_dir() || (kind.is_file() && given.ends_with(b"/"));
        let is_link = kind.is_symlink() || kind.is_hard_link();
        let mode = header.mode().unwrap_or(0o644) & 0o777;
        let mtime = meta.mtime.or_else(|| header_time(header));
        if (is_directory || kind.is_symlink()) && size != 0 {
            return Err(invalid_entry(&given, "is no file and has contents"));
        }
        let path = match clean_path(&given)? {
            Ok(path) => path,
            Err(reason) => {
                self.skip(given, reason);
                let has_contents = !is_directory && !is_link;
                return self.skip_contents(header, if has_contents { size } else { 0 });
            }
        };
        if is_directory {
            let directory = StagedDirectory { mode, mtime };
            self.entries.insert(path, StagedEntry::Directory(directory));
            return Ok(UnpackStep::Header);
        }
        if path.is_empty() {
            return Err(invalid_entry(&given, "has no name"));
        }
        if is_link {
            let target = header.link_name_bytes().map(std::borrow::Cow::into_owned);
            let target = meta.link.or(target).unwrap_or_default();
            if kind.is_symlink() {
                self.add_symbolic_link(path, &target)?;
            } else {
                self.add_hard_link(path, &target)?;
            }
            return Ok(UnpackStep::Header);
        }
        if meta.is_sparse || !(kind.is_file() || kind == EntryType::Continuous) {
            self.skip(path, Reason::FileType);
            return self.skip_contents(header, size);
        }
        self.count_bytes(size)?;
        self.start_file(path, mode, mtime, size)
    }

    /// Skips the contents of an entry that is left out. They count as those of files do.
    fn skip_contents(&mut self, header: &Header, size: u64) -> Result<UnpackStep, Error> {
        self.count_bytes(size)?;
        let contents = size.saturating_add(padding_after(size));
        let has_map = header.as_gnu().is_some_and(GnuHeader::is_extended);
        Ok(if header.entry_type().is_gnu_sparse() && has_map {
            UnpackStep::SparseMap { contents }
        } else {
            Self::padding_step(contents)
        })
    }

    /// Makes a symbolic link, whatever its target is.
    fn add_symbolic_link(&mut self, path: Vec<u8>, target: &[u8]) -> Result<(), Error> {
        if !is_link_target(target) {
            self.skip(path, Reason::LinkTarget);
            return Ok(());
        }
        let name = self.staging.link(&path, target)?;
        self.entries.insert(path, StagedEntry::Link(name));
        Ok(())
    }

    /// Makes another name of an earlier file of the archive. Such an entry has no contents, whatever size it states. The
    /// bytes of the file count again, since a copy has them twice.
    fn add_hard_link(&mut self, path: Vec<u8>, target: &[u8]) -> Result<(), Error> {
        let target = clean_path(target).ok().and_then(Result::ok);
        let earlier = target.and_then(|target| self.entries.get(&target));
        let Some(StagedEntry::File(file)) = earlier else {
            self.skip(path, Reason::LinkTarget);
            return Ok(());
        };
        let file = file.clone();
        self.count_bytes(file.size)?;
        let name = self.staging.hard_link(&path, &file.name)?;
        let linked = FinishedFile { name, ..file };
        self.entries.insert(path, StagedEntry::File(linked));
        Ok(())
    }

    /// Leaves an entry out.
    fn skip(&mut self, mut path: Vec<u8>, reason: Reason) {
        self.skipped.total += 1;
        if self.skipped.named.len() < SKIPPED_MAX {
            path.truncate(PATH_MAX);
            path.shrink_to_fit();
            self.skipped.named.push((path, reason));
        }
    }

    fn count_bytes(&mut self, size: u64) -> Result<(), Error> {
        self.bytes = self.bytes.saturating_add(size);
        if self.bytes > self.limits.bytes {
            let (what, limit) = ("bytes", self.limits.bytes);
            return Err(Error::LimitExceeded { what, limit });
        }
        Ok(())
    }

    /// Creates the staged file of an entry.
    fn start_file(
        &mut self,
        path: Vec<u8>,
        mode: u32,
        mtime: Option<SystemTime>,
        size: u64,
    ) -> Result<UnpackStep, Error> {
        let writing = self.staging.create(&path)?;
        if size == 0 {
            let written = writing.finish(&path, mode, mtime)?;
            self.entries.insert(path, StagedEntry::File(written));
            return Ok(UnpackStep::Header);
        }
        Ok(UnpackStep::Data(Box::new(IncomingFile {
            path,
            mode,
            mtime,
            left: size,
            size,
            writing,
        })))
    }

    /// Writes data of the current file.
    fn take_file_bytes(
        &mut self,
        mut open: Box<IncomingFile>,
        data: &[u8],
    ) -> Result<usize, Error> {
        let part = leading_bytes(data, open.left);
        open.writing.write(&open.path, part)?;
        open.left -= part.len() as u64;
        if open.left > 0 {
            self.step = UnpackStep::Data(open);
        } else {
            let IncomingFile {
                path,
                mode,
                mtime,
                size,
                writing,
                ..
            } = *open;
            let written = writing.finish(&path, mode, mtime)?;
            self.entries.insert(path, StagedEntry::File(written));
            self.step = Self::padding_step(padding_after(size));
        }
        Ok(part.len())
    }

    /// Collects data of an extension header and applies it once it is complete.
    fn take_meta_bytes(
        &mut self,
        kind: EntryType,
        left: u64,
        mut so_far: Vec<u8>,
        data: &[u8],
    ) -> Result<usize, Error> {
        let part = leading_bytes(data, left);
        so_far.extend_from_slice(part);
        let left = left - part.len() as u64;
        if left > 0 {
            self.step = UnpackStep::Meta {
                kind,
                left,
                data: so_far,
            };
        } else {
            self.step = Self::padding_step(padding_after(so_far.len() as u64));
            self.next.apply_extension(kind, so_far)?;
        }
        Ok(part.len())
    }

    /// Takes the cause of a failed write.
    pub(crate) fn failure(&mut self) -> Option<Error> {
        self.failure.take()
    }
}

/// The gzip decoder writes to the unpacker.
impl io::Write for TarUnpacker {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        match self.feed(data) {
            Ok(()) => Ok(data.len()),
            Err(error) => {
                self.failure = Some(error);
                Err(io::ErrorKind::Other.into())
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Returns at most `left` leading bytes.
fn leading_bytes(data: &[u8], left: u64) -> &[u8] {
    let left = usize::try_from(left).unwrap_or(usize::MAX);
    data.get(..left).unwrap_or(data)
}
