//! Publication and deletion of versions. Within this daemon both take turns for one name; between daemons the store
//! decides who creates a record first.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::{Duration, SystemTime};

use futures::{StreamExt, TryStreamExt};
use object_store::path::Path;
use tokio::sync::MutexGuard;

use super::backend::{CreateOutcome, invisible_operation, visible_operation};
use super::byte_ledger::ByteReservation;
use super::record::{FoundVersion, VersionRecord};
use super::retention::{ReferencedVersions, RemovalReason};
use super::upload::{ArtifactUpload, WrittenData};
use super::{
    Artifact, ArtifactName, ArtifactScope, ArtifactVersionId, ArtifactsState, CONCURRENT_MAX,
    NAME_LOCKS, key, listings, not_found,
};
use crate::error::{Chain, Error, Result};
use crate::fault::{self, Point};

/// Longest wait for a turn. Each holder sends a few requests with deadlines, so this is reached only with a slow store.
const TURN_TIMEOUT: Duration = Duration::from_secs(5 * 60);
/// Maximum number of attempts to create a record while other daemons take each number first.
const PUBLISH_ATTEMPTS: u32 = 200;
/// Longest pause between two attempts.
const PUBLISH_PAUSE_MAX: Duration = Duration::from_millis(100);

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

impl ArtifactsState {
    /// Waits for the turn to change the versions of a name.
    async fn acquire_turn(&self, records: &Path) -> Result<Option<MutexGuard<'_, ()>>> {
        let mut hasher = DefaultHasher::new();
        records.as_ref().hash(&mut hasher);
        let lock = usize::try_from(hasher.finish() % NAME_LOCKS as u64).unwrap_or_default();
        let Some(lock) = self.publishing.get(lock) else {
            return Ok(None);
        };
        tokio::select! {
            biased;
            () = self.store.tasks.stop.cancelled() => Err(Error::Draining),
            turn = tokio::time::timeout(TURN_TIMEOUT, lock.lock()) => {
                turn.map(Some).map_err(|_| Error::Deadline { doing: "waiting for others to change the artifact" })
            }
        }
    }

    /// Publishes safe bytes as the next version and removes the marker of their upload. `room` becomes the version's.
    pub(super) async fn publish(
        &self,
        scope: &ArtifactScope,
        name: &ArtifactName,
        mime_type: Option<String>,
        (written, room): (&WrittenData, ByteReservation),
        upload: &mut ArtifactUpload,
    ) -> Result<Artifact> {
        let records = key::name_key(&self.store.base, scope, name);
        let _turn = self.acquire_turn(&records).await?;
        let artifact = Artifact {
            name: name.clone(),
            scope: scope.clone(),
            version: 0,
            size: written.size,
            mime_type: mime_type.unwrap_or_else(|| written.mime_type.to_owned()),
            sha256: written.sha256.clone(),
            create_time: now_ms(),
        };
        let id = upload.id().to_owned();
        let artifact = self.create_record(&records, artifact, (&id, room)).await?;
        fault::reach(Point::SavePublished);
        // Before the turn ends, because a deletion of the version writes the same marker again.
        upload.remove_marker().await;
        Ok(artifact)
    }

    /// Creates the record of the next free version for the bytes with id `data`, which take `room`.
    async fn create_record(
        &self,
        records: &Path,
        mut artifact: Artifact,
        (data, room): (&str, ByteReservation),
    ) -> Result<Artifact> {
        let store = &self.store;
        for attempt in 0..PUBLISH_ATTEMPTS {
            let given =
                listings::find_version_numbers(store, &artifact.scope, &artifact.name).await?;
            artifact.version = given.next();
            let path = key::version_key(records, artifact.version);
            let text = VersionRecord::new(&artifact, data).encode()?;
            let change = self.ledger.begin_creation(&path);
            let created = store
                .create_object(visible_operation("publish the version"), &path, text)
                .await;
            let created = match created {
                Ok(CreateOutcome::New) => Ok(true),
                // The library may have repeated a request whose answer was lost, so the record can be this save's.
                Ok(CreateOutcome::Taken) => self.is_certainly_ours(&artifact, data).await,
                Err(error) => match self.is_ours(&artifact, data).await {
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
        for some in versions.chunks(CONCURRENT_MAX) {
            let _turn = self.acquire_turn(&records).await?;
            let referenced_versions = referenced.collect();
            let is_referenced = |found: &FoundVersion| referenced_versions.contains(&found.id);
            let some = some.iter().cloned();
            let (stay, mut some): (Vec<_>, Vec<_>) = some.partition(is_referenced);
            outcome.referenced += stay.len() as u64;
            while let Some(newest) = some.last()
                && !self.is_still_surplus(&newest.id, reason).await?
            {
                some.pop();
            }
            if let Some(last) = some.last() {
                self.record_high_water(scope, name, last.id.version).await?;
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
        let upload = ArtifactUpload::of_published(store, scope, name, &record.data).await?;
        fault::reach(Point::DiscardMarked);
        let change = self
            .ledger
            .begin_removal(&path, scope.tenant(), record.size);
        if let Err(error) = remove().await {
            drop(change);
            self.ledger.request_recount();
            return Err(error);
        }
        change.removed();
        fault::reach(Point::DiscardUnpublished);
        // The version no longer exists; bytes that cannot be removed now are left to the cleanup.
        upload.abort().await;
        Ok(true)
    }
}

/// Returns the current time in milliseconds, the resolution of records, so that save and load report the same time.
fn now_ms() -> SystemTime {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let ms = u64::try_from(now.unwrap_or_default().as_millis()).unwrap_or(u64::MAX);
    SystemTime::UNIX_EPOCH + Duration::from_millis(ms)
}

/// Returns a random pause that grows with the number of attempts.
fn retry_pause(attempt: u32) -> Duration {
    let random = uuid::Uuid::new_v4().as_u128() % 1000;
    let most = Duration::from_millis(2).saturating_mul(attempt.saturating_add(1));
    let most = most.min(PUBLISH_PAUSE_MAX);
    most.mul_f64(random as f64 / 1000.0)
}
