//! Sending files into a workspace: bytes, a local file, a local directory, an archive.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use futures::{Stream, StreamExt, stream};
use skilld_proto::v1::stage_files_header::Kind;
use skilld_proto::v1::stage_files_request::Payload;
use skilld_proto::v1::{StageFilesHeader, StageFilesRequest, StageFilesResponse};
use tokio::io::AsyncRead;
use tokio::sync::oneshot;
use tokio_util::io::ReaderStream;

use crate::files::tree::Tree;
use crate::names::workspace_name;
use crate::{Client, Error};

/// Bytes of one data message; the server takes up to 1 MiB.
pub(crate) const CHUNK_BYTES: usize = 256 * 1024;

/// Told after each message how many bytes were handed to the connection, and of how many if that is known.
#[derive(Clone)]
pub struct Progress(Arc<dyn Fn(u64, Option<u64>) + Send + Sync>);

impl Progress {
    /// From a function of bytes so far and bytes in all. It is called often and must not block.
    pub fn new(tell: impl Fn(u64, Option<u64>) + Send + Sync + 'static) -> Self {
        Self(Arc::new(tell))
    }

    pub(crate) fn tell(&self, done: u64, total: Option<u64>) {
        (self.0)(done, total);
    }

    /// For those who do not want to know.
    #[must_use]
    pub fn none() -> Self {
        Self::new(|_, _| {})
    }
}

impl fmt::Debug for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Progress")
    }
}

/// What the bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StageKind {
    /// One file.
    File,
    /// A tar to unpack.
    Tar,
    /// A gzipped tar to unpack.
    TarGz,
}

/// Where bytes go and what they are.
#[derive(Clone, Debug)]
pub struct StageTarget {
    /// Id or name.
    pub workspace: String,
    /// File: its path. Archive: the directory to unpack into, empty for the workspace itself.
    pub path: String,
    /// What the bytes are.
    pub kind: StageKind,
    /// File only: permission bits; 0 means 0644.
    pub mode: u32,
    /// Checked by the server against the file, or against the archive's own bytes; empty: not checked.
    pub sha256: String,
    /// Told as bytes go.
    pub progress: Progress,
}

impl StageTarget {
    /// One file at `path`.
    #[must_use]
    pub fn file(workspace: &str, path: &str) -> Self {
        Self::new(workspace, path, StageKind::File)
    }

    /// A tar unpacked into `directory`.
    #[must_use]
    pub fn tar(workspace: &str, directory: &str) -> Self {
        Self::new(workspace, directory, StageKind::Tar)
    }

    /// A gzipped tar unpacked into `directory`.
    #[must_use]
    pub fn tar_gz(workspace: &str, directory: &str) -> Self {
        Self::new(workspace, directory, StageKind::TarGz)
    }

    fn new(workspace: &str, path: &str, kind: StageKind) -> Self {
        Self {
            workspace: workspace.to_owned(),
            path: path.to_owned(),
            kind,
            mode: 0,
            sha256: String::new(),
            progress: Progress::none(),
        }
    }

    fn header(&self) -> StageFilesRequest {
        let kind = match self.kind {
            StageKind::File => Kind::File,
            StageKind::Tar => Kind::Tar,
            StageKind::TarGz => Kind::TarGz,
        };
        StageFilesRequest {
            workspace: workspace_name(&self.workspace),
            payload: Some(Payload::Header(StageFilesHeader {
                kind: kind.into(),
                path: self.path.clone(),
                mode: self.mode,
                sha256: self.sha256.clone(),
            })),
        }
    }
}

impl Client {
    /// Sends bytes as one file.
    pub async fn stage_bytes(
        &self,
        workspace: &str,
        path: &str,
        data: impl Into<Bytes>,
    ) -> Result<StageFilesResponse, Error> {
        let source = io::Cursor::new(data.into());
        self.stage(StageTarget::file(workspace, path), source).await
    }

    /// Sends everything that `source` has, as one file or as an archive. If reading fails the server is
    /// told nothing but a broken stream, and leaves nothing.
    pub async fn stage(
        &self,
        target: StageTarget,
        source: impl AsyncRead + Send + Unpin + 'static,
    ) -> Result<StageFilesResponse, Error> {
        let chunks = ReaderStream::with_capacity(source, CHUNK_BYTES);
        let chunks = chunks.map(|chunk| {
            chunk.map_err(|source| Error::Io {
                path: PathBuf::from("-"),
                source,
            })
        });
        self.stage_chunks(target, chunks, None).await
    }

    /// Sends a local file, which becomes `target`, or a local directory, which becomes a directory of that
    /// name. Links in a directory are sent as links; the server refuses those that leave the workspace.
    pub async fn stage_path(
        &self,
        workspace: &str,
        local: &Path,
        target: &str,
        progress: Progress,
    ) -> Result<StageFilesResponse, Error> {
        let tree = Tree::walk(local).await?;
        let total = Some(tree.bytes());
        let mut to = match tree.single_file() {
            Some(mode) => StageTarget {
                mode,
                ..StageTarget::file(workspace, target)
            },
            None => StageTarget::tar(workspace, target),
        };
        to.progress = progress;
        self.stage_chunks(to, tree.into_chunks(CHUNK_BYTES), total)
            .await
    }

    async fn stage_chunks(
        &self,
        target: StageTarget,
        chunks: impl Stream<Item = Result<Bytes, Error>> + Send + 'static,
        total: Option<u64>,
    ) -> Result<StageFilesResponse, Error> {
        let (failed, failure) = oneshot::channel();
        let header = stream::once(std::future::ready(target.header()));
        let message = |data| StageFilesRequest {
            workspace: String::new(),
            payload: Some(Payload::Data(data)),
        };
        let data = data_messages(chunks, failed, target.progress, total, message);
        let mut stub = self.files();
        tokio::select! {
            biased;
            // Leaving the call unfinished resets the stream: the server must not take half for all.
            Ok(error) = failure => Err(error),
            answer = stub.stage_files(header.chain(data)) => Ok(answer?.into_inner()),
        }
    }
}

/// Messages of the chunks. On an error it is handed to `failed`, and the stream neither goes on nor ends.
pub(crate) fn data_messages<M: Send + 'static>(
    chunks: impl Stream<Item = Result<Bytes, Error>> + Send + 'static,
    failed: oneshot::Sender<Error>,
    progress: Progress,
    total: Option<u64>,
    message: fn(Bytes) -> M,
) -> impl Stream<Item = M> + Send + 'static {
    let start = (Box::pin(chunks), failed, 0_u64);
    stream::unfold(start, move |(mut chunks, failed, sent)| {
        let progress = progress.clone();
        async move {
            match chunks.next().await? {
                Ok(data) => {
                    let sent = sent + data.len() as u64;
                    progress.tell(sent, total);
                    Some((message(data), (chunks, failed, sent)))
                }
                Err(error) => {
                    // The receiver is gone only if the call is over, and then nobody polls this.
                    drop(failed.send(error));
                    std::future::pending().await
                }
            }
        }
    })
}
