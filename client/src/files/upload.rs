//! Sending files into a workspace: bytes, a local file, a local directory, an archive.

use std::fmt;
use std::future::ready;
use std::io::{self, BufWriter, Write};
use std::mem;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use futures::{Stream, StreamExt, TryStreamExt, stream};
use prost_types::Timestamp;
use skilld_proto::v1::SkipReason;
pub use skilld_proto::v1::StageFormat as UploadKind;
use skilld_proto::v1::stage_files_request::Payload;
use skilld_proto::v1::{SkippedFile, StageFilesHeader, StageFilesRequest, StageFilesResponse};
use tokio::io::AsyncRead;
use tokio::sync::oneshot;
use tokio_util::io::{ReaderStream, SyncIoBridge};
use tonic::{Response, Status};

use crate::error::io_error;
use crate::pack::{ArchivePlan, SkippedEntry};
use crate::resource_names::workspace_name;
use crate::{Client, Error};

/// Maximum size of the data in one upload message, in bytes; the server takes up to 1 MiB.
pub(crate) const CHUNK_BYTES: usize = 256 * 1024;
/// Maximum number of skipped entries that are named.
const SKIPPED_MAX: usize = 1000;

/// Function that is called after each message with the number of bytes sent so far, and of all bytes if that is known.
#[derive(Clone)]
pub struct TransferProgress(Arc<dyn Fn(u64, Option<u64>) + Send + Sync>);

impl TransferProgress {
    /// Creates a progress from a function of bytes so far and bytes in all. The function is called often and must not
    /// block.
    pub fn new(tell: impl Fn(u64, Option<u64>) + Send + Sync + 'static) -> Self {
        Self(Arc::new(tell))
    }

    /// Reports bytes so far and bytes in all.
    pub fn tell(&self, done: u64, total: Option<u64>) {
        (self.0)(done, total);
    }

    /// Returns a progress that reports nothing.
    #[must_use]
    pub fn none() -> Self {
        Self::new(|_, _| {})
    }
}

impl fmt::Debug for TransferProgress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TransferProgress")
    }
}

/// Destination and kind of an upload.
#[derive(Clone, Debug)]
pub struct UploadTarget {
    /// Id or name of the workspace.
    pub workspace: String,
    /// Path of the file, or directory that an archive is unpacked into; empty for the workspace itself.
    pub path: String,
    /// Kind of the bytes.
    pub kind: UploadKind,
    /// Permission bits of a file; `None` means 0644. Not used for archives.
    pub mode: Option<u32>,
    /// Modification time of a file; `None` means now. Not used for archives.
    pub modified: Option<SystemTime>,
    /// SHA-256 that the server checks against the file, or against the archive's own bytes; empty if it should not.
    pub sha256: String,
    /// Reports the bytes that were sent.
    pub progress: TransferProgress,
}

impl UploadTarget {
    /// Returns the target of a single file at `path`.
    #[must_use]
    pub fn file(workspace: &str, path: &str) -> Self {
        Self::new(workspace, path, UploadKind::File)
    }

    /// Returns the target of a tar that is unpacked into `directory`.
    #[must_use]
    pub fn tar(workspace: &str, directory: &str) -> Self {
        Self::new(workspace, directory, UploadKind::Tar)
    }

    fn new(workspace: &str, path: &str, kind: UploadKind) -> Self {
        Self {
            workspace: workspace.to_owned(),
            path: path.to_owned(),
            kind,
            mode: None,
            modified: None,
            sha256: String::new(),
            progress: TransferProgress::none(),
        }
    }

    fn header(&self) -> StageFilesRequest {
        StageFilesRequest {
            payload: Some(Payload::Header(StageFilesHeader {
                workspace: workspace_name(&self.workspace),
                format: self.kind.into(),
                path: self.path.clone(),
                mode: self.mode,
                sha256: self.sha256.clone(),
                modify_time: self.modified.map(Timestamp::from),
            })),
        }
    }
}

