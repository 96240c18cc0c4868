//! Publication and deletion of an artifact's versions. Within this daemon both take turns for one name; between daemons
//! the store decides who creates a record first.

use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime};

use futures::{StreamExt, TryStreamExt};
use object_store::path::Path;
use skilld_common::unix_time::{from_unix_ms, unix_ms};
use tokio::sync::{Mutex, OwnedMutexGuard};

use super::backend::{CreateOutcome, invisible_operation, is_disk_full, visible_operation};
use super::byte_ledger::{ByteReservation, SaveRoom};
use super::record::{FoundVersion, VersionRecord};
use super::retention::{ReferencedVersions, RemovalReason};
use super::upload::{ArtifactUpload, WrittenData, remove_data};
use super::{
    Artifact, ArtifactName, ArtifactScope, ArtifactVersionId, ArtifactsState, CONCURRENT_MAX,
    SaveOptions, key, listings, not_found,
};
use crate::error::{Chain, Error, Result};
use crate::fault;

/// Longest wait for a turn. Each holder sends a few requests with deadlines, so this is reached only with a slow store.
const TURN_TIMEOUT: Duration = Duration::from_secs(5 * 60);
/// Maximum number of attempts to create a record while other daemons take each number first.
const PUBLISH_ATTEMPTS: u32 = 200;
/// Longest pause between two attempts.
const PUBLISH_PAUSE_MAX: Duration = Duration::from_millis(100);

/// Number of the newest versions among which a repeated save finds the first one's.
const REPEATS_SEARCHED: u64 = 16;

/// Outcome of a save whose bytes are safe.
#[derive(Debug)]
pub(super) enum PublishOutcome {
    /// The bytes are a new version.
    New(Artifact),
    /// An earlier save with the same idempotency key has made this version, and the bytes are not needed.
    Repeated(Artifact),
}

/// Outcome of a removal for retention.
#[derive(Debug, Default)]
pub(super) struct DiscardOutcome {
    /// Number of removed versions.
    pub(super) count: u64,
    /// Bytes of removed versions.
    pub(super) bytes: u64,
    /// Number of versions that stay because something refers to them.
    pub(super) referenced: u64,
}

/// Error of a save whose idempotency key is that of an earlier save with other bytes.
pub(super) fn repeated_with_other_bytes() -> Error {
    let why = "is that of a save with other bytes: use a new one for each save";
    Error::invalid("header.request_id", why)
}

impl ArtifactsState {
    /// Waits for the turn to change the versions of a name.
    pub(super) async fn acquire_turn(&self, records: &Path) -> Result<OwnedMutexGuard<()>> {
        let turn = self.name_lock(records).lock_owned();
        tokio::select! {
            // A stop counts first, so that it ends a deletion of many versions: this takes a turn for every batch, and a
            // free turn is always ready.
            biased;
            () = self.store.tasks.stop.cancelled() => Err(Error::Draining),
            turn = tokio::time::timeout(TURN_TIMEOUT, turn) => {
                turn.map_err(|_| Error::deadline("waiting for others to change the artifact"))
            }
        }
    }

    /// Returns the lock of a name. It exists for as long as something holds it or waits for it.
    fn name_lock(&self, records: &Path) -> Arc<Mutex<()>> {
        let mut locks = self.publishing.lock();
        if let Some(lock) = locks.get(records).and_then(Weak::upgrade) {
            return lock;
        }
        locks.retain(|_, lock| lock.strong_count() > 0);
        let lock: Arc<Mutex<()>> = Arc::default();
        locks.insert(records.clone(), Arc::downgrade(&lock));
        lock
    }

