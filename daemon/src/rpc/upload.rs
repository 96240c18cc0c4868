//! A client's stream as the guest's: messages are checked and passed on as they come, one at a time, so that
//! HTTP/2's windows are the only buffer. A stream that ends well ends the guest's; one that breaks must not look
//! like that, so it never ends at all: the failure goes to the handler, which drops the call and so resets it.

use std::pin::Pin;
use std::task::{Context, Poll};

use futures::Stream;
use skilld_proto::guest::v1 as guest;
use skilld_proto::v1 as pb;
use tokio::sync::oneshot;
use tonic::Streaming;

use super::convert::file as wire;
use crate::error::Error;

/// The guest's half.
#[derive(Debug)]
pub struct Upload {
    header: Option<guest::PutFilesHeader>,
    client: Streaming<pb::StageFilesRequest>,
    /// For the error about a larger one.
    message_bytes_max: u64,
    /// Taken once it has failed.
    failed: Option<oneshot::Sender<Error>>,
}

/// Passes a client's stream on, beginning with `header`. The receiver hears of a failure; it is closed when the
/// stream ended well.
pub fn upload(
    header: guest::PutFilesHeader,
    client: Streaming<pb::StageFilesRequest>,
    message_bytes_max: u64,
) -> (Upload, oneshot::Receiver<Error>) {
    let (failed, failure) = oneshot::channel();
    let upload = Upload {
        header: Some(header),
        client,
        message_bytes_max,
        failed: Some(failed),
    };
    (upload, failure)
}

impl Stream for Upload {
    type Item = guest::PutFilesRequest;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if let Some(header) = self.header.take() {
            let payload = Some(guest::put_files_request::Payload::Header(header));
            return Poll::Ready(Some(guest::PutFilesRequest { payload }));
        }
        if self.failed.is_none() {
            return Poll::Pending;
        }
        let checked = match futures::ready!(Pin::new(&mut self.client).poll_next(cx)) {
            None => return Poll::Ready(None),
            Some(Ok(message)) => wire::stage_data(message),
            Some(Err(status)) => Err(broken(&status, self.message_bytes_max)),
        };
        match checked {
            Ok(request) => Poll::Ready(Some(request)),
            Err(error) => {
                let heard = self.failed.take().map(|failed| failed.send(error));
                tracing::debug!(heard = matches!(heard, Some(Ok(()))), "upload broke off");
                Poll::Pending
            }
        }
    }
}

/// A client's stream that cannot be read on: most often the client is gone and nobody hears this. A message that
/// is too large comes here too.
#[must_use]
pub fn broken(status: &tonic::Status, message_bytes_max: u64) -> Error {
    let message: String = status.message().chars().take(256).collect();
    if status.code() == tonic::Code::OutOfRange {
        let what = format!("a message of the stream ({message})");
        return Error::LimitExceeded {
            what,
            limit: message_bytes_max,
        };
    }
    Error::invalid("data", format!("the stream broke off: {message}"))
}
