//! Artifacts: named bytes with versions 0, 1, 2 … per scope. They outlive workspaces, in a directory or in a bucket.
//!
//! Steps of a save:
//!
//! ```text
//! write marker ──► write bytes under a unique id ──► create record of version n ──► remove marker
//!                                                     if version n exists: n + 1
//! ```
//!
//! The record makes the version visible. It is written after the bytes are safe, so no reader sees an incomplete
//! version. Creating it fails if it exists, so concurrent saves get different numbers, also from daemons that share a
//! store. A deletion takes the steps in reverse. Every crash leaves a marker, by which `garbage.rs` finds the
//! leftovers.
//!
//! `byte_ledger.rs` knows what each tenant holds and gives saves their room within the quotas; `retention.rs` removes
//! versions that the configuration does not keep.
//!
//! Bytes are streamed in both directions and never held in memory as a whole.

use std::collections::HashMap;
use std::path::Path as FilePath;
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{Stream, StreamExt, TryStreamExt};
use object_store::path::Path;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::access::{AccessControl, TenantName, TenantPermits};
use crate::config::{ArtifactStorage, ArtifactsConfig};
use crate::error::{Error, HostFault, Result};
use crate::host_paths::check_writable_directory;
use crate::shutdown::Tasks;
use crate::usage::UsageLedger;

mod backend;
mod byte_ledger;
mod counting;
mod garbage;
mod index_walk;
mod key;
mod listings;
mod load;
mod name;
mod publish;
mod record;
mod retention;
mod save;
mod upload;

#[cfg(test)]
mod tests;

pub use byte_ledger::HeldArtifacts;
pub use name::{
    ArtifactName, ArtifactRef, ArtifactScope, NAME_BYTES_MAX, RequestedScope, SCOPE_BYTES_MAX,
    VERSION_MAX,
};
pub use record::ArtifactVersionId;
pub use retention::ReferencedVersions;

use backend::{ArtifactBackend, StoreKind};
use byte_ledger::{ArtifactQuotas, ByteLedger};
use record::VersionRecord;
use retention::RetentionPolicy;

/// Maximum number of records that are read, or versions that are removed, at the same time.
const CONCURRENT_MAX: usize = 16;

/// Artifact service of the daemon. Clones share it.
#[derive(Debug, Clone)]
pub struct Artifacts(Arc<ArtifactsState>);

#[derive(Debug)]
struct ArtifactsState {
    store: Arc<ArtifactBackend>,
    bytes_max: u64,
    /// Longest wait of a save for its permit.
    patience: Duration,
    saves_max: usize,
    saves: TenantPermits,
    /// Locks of the names whose versions are being changed, by the key prefix of their records: saves of one name take
    /// turns instead of competing for a number. Tenants share no prefix, so none waits for another one's turn.
    publishing: Mutex<HashMap<Path, Weak<tokio::sync::Mutex<()>>>>,
    ledger: ByteLedger,
    retention: RetentionPolicy,
    /// Source of the tenants' quotas; `None` in tests without any.
    access: Option<Arc<AccessControl>>,
    /// Receives the sizes of saved versions; empty in tests.
    usage: OnceLock<UsageLedger>,
}

/// Version of an artifact, without its bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Artifact {
    /// Name under which the artifact was saved.
    pub name: ArtifactName,
    /// Effective scope: it has no session if the name begins with `user:`.
    pub scope: ArtifactScope,
    /// Version number, counted from 0.
    pub version: u64,
    /// Size in bytes.
    pub size: u64,
    /// MIME type, as given by the client or detected.
    pub mime_type: String,
    /// SHA-256 of the bytes, as 64 hex digits.
    pub sha256: String,
    /// Time at which the version became visible.
    pub create_time: SystemTime,
}

