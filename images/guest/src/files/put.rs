//! PutFiles: one file or an archive, into the staging directory while it comes, into place when it has
//! come whole.

use std::io::Write;
use std::sync::Arc;

use flate2::write::MultiGzDecoder;
use sha2::{Digest, Sha256};
use skilld_proto::guest::v1::put_files_request::Payload;
use skilld_proto::guest::v1::{PutFilesHeader, PutFilesRequest};
use skilld_proto::v1::stage_files_header::Kind;
use skilld_proto::v1::{StageFilesHeader, StageFilesResponse, StagedFile};
use tokio::sync::oneshot;
use tonic::codegen::Bytes;
use tonic::{Status, Streaming};

use super::archive::{Entries, Limits, Staged, Unpacker};
use super::place::{Placing, join};
use super::root::{plain, writable};
use super::staging::Staging;
use super::{ANSWER_BYTES_MAX, SLICE_BYTES, hex};
use crate::error::Error;
use crate::guest::Guest;
use crate::tasks;

/// Of an archive, where a request says nothing.
const ENTRIES_MAX: u64 = 20_000;
/// Named in the answer.
const LISTED_MAX: usize = 10_000;
/// Of an archive at a time: some sixty small files.
const TAR_SLICE: usize = 32 * 1024;
/// Of a compressed archive at a time: it may become a thousand times as much.
const GZIP_SLICE: usize = 1024;
type Incoming = Streaming<PutFilesRequest>;

/// Receives a stream and puts it into place. When this answers, nothing that waited is left: what failed takes no room
/// from what comes next.
pub(crate) async fn put(
    guest: &Arc<Guest>,
    stream: Incoming,
) -> Result<StageFilesResponse, Status> {
    let (cleared, is_cleared) = oneshot::channel();
    let answer = receive(guest, stream, cleared).await;
    // Nothing is sent: it is closed once the staging directory is gone, or if there was none.
    let _closed = is_cleared.await;
    answer
}

async fn receive(
    guest: &Arc<Guest>,
    mut stream: Incoming,
    cleared: oneshot::Sender<()>,
) -> Result<StageFilesResponse, Status> {
    let Some(Payload::Header(header)) = stream.message().await?.and_then(|first| first.payload)
    else {
        return Err(invalid("header", "must be the first message").into());
    };
    let file = header.file.clone().unwrap_or_default();
    let path = plain(&file.path)?;
    writable(&path)?;
    let kind = file.kind();
    let (base, (staging, entries)) = match kind {
        Kind::Unspecified | Kind::File => {
            let staging = || Staging::new(guest, cleared);
            let received = receive_file(staging, &mut stream, &header, &file, &path).await?;
            (Vec::new(), received)
        }
        Kind::Tar | Kind::TarGz => {
            let depth = path
                .split(|byte| *byte == b'/')
                .filter(|name| !name.is_empty())
                .count();
            let unpacker = Unpacker::new(Staging::new(guest, cleared)?, depth, limits(&header));
            let received = receive_archive(&mut stream, unpacker, kind, &file.sha256).await?;
            (path, received)
        }
    };
    in_place(guest, staging, base, entries).await
}

/// Puts into place what has come whole, also when nobody waits for it any more: one that stopped halfway would leave
/// half of it, without what it replaced.
async fn in_place(
    guest: &Arc<Guest>,
    staging: Staging,
    base: Vec<u8>,
    entries: Entries,
) -> Result<StageFilesResponse, Status> {
    let guest = Arc::clone(guest);
    let (done, is_done) = oneshot::channel();
    tasks::spawn(async move {
        let mut placing = Placing::new(&guest, staging, &base);
        let placed = placing.place(&entries).await;
        placing.clear().await;
        let _nobody_waits = done.send(placed.map(|()| answer(&base, &entries)));
    });
    // It is dropped only by a panic, which is the end of the process.
    Ok(is_done.await.unwrap_or(Err(Error::NotReady))?)
}

fn invalid(field: &'static str, problem: &'static str) -> Error {
    Error::Invalid { field, problem }
}

