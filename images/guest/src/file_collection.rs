//! Collect: streams matching files, and then a summary. Hidden files and caches come last, so that a limit, which
//! shortens the answer and shows in the summary, cuts them first. No file that a command creates can make the collection
//! fail.

mod archive;
mod entry;
pub(crate) mod glob;
mod message_channel;
mod open_globs;
mod stray_files;

use std::fs::File;
use std::sync::Arc;

use data_encoding::HEXLOWER;
use futures::Stream;
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag};
use nix::sys::stat::{FileStat, fstatat};
use sha2::{Digest, Sha256};
use skilld_common::mime;
use skilld_proto::v1::collect_outputs_response::Payload;
use skilld_proto::v1::{
    CollectFormat, CollectOutputsResponse, CollectSpec, CollectSummary, FileEnd, FileType,
    SkipReason, SkippedFile,
};
use tonic::Status;
use tonic::codegen::Bytes;

use crate::error::Error;
use crate::files::root::split_path;
use crate::files::walk::{DirectoryWalk, WalkStep};
use crate::files::{SLICE_BYTES, message_path, read_slice};
use crate::guest::Guest;
use crate::task_spawn;
use archive::CollectedArchive;
use entry::{CollectedEntry, describe_file, look_at_directory, open_file, open_link, skip_reason};
use glob::GlobSet;
use message_channel::{MessageSender, ReceiverGone, message_channel};
use open_globs::OpenGlobs;
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

/// Rank of matching entries, in their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MatchRank {
    Primary,
    /// Hidden files and caches.
    Secondary,
}

/// Collection in progress: walks the workspace and sends the matching files.
struct FileCollector {
    guest: Arc<Guest>,
    globs: Arc<GlobSet>,
    open_globs: OpenGlobs,
    /// Directories are sent too.
    with_directories: bool,
    limits: CollectLimits,
    /// Time span of the collected changes; `None` if entries are collected whenever they changed.
    span: Option<ChangeTimeRange>,
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
    let mut span = None;
    if let Some(id) = spec.changed_since_exec.rsplit('/').next()
        && !id.is_empty()
    {
        let exec = guest.host.find_exec(id)?;
        let since = exec.start_file_time;
        let until = exec.state().end_file_time.filter(|_| spec.until_exec_end);
        span = Some(ChangeTimeRange { since, until });
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
        open_globs: OpenGlobs::new(spec.globs.len()),
        with_directories: spec.include_directories,
        limits: CollectLimits {
            files: or(spec.max_files, FILES_DEFAULT),
            file_bytes: or(spec.max_file_bytes, FILE_BYTES_DEFAULT),
            total_bytes: or(spec.max_total_bytes, TOTAL_BYTES_DEFAULT),
        },
        span,
        archive,
        out,
        summary: CollectSummary::default(),
        named_bytes: 0,
        bytes: 0,
        returned: 0,
    };
    let globs = spec.globs.clone();
    task_spawn::spawn(async move {
        // The client has closed the stream.
        let _gone = collector.run(globs).await;
    });
    Ok(messages)
}

impl FileCollector {
    /// Sends the matching files, hidden ones and caches last, and then the summary. `globs` are those of the request.
    async fn run(mut self, globs: Vec<String>) -> Result<(), ReceiverGone> {
        for rank in [MatchRank::Primary, MatchRank::Secondary] {
            let walk = match self.start_walk(rank) {
                Ok(walk) => walk,
                Err(errno) => return self.out.fail(Error::file("", errno).into()).await,
            };
            if !self.send_matches(walk, rank).await? {
                break;
            }
        }
        if let Some(mut archive) = self.archive.take() {
            archive.finish();
            self.send_archive(&mut archive, 0).await?;
        }
        if let Some(span) = self.span {
            let found = StrayFiles::find(&self.guest.root, span).await;
            let paths = found.paths.iter().map(|path| message_path(path).0);
            self.summary.outside_paths = paths.collect();
            self.summary.outside_paths_truncated = found.is_cut;
        }
        self.summary.unmatched_globs = self.open_globs.unmatched(globs);
        if self.summary.matched_count > 0 {
            for path in std::mem::take(&mut self.open_globs).into_unchanged() {
                // What a glob names is in the list already.
                if !self.globs.names(&path) {
                    self.skip(&path, SkipReason::Unchanged);
                }
            }
        }
        self.summary.sent_bytes = i64::try_from(self.bytes).unwrap_or(i64::MAX);
        self.summary.returned_count = i64::try_from(self.returned).unwrap_or(i64::MAX);
        let summary = std::mem::take(&mut self.summary);
        self.out.send(Payload::Summary(summary)).await
    }

    /// Starts a walk through what may have files of a rank.
    fn start_walk(&self, rank: MatchRank) -> Result<DirectoryWalk, Errno> {
        let globs = Arc::clone(&self.globs);
        let directory = self
            .guest
            .root
            .openat(b"", OFlag::O_RDONLY | OFlag::O_DIRECTORY)?;
        let descend = Box::new(move |path: &[u8]| {
            // Everything beneath a directory of the second rank is of that rank too.
            let is_wanted = rank == MatchRank::Secondary || !globs.is_secondary(path);
            is_wanted && globs.may_match_beneath(path)
        });
        DirectoryWalk::new(directory, Vec::new(), descend)
    }