impl Client {
    /// Writes bytes into a workspace as one file.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if a local file cannot be read, [`Error::Status`] if the daemon refuses.
    pub async fn upload_bytes(
        &self,
        workspace: &str,
        path: &str,
        data: impl Into<Bytes>,
    ) -> Result<StageFilesResponse, Error> {
        let source = io::Cursor::new(data.into());
        self.upload(UploadTarget::file(workspace, path), source)
            .await
    }

    /// Sends everything that `source` has, as one file or as an archive. If reading fails, the server sees a broken
    /// stream and keeps nothing.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if a local file cannot be read, [`Error::Status`] if the daemon refuses.
    pub async fn upload(
        &self,
        target: UploadTarget,
        source: impl AsyncRead + Send + Unpin + 'static,
    ) -> Result<StageFilesResponse, Error> {
        self.upload_chunks(target, read_chunks(source), None).await
    }

    /// Sends a local file, which becomes `target`, or a local directory, which becomes a directory of that name or is
    /// merged into it. Modes and modification times are kept, and links are sent as links. FIFOs, sockets, devices and
    /// what may not be read are left out; `skipped` of the answer names them too, with their paths in the workspace.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if a local file cannot be read, [`Error::Status`] if the daemon refuses.
    pub async fn upload_path(
        &self,
        workspace: &str,
        local: &Path,
        target: &str,
        progress: TransferProgress,
    ) -> Result<StageFilesResponse, Error> {
        let root = local.to_owned();
        let mut plan = start_blocking(move || ArchivePlan::walk(&root, None)).await?;
        if plan.entries.is_empty() {
            let problem =
                "is neither a file nor a directory: send its bytes by stdin, with - as the source";
            return Err(io_error(local)(io::Error::other(problem)));
        }
        let total = Some(plan.bytes());
        let mut to = match plan.single_file().map(|file| &file.metadata) {
            Some(file) => UploadTarget {
                mode: Some(file.mode() & 0o777),
                modified: file.modified().ok(),
                ..UploadTarget::file(workspace, target)
            },
            None => UploadTarget::tar(workspace, target),
        };
        to.progress = progress;
        let skipped_total = i64::try_from(plan.skipped.len()).unwrap_or(i64::MAX);
        let mut skipped = skipped_files(mem::take(&mut plan.skipped), target);
        let mut answer = self.upload_chunks(to, pack_chunks(plan), total).await?;
        skipped.append(&mut answer.skipped_files);
        answer.skipped_files = skipped;
        answer.skipped_count += skipped_total;
        Ok(answer)
    }

    async fn upload_chunks(
        &self,
        target: UploadTarget,
        chunks: impl Stream<Item = Result<Bytes, Error>> + Send + 'static,
        total: Option<u64>,
    ) -> Result<StageFilesResponse, Error> {
        let header = target.header();
        let message = |data| StageFilesRequest {
            payload: Some(Payload::Data(data)),
        };
        let upload = Upload {
            header,
            message,
            progress: target.progress,
            total,
        };
        let (messages, failure) = upload.into_messages(chunks);
        let mut stub = self.files();
        finish_upload(stub.stage_files(messages), failure).await
    }
}

/// Runs work that blocks, on a thread of its own that starts at once.
#[expect(
    clippy::disallowed_methods,
    reason = "the work ends by itself: a walk at its limit, a packer when what it writes to is dropped"
)]
fn start_blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> impl Future<Output = Result<T, Error>> + Send + 'static {
    let task = tokio::task::spawn_blocking(work);
    async move {
        let ended = task.await;
        ended.unwrap_or_else(|error| Err(io_error(Path::new("-"))(error.into())))
    }
}

/// Packs an archive while its bytes are read, in chunks of one message each.
fn pack_chunks(plan: ArchivePlan) -> impl Stream<Item = Result<Bytes, Error>> + Send + 'static {
    let (reader, writer) = tokio::io::duplex(CHUNK_BYTES);
    let writer = BufWriter::with_capacity(CHUNK_BYTES, SyncIoBridge::new(writer));
    let packed = start_blocking(move || {
        let mut written = plan.write(writer)?;
        written.flush().map_err(io_error(Path::new("-")))
    });
    // The bytes end where the packer failed, too: without its error the server would take a part for all.
    let failure = stream::once(packed).filter_map(|ended| ready(ended.err().map(Err)));
    read_chunks(reader).chain(failure)
}

