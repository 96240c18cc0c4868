//! ReadFile: streams one file from an offset.

use std::fs::File;
use std::io::{Seek, SeekFrom};

use futures::{Stream, StreamExt as _, stream};
use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::stat::fstat;
use skilld_proto::guest::v1::ReadFileRequest;
use skilld_proto::v1::read_file_response::Payload;
use skilld_proto::v1::{FileType, ReadFileResponse};
use tonic::Status;

use super::root::{WorkspaceRoot, display_path, normalise_path};
use super::{SLICE_BYTES, file_entry, file_type, read_slice};
use crate::error::Error;

/// Reads a file as a stream of messages: the first one describes the file, the others are its bytes.
pub(crate) fn read_file(
    root: &WorkspaceRoot,
    request: &ReadFileRequest,
) -> Result<impl Stream<Item = Result<ReadFileResponse, Status>> + Send + use<>, Error> {
    let path = normalise_path(&request.path)?;
    let failed = |errno| Error::file(&display_path(&path), errno);
    let mut file = open_file(root, &path)?;
    let left = match request.length {
        0 => u64::MAX,
        length => length,
    };
    file.seek(SeekFrom::Start(request.offset.min(i64::MAX.unsigned_abs())))
        .map_err(|_| failed(Errno::EINVAL))?;
    let entry = file_entry(&path, &fstat(&file).map_err(failed)?, String::new());
    let path = display_path(&path);
    let data = stream::try_unfold((file, left), move |(file, left)| {
        let path = path.clone();
        async move {
            tokio::task::yield_now().await;
            let data = read_slice(&file, left, SLICE_BYTES)
                .map_err(|error| Status::from(Error::io(&path, &error)))?;
            let left = left - data.len() as u64;
            let message = (!data.is_empty()).then(|| message(Payload::Data(data)));
            Ok::<_, Status>(message.map(|message| (message, (file, left))))
        }
    });
    Ok(stream::iter([Ok(message(Payload::File(entry)))]).chain(data))
}

fn message(payload: Payload) -> ReadFileResponse {
    ReadFileResponse {
        payload: Some(payload),
    }
}

/// Opens a regular file for reading. Checks the type first, because opening a FIFO waits and opening a device may have
/// any effect.
pub(crate) fn open_file(root: &WorkspaceRoot, path: &[u8]) -> Result<File, Error> {
    let failed = |errno| Error::file(&display_path(path), errno);
    for flags in [OFlag::O_PATH, OFlag::O_RDONLY | OFlag::O_NONBLOCK] {
        let opened = root.openat(path, flags).map_err(failed)?;
        if file_type(&fstat(&opened).map_err(failed)?) != FileType::File {
            let path = display_path(path);
            return Err(Error::WrongFileType {
                path,
                wanted: "a file",
            });
        }
        if flags != OFlag::O_PATH {
            return Ok(opened.into());
        }
    }
    Err(failed(Errno::EIO))
}