fn limits(header: &PutFilesHeader) -> Limits {
    let or = |value, default| if value == 0 { default } else { value };
    Limits {
        entries: or(header.entries_max, ENTRIES_MAX),
        bytes: or(header.bytes_max, u64::MAX),
    }
}

async fn next_data(stream: &mut Incoming) -> Result<Option<Bytes>, Status> {
    match stream.message().await? {
        None => Ok(None),
        Some(message) => match message.payload {
            Some(Payload::Data(data)) => Ok(Some(data)),
            Some(Payload::Header(_)) | None => {
                Err(invalid("data", "must follow the header").into())
            }
        },
    }
}

fn check_sha256(wanted: &str, digest: &[u8]) -> Result<(), Error> {
    let sha256 = hex(digest);
    if wanted.is_empty() || wanted.eq_ignore_ascii_case(&sha256) {
        return Ok(());
    }
    Err(Error::ChecksumMismatch { sha256 })
}

async fn receive_file(
    staging: impl FnOnce() -> Result<Staging, Error>,
    stream: &mut Incoming,
    header: &PutFilesHeader,
    file: &StageFilesHeader,
    path: &[u8],
) -> Result<(Staging, Entries), Status> {
    if path.is_empty() {
        return Err(invalid("path", "must name a file").into());
    }
    if file.mode & !0o777 != 0 {
        return Err(invalid("mode", "must be permission bits only").into());
    }
    let mode = if file.mode == 0 { 0o644 } else { file.mode };
    let limit = limits(header).bytes;
    let mut staging = staging()?;
    let mut writing = staging.create(path)?;
    let mut left = limit;
    while let Some(data) = next_data(stream).await? {
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
    let written = writing.finish(path, mode)?;
    check_sha256(&file.sha256, &written.sha256)?;
    let entries = Entries::from([(path.to_vec(), Staged::File(written))]);
    Ok((staging, entries))
}

async fn receive_archive(
    stream: &mut Incoming,
    mut unpacker: Unpacker,
    kind: Kind,
    wanted: &str,
) -> Result<(Staging, Entries), Status> {
    let mut sha256 = Sha256::new();
    if kind == Kind::Tar {
        while let Some(data) = next_data(stream).await? {
            for slice in data.chunks(TAR_SLICE) {
                sha256.update(slice);
                unpacker.feed(slice)?;
                tokio::task::yield_now().await;
            }
        }
    } else {
        let mut gzip = MultiGzDecoder::new(unpacker);
        while let Some(data) = next_data(stream).await? {
            sha256.update(&data);
            for slice in data.chunks(GZIP_SLICE) {
                if gzip.write_all(slice).is_err() {
                    return Err(not_gzip(&mut gzip).into());
                }
                tokio::task::yield_now().await;
            }
        }
        if gzip.try_finish().is_err() {
            return Err(not_gzip(&mut gzip).into());
        }
        unpacker = gzip.finish().map_err(|_| damaged())?;
    }
    check_sha256(wanted, &sha256.finalize())?;
    Ok(unpacker.finish()?)
}

fn damaged() -> Error {
    Error::ArchiveInvalid {
        entry: String::new(),
        problem: "the gzip stream is damaged or cut off",
    }
}

fn not_gzip(gzip: &mut MultiGzDecoder<Unpacker>) -> Error {
    gzip.get_mut().failure().unwrap_or_else(damaged)
}

fn answer(base: &[u8], entries: &Entries) -> StageFilesResponse {
    let mut response = StageFilesResponse::default();
    let mut bytes = 0;
    for (path, staged) in entries {
        let (size, mode, sha256) = match staged {
            Staged::Directory { .. } => continue,
            Staged::Link(_) => (0, 0o777, String::new()),
            Staged::File(written) => (written.size, written.mode, hex(&written.sha256)),
        };
        let size = i64::try_from(size).unwrap_or(i64::MAX);
        response.files_total += 1;
        response.bytes_total += size;
        let path = String::from_utf8_lossy(&join(base, path)).into_owned();
        bytes += path.len() + 128;
        if response.files.len() < LISTED_MAX && bytes < ANSWER_BYTES_MAX {
            response.files.push(StagedFile {
                path,
                size,
                mode,
                sha256,
            });
        }
    }
    response
}
