//! Unpacks a tar stream into a staging directory while its bytes arrive. An entry of a kind that is not unpacked, or
//! with a name that no file can have, is left out; one whose name leads up fails the whole archive.
//! Links are made as they are: commands can make the same, and the guest follows none out of the workspace.

mod entry_name;

use std::collections::BTreeMap;
use std::io;
use std::time::SystemTime;

use skilld_common::tar_reader::{TarEntry, TarEntryKind, TarEvent, TarReader};
use skilld_proto::v1::SkipReason;

use super::staging::{FinishedFile, StagedFileWriter, StagingDirectory};
use crate::error::Error;
use entry_name::{PATH_MAX, clean_path, invalid_entry, is_link_target};

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
    pub(crate) named: Vec<(Vec<u8>, SkipReason)>,
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
    reader: TarReader,
    staging: StagingDirectory,
    limits: ArchiveLimits,
    /// File whose contents are arriving; `None` while those of no file are.
    open: Option<IncomingFile>,
    entries: StagedEntries,
    skipped: SkippedEntries,
    seen: u64,
    bytes: u64,
    /// Cause of a failed write. `io::Error` cannot carry it through the gzip decoder.
    failure: Option<Error>,
}

/// File whose contents are arriving.
#[derive(Debug)]
struct IncomingFile {
    path: Vec<u8>,
    mode: u32,
    mtime: Option<SystemTime>,
    left: u64,
    writing: StagedFileWriter,
}

impl TarUnpacker {
    /// Starts to unpack into `staging`.
    pub(crate) fn new(staging: StagingDirectory, limits: ArchiveLimits) -> Self {
        Self {
            reader: TarReader::default(),
            staging,
            limits,
            open: None,
            entries: StagedEntries::new(),
            skipped: SkippedEntries::default(),
            seen: 0,
            bytes: 0,
            failure: None,
        }
    }

    /// Unpacks the next bytes of the stream. Ignores those after the end mark.
    pub(crate) fn feed(&mut self, mut data: &[u8]) -> Result<(), Error> {
        while let Some(event) = self.reader.read(&mut data)? {
            match event {
                TarEvent::Entry(entry) => self.take_entry(entry)?,
                TarEvent::Contents(part) => self.take_contents(part)?,
            }
        }
        Ok(())
    }

    /// Ends the archive. Fails if the stream had no end mark.
    pub(crate) fn finish(self) -> Result<UnpackedArchive, Error> {
        self.reader.finish()?;
        Ok(UnpackedArchive {
            staging: self.staging,
            entries: self.entries,
            skipped: self.skipped,
        })
    }

    /// Checks an entry, and stages or skips it. Its contents count in any case.
    fn take_entry(&mut self, entry: TarEntry) -> Result<(), Error> {
        self.seen += 1;
        if self.seen > self.limits.entries {
            let (what, limit) = ("entries", self.limits.entries);
            return Err(Error::LimitExceeded { what, limit });
        }
        if let Some(problem) = entry.ambiguity
            && matches!(
                entry.kind,
                TarEntryKind::Directory | TarEntryKind::SymbolicLink
            )
        {
            return Err(invalid_entry(&entry.path, problem));
        }
        // A hard link has no contents, whatever size it states.
        if entry.kind != TarEntryKind::HardLink {
            self.count_bytes(entry.size)?;
        }
        let path = match clean_path(&entry.path)? {
            Ok(path) => path,
            Err(reason) => {
                self.skip(entry.path, reason);
                return Ok(());
            }
        };
        if path.is_empty() && entry.kind != TarEntryKind::Directory {
            return Err(invalid_entry(b"", "has an entry without a name"));
        }
        let (mode, mtime) = (entry.mode & 0o777, entry.modified);
        match entry.kind {
            TarEntryKind::Directory => {
                let directory = StagedDirectory { mode, mtime };
                self.entries.insert(path, StagedEntry::Directory(directory));
                Ok(())
            }
            TarEntryKind::SymbolicLink => self.add_symbolic_link(path, &entry.link),
            TarEntryKind::HardLink => self.add_hard_link(path, &entry.link),
            TarEntryKind::File => {
                let writing = self.staging.create(&path)?;
                self.finish_or_keep(IncomingFile {
                    path,
                    mode,
                    mtime,
                    left: entry.size,
                    writing,
                })
            }
            TarEntryKind::Other(_) => {
                self.skip(path, SkipReason::FileType);
                Ok(())
            }
        }
    }

    /// Makes a symbolic link, whatever its target is.
    fn add_symbolic_link(&mut self, path: Vec<u8>, target: &[u8]) -> Result<(), Error> {
        if !is_link_target(target) {
            self.skip(path, SkipReason::LinkTarget);
            return Ok(());
        }
        let name = self.staging.link(&path, target)?;
        self.entries.insert(path, StagedEntry::Link(name));
        Ok(())
    }

    /// Makes another name of an earlier file of the archive. The bytes of the file count again, since a copy has them
    /// twice.
    fn add_hard_link(&mut self, path: Vec<u8>, target: &[u8]) -> Result<(), Error> {
        let target = clean_path(target).ok().and_then(Result::ok);
        let earlier = target.and_then(|target| self.entries.get(&target));
        let Some(StagedEntry::File(file)) = earlier else {
            self.skip(path, SkipReason::LinkTarget);
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
    fn skip(&mut self, mut path: Vec<u8>, reason: SkipReason) {
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

    /// Writes contents of the current file. Those of an entry that is left out go nowhere.
    fn take_contents(&mut self, part: &[u8]) -> Result<(), Error> {
        let Some(mut open) = self.open.take() else {
            return Ok(());
        };
        open.writing.write(&open.path, part)?;
        open.left -= part.len() as u64;
        self.finish_or_keep(open)
    }

    /// Completes a file if all of its contents have come.
    fn finish_or_keep(&mut self, open: IncomingFile) -> Result<(), Error> {
        if open.left > 0 {
            self.open = Some(open);
            return Ok(());
        }
        let written = open.writing.finish(&open.path, open.mode, open.mtime)?;
        self.entries.insert(open.path, StagedEntry::File(written));
        Ok(())
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
