//! Open file of any source, in one form. Sources are bytes of the request, artifacts, fetched files, and files of the
//! host and of workspaces.

use bytes::Bytes;
use data_encoding::HEXLOWER;
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};
use sha2::{Digest, Sha256};
use tokio::io::AsyncReadExt;
use tokio_util::io::ReaderStream;

use super::host_folder::HostFile;
use crate::error::{Error, InputSourceError, Result};

/// Default file permission bits.
pub(super) const FILE_MODE: u32 = 0o644;
/// Size of one read from a file of the host, in bytes.
const READ_BYTES: usize = 256 << 10;

/// Open file with its size, its permission bits and its bytes.
pub(super) struct SourceFileReader {
    pub(super) size: u64,
    pub(super) mode: u32,
    bytes: BoxStream<'static, Result<Bytes>>,
    /// Number of bytes that are missing.
    left: u64,
    sha256: Sha256,
}

impl SourceFileReader {
    /// Creates the source of a file. `bytes` must end, also if the file grows while it is read.
    pub(super) fn new(size: u64, mode: u32, bytes: BoxStream<'static, Result<Bytes>>) -> Self {
        Self {
            size,
            mode,
            bytes,
            left: size,
            sha256: Sha256::new(),
        }
    }

    /// Creates the source of bytes in memory.
    pub(super) fn from_bytes(data: &Bytes) -> Self {
        let bytes = stream::iter([Ok(data.clone())]).boxed();
        Self::new(data.len() as u64, FILE_MODE, bytes)
    }

    /// Creates the source of a file of the host. `from` is the reference that errors name.
    pub(super) fn from_host(file: HostFile, from: String) -> Self {
        let HostFile { file, size, mode } = file;
        let mut file = tokio::fs::File::from_std(file);
        file.set_max_buf_size(READ_BYTES);
        let pieces = ReaderStream::with_capacity(file.take(size), READ_BYTES);
        let bytes = pieces.map_err(move |error| Error::Source {
            from: from.clone(),
            fault: error.into(),
        });
        Self::new(size, mode, bytes.boxed())
    }

    /// Returns the next bytes; `None` at the end. Bytes beyond the announced size are dropped: the file has grown
    /// meanwhile.
    pub(super) async fn next_chunk(&mut self) -> Result<Option<Bytes>> {
        let Some(mut data) = self.bytes.next().await.transpose()? else {
            return Ok(None);
        };
        data.truncate(usize::try_from(self.left).unwrap_or(usize::MAX));
        self.left -= data.len() as u64;
        self.sha256.update(&data);
        Ok(Some(data))
    }

    /// Returns the SHA-256 of the bytes as 64 hex digits.
    ///
    /// # Errors
    /// [`InputSourceError::Changed`] if bytes are missing: the file has shrunk meanwhile.
    pub(super) fn finish(self) -> Result<String, InputSourceError> {
        if self.left > 0 {
            return Err(InputSourceError::Changed);
        }
        Ok(HEXLOWER.encode(&self.sha256.finalize()))
    }
}
