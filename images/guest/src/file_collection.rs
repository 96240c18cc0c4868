//! Collect: streams matching files in path order, and then a summary. A limit shortens the answer and shows in the
//! summary. No file that a command creates can make the collection fail.

mod archive;
pub(crate) mod glob;
mod message_channel;
mod mime;
mod stray_files;

use std::fs::File;
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::time::Duration;

use futures::Stream;
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, openat, readlinkat};
use nix::sys::stat::{FileStat, Mode, fstat, fstatat};
use sha2::{Digest, Sha256};
use skilld_proto::v1::collect_outputs_response::Payload;
use skilld_proto::v1::skipped_file::Reason;
use skilld_proto::v1::{
    CollectFormat, CollectOutputsResponse, CollectSpec, CollectSummary, CollectedFile, FileEnd,
    FileType, SkippedFile,
};
use tonic::Status;
use tonic::codegen::Bytes;

use crate::error::Error;
use crate::files::root::split_path;
use crate::files::walk::{DirectoryWalk, WalkStep};
use crate::files::{
    SLICE_BYTES, encode_hex, file_type, message_path, modification_time, permission_bits,
    read_slice, since_epoch,
};
use crate::guest::Guest;
use crate::task_spawn;
use archive::CollectedArchive;
use glob::GlobSet;
use message_channel::{MessageSender, ReceiverGone, message_channel};
use stray_files::{ChangeTimeRange, StrayFiles};

/// Default limits of a collection: number of files, bytes per file, bytes in all.
const FILES_DEFAULT: u64 = 100;
const FILE_BYTES_DEFAULT: u64 = 4 * 1024 * 1024;
const TOTAL_BYTES_DEFAULT: u64 = 64 * 1024 * 1024;
/// Maximum number of paths in each list of the summary.
const NAMED_MAX: usize = 1000;
/// Maximum size of the paths in the summary, in bytes: half of what a message may hold.
const NAMED_BYTES_MAX: usize = 1024 * 1024;
/// Bytes of a file compressed before other tasks get their turn.
const GZIP_SLICE: usize = 16 * 1024;
/// Maximum number of entries visited. A workspace has fewer, unless a command creates them during the walk.
const ENTRIES_MAX: u64 = 4_000_000;

/// Matching entry that is opened.
enum CollectedEntry {
    File(FileStat, File),
    Link(FileStat, Vec<u8>),
}

/// Result of sending one file.
struct SentFile {
    bytes: u64,
    /// `true` if the file was shorter than its size when opened, or could not be read to its end.
    short: bool,
}

/// Limits of one collection.
struct CollectLimits {
    files: u64,
    file_bytes: u64,
    total_bytes: u64,
}

/// Collection in progress: walks the workspace and sends the matching files.
struct FileCollector {
    guest: Arc<Guest>,
    globs: Arc<GlobSet>,
    limits: CollectLimits,
    /// Time before which changes are ignored, since 1970; `None` for no bound.
    since: Option<Duration>,
    /// Time after which changes are ignored, since 1970; `None` for no bound.
    until: Option<Duration>,
    archive: Option<CollectedArchive>,
    out: MessageSender,
    summary: CollectSummary,
    named_bytes: usize,
    bytes: u64,
    returned: u64,
}

/// Starts a collection. The stream ends with a summary.
pub(crate) fn collect_outputs(
    guest: &Arc<Guest>,
    spec: &CollectSpec,
) -> Result<impl Stream<Item = Result<CollectOutputsResponse, Status>> + Send + use<>, Error> {
    let (mut since, mut until) = (None, None);
    if let Some(id) = spec.changed_since_exec.rsplit('/').next()
        && !id.is_empty()
    {
        let exec = guest.find_exec(id)?;
        since = Some(exec.start_file_time);
        until = exec.state().end_file_time.filter(|_| spec.until_exec_end);
    }
    let archive = match spec.format() {
        CollectFormat::Unspecified | CollectFormat::Files => None,
        CollectFormat::Tar => Some(CollectedArchive::plain()),
        CollectFormat::TarGz => Some(CollectedArchive::gzip()),
    };
    let or = |value: i64, default| match u64::try_from(value) {
        Ok(value) if value > 0 => value,
        _ => default,
    };
    let (out, messages) = message_channel();
    let collector = FileCollector {
        guest: Arc::clone(guest),
        globs: Arc::new(GlobSet::new(&spec.globs)?),
        limits: CollectLimits {
            files: or(spec.max_files, FILES_DEFAULT),
            file_bytes: or(spec.max_file_bytes, FILE_BYTES_DEFAULT),
            total_bytes: or(spec.max_total_bytes, TOTAL_BYTES_DEFAULT),
        },
        since,
        until,
        archive,
        out,
        summary: CollectSummary::default(),
        named_bytes: 0,
        bytes: 0,
        returned: 0,
    };
    task_spawn::spawn(async move {
        // The client has closed the stream.
        let _gone = collector.run().await;
    });
    Ok(messages)
}