    /// Publishes safe bytes as the next version and removes the marker of their upload. `room` becomes the version's. A
    /// save that repeats an earlier one publishes nothing.
    pub(super) async fn publish(
        &self,
        scope: &ArtifactScope,
        name: &ArtifactName,
        save: SaveOptions,
        (written, room): (&WrittenData, SaveRoom),
        upload: &mut ArtifactUpload,
    ) -> Result<PublishOutcome> {
        let records = key::name_key(&self.store.base, scope, name);
        let _turn = self.acquire_turn(&records).await?;
        if let Some(first) = self.find_repeated(scope, name, &save).await? {
            return match first.sha256 == written.sha256 {
                true => Ok(PublishOutcome::Repeated(first.artifact(scope, name))),
                false => Err(repeated_with_other_bytes()),
            };
        }
        let room = match room {
            SaveRoom::Reserved(room) => room,
            // The first version was deleted in the meantime.
            SaveRoom::Repeated { .. } => {
                let (tenant, bytes) = (scope.tenant(), key::held_bytes(name, written.size));
                self.ledger.reserve(tenant, bytes, self.quotas(tenant))?
            }
        };
        let artifact = Artifact {
            name: name.clone(),
            scope: scope.clone(),
            version: 0,
            size: written.size,
            mime_type: save
                .mime_type
                .unwrap_or_else(|| written.mime_type.to_owned()),
            sha256: written.sha256.clone(),
            create_time: now_ms(),
        };
        let data = (upload.id.clone(), save.request_id);
        let artifact = self.create_record(&records, artifact, data, room).await?;
        fault::reach("save.published");
        // Before the turn ends, because a deletion of the version writes the same marker again.
        upload.remove_marker().await;
        Ok(PublishOutcome::New(artifact))
    }