/// Converts the first entries that an upload leaves out. Unreadable files come first, because the user wanted them sent.
fn skipped_files(mut skipped: Vec<SkippedEntry>, target: &str) -> Vec<SkippedFile> {
    skipped.sort_by_key(|entry| entry.reason != SkipReason::Permission);
    let target = target.trim_end_matches('/');
    let named = skipped.into_iter().take(SKIPPED_MAX);
    named
        .map(|entry| SkippedFile {
            path: format!("{target}/{}", entry.path),
            reason: entry.reason.into(),
        })
        .collect()
}

/// Reads a source in chunks of one message each.
pub(crate) fn read_chunks(
    source: impl AsyncRead + Send + Unpin + 'static,
) -> impl Stream<Item = Result<Bytes, Error>> + Send + 'static {
    let chunks = ReaderStream::with_capacity(source, CHUNK_BYTES);
    chunks.map_err(|source| Error::Io {
        path: PathBuf::from("-"),
        source,
    })
}

/// Call that sends a header and then bytes.
pub(crate) struct Upload<M> {
    /// First message of the call, which describes the bytes.
    pub(crate) header: M,
    /// Function that wraps bytes in a message.
    pub(crate) message: fn(Bytes) -> M,
    pub(crate) progress: TransferProgress,
    /// Number of bytes to send, if it is known.
    pub(crate) total: Option<u64>,
}

impl<M: Send + 'static> Upload<M> {
    /// Returns the messages of the call. If a chunk is an error, they neither go on nor end, and the receiver gets the
    /// error.
    pub(crate) fn into_messages(
        self,
        chunks: impl Stream<Item = Result<Bytes, Error>> + Send + 'static,
    ) -> (
        impl Stream<Item = M> + Send + 'static,
        oneshot::Receiver<Error>,
    ) {
        let (failed, failure) = oneshot::channel();
        let start = (Box::pin(chunks), failed, 0_u64);
        let (message, progress, total) = (self.message, self.progress, self.total);
        let data = stream::unfold(start, move |(mut chunks, failed, sent)| {
            let progress = progress.clone();
            async move {
                match chunks.next().await? {
                    Ok(data) => {
                        let sent = sent + data.len() as u64;
                        progress.tell(sent, total);
                        Some((message(data), (chunks, failed, sent)))
                    }
                    Err(error) => {
                        // The receiver is gone only if the call is over, and then this stream is not polled.
                        drop(failed.send(error));
                        std::future::pending().await
                    }
                }
            }
        });
        (stream::iter([self.header]).chain(data), failure)
    }
}

/// Waits for the answer to an upload, or for the error that its messages met.
pub(crate) async fn finish_upload<R>(
    call: impl Future<Output = Result<Response<R>, Status>>,
    failure: oneshot::Receiver<Error>,
) -> Result<R, Error> {
    tokio::select! {
        biased;
        // Leaving the call unfinished resets the stream: the server must not take half for all.
        Ok(error) = failure => Err(error),
        answer = call => Ok(answer?.into_inner()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unreadable_file_is_named_among_any_number_of_others() {
        let entry = |path: &str, reason| SkippedEntry {
            path: path.to_owned(),
            reason,
            skip_reason: String::new(),
        };
        let mut skipped: Vec<_> = (0..=SKIPPED_MAX)
            .map(|_| entry("a", SkipReason::FileType))
            .collect();
        skipped.push(entry("secret", SkipReason::Permission));
        let named = skipped_files(skipped, "work/");
        assert_eq!(
            (named[0].path.as_str(), named.len()),
            ("work/secret", SKIPPED_MAX)
        );
    }

    #[tokio::test]
    async fn failure_of_the_packer_is_no_end_of_the_archive() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("file");
        std::fs::write(&file, "text").expect("writes");
        let plan = ArchivePlan::walk(dir.path(), None).expect("walked");
        std::fs::remove_file(&file).expect("removes");
        let chunks: Vec<_> = pack_chunks(plan).collect().await;
        let failure = chunks.last().expect("a chunk").as_ref();
        assert!(failure.is_err_and(|error| error.to_string().contains("file: ")));
    }
}