impl FileCollector {
    /// Walks the workspace, sends the matching files and then the summary.
    async fn run(mut self) -> Result<(), ReceiverGone> {
        let globs = Arc::clone(&self.globs);
        let directory = self
            .guest
            .root
            .openat(b"", OFlag::O_RDONLY | OFlag::O_DIRECTORY);
        let walk = directory.and_then(|directory| {
            DirectoryWalk::new(
                directory,
                Vec::new(),
                Box::new(move |path| globs.may_match_beneath(path)),
            )
        });
        let mut walk = match walk {
            Ok(walk) => walk,
            Err(errno) => {
                let failed = Error::file("", errno).into();
                return self.out.fail(failed).await;
            }
        };
        let mut looked_at: u64 = 0;
        while let Some(step) = walk.next().await {
            match step {
                WalkStep::Entry { path, kind } => match self.open_wanted(&walk, &path, kind) {
                    Some(CollectedEntry::File(stat, file)) => {
                        self.send_file(&path, &stat, file).await?;
                    }
                    Some(CollectedEntry::Link(stat, target)) => {
                        self.send_link(&path, &stat, &target).await?;
                    }
                    None => {}
                },
                WalkStep::Closed { path, errno } => self.skip(&path, skip_reason(errno)),
                WalkStep::TooDeep { path } => {
                    self.summary.limits_hit = true;
                    self.skip(&path, Reason::Depth);
                }
            }
            looked_at += 1;
            if looked_at >= ENTRIES_MAX {
                self.summary.limits_hit = true;
                break;
            }
            self.out.pause().await;
        }
        if let Some(mut archive) = self.archive.take() {
            archive.finish();
            self.send_archive(&mut archive, 0).await?;
        }
        if let Some(since) = self.since {
            let until = self.until;
            let found = StrayFiles::find(&self.guest.root, ChangeTimeRange { since, until }).await;
            let paths = found.paths.iter().map(|path| message_path(path).0);
            self.summary.outside = paths.collect();
            self.summary.outside_cut = found.is_cut;
        }
        self.summary.bytes = i64::try_from(self.bytes).unwrap_or(i64::MAX);
        self.summary.returned = i64::try_from(self.returned).unwrap_or(i64::MAX);
        let summary = std::mem::take(&mut self.summary);
        self.out.send(Payload::Summary(summary)).await
    }

    /// Sends the archive's buffered bytes, if there are more than `keep`.
    async fn send_archive(
        &self,
        archive: &mut CollectedArchive,
        keep: usize,
    ) -> Result<(), ReceiverGone> {
        while let Some(data) = archive.take(keep, SLICE_BYTES) {
            self.out.send(Payload::Data(data)).await?;
        }
        Ok(())
    }