/// Options for saving an artifact: its MIME type, its expected SHA-256 and its idempotency key.
#[derive(Debug, Clone, Default)]
pub struct SaveOptions {
    /// MIME type; `None` detects it from the content, then from the name.
    pub mime_type: Option<String>,
    /// Expected SHA-256 as 64 hex digits; `None` skips the check.
    pub sha256: Option<String>,
    /// Key by which a repeated save finds the version of the first one; `None` always makes a new version.
    pub request_id: Option<String>,
}

/// Page of a listing of artifacts, with the position of the next page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArtifactPage<T> {
    /// Artifacts in the order of the listing.
    pub artifacts: Vec<Artifact>,
    /// Last entry of this page, after which the next page begins; `None` on the last page.
    pub next: Option<T>,
}

/// Bytes of an artifact in chunks of at most [`CHUNK_BYTES_MAX`]. Ends with an error if size or SHA-256 are wrong.
pub type ArtifactStream = BoxStream<'static, Result<Bytes>>;

pub use load::CHUNK_BYTES_MAX;

// === impl Artifacts ===

impl Artifacts {
    /// Checks that [`Self::open`] can use the store. Leaves nothing behind: it makes no directory, and an object that
    /// it makes in a bucket is removed.
    ///
    /// # Errors
    /// [`Error::Start`] with a remedy.
    pub async fn check(config: &ArtifactsConfig, tasks: &Tasks) -> Result<()> {
        let root = match &config.storage {
            // Others check the state directory.
            ArtifactStorage::StateDir => return Ok(()),
            ArtifactStorage::Directory(root) => root.clone(),
            ArtifactStorage::Bucket { .. } => {
                let bucket = ArtifactBackend::open(config, "unused".into(), true, tasks).await?;
                return bucket.probe().await;
            }
        };
        let check = move || match check_writable_directory(&root) {
            // A start goes on with a full or read-only disk: what exists can be loaded, and deleted to make room.
            Err(error) if HostFault::of(&error).is_none() => {
                Err(backend::start_error(format!("{}: {error}", root.display())))
            }
            Ok(()) | Err(_) => Ok(()),
        };
        tasks.blocking(check).await
    }

    /// Opens a store that [`Self::check`] found usable, and starts the cleanup of interrupted saves and the count of
    /// the bytes that tenants hold. `patience` is the longest wait of a save for its permit, and for the first count.
    ///
    /// # Errors
    /// [`Error::Start`] with a remedy.
    pub async fn open(
        config: &ArtifactsConfig,
        state_dir: &FilePath,
        patience: Duration,
        (access, tasks): (Option<Arc<AccessControl>>, &Tasks),
    ) -> Result<Self> {
        let store = ArtifactBackend::open(config, state_dir.join("artifacts"), true, tasks).await?;
        if let StoreKind::Directory { .. } = store.kind {
            store.probe().await?;
        }
        let artifacts = Self::over(store, config, patience, access);
        let (store, ledger) = (&artifacts.0.store, &artifacts.0.ledger);
        garbage::start_collection(Arc::clone(store), ledger.clone()).await?;
        counting::start_counting(Arc::clone(store), ledger.clone());
        Ok(artifacts)
    }

    fn over(
        store: ArtifactBackend,
        config: &ArtifactsConfig,
        patience: Duration,
        access: Option<Arc<AccessControl>>,
    ) -> Self {
        let is_shared = access.as_ref().is_some_and(|access| access.is_on());
        Self(Arc::new(ArtifactsState {
            store: Arc::new(store),
            bytes_max: config.bytes_max,
            patience,
            saves_max: config.saves_max,
            saves: TenantPermits::new(config.saves_max, is_shared),
            publishing: Mutex::default(),
            ledger: ByteLedger::default(),
            retention: RetentionPolicy::new(config),
            access,
            usage: OnceLock::new(),
        }))
    }

    /// Starts the sweeps that remove versions which the configuration does not keep, unless it keeps all. `referenced`
    /// returns the versions that something else needs: these stay.
    pub fn start_retention(&self, referenced: ReferencedVersions) {
        retention::start_sweeps(Arc::clone(&self.0), referenced);
    }

