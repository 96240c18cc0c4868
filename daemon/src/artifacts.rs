//! Artifacts: named bytes with versions 0, 1, 2 … per scope, kept beyond a workspace, in a directory or in a bucket.
//!
//! A save goes so:
//!
//! ```text
//! marker ──► bytes, under an id of their own ──► record of version n ──► marker away
//!                                                 put if it is not there: else n + 1
//! ```
//!
//! The record makes the version visible, and is put only when the bytes are safe, so nobody sees half of one; that it
//! must not be there before gives each of many saves a number of its own, also between daemons that share a store.
//! A deletion goes the other way round. What a crash leaves has a marker: `garbage.rs` finds it by that.
//!
//! Bytes are streamed in both directions and never held as a whole.

use std::path::Path as FilePath;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{Stream, StreamExt, TryStreamExt};
use tokio::sync::{Mutex, Semaphore, watch};
use tokio_util::sync::CancellationToken;

use crate::config::ArtifactsConfig;
use crate::error::{Error, Result};
use crate::fault::{self, Point};
use crate::shutdown::Tasks;

mod garbage;
mod index;
mod key;
mod load;
mod name;
mod publish;
mod record;
mod store;
mod upload;

#[cfg(test)]
mod tests;

pub use name::{ArtifactRef, NAME_BYTES_MAX, Name, SCOPE_BYTES_MAX, Scope, VERSION_MAX};

use record::Record;
use store::Store;
use upload::{Upload, Written};

/// Saves of one name in this daemon publish one after the other, so that they do not fight for a number.
const LOCKS: usize = 64;
/// Records that are read, or versions that are removed, at once.
const AT_ONCE: usize = 16;

/// The artifacts of this daemon. Clones share them.
#[derive(Debug, Clone)]
pub struct Artifacts(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    store: Arc<Store>,
    bytes_max: u64,
    /// How long a save waits for its turn.
    patience: Duration,
    saves_max: usize,
    saves: Semaphore,
    publishing: Vec<Mutex<()>>,
}

/// One version of an artifact.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Artifact {
    /// As it was saved.
    pub name: Name,
    /// Where it really is: without a session if the name begins with `user:`.
    pub scope: Scope,
    /// 0, 1, 2 …
    pub version: u64,
    /// Bytes.
    pub size: u64,
    /// As given, or found out.
    pub mime_type: String,
    /// Of all bytes, 64 hex digits.
    pub sha256: String,
    /// When it was published.
    pub create_time: SystemTime,
}

/// What is known of what is saved.
#[derive(Debug, Clone, Default)]
pub struct Save {
    /// `None`: by content, with the name as tie-breaker.
    pub mime_type: Option<String>,
    /// Checked if given: 64 hex digits.
    pub sha256: Option<String>,
}

/// Some of a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page<T> {
    /// In order.
    pub artifacts: Vec<Artifact>,
    /// Where the rest begins: after this one.
    pub next: Option<T>,
}

/// Bytes of an artifact in pieces of at most [`CHUNK_BYTES_MAX`]. Ends with an error if they are not what was saved.
pub type Chunks = BoxStream<'static, Result<Bytes>>;

pub use load::CHUNK_BYTES_MAX;

// === impl Artifacts ===

impl Artifacts {
    /// Opens the store and checks that it can be used; begins to clean up what earlier runs left. `patience` is how long
    /// a save may wait for its turn.
    ///
    /// # Errors
    /// `Start`, saying what to do.
    pub async fn open(
        config: &ArtifactsConfig,
        state_dir: &FilePath,
        patience: Duration,
        tasks: &Tasks,
    ) -> Result<Self> {
        let store = Store::open(config, state_dir.join("artifacts"), true, tasks).await?;
        store.probe().await?;
        let artifacts = Self::over(store, config, patience);
        garbage::start(Arc::clone(&artifacts.0.store)).await?;
        Ok(artifacts)
    }

    fn over(store: Store, config: &ArtifactsConfig, patience: Duration) -> Self {
        Self(Arc::new(Inner {
            store: Arc::new(store),
            bytes_max: config.bytes_max,
            patience,
            saves_max: config.saves_max,
            saves: Semaphore::new(config.saves_max),
            publishing: std::iter::repeat_with(Mutex::default).take(LOCKS).collect(),
        }))
    }

    /// Whether the store answered the last request.
    #[must_use]
    pub fn answers(&self) -> watch::Receiver<bool> {
        self.0.store.answers()
    }

    /// Asks the store whether it is there; [`Self::answers`] has the answer.
    pub async fn ping(&self) {
        self.0.store.ping().await;
    }

