//! Packs an archive while it is sent. An incomplete archive must not look complete, so its stream never ends: the
//! caller drops the call, which resets the stream.

use std::io;

use bytes::Bytes;
use futures::Stream;
use skilld_proto::guest::v1::put_files_request::Payload;
use skilld_proto::guest::v1::{PutFilesHeader, PutFilesRequest};
use tar::{Builder, EntryType, Header};
use tokio::sync::mpsc;

use super::source_file_reader::SourceFileReader;
use crate::error::{Error, InputSourceError, Result};

/// Block size of tar, in bytes.
const BLOCK_BYTES: usize = 512;
const ZEROS: [u8; 2 * BLOCK_BYTES] = [0; 2 * BLOCK_BYTES];

enum ArchiveMessage {
    Data(Bytes),
    /// The archive is complete.
    End,
}

/// Writer of a tar archive that is sent to the guest while it is packed.
#[derive(Debug)]
pub(super) struct ArchivePacker {
    messages: mpsc::Sender<ArchiveMessage>,
}

/// Creates an archive: its packer, and the stream of requests for the guest's PutFiles.
pub(super) fn archive_channel(
    messages_max: usize,
    header: PutFilesHeader,
) -> (
    ArchivePacker,
    impl Stream<Item = PutFilesRequest> + Send + use<>,
) {
    let (messages, received) = mpsc::channel(messages_max);
    let first = PutFilesRequest {
        payload: Some(Payload::Header(header)),
    };
    let stream = futures::stream::unfold((Some(first), received), async |(first, mut received)| {
        if let Some(first) = first {
            return Some((first, (None, received)));
        }
        match received.recv().await {
            Some(ArchiveMessage::Data(data)) => {
                let payload = Some(Payload::Data(data));
                Some((PutFilesRequest { payload }, (None, received)))
            }
            Some(ArchiveMessage::End) => None,
            None => std::future::pending().await,
        }
    });
    (ArchivePacker { messages }, stream)
}

impl ArchivePacker {
    /// Adds a folder.
    pub(super) async fn add_folder(&mut self, path: &str, mode: u32) -> Result<()> {
        self.entry(path, EntryType::Directory, mode, 0, None).await
    }

    /// Adds a symbolic link.
    pub(super) async fn add_link(&mut self, path: &str, target: &str) -> Result<()> {
        self.entry(path, EntryType::Symlink, 0o777, 0, Some(target))
            .await
    }

    /// Adds a file with all its bytes. Returns its SHA-256, or the fault of a file that has shrunk.
    pub(super) async fn add_file(
        &mut self,
        path: &str,
        mut file: SourceFileReader,
    ) -> Result<Result<String, InputSourceError>> {
        let size = file.size;
        self.entry(path, EntryType::Regular, file.mode, size, None)
            .await?;
        while let Some(data) = file.next_chunk().await? {
            self.send(ArchiveMessage::Data(data)).await?;
        }
        let over = usize::try_from(size % BLOCK_BYTES as u64).unwrap_or_default();
        if over > 0 {
            let padding = ZEROS.get(..BLOCK_BYTES - over).unwrap_or_default();
            self.send(ArchiveMessage::Data(Bytes::from_static(padding)))
                .await?;
        }
        Ok(file.finish())
    }

    /// Completes the archive.
    pub(super) async fn finish(self) -> Result<()> {
        self.send(ArchiveMessage::Data(Bytes::from_static(&ZEROS)))
            .await?;
        self.send(ArchiveMessage::End).await
    }

    async fn entry(
        &self,
        path: &str,
        kind: EntryType,
        mode: u32,
        size: u64,
        link: Option<&str>,
    ) -> Result<()> {
        let head = encode_header(path, kind, mode, size, link)
            .map_err(|source| Error::io(format!("pack {path}"), source))?;
        self.send(ArchiveMessage::Data(head.into())).await
    }

    async fn send(&self, message: ArchiveMessage) -> Result<()> {
        if self.messages.send(message).await.is_ok() {
            return Ok(());
        }
        // The call has ended with an error. The caller waits for both futures and returns that error.
        std::future::pending().await
    }
}

/// Encodes the header of an entry, including the extension for a long name.
fn encode_header(
    path: &str,
    kind: EntryType,
    mode: u32,
    size: u64,
    link: Option<&str>,
) -> io::Result<Vec<u8>> {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_size(size);
    let mut builder = Builder::new(Vec::new());
    match link {
        Some(target) => builder.append_link(&mut header, path, target)?,
        None => builder.append_data(&mut header, path, io::empty())?,
    }
    Ok(builder.get_ref().clone())
}
