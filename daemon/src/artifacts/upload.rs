//! The bytes of one save on their way into the store. They are at a place of their own that nothing points to until
//! the version's record does; until then a marker says that they are there, for whoever has to clean up after a crash.

use std::pin::Pin;

use bytes::{Bytes, BytesMut};
use data_encoding::HEXLOWER;
use futures::{Stream, StreamExt};
use object_store::multipart::PartId;
use object_store::path::Path;
use object_store::{MultipartUpload, ObjectStoreExt, PutPayload};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tokio::time::{Duration, Instant};

use super::key;
use super::name::{Name, Scope};
use super::store::{Kind, Store, harmless};
use crate::error::{Chain, Error, Result};
use crate::mime;

/// Bytes of a part, in a bucket: ten thousand of them may make an object, so it bounds what can be saved to 78 GiB.
#[cfg(not(test))]
const BUCKET_PART_BYTES: usize = 8 << 20;
/// The tests' buckets take small ones.
#[cfg(test)]
const BUCKET_PART_BYTES: usize = 1 << 20;
/// In a directory, where parts are written one after the other.
const DIRECTORY_PART_BYTES: usize = 1 << 20;
/// So many bytes tell what a file is.
const HEAD_BYTES: usize = 8 << 10;
/// A save that goes on says so this often …
const MARK_INTERVAL: Duration = Duration::from_secs(10 * 60);
/// … and one that could not for this long may have been cleaned away: it gives up. Far below
/// [`super::garbage::AGE`].
const MARK_AGE_MAX: Duration = Duration::from_secs(30 * 60);

/// A save holds a place that others wait for: so many bytes have to come …
const PROGRESS_BYTES: u64 = 512 << 10;
/// … for so much of waiting for them, or the rest has.
const PROGRESS_TIMEOUT: Duration = Duration::from_secs(120);

/// Of a save that keeps others waiting.
const TOO_SLOW: Error = Error::Deadline {
    doing: "saving the artifact: fewer than 512 KiB came in 2 minutes",
};

/// What is on record of a save that is under way.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Pending {
    pub(super) app: String,
    pub(super) user: String,
    pub(super) session: String,
    pub(super) name: String,
    /// Of a bucket's upload in parts.
    pub(super) parts: Option<String>,
}

/// What came, as a whole.
#[derive(Debug)]
pub(super) struct Written {
    pub(super) size: u64,
    pub(super) sha256: String,
    pub(super) mime_type: &'static str,
}

/// One save.
#[derive(Debug)]
pub(super) struct Upload {
    store: Store,
    id: String,
    data: Path,
    pending: Pending,
    marked: Instant,
    parts: Option<Parts>,
    /// What comes next, not yet written. A copy: what came may be a byte of a large buffer each time.
    waiting: BytesMut,
    /// The bytes may come into place, now or later: nobody knows whether the write of them has ended.
    landing: bool,
}

/// How fast the bytes of a save come.
#[derive(Debug, Default)]
struct Pace {
    bytes: u64,
    waited: Duration,
}

/// More than one part.
#[derive(Debug)]
enum Parts {
    Directory(Box<dyn MultipartUpload>),
    Bucket { upload: String, done: Vec<PartId> },
}

impl Upload {
    /// Says that it is under way, before anything else.
    pub(super) async fn begin(store: &Store, scope: &Scope, name: &Name) -> Result<Self> {
        let id = uuid::Uuid::now_v7().simple().to_string();
        Self::of(store, scope, name, &id).await
    }

    /// The bytes of a save that was published, which are to be removed: aborting it does that.
    pub(super) async fn of(store: &Store, scope: &Scope, name: &Name, id: &str) -> Result<Self> {
        let id = id.to_owned();
        let mut upload = Self {
            store: store.clone(),
            data: key::data(&store.base, &id),
            id,
            pending: Pending {
                app: scope.app().to_owned(),
                user: scope.user().to_owned(),
                session: scope.session().to_owned(),
                name: name.as_str().to_owned(),
                parts: None,
            },
            marked: Instant::now(),
            parts: None,
            waiting: BytesMut::new(),
            landing: false,
        };
        upload.mark().await?;
        Ok(upload)
    }

    /// What a record has to point to.
    pub(super) fn id(&self) -> &str {
        &self.id
    }

    async fn mark(&mut self) -> Result<()> {
        let text = serde_json::to_vec(&self.pending)
            .map_err(|error| Error::Internal(format!("marker: {error}")))?;
        let path = key::join(&key::pending(&self.store.base), &self.id);
        self.store
            .write(harmless("begin a save"), &path, text)
            .await?;
        self.marked = Instant::now();
        Ok(())
    }

    /// Takes all of it; it is safe when [`Self::finish`] has returned. Its first bytes tell its type, together with
    /// `name`.
    pub(super) async fn write<S>(&mut self, name: &Name, data: S, bytes_max: u64) -> Result<Written>
    where
        S: Stream<Item = Result<Bytes>> + Send,
    {
        let mut data = std::pin::pin!(data);
        let (mut hash, mut size, mut head) = (Sha256::new(), 0_u64, Vec::new());
        let mut pace = Pace::default();
        while let Some(chunk) = pace.next(data.as_mut()).await? {
            size = size.saturating_add(chunk.len() as u64);
            if size > bytes_max {
                return Err(Error::LimitExceeded {
                    what: "the artifact (artifacts.bytes_max)".into(),
                    limit: bytes_max,
                });
            }
            hash.update(&chunk);
            let lacks = HEAD_BYTES.saturating_sub(head.len());
            head.extend(chunk.iter().take(lacks));
            self.push(chunk).await?;
        }
        let sha256 = hash.finalize();
        Ok(Written {
            size,
            sha256: HEXLOWER.encode(&sha256),
            mime_type: mime::mime_type(name.as_str().as_bytes(), &head),
        })
    }