    /// Sends the matching files of a rank. Returns `true` if the second rank may have some.
    async fn send_matches(
        &mut self,
        mut walk: DirectoryWalk,
        rank: MatchRank,
    ) -> Result<bool, ReceiverGone> {
        let mut has_secondary = false;
        let mut looked_at: u64 = 0;
        while let Some(step) = walk.next().await {
            match step {
                WalkStep::Entry { path, kind } => {
                    let is_match = self.is_match(&path, kind);
                    let is_searched =
                        kind == FileType::Directory && self.globs.may_match_beneath(&path);
                    let is_secondary = (is_match || is_searched) && self.globs.is_secondary(&path);
                    has_secondary |= is_secondary;
                    if is_match && is_secondary == (rank == MatchRank::Secondary) {
                        let entry = self.open_wanted(&walk, &path, kind);
                        self.send_entry(&path, entry).await?;
                    }
                }
                // The first walk has reported it.
                WalkStep::Closed { path, .. } | WalkStep::TooDeep { path }
                    if rank == MatchRank::Secondary && !self.globs.is_secondary(&path) => {}
                WalkStep::Closed { path, errno } => self.skip(&path, skip_reason(errno)),
                WalkStep::TooDeep { path } => {
                    self.summary.limits_hit = true;
                    self.skip(&path, SkipReason::Depth);
                }
            }
            looked_at += 1;
            if looked_at >= ENTRIES_MAX {
                self.summary.limits_hit = true;
                break;
            }
            self.out.pause().await;
        }
        Ok(has_secondary)
    }

    /// Returns `true` if a glob matches an entry of a kind that is collected.
    fn is_match(&self, path: &[u8], kind: FileType) -> bool {
        (kind != FileType::Directory || self.with_directories) && self.globs.matches(path)
    }

    /// Sends an entry, if there is one.
    async fn send_entry(
        &mut self,
        path: &[u8],
        entry: Option<CollectedEntry>,
    ) -> Result<(), ReceiverGone> {
        match entry {
            Some(CollectedEntry::File(stat, file)) => self.send_file(path, &stat, file).await,
            Some(CollectedEntry::Link(stat, target)) => {
                self.send_empty(path, &stat, Some(&target)).await
            }
            Some(CollectedEntry::Directory(stat)) => self.send_empty(path, &stat, None).await,
            None => Ok(()),
        }
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

    /// Opens a matching entry if it is wanted and within the limits, and counts it.
    fn open_wanted(
        &mut self,
        walk: &DirectoryWalk,
        path: &[u8],
        kind: FileType,
    ) -> Option<CollectedEntry> {
        let parent = walk.parent()?;
        let (_, name) = split_path(path);
        let is_changed = self.span.is_none_or(|span| {
            let stat = fstatat(parent, name, AtFlags::AT_SYMLINK_NOFOLLOW).ok();
            stat.is_none_or(|stat| span.contains(&stat))
        });
        self.open_globs.record(&self.globs, path, is_changed);
        if !is_changed {
            self.summary.unchanged_count += 1;
            if self.globs.names(path) {
                self.skip(path, SkipReason::Unchanged);
            }
            return None;
        }
        self.summary.matched_count += 1;
        if self.returned >= self.limits.files {
            self.summary.limits_hit = true;
            self.skip(path, SkipReason::MaxFiles);
            return None;
        }
        let found = match kind {
            FileType::Symlink => open_link(parent, name),
            FileType::File => open_file(parent, name),
            FileType::Directory => look_at_directory(parent, name),
            FileType::Other | FileType::Unspecified => Err(SkipReason::FileType),
        };
        found.map_err(|reason| self.skip(path, reason)).ok()
    }

    /// Sends an entry without content, as a message or into the archive: a symbolic link to `target`, or a directory if
    /// that is `None`.
    async fn send_empty(
        &mut self,
        path: &[u8],
        stat: &FileStat,
        target: Option<&[u8]>,
    ) -> Result<(), ReceiverGone> {
        if let Some(mut archive) = self.archive.take() {
            let appended = match target {
                Some(target) => archive.append_link(path, stat, target),
                None => archive.append_directory(path, stat),
            };
            match appended {
                Ok(()) => self.returned += 1,
                Err(_) => self.skip(path, SkipReason::IoError),
            }
            self.send_archive(&mut archive, SLICE_BYTES).await?;
            self.archive = Some(archive);
            return Ok(());
        }
        self.returned += 1;
        let mut file = describe_file(path, stat);
        if let Some(target) = target {
            file.mime_type = "inode/symlink".to_owned();
            file.link_target = String::from_utf8_lossy(target).into_owned();
        } else {
            file.mime_type = "inode/directory".to_owned();
            file.is_directory = true;
            file.size_bytes = 0;
        }
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
            self.skip(path, SkipReason::MaxTotalBytes);
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
            self.skip(path, SkipReason::IoError);
            return Ok(());
        };
        self.returned += 1;
        self.bytes += sent.bytes;
        self.summary.limits_hit |= limited;
        let cut = limited || sent.short;
        if cut && self.summary.truncated_paths.len() < NAMED_MAX && self.reserve_name(path) {
            self.summary.truncated_paths.push(message_path(path).0);
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
                sha256: HEXLOWER.encode(&sha256.finalize()),
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
        let started = read_slice(&file, wanted, most)
            .and_then(|slice| archive.start_file(path, stat, wanted).map(|()| slice));
        let Ok(mut slice) = started else {
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
    fn skip(&mut self, path: &[u8], reason: SkipReason) {
        if self.summary.skipped_files.len() < NAMED_MAX && self.reserve_name(path) {
            let (path, _) = message_path(path);
            self.summary.skipped_files.push(SkippedFile {
                path,
                reason: reason.into(),
            });
        }
    }

    /// Reserves room for a path in the summary. Returns `false` if there is none.
    fn reserve_name(&mut self, path: &[u8]) -> bool {
        // A byte that is not UTF-8 becomes three bytes.
        self.named_bytes += 3 * path.len() + 16;
        self.named_bytes < NAMED_BYTES_MAX
    }
}
