//! PutFiles: receives a file or an archive into a staging directory and installs it once it is complete.

use std::io::Write;
use std::sync::Arc;
use std::time::SystemTime;

use data_encoding::HEXLOWER;
use flate2::write::MultiGzDecoder;
use sha2::{Digest, Sha256};
use skilld_proto::guest::v1::put_files_request::Payload;
use skilld_proto::guest::v1::{PutFilesHeader, PutFilesRequest};
use skilld_proto::v1::{
    SkippedFile, StageFilesHeader, StageFilesResponse, StageFormat, StagedFile,
};
use tokio::sync::oneshot;
use tonic::codegen::Bytes;
use tonic::{Status, Streaming};

use super::install::{AtomicInstall, join_path};
use super::root::{WorkspaceRoot, check_writable, normalise_path};
use super::staging::StagingDirectory;
use super::tar_unpacker::{
    ArchiveLimits, SkippedEntries, StagedEntries, StagedEntry, TarUnpacker, UnpackedArchive,
};
use super::{ANSWER_BYTES_MAX, SLICE_BYTES};
use crate::error::Error;
use crate::task_spawn;

/// Default limit of an archive's entries.
const ENTRIES_MAX: u64 = 20_000;
/// Maximum number of files that the response lists.
const LISTED_MAX: usize = 10_000;
/// Maximum size of the entries that were left out in the response, in bytes.
const SKIPPED_BYTES_MAX: usize = ANSWER_BYTES_MAX / 4;
/// Bytes of an archive unpacked before other tasks get their turn: some sixty small files.
const TAR_SLICE: usize = 32 * 1024;
/// Bytes of a compressed archive unpacked before other tasks get their turn. They may expand a thousandfold.
const GZIP_SLICE: usize = 1024;
type UploadStream = Streaming<PutFilesRequest>;

/// Receives a stream and installs its files. Returns only after the staging directory is removed, so that a failed
/// upload takes no space from the next one.
pub(crate) async fn put_files(
    root: &Arc<WorkspaceRoot>,
    stream: UploadStream,
) -> Result<StageFilesResponse, Status> {
    let (cleared, is_cleared) = oneshot::channel();
    let answer = receive_upload(root, stream, cleared).await;
    // The channel closes without a message once the staging directory is removed, or if there was none.
    let _closed = is_cleared.await;
    answer
}

/// Receives a stream into a staging directory and installs it. Drops `cleared` when the staging directory is removed.
async fn receive_upload(
    root: &Arc<WorkspaceRoot>,
    mut stream: UploadStream,
    cleared: oneshot::Sender<()>,
) -> Result<StageFilesResponse, Status> {
    let Some(Payload::Header(header)) = stream.message().await?.and_then(|first| first.payload)
    else {
        return Err(Error::invalid("header", "must be the first message").into());
    };
    let file = header.file.clone().unwrap_or_default();
    let path = normalise_path(&file.path)?;
    check_writable(&path)?;
    let format = file.format();
    let (base, received) = match format {
        StageFormat::Unspecified | StageFormat::File => {
            let staging = || StagingDirectory::new(root, cleared);
            let received = receive_file(staging, &mut stream, &header, &file, &path).await?;
            (Vec::new(), received)
        }
        StageFormat::Tar | StageFormat::TarGz => {
            let staging = StagingDirectory::new(root, cleared)?;
            let unpacker = TarUnpacker::new(staging, archive_limits(&header));
            let received = receive_archive(&mut stream, unpacker, format, &file.sha256).await?;
            (path, received)
        }
    };
    install_entries(root, base, received).await
}

/// Installs the entries in a task of its own. It completes even if the caller is cancelled, because half of an
/// installation would lose replaced files.
async fn install_entries(
    root: &Arc<WorkspaceRoot>,
    base: Vec<u8>,
    received: UnpackedArchive,
) -> Result<StageFilesResponse, Status> {
    let root = Arc::clone(root);
    let (done, is_done) = oneshot::channel();
    task_spawn::spawn(async move {
        let UnpackedArchive {
            staging,
            entries,
            skipped,
        } = received;
        let mut install = AtomicInstall::new(&root, staging, &base);
        let placed = install.install(&entries).await;
        // Replaced files, and those that were not installed, are removed with the staging directory.
        drop(install);
        let answer = placed.map(|()| describe_entries(&base, &entries, skipped));
        let _nobody_waits = done.send(answer);
    });
    // The task drops the sender early only in a panic, which ends the process.
    Ok(is_done.await.unwrap_or(Err(Error::NotReady))?)
}

/// Returns the limits of a request, or their defaults.
fn archive_limits(header: &PutFilesHeader) -> ArchiveLimits {
    let or = |value, default| if value == 0 { default } else { value };
    ArchiveLimits {
        entries: or(header.entries_max, ENTRIES_MAX),
        bytes: or(header.bytes_max, u64::MAX),
    }
}

/// Returns the next chunk of data; `None` at the end of the stream.
async fn next_chunk(stream: &mut UploadStream) -> Result<Option<Bytes>, Status> {
    match stream.message().await? {
        None => Ok(None),
        Some(message) => match message.payload {
            Some(Payload::Data(data)) => Ok(Some(data)),
            Some(Payload::Header(_)) | None => {
                Err(Error::invalid("data", "must follow the header").into())
            }
        },
    }
}