    /// Saves bytes as the next version. When this fails, or is dropped, there is no new version and nothing stays;
    /// except `StorageUnsure`, which says that there may be one.
    ///
    /// # Errors
    /// Those of `data`; `LimitExceeded`, `ChecksumMismatch`, `QuotaExceeded`, `Draining`, `Storage`, `StorageUnsure`.
    pub async fn save<S>(&self, scope: &Scope, name: &Name, save: Save, data: S) -> Result<Artifact>
    where
        S: Stream<Item = Result<Bytes>> + Send + 'static,
    {
        let gone = CancellationToken::new();
        // Dropped with this future: then the task cleans up, which nobody here could wait for.
        let _gone = gone.clone().drop_guard();
        let (inner, scope, name) = (Arc::clone(&self.0), scope.of(name), name.clone());
        let task = async move { inner.save(&scope, &name, save, data, gone).await };
        let saved = self.0.store.tasks.spawn(task).await;
        saved.map_err(|error| Error::Internal(format!("save: {error}")))?
    }

    /// One version, and its bytes; the newest if none is named.
    ///
    /// # Errors
    /// `ArtifactNotFound`, `Storage`.
    pub async fn load(
        &self,
        scope: &Scope,
        name: &Name,
        version: Option<u64>,
    ) -> Result<(Artifact, Chunks)> {
        let store = &self.0.store;
        let (artifact, record) = self.0.find(scope, name, version).await?;
        let absent = || not_found(name, version);
        let chunks = load::chunks(store, &record.data, &artifact).await?;
        Ok((artifact, chunks.ok_or_else(absent)?))
    }

    /// One version without its bytes; the newest if none is named.
    ///
    /// # Errors
    /// `ArtifactNotFound`, `Storage`.
    pub async fn get(&self, scope: &Scope, name: &Name, version: Option<u64>) -> Result<Artifact> {
        Ok(self.0.find(scope, name, version).await?.0)
    }

    /// The newest versions in order of their names, those of the user that `scope` names among them: at most `limit` of
    /// those that come after `after`.
    ///
    /// # Errors
    /// `Storage`.
    pub async fn list(
        &self,
        scope: &Scope,
        after: Option<&Name>,
        limit: usize,
    ) -> Result<Page<Name>> {
        let store = &self.0.store;
        let wanted = limit.saturating_add(1);
        let mut names = index::names(store, scope, after, wanted).await?;
        let users = scope.users();
        if users != *scope {
            names.retain(|(name, _)| !name.is_users());
            let shared = index::names(store, &users, after, wanted).await?;
            names.extend(shared.into_iter().filter(|(name, _)| name.is_users()));
            names.sort_unstable();
        }
        let more = names.len() > limit;
        names.truncate(limit);
        let next = names.last().map(|(name, _)| name.clone()).filter(|_| more);
        let found = futures::stream::iter(names)
            .map(|(name, version)| async move {
                match self.0.find(scope, &name, Some(version)).await {
                    // It was removed a moment ago; an older one may be the newest now.
                    Err(Error::ArtifactNotFound { .. }) => {
                        listed(self.0.find(scope, &name, None).await)
                    }
                    found => listed(found),
                }
            })
            .buffered(AT_ONCE);
        let artifacts = found.try_filter_map(|found| async move { Ok(found) });
        let artifacts = artifacts.try_collect().await?;
        Ok(Page { artifacts, next })
    }

    /// The versions of one artifact, oldest first: at most `limit` of those after `after`.
    ///
    /// # Errors
    /// `ArtifactNotFound` if there is none at all; `Storage`.
    pub async fn versions(
        &self,
        scope: &Scope,
        name: &Name,
        after: Option<u64>,
        limit: usize,
    ) -> Result<Page<u64>> {
        let wanted = limit.saturating_add(1);
        let mut found = index::versions(&self.0.store, scope, name, after, wanted).await?;
        if found.is_empty() && after.is_none() {
            return Err(not_found(name, None));
        }
        let more = found.len() > limit;
        found.truncate(limit);
        let next = found.last().copied().filter(|_| more);
        let read = futures::stream::iter(found)
            .map(|version| async move { listed(self.0.find(scope, name, Some(version)).await) })
            .buffered(AT_ONCE);
        let artifacts = read.try_filter_map(|found| async move { Ok(found) });
        let artifacts = artifacts.try_collect().await?;
        Ok(Page { artifacts, next })
    }

