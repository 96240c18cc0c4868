//! Collect: streams the files that match, in path order, and a summary. A limit cuts the answer and is
//! said in it; nothing that a tenant laid out there fails it.

mod archive;
pub(crate) mod glob;
mod mime;
mod outlet;
mod outside;

use std::fs::File;
use std::io::Read;
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
use crate::files::root::split;
use crate::files::walk::{Step, Walk};
use crate::files::{SLICE_BYTES, file_type, hex, mode, mtime, since_epoch, wire_path};
use crate::guest::Guest;
use crate::tasks;
use archive::Archive;
use glob::Globs;
use outlet::{Gone, Outlet, outlet};
use outside::{FilesOutside, Span};

const FILES_DEFAULT: u64 = 100;
const FILE_BYTES_DEFAULT: u64 = 4 * 1024 * 1024;
const TOTAL_BYTES_DEFAULT: u64 = 64 * 1024 * 1024;
/// Paths of each kind in the summary.
const NAMED_MAX: usize = 1000;
/// Of those, in bytes: half of what a message may hold, for each kind.
const NAMED_BYTES_MAX: usize = 1024 * 1024;
/// Read of a file at a time when it is compressed, which is slow.
const GZIP_SLICE: usize = 16 * 1024;
/// Entries looked at. A workspace has fewer, unless a command makes them as fast as they are looked at.
const ENTRIES_MAX: u64 = 4_000_000;

/// An entry that is to be sent.
enum Found {
    File(FileStat, File),
    Link(FileStat, Vec<u8>),
}

/// Of one file.
struct Sent {
    bytes: u64,
    /// It had become shorter than it was when it was opened, or could not be read to its end.
    short: bool,
}

struct Limits {
    files: u64,
    file_bytes: u64,
    total_bytes: u64,
}

struct Collector {
    guest: Arc<Guest>,
    globs: Arc<Globs>,
    limits: Limits,
    /// What changed before this is not of interest.
    since: Option<Duration>,
    /// Nor is what changed after this.
    until: Option<Duration>,
    archive: Option<Archive>,
    out: Outlet,
    summary: CollectSummary,
    named_bytes: usize,
    bytes: u64,
    returned: u64,
}

