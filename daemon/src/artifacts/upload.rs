//! Upload of the bytes of one save. They have a key of their own, to which only the version's record will refer. Until
//! that record exists, a marker names the bytes, so that the cleanup after a crash finds them.

use std::pin::Pin;

use bytes::{Bytes, BytesMut};
use data_encoding::HEXLOWER;
use futures::{Stream, StreamExt};
use object_store::multipart::PartId;
use object_store::path::Path;
use object_store::{MultipartUpload, ObjectStoreExt, PutPayload};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use skilld_common::mime;
use tokio::time::{Duration, Instant};

use super::backend::{ArtifactBackend, StoreKind, invisible_operation};
use super::key;
use super::name::{ArtifactName, ArtifactScope};
use crate::access::TenantName;
use crate::error::{Chain, Error, Result};

/// Size of an upload part to a bucket, in bytes. S3 allows 10,000 parts, which limits an artifact to 78 GiB.
#[cfg(not(test))]
const BUCKET_PART_BYTES: usize = 8 << 20;
/// Size of an upload part in tests.
#[cfg(test)]
const BUCKET_PART_BYTES: usize = 1 << 20;
/// Size of an upload part to a directory, in bytes.
const DIRECTORY_PART_BYTES: usize = 1 << 20;
/// Number of leading bytes by which the MIME type is detected.
const HEAD_BYTES: usize = 8 << 10;
/// Interval at which a running save renews its marker.
const MARK_INTERVAL: Duration = Duration::from_secs(10 * 60);
/// Age of its own marker at which a save gives up, because the cleanup may soon remove its bytes. Far below
/// [`super::garbage::MARKER_AGE_MAX`].
const MARK_AGE_MAX: Duration = Duration::from_secs(30 * 60);

/// Number of bytes that a save must receive per [`PROGRESS_TIMEOUT`], because other saves wait for its permit.
const PROGRESS_BYTES: u64 = 512 << 10;
/// Total wait for the client in which [`PROGRESS_BYTES`], or the rest of the artifact, must come.
const PROGRESS_TIMEOUT: Duration = Duration::from_secs(120);

/// Error of a save whose client is too slow.
const TOO_SLOW: Error =
    Error::deadline("saving the artifact: fewer than 512 KiB came in 2 minutes");

/// Stored marker of a running save, by which the cleanup after a crash finds leftovers.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct SaveMarker {
    #[serde(default)]
    pub(super) tenant: TenantName,
    pub(super) app: String,
    pub(super) user: String,
    pub(super) session: String,
    pub(super) name: String,
    /// Id of a bucket's multipart upload; `None` for other uploads.
    pub(super) parts: Option<String>,
}

/// Properties of the bytes that were written.
#[derive(Debug)]
pub(super) struct WrittenData {
    pub(super) size: u64,
    pub(super) sha256: String,
    pub(super) mime_type: &'static str,
}

/// Running upload of the bytes of one artifact version into the object store.
#[derive(Debug)]
pub(super) struct ArtifactUpload {
    store: ArtifactBackend,
    /// Id of the bytes, for the record.
    pub(super) id: String,
    data: Path,
    pending: SaveMarker,
    marked: Instant,
    parts: Option<UploadParts>,
    /// Bytes of the next part. They are copied, because a received chunk may keep a much larger buffer alive.
    waiting: BytesMut,
    /// Set while the final write runs or after it failed: the bytes may still appear in the store.
    may_appear: bool,
}

/// Check that a client sends the bytes of a save fast enough.
#[derive(Debug, Default)]
struct UploadPace {
    bytes: u64,
    waited: Duration,
}

/// State of an upload in several parts.
#[derive(Debug)]
enum UploadParts {
    Directory(Box<dyn MultipartUpload>),
    Bucket { upload: String, done: Vec<PartId> },
}

impl ArtifactUpload {
    /// Begins an upload by writing its marker.
    pub(super) async fn begin(
        store: &ArtifactBackend,
        scope: &ArtifactScope,
        name: &ArtifactName,
    ) -> Result<Self> {
        let id = uuid::Uuid::now_v7().simple().to_string();
        Self::of_published(store, scope, name, &id).await
    }