    /// Removes one version, or all that there are now, the oldest first. A save at the same time is not affected, unless
    /// a third one frees the newest numbers meanwhile.
    ///
    /// # Errors
    /// `ArtifactNotFound`, `Storage`, `StorageUnsure`; `Draining` when some of them are left.
    pub async fn delete(&self, scope: &Scope, name: &Name, version: Option<u64>) -> Result<()> {
        let (inner, scope, name) = (Arc::clone(&self.0), scope.of(name), name.clone());
        // To its end, also when nobody waits for it any more.
        let task = async move { inner.delete(&scope, &name, version).await };
        let deleted = self.0.store.tasks.spawn(task).await;
        deleted.map_err(|error| Error::Internal(format!("delete: {error}")))?
    }
}

fn not_found(name: &Name, version: Option<u64>) -> Error {
    Error::ArtifactNotFound {
        name: name.as_str().to_owned(),
        version,
    }
}

/// As an entry of a list: what is gone has none, nor has what is damaged, which must not hide all others.
fn listed(found: Result<(Artifact, Record)>) -> Result<Option<Artifact>> {
    match found {
        Ok((artifact, _)) => Ok(Some(artifact)),
        Err(Error::ArtifactNotFound { .. }) => Ok(None),
        Err(error @ Error::ArtifactDamaged { .. }) => {
            tracing::error!(%error, "left out of a list");
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

// === impl Inner ===

impl Inner {
    async fn find(
        &self,
        scope: &Scope,
        name: &Name,
        version: Option<u64>,
    ) -> Result<(Artifact, Record)> {
        let found = match version {
            Some(version) => Some(version),
            None => index::newest(&self.store, scope, name).await?,
        };
        let number = found.ok_or_else(|| not_found(name, version))?;
        let record = Record::read(&self.store, scope, name, number).await?;
        let record = record.ok_or_else(|| not_found(name, version))?;
        Ok((record.artifact(scope, name), record))
    }

    async fn save<S>(
        &self,
        scope: &Scope,
        name: &Name,
        save: Save,
        data: S,
        gone: CancellationToken,
    ) -> Result<Artifact>
    where
        S: Stream<Item = Result<Bytes>> + Send,
    {
        let stop = &self.store.tasks.stop;
        let _place = tokio::select! {
            place = self.place() => place?,
            () = gone.cancelled() => return Err(CANCELLED),
            () = stop.cancelled() => return Err(Error::Draining),
        };
        let mut upload = Upload::begin(&self.store, scope, name).await?;
        fault::reach(Point::SaveMarked);
        let write = self.write(&mut upload, name, &save, data, &gone);
        let written = match write.await {
            Ok(written) => written,
            Err(error) => {
                upload.abort().await;
                return Err(error);
            }
        };
        fault::reach(Point::SaveWritten);
        match self
            .publish(scope, name, save.mime_type, &written, &mut upload)
            .await
        {
            Ok(artifact) => Ok(artifact),
            // It may be there: the marker and the bytes stay, and are looked at later.
            Err(error @ Error::StorageUnsure { .. }) => Err(error),
            Err(error) => {
                upload.abort().await;
                Err(error)
            }
        }
    }

    /// The bytes, safe.
    async fn write<S>(
        &self,
        upload: &mut Upload,
        name: &Name,
        save: &Save,
        data: S,
        gone: &CancellationToken,
    ) -> Result<Written>
    where
        S: Stream<Item = Result<Bytes>> + Send,
    {
        let stop = &self.store.tasks.stop;
        let written = tokio::select! {
            written = upload.write(name, data, self.bytes_max) => written,
            () = gone.cancelled() => Err(CANCELLED),
            () = stop.cancelled() => Err(Error::Draining),
        };
        let written = check(save.sha256.as_deref(), written?)?;
        // A write that was begun comes to its end, whoever waits for it, so it is waited for: what came after could not
        // be removed.
        tokio::select! {
            finished = upload.finish() => finished?,
            () = stop.cancelled() => return Err(Error::Draining),
        }
        if gone.is_cancelled() {
            return Err(CANCELLED);
        }
        upload.check_age()?;
        Ok(written)
    }

    /// A turn to save.
    async fn place(&self) -> Result<tokio::sync::SemaphorePermit<'_>> {
        let place = tokio::time::timeout(self.patience, self.saves.acquire()).await;
        let place = place.map_err(|_| Error::QuotaExceeded {
            subject: "saves of artifacts at once (artifacts.saves_max)".into(),
            limit: self.saves_max as u64,
        });
        place?.map_err(|_| Error::Draining)
    }
}

/// Whoever saved has gone away, and does not see this.
const CANCELLED: Error = Error::Deadline {
    doing: "saving the artifact",
};

fn check(sha256: Option<&str>, written: Written) -> Result<Written> {
    match sha256 {
        Some(expected) if !expected.eq_ignore_ascii_case(&written.sha256) => {
            Err(Error::ChecksumMismatch {
                expected: expected.to_owned(),
                actual: written.sha256,
            })
        }
        _ => Ok(written),
    }
}
