//! Reading one file of a workspace.

use bytes::Bytes;
use skilld_proto::v1::read_file_response::Payload;
use skilld_proto::v1::{FileEntry, ReadFileRequest, ReadFileResponse};

use crate::names::workspace_name;
use crate::{Client, Error, Messages};

/// A file as it comes.
#[derive(Debug)]
pub struct FileReader {
    entry: FileEntry,
    messages: Messages<ReadFileResponse>,
}

impl FileReader {
    /// What is read; its size is the whole file's, whatever part was asked for.
    #[must_use]
    pub fn entry(&self) -> &FileEntry {
        &self.entry
    }

    /// The next bytes, at most 256 KiB; none at the end. Cancel safe.
    pub async fn next(&mut self) -> Result<Option<Bytes>, Error> {
        match self.messages.next().await?.map(|message| message.payload) {
            Some(Some(Payload::Data(data))) => Ok(Some(data)),
            Some(Some(Payload::File(_)) | None) => Err(Error::protocol(
                "it described a file in the middle of its bytes",
            )),
            None => Ok(None),
        }
    }
}

impl Client {
    /// Opens a file, or a part of it, for reading.
    pub async fn read_file(&self, mut request: ReadFileRequest) -> Result<FileReader, Error> {
        request.workspace = workspace_name(&request.workspace);
        let messages = self
            .retrying(|| {
                let (mut stub, request) = (self.files(), request.clone());
                async move { stub.read_file(request).await }
            })
            .await?;
        let mut messages = Messages::new(messages);
        match messages.next().await?.and_then(|first| first.payload) {
            Some(Payload::File(entry)) => Ok(FileReader { entry, messages }),
            Some(Payload::Data(_)) | None => {
                Err(Error::protocol("it did not describe the file first"))
            }
        }
    }
}