    /// Opens an entry if it is wanted and within the limits, and counts it.
    fn open_wanted(
        &mut self,
        walk: &DirectoryWalk,
        path: &[u8],
        kind: FileType,
    ) -> Option<CollectedEntry> {
        if kind == FileType::Directory || !self.globs.matches(path) {
            return None;
        }
        let parent = walk.parent()?;
        let (_, name) = split_path(path);
        if let Some(since) = self.since
            && let Ok(stat) = fstatat(parent, name, AtFlags::AT_SYMLINK_NOFOLLOW)
        {
            // A command can set the modification time, but not this one.
            let changed = since_epoch(stat.st_ctime, stat.st_ctime_nsec);
            if changed < since || self.until.is_some_and(|until| changed > until) {
                self.summary.unchanged += 1;
                if self.globs.names(path) {
                    self.skip(path, Reason::Unchanged);
                }
                return None;
            }
        }
        self.summary.matched += 1;
        if self.returned >= self.limits.files {
            self.summary.limits_hit = true;
            self.skip(path, Reason::MaxFiles);
            return None;
        }
        let found = match kind {
            FileType::Symlink => open_link(parent, name),
            FileType::File => open_file(parent, name),
            FileType::Other | FileType::Directory | FileType::Unspecified => Err(Reason::FileType),
        };
        found.map_err(|reason| self.skip(path, reason)).ok()
    }

    /// Sends a symbolic link, as a message or into the archive.
    async fn send_link(
        &mut self,
        path: &[u8],
        stat: &FileStat,
        target: &[u8],
    ) -> Result<(), ReceiverGone> {
        if let Some(mut archive) = self.archive.take() {
            match archive.append_link(path, stat, target) {
                Ok(()) => self.returned += 1,
                Err(_) => self.skip(path, Reason::IoError),
            }
            self.send_archive(&mut archive, SLICE_BYTES).await?;
            self.archive = Some(archive);
            return Ok(());
        }
        self.returned += 1;
        let mut file = describe_file(path, stat);
        file.mime_type = "inode/symlink".to_owned();
        file.link_target = String::from_utf8_lossy(target).into_owned();
        self.out.send(Payload::File(file)).await
    }

    /// Sends a regular file, as messages or into the archive.
    async fn send_file(
        &mut self,
        path: &[u8],
        stat: &FileStat,
        file: File,
    ) -> Result<(), ReceiverGone> {
        let size = u64::try_from(stat.st_size).unwrap_or(0);
        let wanted = size.min(self.limits.file_bytes);
        if wanted > self.limits.total_bytes - self.bytes {
            self.summary.limits_hit = true;
            self.skip(path, Reason::MaxTotalBytes);
            return Ok(());
        }
        let limited = wanted < size;
        let sent = match self.archive.take() {
            Some(archive) => self.archive_file(archive, path, stat, wanted, file).await?,
            None => {
                self.send_file_messages(path, stat, wanted, file, limited)
                    .await?
            }
        };
        let Some(sent) = sent else {
            self.skip(path, Reason::IoError);
            return Ok(());
        };
        self.returned += 1;
        self.bytes += sent.bytes;
        self.summary.limits_hit |= limited;
        let cut = limited || sent.short;
        if cut && self.summary.truncated.len() < NAMED_MAX && self.reserve_name(path) {
            self.summary.truncated.push(message_path(path).0);
        }
        Ok(())
    }

    /// Sends a file as messages. Returns `None` if it could not be read at all.
    async fn send_file_messages(
        &mut self,
        path: &[u8],
        stat: &FileStat,
        wanted: u64,
        file: File,
        limited: bool,
    ) -> Result<Option<SentFile>, ReceiverGone> {
        let Ok(mut slice) = read_slice(&file, wanted, SLICE_BYTES) else {
            return Ok(None);
        };
        let mut described = describe_file(path, stat);
        described.is_text = mime::is_text(&slice);
        described.mime_type = mime::mime_type(path, &slice).to_owned();
        self.out.send(Payload::File(described)).await?;
        let mut sha256 = Sha256::new();
        let mut sent = 0;
        while !slice.is_empty() {
            sha256.update(&slice);
            sent += slice.len() as u64;
            let full = slice.len() == SLICE_BYTES;
            self.out.send(Payload::Data(slice)).await?;
            slice = Bytes::new();
            self.out.pause().await;
            if full {
                // A read error ends the file here. The digest covers what was sent.
                slice = read_slice(&file, wanted - sent, SLICE_BYTES).unwrap_or_default();
            }
        }
        let short = sent < wanted;
        self.out
            .send(Payload::FileEnd(FileEnd {
                sha256: encode_hex(&sha256.finalize()),
                sent_bytes: i64::try_from(sent).unwrap_or(i64::MAX),
                truncated: limited || short,
                // The daemon fills in the artifact.
                artifact: String::new(),
            }))
            .await?;
        Ok(Some(SentFile { bytes: sent, short }))
    }

