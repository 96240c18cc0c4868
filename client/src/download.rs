//! Downloads: the metadata of a file or artifact, and its bytes as the server sends them.

use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};

use crate::{Error, MessageStream};

/// Metadata of a file or artifact, and its bytes as they arrive. Dropping it ends the call.
pub struct Download<H> {
    header: H,
    data: BoxStream<'static, Result<Bytes, Error>>,
}

/// Content of one message of a download.
pub(crate) enum DownloadPart<H> {
    /// Metadata; comes first and once.
    Header(H),
    /// Bytes that follow the ones before.
    Data(Bytes),
}

impl<H> Download<H> {
    /// Reads the metadata. `part` takes the content out of a message.
    pub(crate) async fn open<M: Send + 'static>(
        messages: tonic::Streaming<M>,
        part: fn(M) -> Option<DownloadPart<H>>,
    ) -> Result<Self, Error>
    where
        H: 'static,
    {
        let mut messages = MessageStream::new(messages);
        let Some(DownloadPart::Header(header)) = messages.next().await?.and_then(part) else {
            return Err(Error::protocol("it did not describe the file first"));
        };
        let data = messages.map(move |message| match part(message?) {
            Some(DownloadPart::Data(data)) => Ok(data),
            Some(DownloadPart::Header(_)) | None => Err(Error::protocol(
                "it described a file in the middle of its bytes",
            )),
        });
        Ok(Self {
            header,
            data: data.boxed(),
        })
    }

    /// Returns the metadata of what is read. A size in it is that of the whole file even if only a part was requested.
    #[must_use]
    pub fn header(&self) -> &H {
        &self.header
    }

    /// Returns the next bytes, at most 256 KiB; `None` at the end, when all of them came. Cancel safe.
    ///
    /// # Errors
    ///
    /// [`Error::Status`] if the stream breaks or the daemon ends it with an error.
    pub async fn next(&mut self) -> Result<Option<Bytes>, Error> {
        self.data.try_next().await
    }

    /// Returns the metadata, and the rest of the bytes as a stream.
    #[must_use]
    pub fn into_parts(self) -> (H, BoxStream<'static, Result<Bytes, Error>>) {
        (self.header, self.data)
    }
}

impl<H: std::fmt::Debug> std::fmt::Debug for Download<H> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Download")
            .field("header", &self.header)
            .finish_non_exhaustive()
    }
}