    /// Returns what a tenant's artifacts take: until all were counted after the start, what was found so far.
    pub fn held_by(&self, tenant: &TenantName) -> HeldArtifacts {
        self.0.ledger.used(tenant)
    }

    /// Returns `true` once the artifacts were counted after the start.
    pub fn is_counted(&self) -> bool {
        self.0.ledger.is_counted()
    }

    /// Sets the ledger that receives the sizes of saved versions. Only the first one counts.
    #[must_use]
    pub fn with_usage(self, usage: UsageLedger) -> Self {
        self.0.usage.get_or_init(|| usage);
        self
    }

    /// Returns a watch that is `true` if the store answered the last request.
    #[must_use]
    pub fn answers(&self) -> watch::Receiver<bool> {
        self.0.store.answers()
    }

    /// Sends a request to the store, so that [`Self::answers`] is up to date.
    pub async fn ping(&self) {
        self.0.store.ping().await;
    }

    /// Saves bytes as the next version. When this fails or is dropped, no version is created and nothing is left; after
    /// `StorageUnsure` the version may exist.
    ///
    /// # Errors
    /// Errors of `data`; `LimitExceeded`, `ChecksumMismatch`, `QuotaExceeded`, `TenantQuota`, `Draining`, `Storage`,
    /// `StorageUnsure`.
    pub async fn save<S>(
        &self,
        scope: &ArtifactScope,
        name: &ArtifactName,
        save: SaveOptions,
        data: S,
    ) -> Result<Artifact>
    where
        S: Stream<Item = Result<Bytes>> + Send + 'static,
    {
        let gone = CancellationToken::new();
        // When this future is dropped, the task still has to clean up, so the save runs in a task of its own.
        let _gone = gone.clone().drop_guard();
        let (inner, scope, name) = (Arc::clone(&self.0), scope.of(name), name.clone());
        let task = async move {
            let saved = inner.save(&scope, &name, save, data, gone).await?;
            if let Some(usage) = inner.usage.get() {
                usage.add_stored(scope.tenant(), saved.size);
            }
            Ok(saved)
        };
        let saved = self.0.store.tasks.spawn(task).await;
        saved.map_err(|error| Error::Internal(format!("save: {error}")))?
    }

    /// Returns one version with its bytes; the newest if `version` is `None`.
    ///
    /// # Errors
    /// `ArtifactNotFound`, `Storage`.
    pub async fn load(
        &self,
        scope: &ArtifactScope,
        name: &ArtifactName,
        version: Option<u64>,
    ) -> Result<(Artifact, ArtifactStream)> {
        let store = &self.0.store;
        let (artifact, record) = self.0.find(scope, name, version).await?;
        let absent = || not_found(name, version);
        let chunks = load::open_stream(store, &record.data, &artifact).await?;
        Ok((artifact, chunks.ok_or_else(absent)?))
    }

    /// Returns one version without its bytes; the newest if `version` is `None`.
    ///
    /// # Errors
    /// `ArtifactNotFound`, `Storage`.
    pub async fn get(
        &self,
        scope: &ArtifactScope,
        name: &ArtifactName,
        version: Option<u64>,
    ) -> Result<Artifact> {
        Ok(self.0.find(scope, name, version).await?.0)
    }