    async fn push(&mut self, mut chunk: Bytes) -> Result<()> {
        let part_bytes = match self.store.kind {
            Kind::Directory { .. } => DIRECTORY_PART_BYTES,
            Kind::Bucket(_) => BUCKET_PART_BYTES,
        };
        while self.waiting.len() + chunk.len() > part_bytes {
            let rest = chunk.split_off(part_bytes.saturating_sub(self.waiting.len()));
            self.waiting.extend_from_slice(&chunk);
            self.part().await?;
            chunk = rest;
        }
        self.waiting.extend_from_slice(&chunk);
        if self.marked.elapsed() > MARK_INTERVAL {
            self.mark().await?;
        }
        Ok(())
    }

    fn take(&mut self) -> PutPayload {
        self.waiting.split().freeze().into()
    }

    /// Writes what waits as a part.
    async fn part(&mut self) -> Result<()> {
        let operation = harmless("save the bytes");
        if self.parts.is_none() {
            self.parts = Some(self.divide().await?);
        }
        let payload = self.take();
        match &mut self.parts {
            Some(Parts::Directory(upload)) => {
                self.store.must(operation, upload.put_part(payload)).await
            }
            Some(Parts::Bucket { upload, done }) => {
                let Kind::Bucket(bucket) = &self.store.kind else {
                    return Err(Error::Internal("parts without a bucket".into()));
                };
                let put = bucket.put_part(&self.data, upload, done.len(), payload);
                done.push(self.store.must(operation, put).await?);
                Ok(())
            }
            None => Err(Error::Internal("no parts".into())),
        }
    }

    /// Begins an upload in parts. A bucket keeps what came until it is told to forget it, so the marker has to say what.
    async fn divide(&mut self) -> Result<Parts> {
        let operation = harmless("save the bytes");
        let store = self.store.clone();
        match &store.kind {
            Kind::Directory { .. } => {
                let begun = store.objects.put_multipart(&self.data);
                Ok(Parts::Directory(store.must(operation, begun).await?))
            }
            Kind::Bucket(bucket) => {
                let begun = bucket.create_multipart(&self.data);
                let upload = store.must(operation, begun).await?;
                self.pending.parts = Some(upload.clone());
                self.mark().await?;
                let done = Vec::new();
                Ok(Parts::Bucket { upload, done })
            }
        }
    }

    /// Writes the rest and brings all of it into place. Whoever gives up on this, or is told that it failed, does not
    /// know whether that happens later.
    pub(super) async fn finish(&mut self) -> Result<()> {
        if self.parts.is_some() && !self.waiting.is_empty() {
            self.part().await?;
        }
        self.landing = true;
        let operation = harmless("save the bytes");
        match self.parts.take() {
            None => {
                let payload = self.take();
                let put = self.store.objects.put(&self.data, payload);
                self.store.must(operation, put).await?;
            }
            Some(Parts::Directory(mut upload)) => {
                self.store.must(operation, upload.complete()).await?;
            }
            Some(Parts::Bucket { upload, done }) => {
                let Kind::Bucket(bucket) = &self.store.kind else {
                    return Err(Error::Internal("parts without a bucket".into()));
                };
                let complete = bucket.complete_multipart(&self.data, &upload, done);
                self.store.must(operation, complete).await?;
            }
        }
        self.landing = false;
        Ok(())
    }

    /// Whether what was written is there for certain: nobody takes it for garbage as long as its marker is young.
    pub(super) fn check_age(&self) -> Result<()> {
        if self.marked.elapsed() < MARK_AGE_MAX {
            return Ok(());
        }
        Err(Error::Deadline {
            doing: "saving the artifact",
        })
    }

    /// It is published: the marker goes. That it stays does no harm.
    pub(super) async fn done(&mut self) {
        let path = key::join(&key::pending(&self.store.base), &self.id);
        drop(self.store.remove(harmless("end a save"), &path).await);
    }

    /// Nothing of it is to stay. What can't be removed now, or is not there yet, is removed later: the marker goes last,
    /// and stays where the bytes may still come.
    pub(super) async fn abort(mut self) {
        if let Some(Parts::Directory(mut upload)) = self.parts.take()
            && let Err(error) = upload.abort().await
        {
            tracing::debug!(error = %Chain(&error), "a half-written file stays for now");
        }
        let marker = key::join(&key::pending(&self.store.base), &self.id);
        let forgotten = forget(&self.store, &self.data, self.pending.parts.as_deref()).await;
        if forgotten.is_ok() && !self.landing {
            drop(self.store.remove(harmless("clean up"), &marker).await);
        }
    }
}

impl Pace {
    /// What comes next, if it comes in time.
    async fn next<S>(&mut self, mut data: Pin<&mut S>) -> Result<Option<Bytes>>
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

/// Removes the bytes of a save, those of a half one included.
pub(super) async fn forget(store: &Store, data: &Path, parts: Option<&str>) -> Result<()> {
    let operation = harmless("clean up");
    if let (Some(parts), Kind::Bucket(bucket)) = (parts, &store.kind) {
        // It is not there if it was completed.
        store
            .ask(operation, bucket.abort_multipart(data, &parts.to_owned()))
            .await?;
    }
    store.remove(operation, data).await
}
