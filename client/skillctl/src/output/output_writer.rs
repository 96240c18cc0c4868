//! Writes the output of an exec to stdout and stderr in a thread of its own.
//!
//! The next bytes are received while the last ones are written. Each piece is handed over whole: tokio's own stdout copies
//! it in small parts.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;

use bytes::Bytes;
use skilld_client::v1::OutputStream;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

/// Maximum number of pieces that wait to be written, each of at most 64 KiB.
const WAITING_MAX: usize = 4;

/// Number of the error of a pipe without a reader.
const EPIPE: i32 = 32;

/// Request to the thread.
#[derive(Debug)]
enum WriterRequest {
    Write(OutputStream, Bytes),
    /// Answered once everything before it was written.
    Flush(oneshot::Sender<()>),
}

/// Handle of the thread, which writes pieces in the order in which they are handed over, and ends at the first error.
#[derive(Debug)]
pub(crate) struct OutputWriter {
    requests: mpsc::Sender<WriterRequest>,
    writing: JoinHandle<io::Result<()>>,
    /// Number of the error that ended the thread; `None` while it runs.
    failure: Option<i32>,
}

impl OutputWriter {
    /// Starts the thread, which ends with the handle. Must be called within a runtime.
    #[expect(
        clippy::disallowed_methods,
        reason = "the handle keeps the task, which ends with it or at the first error"
    )]
    pub(crate) fn start() -> Self {
        let (requests, received) = mpsc::channel(WAITING_MAX);
        Self {
            requests,
            writing: tokio::task::spawn_blocking(move || write_all(received)),
            failure: None,
        }
    }

    /// Hands over a piece. Waits while too many are waiting to be written.
    ///
    /// # Errors
    /// The error of an earlier write.
    pub(crate) async fn write(&mut self, stream: OutputStream, bytes: Bytes) -> io::Result<()> {
        self.request(WriterRequest::Write(stream, bytes)).await
    }

    /// Waits until everything was written.
    ///
    /// # Errors
    /// The error of a write.
    pub(crate) async fn flush(&mut self) -> io::Result<()> {
        let (done, flushed) = oneshot::channel();
        self.request(WriterRequest::Flush(done)).await?;
        match flushed.await {
            Ok(()) => Ok(()),
            Err(_) => Err(self.failed().await),
        }
    }

    /// Waits for an error of a write.
    pub(crate) async fn failed(&mut self) -> io::Error {
        if let Some(number) = self.failure {
            return io::Error::from_raw_os_error(number);
        }
        let error = match (&mut self.writing).await {
            // It ends only with an error while its handle exists.
            Ok(Ok(())) => io::Error::from(io::ErrorKind::BrokenPipe),
            Ok(Err(error)) => error,
            Err(error) => error.into(),
        };
        self.failure = Some(error.raw_os_error().unwrap_or(EPIPE));
        error
    }

    async fn request(&mut self, request: WriterRequest) -> io::Result<()> {
        match self.requests.send(request).await {
            Ok(()) => Ok(()),
            Err(_) => Err(self.failed().await),
        }
    }
}

/// Writes what is handed over until there is no handle any more.
fn write_all(mut requests: mpsc::Receiver<WriterRequest>) -> io::Result<()> {
    // Written without the buffer of `Stdout`, which searches every piece for its last line end.
    let mut stdout = File::from(io::stdout().as_fd().try_clone_to_owned()?);
    while let Some(request) = requests.blocking_recv() {
        match request {
            WriterRequest::Write(OutputStream::Stderr, bytes) => io::stderr().write_all(&bytes)?,
            WriterRequest::Write(OutputStream::Stdout | OutputStream::Unspecified, bytes) => {
                io::stdout().flush()?;
                stdout.write_all(&bytes)?;
            }
            WriterRequest::Flush(done) => {
                // The handle may have stopped waiting.
                let _ = done.send(());
            }
        }
    }
    Ok(())
}