    /// Creates the upload of a published save again, so that [`Self::abort`] removes its bytes.
    pub(super) async fn of_published(
        store: &ArtifactBackend,
        scope: &ArtifactScope,
        name: &ArtifactName,
        id: &str,
    ) -> Result<Self> {
        let mut upload = Self {
            store: store.clone(),
            data: key::data_key(&store.base, id),
            id: id.to_owned(),
            pending: SaveMarker {
                tenant: scope.tenant().clone(),
                app: scope.app().to_owned(),
                user: scope.user().to_owned(),
                session: scope.session().to_owned(),
                name: name.as_str().to_owned(),
                parts: None,
            },
            marked: Instant::now(),
            parts: None,
            waiting: BytesMut::new(),
            may_appear: false,
        };
        upload.write_marker().await?;
        Ok(upload)
    }

    async fn write_marker(&mut self) -> Result<()> {
        let text = serde_json::to_vec(&self.pending)
            .map_err(|error| Error::Internal(format!("marker: {error}")))?;
        let path = key::join_key(&key::markers_key(&self.store.base), &self.id);
        self.store
            .write_object(invisible_operation("begin a save"), &path, text)
            .await?;
        self.marked = Instant::now();
        Ok(())
    }

    /// Receives all bytes. They are safe once [`Self::finish`] has returned. The MIME type is detected from the first
    /// bytes and `name`. `take_room` gets the size so far before the bytes are written, and refuses what is too large.
    pub(super) async fn receive<S>(
        &mut self,
        name: &ArtifactName,
        data: S,
        mut take_room: impl FnMut(u64) -> Result<()> + Send,
    ) -> Result<WrittenData>
    where
        S: Stream<Item = Result<Bytes>> + Send,
    {
        let mut data = std::pin::pin!(data);
        let (mut hash, mut size, mut head) = (Sha256::new(), 0_u64, Vec::new());
        let mut pace = UploadPace::default();
        while let Some(chunk) = pace.next_chunk(data.as_mut()).await? {
            size = size.saturating_add(chunk.len() as u64);
            take_room(size)?;
            hash.update(&chunk);
            let lacks = HEAD_BYTES.saturating_sub(head.len());
            head.extend(chunk.iter().take(lacks));
            self.push(chunk).await?;
        }
        let sha256 = hash.finalize();
        Ok(WrittenData {
            size,
            sha256: HEXLOWER.encode(&sha256),
            mime_type: mime::mime_type(name.as_str().as_bytes(), &head),
        })
    }

    async fn push(&mut self, mut chunk: Bytes) -> Result<()> {
        let part_bytes = match self.store.kind {
            StoreKind::Directory { .. } => DIRECTORY_PART_BYTES,
            StoreKind::Bucket(_) => BUCKET_PART_BYTES,
        };
        while self.waiting.len() + chunk.len() > part_bytes {
            let rest = chunk.split_off(part_bytes.saturating_sub(self.waiting.len()));
            self.waiting.extend_from_slice(&chunk);
            self.write_part().await?;
            chunk = rest;
        }
        self.waiting.extend_from_slice(&chunk);
        if self.marked.elapsed() > MARK_INTERVAL {
            self.write_marker().await?;
        }
        Ok(())
    }

    fn take_waiting(&mut self) -> PutPayload {
        self.waiting.split().freeze().into()
    }

    /// Writes the waiting bytes as a part.
    async fn write_part(&mut self) -> Result<()> {
        let operation = invisible_operation("save the bytes");
        if self.parts.is_none() {
            self.parts = Some(self.begin_parts().await?);
        }
        let payload = self.take_waiting();
        match &mut self.parts {
            Some(UploadParts::Directory(upload)) => {
                self.store
                    .request_existing(operation, upload.put_part(payload))
                    .await
            }
            Some(UploadParts::Bucket { upload, done }) => {
                let StoreKind::Bucket(bucket) = &self.store.kind else {
                    return Err(Error::Internal("parts without a bucket".into()));
                };
                let put = bucket.put_part(&self.data, upload, done.len(), payload);
                done.push(self.store.request_existing(operation, put).await?);
                Ok(())
            }
            None => Err(Error::Internal("no parts".into())),
        }
    }

