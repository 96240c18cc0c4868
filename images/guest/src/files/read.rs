//! ReadFile: streams one file from an offset.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};

use futures::Stream;
use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::stat::fstat;
use skilld_proto::guest::v1::ReadFileRequest;
use skilld_proto::v1::read_file_response::Payload;
use skilld_proto::v1::{FileType, ReadFileResponse};
use tonic::Status;

use super::root::{WorkspaceRoot, display_path, normalise_path};
use super::{SLICE_BYTES, file_entry, file_type};
use crate::error::Error;

/// File that is being streamed.
struct FileReader {
    file: File,
    path: Vec<u8>,
    left: u64,
    first: bool,
    broken: bool,
}

/// Opens a file. The stream's first message describes it and the others are its bytes.
pub(crate) fn read_file(
    root: &WorkspaceRoot,
    request: &ReadFileRequest,
) -> Result<impl Stream<Item = Result<ReadFileResponse, Status>> + Send + use<>, Error> {
    let path = normalise_path(&request.path)?;
    let failed = |errno| Error::file(&display_path(&path), errno);
    let mut file = open_file(root, &path)?;
    let length = if request.length == 0 {
        u64::MAX
    } else {
        request.length
    };
    file.seek(SeekFrom::Start(request.offset.min(i64::MAX.unsigned_abs())))
        .map_err(|_| failed(Errno::EINVAL))?;
    let reader = FileReader {
        file,
        path,
        left: length,
        first: true,
        broken: false,
    };
    Ok(futures::stream::unfold(reader, |mut reader| async move {
        tokio::task::yield_now().await;
        let message = reader.next()?;
        reader.broken = message.is_err();
        Some((message.map_err(Status::from), reader))
    }))
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

impl FileReader {
    /// Returns the next message; `None` at the end.
    fn next(&mut self) -> Option<Result<ReadFileResponse, Error>> {
        if self.broken {
            return None;
        }
        let payload = if std::mem::take(&mut self.first) {
            fstat(&self.file)
                .map(|stat| Some(Payload::File(file_entry(&self.path, &stat, String::new()))))
                .map_err(|errno| Error::file(&display_path(&self.path), errno))
        } else {
            self.read_slice()
        };
        let payload = payload.transpose()?;
        Some(payload.map(|payload| ReadFileResponse {
            payload: Some(payload),
        }))
    }

    /// Reads the next slice of the file.
    fn read_slice(&mut self) -> Result<Option<Payload>, Error> {
        let length = self.left.min(SLICE_BYTES as u64);
        let mut data = Vec::with_capacity(usize::try_from(length).unwrap_or(SLICE_BYTES));
        let read = (&self.file)
            .take(length)
            .read_to_end(&mut data)
            .map_err(|error| {
                let errno = error.raw_os_error().map_or(Errno::EIO, Errno::from_raw);
                Error::file(&display_path(&self.path), errno)
            })?;
        self.left -= read as u64;
        Ok((read > 0).then(|| Payload::Data(data.into())))
    }
}