/// Compares a digest with the wanted one, which may be empty.
fn check_sha256(wanted: &str, digest: &[u8]) -> Result<(), Error> {
    let sha256 = HEXLOWER.encode(digest);
    if wanted.is_empty() || wanted.eq_ignore_ascii_case(&sha256) {
        return Ok(());
    }
    Err(Error::ChecksumMismatch { sha256 })
}

/// Receives the bytes of one file into a staging directory.
async fn receive_file(
    staging: impl FnOnce() -> Result<StagingDirectory, Error>,
    stream: &mut UploadStream,
    header: &PutFilesHeader,
    file: &StageFilesHeader,
    path: &[u8],
) -> Result<UnpackedArchive, Status> {
    if path.is_empty() {
        return Err(Error::invalid("path", "must name a file").into());
    }
    let mode = file.mode.unwrap_or(0o644);
    if mode & !0o777 != 0 {
        return Err(Error::invalid("mode", "must be permission bits only").into());
    }
    let limit = archive_limits(header).bytes;
    let mut staging = staging()?;
    let mut writing = staging.create(path)?;
    let mut left = limit;
    while let Some(data) = next_chunk(stream).await? {
        let rest = left.checked_sub(data.len() as u64);
        left = rest.ok_or(Error::LimitExceeded {
            what: "bytes",
            limit,
        })?;
        for slice in data.chunks(SLICE_BYTES) {
            writing.write(path, slice)?;
            tokio::task::yield_now().await;
        }
    }
    let mtime = file
        .modify_time
        .and_then(|mtime| SystemTime::try_from(mtime).ok());
    let written = writing.finish(path, mode, mtime)?;
    check_sha256(&file.sha256, &written.sha256)?;
    let entries = StagedEntries::from([(path.to_vec(), StagedEntry::File(written))]);
    Ok(UnpackedArchive {
        staging,
        entries,
        skipped: SkippedEntries::default(),
    })
}

/// Receives an archive and unpacks it into a staging directory.
async fn receive_archive(
    stream: &mut UploadStream,
    mut unpacker: TarUnpacker,
    kind: StageFormat,
    wanted: &str,
) -> Result<UnpackedArchive, Status> {
    let mut sha256 = Sha256::new();
    if kind == StageFormat::Tar {
        while let Some(data) = next_chunk(stream).await? {
            for slice in data.chunks(TAR_SLICE) {
                sha256.update(slice);
                unpacker.feed(slice)?;
                tokio::task::yield_now().await;
            }
        }
    } else {
        let mut gzip = MultiGzDecoder::new(unpacker);
        while let Some(data) = next_chunk(stream).await? {
            sha256.update(&data);
            for slice in data.chunks(GZIP_SLICE) {
                if gzip.write_all(slice).is_err() {
                    return Err(gzip_error(&mut gzip).into());
                }
                tokio::task::yield_now().await;
            }
        }
        if gzip.try_finish().is_err() {
            return Err(gzip_error(&mut gzip).into());
        }
        unpacker = gzip.finish().map_err(|_| damaged_gzip())?;
    }
    check_sha256(wanted, &sha256.finalize())?;
    Ok(unpacker.finish()?)
}

/// Returns the error for a damaged gzip stream.
fn damaged_gzip() -> Error {
    Error::ArchiveInvalid {
        entry: String::new(),
        problem: "has a gzip stream that is damaged or cut off",
    }
}

/// Returns the cause of a failed write to the decoder: the unpacker's error, or damaged gzip data.
fn gzip_error(gzip: &mut MultiGzDecoder<TarUnpacker>) -> Error {
    gzip.get_mut().failure().unwrap_or_else(damaged_gzip)
}

/// Lists the installed files, and the entries that were left out, for the response.
fn describe_entries(
    base: &[u8],
    entries: &StagedEntries,
    skipped: SkippedEntries,
) -> StageFilesResponse {
    let display = |path: &[u8]| String::from_utf8_lossy(&join_path(base, path)).into_owned();
    let mut response = StageFilesResponse {
        skipped_count: skipped.total,
        ..StageFilesResponse::default()
    };
    let mut bytes = 0;
    for (path, reason) in skipped.named {
        let path = display(&path);
        bytes += path.len() + 16;
        if bytes < SKIPPED_BYTES_MAX {
            response.skipped_files.push(SkippedFile {
                path,
                reason: reason.into(),
            });
        }
    }
    bytes = bytes.min(SKIPPED_BYTES_MAX);
    for (path, staged) in entries {
        let (size, mode, sha256) = match staged {
            StagedEntry::Directory(_) => continue,
            StagedEntry::Link(_) => (0, 0o777, String::new()),
            StagedEntry::File(written) => {
                (written.size, written.mode, HEXLOWER.encode(&written.sha256))
            }
        };
        let size = i64::try_from(size).unwrap_or(i64::MAX);
        response.file_count += 1;
        response.size_bytes += size;
        let path = display(path);
        bytes += path.len() + 128;
        if response.files.len() < LISTED_MAX && bytes < ANSWER_BYTES_MAX {
            response.files.push(StagedFile {
                path,
                size_bytes: size,
                mode,
                sha256,
            });
        }
    }
    response
}