    /// Lists the newest version of each artifact by name, including those that all sessions of the scope's user share.
    /// Returns at most `limit` artifacts after `after`.
    ///
    /// # Errors
    /// `Storage`.
    pub async fn list(
        &self,
        scope: &ArtifactScope,
        after: Option<&ArtifactName>,
        limit: usize,
    ) -> Result<ArtifactPage<ArtifactName>> {
        let store = &self.0.store;
        let wanted = limit.saturating_add(1);
        let mut names = listings::list_names(store, scope, after, wanted).await?;
        let users = scope.without_session();
        if users != *scope {
            names.retain(|(name, _)| !name.is_shared_by_sessions());
            let shared = listings::list_names(store, &users, after, wanted).await?;
            names.extend(
                shared
                    .into_iter()
                    .filter(|(name, _)| name.is_shared_by_sessions()),
            );
            names.sort_unstable();
        }
        let more = names.len() > limit;
        names.truncate(limit);
        let next = names.last().map(|(name, _)| name.clone()).filter(|_| more);
        let found = futures::stream::iter(names)
            .map(|(name, version)| async move {
                match self.0.find(scope, &name, Some(version)).await {
                    // The version was removed meanwhile; an older one may be the newest now.
                    Err(Error::ArtifactNotFound { .. }) => {
                        listed_artifact(self.0.find(scope, &name, None).await)
                    }
                    found => listed_artifact(found),
                }
            })
            .buffered(CONCURRENT_MAX);
        let artifacts = found
            .try_filter_map(|found| async move { Ok(found) })
            .try_collect()
            .await?;
        Ok(ArtifactPage { artifacts, next })
    }

    /// Lists the versions of one artifact after `after`, oldest first, at most `limit`.
    ///
    /// # Errors
    /// `ArtifactNotFound` if the artifact has no version; `Storage`.
    pub async fn versions(
        &self,
        scope: &ArtifactScope,
        name: &ArtifactName,
        after: Option<u64>,
        limit: usize,
    ) -> Result<ArtifactPage<u64>> {
        let wanted = limit.saturating_add(1);
        let mut found = listings::list_versions(&self.0.store, scope, name, after, wanted).await?;
        if found.is_empty() && after.is_none() {
            return Err(not_found(name, None));
        }
        let more = found.len() > limit;
        found.truncate(limit);
        let next = found.last().copied().filter(|_| more);
        let read =
            futures::stream::iter(found)
                .map(|version| async move {
                    listed_artifact(self.0.find(scope, name, Some(version)).await)
                })
                .buffered(CONCURRENT_MAX);
        let artifacts = read
            .try_filter_map(|found| async move { Ok(found) })
            .try_collect()
            .await?;
        Ok(ArtifactPage { artifacts, next })
    }

    /// Removes one version, or all present ones, the oldest first. A concurrent save is not affected, unless a third
    /// call frees the newest numbers meanwhile.
    ///
    /// # Errors
    /// `ArtifactNotFound`, `Storage`, `StorageUnsure`; `Draining` when the daemon stopped before all were removed.
    pub async fn delete(
        &self,
        scope: &ArtifactScope,
        name: &ArtifactName,
        version: Option<u64>,
    ) -> Result<()> {
        let (inner, scope, name) = (Arc::clone(&self.0), scope.of(name), name.clone());
        // A deletion must complete, also when its caller has gone away.
        let task = async move { inner.delete(&scope, &name, version).await };
        let deleted = self.0.store.tasks.spawn(task).await;
        deleted.map_err(|error| Error::Internal(format!("delete: {error}")))?
    }
}

fn not_found(name: &ArtifactName, version: Option<u64>) -> Error {
    Error::ArtifactNotFound {
        name: name.as_str().to_owned(),
        version,
    }
}

/// Converts a lookup for a listing. Removed and damaged versions are left out, so that one of them does not hide the
/// others.
fn listed_artifact(found: Result<(Artifact, VersionRecord)>) -> Result<Option<Artifact>> {
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

// === impl ArtifactsState ===

impl ArtifactsState {
    async fn find(
        &self,
        scope: &ArtifactScope,
        name: &ArtifactName,
        version: Option<u64>,
    ) -> Result<(Artifact, VersionRecord)> {
        let found = match version {
            Some(version) => Some(version),
            None => listings::find_newest_version(&self.store, scope, name).await?,
        };
        let number = found.ok_or_else(|| not_found(name, version))?;
        let record = VersionRecord::read(&self.store, scope, name, number)
            .await?
            .ok_or_else(|| not_found(name, version))?;
        Ok((record.artifact(scope, name), record))
    }
}