/// Starts collecting; the stream ends with a summary.
pub(crate) fn collect(
    guest: &Arc<Guest>,
    spec: &CollectSpec,
) -> Result<impl Stream<Item = Result<CollectOutputsResponse, Status>> + Send + use<>, Error> {
    let (mut since, mut until) = (None, None);
    if let Some(id) = spec.changed_since_exec.rsplit('/').next()
        && !id.is_empty()
    {
        let exec = guest.exec(id)?;
        since = Some(exec.start_of_files);
        until = exec.state().end_of_files.filter(|_| spec.until_exec_end);
    }
    let archive = match spec.format() {
        CollectFormat::Unspecified | CollectFormat::Files => None,
        CollectFormat::Tar => Some(Archive::plain()),
        CollectFormat::TarGz => Some(Archive::gzip()),
    };
    let or = |value: i64, default| match u64::try_from(value) {
        Ok(value) if value > 0 => value,
        _ => default,
    };
    let (out, messages) = outlet();
    let collector = Collector {
        guest: Arc::clone(guest),
        globs: Arc::new(Globs::new(&spec.globs)?),
        limits: Limits {
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
    tasks::spawn(async move {
        // A reader that went away wants nothing more.
        let _gone = collector.run().await;
    });
    Ok(messages)
}

impl Collector {
    async fn run(mut self) -> Result<(), Gone> {
        let globs = Arc::clone(&self.globs);
        let directory = self
            .guest
            .root
            .openat(b"", OFlag::O_RDONLY | OFlag::O_DIRECTORY);
        let walk = directory.and_then(|directory| {
            Walk::new(
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
                Step::Entry { path, kind } => match self.look(&walk, &path, kind) {
                    Some(Found::File(stat, file)) => self.file(&path, &stat, file).await?,
                    Some(Found::Link(stat, target)) => self.link(&path, &stat, &target).await?,
                    None => {}
                },
                Step::Closed { path, errno } => self.skip(&path, why(errno)),
                Step::TooDeep { path } => {
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
            archive.end();
            self.send_archive(&mut archive, 0).await?;
        }
        if let Some(since) = self.since {
            let until = self.until;
            let found = FilesOutside::find(&self.guest.root, Span { since, until }).await;
            let paths = found.paths.iter().map(|path| wire_path(path).0);
            self.summary.outside = paths.collect();
            self.summary.outside_cut = found.is_cut;
        }
        self.summary.bytes = i64::try_from(self.bytes).unwrap_or(i64::MAX);
        self.summary.returned = i64::try_from(self.returned).unwrap_or(i64::MAX);
        let summary = std::mem::take(&mut self.summary);
        self.out.send(Payload::Summary(summary)).await
    }

    /// Sends what the archive has, if it has more than `keep`.
    async fn send_archive(&self, archive: &mut Archive, keep: usize) -> Result<(), Gone> {
        while let Some(data) = archive.take(keep, SLICE_BYTES) {
            self.out.send(Payload::Data(data)).await?;
        }
        Ok(())
    }

    /// Whether an entry is wanted and may be had; counts it and opens it.
    fn look(&mut self, walk: &Walk, path: &[u8], kind: FileType) -> Option<Found> {
        if kind == FileType::Directory || !self.globs.matches(path) {
            return None;
        }
        let parent = walk.parent()?;
        let (_, name) = split(path);
        if let Some(since) = self.since
            && let Ok(stat) = fstatat(parent, name, AtFlags::AT_SYMLINK_NOFOLLOW)
        {
            // No command can set this time, as it can that of the contents.
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

    async fn link(&mut self, path: &[u8], stat: &FileStat, target: &[u8]) -> Result<(), Gone> {
        self.returned += 1;
        if let Some(mut archive) = self.archive.take() {
            archive.link(path, stat, target);
            self.send_archive(&mut archive, SLICE_BYTES).await?;
            self.archive = Some(archive);
            return Ok(());
        }
        let mut file = describe(path, stat);
        file.mime_type = "inode/symlink".to_owned();
        file.link_target = String::from_utf8_lossy(target).into_owned();
        self.out.send(Payload::File(file)).await
    }

    async fn file(&mut self, path: &[u8], stat: &FileStat, file: File) -> Result<(), Gone> {
        let size = u64::try_from(stat.st_size).unwrap_or(0);
        let wanted = size.min(self.limits.file_bytes);
        if wanted > self.limits.total_bytes - self.bytes {
            self.summary.limits_hit = true;
            self.skip(path, Reason::MaxTotalBytes);
            return Ok(());
        }
        let limited = wanted < size;
        let sent = match self.archive.take() {
            Some(archive) => {
                self.file_into_archive(archive, path, stat, wanted, file)
                    .await?
            }
            None => {
                self.file_as_messages(path, stat, wanted, file, limited)
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
        if cut && self.summary.truncated.len() < NAMED_MAX && self.name(path) {
            self.summary.truncated.push(wire_path(path).0);
        }
        Ok(())
    }

    /// `None` when it could not be read at all.
    async fn file_as_messages(
        &mut self,
        path: &[u8],
        stat: &FileStat,
        wanted: u64,
        file: File,
        limited: bool,
    ) -> Result<Option<Sent>, Gone> {
        let Ok(mut slice) = read_slice(&file, wanted, SLICE_BYTES) else {
            return Ok(None);
        };
        let mut described = describe(path, stat);
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
                // What cannot be read any more ends the file here; its digest is of what was sent.
                slice = read_slice(&file, wanted - sent, SLICE_BYTES).unwrap_or_default();
            }
        }
        let short = sent < wanted;
        self.out
            .send(Payload::FileEnd(FileEnd {
                sha256: hex(&sha256.finalize()),
                sent_bytes: i64::try_from(sent).unwrap_or(i64::MAX),
                truncated: limited || short,
                // The daemon saves.
                artifact: String::new(),
            }))
            .await?;
        Ok(Some(Sent { bytes: sent, short }))
    }

    async fn file_into_archive(
        &mut self,
        mut archive: Archive,
        path: &[u8],
        stat: &FileStat,
        wanted: u64,
        file: File,
    ) -> Result<Option<Sent>, Gone> {
        let most = if archive.is_gzip() {
            GZIP_SLICE
        } else {
            SLICE_BYTES
        };
        let Ok(mut slice) = read_slice(&file, wanted, most) else {
            self.archive = Some(archive);
            return Ok(None);
        };
        archive.file(path, stat, wanted);
        let mut sent = 0;
        let mut short = false;
        while sent < wanted {
            if slice.is_empty() {
                short = true;
                // It has become shorter; an archive has promised its size.
                let zeros = usize::try_from(wanted - sent).unwrap_or(most).min(most);
                slice = vec![0; zeros].into();
            }
            sent += slice.len() as u64;
            archive.data(&slice);
            self.send_archive(&mut archive, SLICE_BYTES).await?;
            self.out.pause().await;
            slice = read_slice(&file, wanted - sent, most).unwrap_or_default();
        }
        archive.pad(wanted);
        self.archive = Some(archive);
        Ok(Some(Sent { bytes: sent, short }))
    }

    fn skip(&mut self, path: &[u8], reason: Reason) {
        if self.summary.skipped.len() < NAMED_MAX && self.name(path) {
            let (path, _) = wire_path(path);
            let reason = reason.into();
            self.summary.skipped.push(SkippedFile { path, reason });
        }
    }

    /// Whether the summary has room for one more path.
    fn name(&mut self, path: &[u8]) -> bool {
        // A byte that is not UTF-8 becomes three.
        self.named_bytes += 3 * path.len() + 16;
        self.named_bytes < NAMED_BYTES_MAX
    }
}

fn open_link(parent: BorrowedFd<'_>, name: &[u8]) -> Result<Found, Reason> {
    let target = readlinkat(parent, name).map_err(why)?;
    let stat = fstatat(parent, name, AtFlags::AT_SYMLINK_NOFOLLOW).map_err(why)?;
    Ok(Found::Link(stat, target.as_bytes().to_vec()))
}

/// It was a regular file when it was listed; should it be a FIFO now, opening it does not wait.
fn open_file(parent: BorrowedFd<'_>, name: &[u8]) -> Result<Found, Reason> {
    let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
    let file = openat(parent, name, flags, Mode::empty()).map_err(why)?;
    let stat = fstat(&file).map_err(why)?;
    if file_type(&stat) == FileType::File {
        Ok(Found::File(stat, file.into()))
    } else {
        Err(Reason::FileType)
    }
}

fn describe(path: &[u8], stat: &FileStat) -> CollectedFile {
    let (path, path_bytes) = wire_path(path);
    CollectedFile {
        path,
        size: stat.st_size,
        mode: mode(stat),
        mtime: mtime(stat),
        path_bytes,
        ..Default::default()
    }
}

fn read_slice(file: &File, left: u64, most: usize) -> std::io::Result<Bytes> {
    let length = left.min(most as u64);
    let mut data = Vec::with_capacity(usize::try_from(length).unwrap_or(most));
    file.take(length).read_to_end(&mut data)?;
    Ok(data.into())
}

fn why(errno: Errno) -> Reason {
    #[expect(clippy::wildcard_enum_match_arm, reason = "errno is an open set")]
    match errno {
        Errno::ENOENT => Reason::Gone,
        Errno::EACCES | Errno::EPERM => Reason::Permission,
        // It was a file, a directory or a link when it was listed.
        Errno::ELOOP | Errno::ENOTDIR | Errno::ENXIO | Errno::EINVAL => Reason::FileType,
        _ => Reason::IoError,
    }
}