    /// Begins an upload in parts. A bucket keeps received parts until they are aborted, so the marker gets the upload's
    /// id.
    async fn begin_parts(&mut self) -> Result<UploadParts> {
        let operation = invisible_operation("save the bytes");
        let store = self.store.clone();
        match &store.kind {
            StoreKind::Directory { .. } => {
                let begun = store.objects.put_multipart(&self.data);
                Ok(UploadParts::Directory(
                    store.request_existing(operation, begun).await?,
                ))
            }
            StoreKind::Bucket(bucket) => {
                let begun = bucket.create_multipart(&self.data);
                let upload = store.request_existing(operation, begun).await?;
                self.pending.parts = Some(upload.clone());
                self.write_marker().await?;
                let done = Vec::new();
                Ok(UploadParts::Bucket { upload, done })
            }
        }
    }

    /// Writes the remaining bytes and completes the object. If this fails or is dropped, the object may still appear
    /// later.
    pub(super) async fn finish(&mut self) -> Result<()> {
        if self.parts.is_some() && !self.waiting.is_empty() {
            self.write_part().await?;
        }
        self.may_appear = true;
        let operation = invisible_operation("save the bytes");
        match self.parts.take() {
            None => {
                let payload = self.take_waiting();
                let put = self.store.objects.put(&self.data, payload);
                self.store.request_existing(operation, put).await?;
            }
            Some(UploadParts::Directory(mut upload)) => {
                self.store
                    .request_existing(operation, upload.complete())
                    .await?;
            }
            Some(UploadParts::Bucket { upload, done }) => {
                let StoreKind::Bucket(bucket) = &self.store.kind else {
                    return Err(Error::Internal("parts without a bucket".into()));
                };
                let complete = bucket.complete_multipart(&self.data, &upload, done);
                self.store.request_existing(operation, complete).await?;
            }
        }
        self.may_appear = false;
        Ok(())
    }

    /// Checks that the marker is young enough for the cleanup to have left the bytes alone.
    pub(super) fn check_age(&self) -> Result<()> {
        if self.marked.elapsed() < MARK_AGE_MAX {
            return Ok(());
        }
        Err(Error::deadline("saving the artifact"))
    }

    /// Removes the marker of a published save. A marker that stays does no harm.
    pub(super) async fn remove_marker(&mut self) {
        let path = key::join_key(&key::markers_key(&self.store.base), &self.id);
        drop(
            self.store
                .remove_object(invisible_operation("end a save"), &path)
                .await,
        );
    }

    /// Removes the bytes of the save, then its marker. The marker stays if the bytes could not be removed or may still
    /// appear, so that the cleanup removes them later.
    pub(super) async fn abort(mut self) {
        if let Some(UploadParts::Directory(mut upload)) = self.parts.take()
            && let Err(error) = upload.abort().await
        {
            tracing::debug!(error = %Chain(&error), "a half-written file stays for now");
        }
        let marker = key::join_key(&key::markers_key(&self.store.base), &self.id);
        let forgotten = remove_data(&self.store, &self.data, self.pending.parts.as_deref()).await;
        if forgotten.is_ok() && !self.may_appear {
            drop(
                self.store
                    .remove_object(invisible_operation("clean up"), &marker)
                    .await,
            );
        }
    }
}

impl UploadPace {
    /// Receives the next chunk, unless the client is too slow.
    async fn next_chunk<S>(&mut self, mut data: Pin<&mut S>) -> Result<Option<Bytes>>
    where
        S: Stream<Item = Result<Bytes>>,
    {
        let asked = Instant::now();
        let left = PROGRESS_TIMEOUT.saturating_sub(self.waited);
        let next = tokio::time::timeout(left, data.next()).await;
        let chunk = next.map_err(|_| TOO_SLOW)?.transpose()?;
        self.waited += asked.elapsed();
        self.bytes += chunk.as_ref().map_or(0, |chunk| chunk.len() as u64);
        if self.bytes >= PROGRESS_BYTES {
            *self = Self::default();
        }
        Ok(chunk)
    }
}

/// Removes the bytes of a save, including the parts of an incomplete one.
pub(super) async fn remove_data(
    store: &ArtifactBackend,
    data: &Path,
    parts: Option<&str>,
) -> Result<()> {
    let operation = invisible_operation("clean up");
    if let (Some(parts), StoreKind::Bucket(bucket)) = (parts, &store.kind) {
        // A completed upload no longer exists.
        store
            .request(operation, bucket.abort_multipart(data, &parts.to_owned()))
            .await?;
    }
    store.remove_object(operation, data).await
}