    /// Finds the version that an earlier save with the same idempotency key has made, among the newest ones.
    pub(super) async fn find_repeated(
        &self,
        scope: &ArtifactScope,
        name: &ArtifactName,
        save: &SaveOptions,
    ) -> Result<Option<VersionRecord>> {
        let Some(request_id) = save.request_id.as_deref() else {
            return Ok(None);
        };
        let newest = listings::find_newest_version(&self.store, scope, name).await?;
        let Some(newest) = newest else {
            return Ok(None);
        };
        for version in (newest.saturating_sub(REPEATS_SEARCHED - 1)..=newest).rev() {
            match VersionRecord::read(&self.store, scope, name, version).await {
                Ok(Some(record)) if record.request_id.as_deref() == Some(request_id) => {
                    return Ok(Some(record));
                }
                Ok(_) | Err(Error::ArtifactDamaged { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    /// Creates the record of the next free version for the bytes with id `data`, which take `room`.
    async fn create_record(
        &self,
        records: &Path,
        mut artifact: Artifact,
        (data, request_id): (String, Option<String>),
        room: ByteReservation,
    ) -> Result<Artifact> {
        let store = &self.store;
        for attempt in 0..PUBLISH_ATTEMPTS {
            let given =
                listings::find_version_numbers(store, &artifact.scope, &artifact.name).await?;
            artifact.version = given.next();
            let path = key::version_key(records, artifact.version);
            let mut record = VersionRecord::new(&artifact, &data);
            record.request_id.clone_from(&request_id);
            let text = record.encode()?;
            let change = self.ledger.begin_creation(&path);
            let created = store
                .create_object(visible_operation("publish the version"), &path, text)
                .await;
            let created = match created {
                Ok(CreateOutcome::New) => Ok(true),
                // The library may have repeated a request whose answer was lost, so the record can be this save's.
                Ok(CreateOutcome::Taken) => self.is_certainly_ours(&artifact, &data).await,
                Err(error) => match self.is_ours(&artifact, &data).await {
                    Ok(true) => Ok(true),
                    Ok(false) | Err(_) => Err(error),
                },
            };
            match created {
                Ok(true) => {
                    change.created(room);
                    return Ok(artifact);
                }
                Ok(false) => tokio::time::sleep(retry_pause(attempt)).await,
                Err(error) => {
                    // The version may exist. Its marker stays, and the cleanup of the marker asks for a new count.
                    if matches!(error, Error::StorageUnsure { .. }) {
                        change.created(room);
                    }
                    return Err(error);
                }
            }
        }
        Err(Error::Storage {
            operation: "publish the version",
            why: "others were faster each time",
        })
    }

    /// Returns `true` if the record is this save's. Fails with `StorageUnsure` if the store does not tell.
    async fn is_certainly_ours(&self, artifact: &Artifact, data: &str) -> Result<bool> {
        let ours = self.is_ours(artifact, data).await;
        ours.map_err(|error| {
            tracing::warn!(error = %Chain(&error), "owner of a version is unknown");
            Error::StorageUnsure {
                operation: "publish the version",
                why: "the version exists, and the store does not say whose it is",
            }
        })
    }

    async fn is_ours(&self, artifact: &Artifact, data: &str) -> Result<bool> {
        let Artifact {
            scope,
            name,
            version,
            ..
        } = artifact;
        let record = VersionRecord::read(&self.store, scope, name, *version).await?;
        Ok(record.is_some_and(|record| record.data == data))
    }

    pub(super) async fn delete(
        &self,
        scope: &ArtifactScope,
        name: &ArtifactName,
        version: Option<u64>,
    ) -> Result<()> {
        let records = key::name_key(&self.store.base, scope, name);
        if let Some(version) = version {
            let _turn = self.acquire_turn(&records).await?;
            return match self.delete_version(scope, name, version, None).await? {
                true => Ok(()),
                false => Err(not_found(name, Some(version))),
            };
        }
        let all = listings::list_versions(&self.store, scope, name, None, usize::MAX - 1).await?;
        if all.is_empty() {
            return Err(not_found(name, None));
        }
        for some in all.chunks(CONCURRENT_MAX) {
            // A turn per batch lets other requests in between, and lets a stopping daemon end early.
            let _turn = self.acquire_turn(&records).await?;
            let deleting = futures::stream::iter(some.iter().map(Ok));
            deleting
                .try_for_each_concurrent(CONCURRENT_MAX, |version| async move {
                    let deleted = self.delete_version(scope, name, *version, None).await;
                    deleted.map(|_| ())
                })
                .await?;
        }
        Ok(())
    }

    /// Removes some versions of one artifact for retention, in ascending order of their numbers, which are never given
    /// again. A version stays if something refers to it meanwhile, if the reason for its removal is gone because others
    /// were deleted, or if it got its number from another one after the latter's deletion.
    pub(super) async fn discard(
        &self,
        versions: &[FoundVersion],
        reason: RemovalReason,
        referenced: &ReferencedVersions,
    ) -> Result<DiscardOutcome> {
        let mut outcome = DiscardOutcome::default();
        let Some(ArtifactVersionId { scope, name, .. }) = versions.first().map(|found| &found.id)
        else {
            return Ok(outcome);
        };
        let records = key::name_key(&self.store.base, scope, name);
        for chunk in versions.chunks(CONCURRENT_MAX) {
            let _turn = self.acquire_turn(&records).await?;
            let referenced_versions = referenced.collect();
            let is_referenced = |found: &FoundVersion| referenced_versions.contains(&found.id);
            let (stay, mut some): (Vec<_>, Vec<_>) = chunk.iter().cloned().partition(is_referenced);
            outcome.referenced += stay.len() as u64;
            while let Some(newest) = some.last()
                && !self.is_still_surplus(&newest.id, reason).await?
            {
                some.pop();
            }
            if let Some(last) = some.last() {
                match self.record_high_water(scope, name, last.id.version).await {
                    // The bytes of a version that goes make room for the mark. A crash now leaves a version that cannot be
                    // loaded, and that the next sweep removes.
                    Err(error) if is_disk_full(&error) => {
                        let data = key::data_key(&self.store.base, &last.data);
                        remove_data(&self.store, &data, None).await?;
                        self.record_high_water(scope, name, last.id.version).await?;
                    }
                    recorded => recorded?,
                }
            }
            let mut deleting = futures::stream::iter(some)
                .map(|found| async move {
                    let (version, data) = (found.id.version, found.data.as_str());
                    let deleted = self.delete_version(scope, name, version, Some(data)).await;
                    deleted.map(|existed| (found.size, existed))
                })
                .buffer_unordered(CONCURRENT_MAX);
            while let Some(deleted) = deleting.next().await {
                if let (bytes, true) = deleted? {
                    outcome.count += 1;
                    outcome.bytes += bytes;
                }
            }
        }
        Ok(outcome)
    }

    /// Writes the high-water mark that all numbers up to this one were given. It replaces lower ones.
    async fn record_high_water(
        &self,
        scope: &ArtifactScope,
        name: &ArtifactName,
        version: u64,
    ) -> Result<()> {
        let store = &self.store;
        let operation = invisible_operation("record a high-water mark");
        let records = key::name_key(&store.base, scope, name);
        let numbers = listings::find_version_numbers(store, scope, name).await?;
        let known = numbers.high_waters;
        if known.iter().all(|number| *number < version) {
            let path = key::high_water_key(&records, version);
            store.write_object(operation, &path, Vec::new()).await?;
        }
        let highest = known.iter().copied().chain([version]).max();
        for lower in known.iter().filter(|number| Some(**number) < highest) {
            let lower = key::high_water_key(&records, *lower);
            store.remove_object(operation, &lower).await?;
        }
        Ok(())
    }

    /// Removes one version. Returns `false` if it does not exist, or is not of the save with the id `data` if that is given.
    async fn delete_version(
        &self,
        scope: &ArtifactScope,
        name: &ArtifactName,
        version: u64,
        data: Option<&str>,
    ) -> Result<bool> {
        let store = &self.store;
        let path = key::version_key(&key::name_key(&store.base, scope, name), version);
        let remove = || store.remove_object(visible_operation("delete the version"), &path);
        let record = match VersionRecord::read(store, scope, name, version).await {
            Ok(Some(record)) if data.is_none_or(|data| record.data == data) => record,
            Ok(_) => return Ok(false),
            Err(error @ Error::ArtifactDamaged { .. }) if data.is_none() => {
                tracing::warn!(%error, "removed a damaged record; its bytes cannot be found");
                // It may have been counted before it was damaged.
                self.ledger.request_recount();
                return remove().await.map(|()| true);
            }
            Err(error) => return Err(error),
        };
        let upload = match ArtifactUpload::of_published(store, scope, name, &record.data).await {
            Ok(upload) => Some(upload),
            // Without room for a marker the bytes go first, which makes room. A crash now leaves a version that cannot be
            // loaded, and can be deleted again.
            Err(error) if is_disk_full(&error) => {
                remove_data(store, &key::data_key(&store.base, &record.data), None).await?;
                None
            }
            Err(error) => return Err(error),
        };
        fault::reach("discard.marked");
        let held_bytes = key::held_bytes(name, record.size);
        let change = self.ledger.begin_removal(&path, scope.tenant(), held_bytes);
        if let Err(error) = remove().await {
            drop(change);
            self.ledger.request_recount();
            return Err(error);
        }
        change.removed();
        fault::reach("discard.unpublished");
        // The version no longer exists; bytes that cannot be removed now are left to the cleanup.
        if let Some(upload) = upload {
            upload.abort().await;
        }
        Ok(true)
    }
}

/// Returns the current time in milliseconds, the resolution of records, so that save and load report the same time.
fn now_ms() -> SystemTime {
    from_unix_ms(unix_ms(SystemTime::now()))
}

/// Returns a random pause that grows with the number of attempts, so that daemons which wanted the same number do not
/// meet again.
fn retry_pause(attempt: u32) -> Duration {
    let random = uuid::Uuid::new_v4().as_u128() % 1000;
    let most = Duration::from_millis(2)
        .saturating_mul(attempt.saturating_add(1))
        .min(PUBLISH_PAUSE_MAX);
    most.mul_f64(random as f64 / 1000.0)
}