    /// Appends a file to the archive and sends what is ready. Returns `None` if the file could not be read at all.
    async fn archive_file(
        &mut self,
        mut archive: CollectedArchive,
        path: &[u8],
        stat: &FileStat,
        wanted: u64,
        file: File,
    ) -> Result<Option<SentFile>, ReceiverGone> {
        let most = if archive.is_gzip() {
            GZIP_SLICE
        } else {
            SLICE_BYTES
        };
        let slice = read_slice(&file, wanted, most);
        let slice = slice.and_then(|slice| archive.start_file(path, stat, wanted).map(|()| slice));
        let Ok(mut slice) = slice else {
            self.archive = Some(archive);
            return Ok(None);
        };
        let mut sent = 0;
        let mut short = false;
        while sent < wanted {
            if slice.is_empty() {
                short = true;
                // The file has become shorter than the size in its header.
                let zeros = usize::try_from(wanted - sent).unwrap_or(most).min(most);
                slice = vec![0; zeros].into();
            }
            sent += slice.len() as u64;
            archive.append(&slice);
            self.send_archive(&mut archive, SLICE_BYTES).await?;
            self.out.pause().await;
            slice = read_slice(&file, wanted - sent, most).unwrap_or_default();
        }
        archive.end_file(wanted);
        self.archive = Some(archive);
        Ok(Some(SentFile { bytes: sent, short }))
    }

    /// Adds a rejected file and its reason to the summary, as far as there is room.
    fn skip(&mut self, path: &[u8], reason: Reason) {
        if self.summary.skipped.len() < NAMED_MAX && self.reserve_name(path) {
            let (path, _) = message_path(path);
            let reason = reason.into();
            self.summary.skipped.push(SkippedFile { path, reason });
        }
    }

    /// Reserves room for a path in the summary. Returns `false` if there is none.
    fn reserve_name(&mut self, path: &[u8]) -> bool {
        // A byte that is not UTF-8 becomes three bytes.
        self.named_bytes += 3 * path.len() + 16;
        self.named_bytes < NAMED_BYTES_MAX
    }
}

/// Reads a symbolic link.
fn open_link(parent: BorrowedFd<'_>, name: &[u8]) -> Result<CollectedEntry, Reason> {
    let target = readlinkat(parent, name).map_err(skip_reason)?;
    let stat = fstatat(parent, name, AtFlags::AT_SYMLINK_NOFOLLOW).map_err(skip_reason)?;
    Ok(CollectedEntry::Link(stat, target.as_bytes().to_vec()))
}

/// Opens a file without waiting, even if a command has replaced it by a FIFO since it was listed.
fn open_file(parent: BorrowedFd<'_>, name: &[u8]) -> Result<CollectedEntry, Reason> {
    let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
    let file = openat(parent, name, flags, Mode::empty()).map_err(skip_reason)?;
    let stat = fstat(&file).map_err(skip_reason)?;
    if file_type(&stat) == FileType::File {
        Ok(CollectedEntry::File(stat, file.into()))
    } else {
        Err(Reason::FileType)
    }
}

/// Describes a file for its first message.
fn describe_file(path: &[u8], stat: &FileStat) -> CollectedFile {
    let (path, path_bytes) = message_path(path);
    CollectedFile {
        path,
        size: stat.st_size,
        mode: permission_bits(stat),
        mtime: modification_time(stat),
        path_bytes,
        ..Default::default()
    }
}

/// Returns why a file is skipped after a failed system call.
fn skip_reason(errno: Errno) -> Reason {
    #[expect(clippy::wildcard_enum_match_arm, reason = "errno is an open set")]
    match errno {
        Errno::ENOENT => Reason::Gone,
        Errno::EACCES | Errno::EPERM => Reason::Permission,
        // A command has replaced the listed file, directory or link by something else.
        Errno::ELOOP | Errno::ENOTDIR | Errno::ENXIO | Errno::EINVAL => Reason::FileType,
        _ => Reason::IoError,
    }
}
