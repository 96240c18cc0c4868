//! An archive that is made while it is sent. One that breaks off must not look whole, so its stream then never ends:
//! dropping the call resets it.

use std::io;

use bytes::Bytes;
use data_encoding::HEXLOWER;
use futures::Stream;
use sha2::{Digest, Sha256};
use skilld_proto::guest::v1::put_files_request::Payload;
use skilld_proto::guest::v1::{PutFilesHeader, PutFilesRequest};
use tar::{Builder, EntryType, Header};
use tokio::sync::mpsc;

use crate::error::{Error, Result};

/// Of an archive.
const BLOCK: usize = 512;
const ZEROS: [u8; 2 * BLOCK] = [0; 2 * BLOCK];

enum Message {
    Data(Bytes),
    /// All of it was sent.
    End,
}

/// Makes the archive.
#[derive(Debug)]
pub(super) struct Packer {
    messages: mpsc::Sender<Message>,
}

/// A file that is being packed.
pub(super) struct Packing<'a> {
    packer: &'a mut Packer,
    size: u64,
    sent: u64,
    sha256: Sha256,
}

/// The archive's two ends: what makes it, and its bytes as the guest wants them.
pub(super) fn channel(
    ahead: usize,
    header: PutFilesHeader,
) -> (Packer, impl Stream<Item = PutFilesRequest> + Send + use<>) {
    let (messages, received) = mpsc::channel(ahead);
    let first = PutFilesRequest {
        payload: Some(Payload::Header(header)),
    };
    let stream = futures::stream::unfold((Some(first), received), async |(first, mut received)| {
        if let Some(first) = first {
            return Some((first, (None, received)));
        }
        match received.recv().await {
            Some(Message::Data(data)) => {
                let payload = Some(Payload::Data(data));
                Some((PutFilesRequest { payload }, (None, received)))
            }
            Some(Message::End) => None,
            None => std::future::pending().await,
        }
    });
    (Packer { messages }, stream)
}

impl Packer {
    /// A folder.
    pub(super) async fn folder(&mut self, path: &str, mode: u32) -> Result<()> {
        self.entry(path, EntryType::Directory, mode, 0, None).await
    }

    /// A symbolic link.
    pub(super) async fn link(&mut self, path: &str, target: &str) -> Result<()> {
        self.entry(path, EntryType::Symlink, 0o777, 0, Some(target))
            .await
    }

    /// A file of `size` bytes, which follow.
    pub(super) async fn file(&mut self, path: &str, mode: u32, size: u64) -> Result<Packing<'_>> {
        self.entry(path, EntryType::Regular, mode, size, None)
            .await?;
        Ok(Packing {
            packer: self,
            size,
            sent: 0,
            sha256: Sha256::new(),
        })
    }

    /// The archive is whole.
    pub(super) async fn finish(self) -> Result<()> {
        self.send(Message::Data(Bytes::from_static(&ZEROS))).await?;
        self.send(Message::End).await
    }

    async fn entry(
        &self,
        path: &str,
        kind: EntryType,
        mode: u32,
        size: u64,
        link: Option<&str>,
    ) -> Result<()> {
        let head = head(path, kind, mode, size, link).map_err(|source| Error::Io {
            operation: format!("pack {path}"),
            source,
        })?;
        self.send(Message::Data(head.into())).await
    }

    async fn send(&self, message: Message) -> Result<()> {
        if self.messages.send(message).await.is_ok() {
            return Ok(());
        }
        // The call has ended, and its answer says why: whoever drives both of them hears that instead.
        std::future::pending().await
    }
}

impl Packing<'_> {
    /// Whether bytes are missing.
    pub(super) fn wants(&self) -> bool {
        self.sent < self.size
    }

    /// Appends. What is more than the file's size is left out: it has grown meanwhile.
    pub(super) async fn data(&mut self, mut data: Bytes) -> Result<()> {
        let left = usize::try_from(self.size - self.sent).unwrap_or(usize::MAX);
        data.truncate(left);
        self.sent += data.len() as u64;
        self.sha256.update(&data);
        self.packer.send(Message::Data(data)).await
    }

    /// Closes the file: its digest, 64 hex digits. `None` if bytes are missing: it has shrunk meanwhile.
    pub(super) async fn finish(self) -> Result<Option<String>> {
        if self.sent < self.size {
            return Ok(None);
        }
        let over = usize::try_from(self.sent % BLOCK as u64).unwrap_or_default();
        if over > 0 {
            let padding = ZEROS.get(..BLOCK - over).unwrap_or_default();
            let padding = Message::Data(Bytes::from_static(padding));
            self.packer.send(padding).await?;
        }
        let digest = self.sha256.finalize();
        Ok(Some(HEXLOWER.encode(&digest)))
    }
}

/// An entry's header, with what a long name needs.
fn head(
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
