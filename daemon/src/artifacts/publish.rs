//! Which versions of an artifact there are: the next number for bytes that are safe, and deletions. Both take turns for
//! one name, in this daemon; between daemons it is the store that says who was first.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::{Duration, SystemTime};

use futures::TryStreamExt;
use object_store::path::Path;
use tokio::sync::MutexGuard;

use super::record::Record;
use super::store::{Created, changing};
use super::upload::{Upload, Written};
use super::{AT_ONCE, Artifact, Inner, LOCKS, Name, Scope, index, key, not_found};
use crate::error::{Chain, Error, Result};
use crate::fault::{self, Point};

/// Whoever has a turn asks the store a few times, with a deadline each time; so this is for a store that hardly answers.
const TURN_TIMEOUT: Duration = Duration::from_secs(5 * 60);
/// How often a save tries to get a number while others, in other daemons, take them first.
const PUBLISH_ATTEMPTS: u32 = 200;
/// Longest wait between two of these.
const PUBLISH_PAUSE_MAX: Duration = Duration::from_millis(100);

impl Inner {
    /// A turn to change which versions of a name there are.
    async fn turn(&self, records: &Path) -> Result<Option<MutexGuard<'_, ()>>> {
        let mut hasher = DefaultHasher::new();
        records.as_ref().hash(&mut hasher);
        let lock = usize::try_from(hasher.finish() % LOCKS as u64).unwrap_or_default();
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

    /// Gives bytes that are safe the next number, and ends their upload.
    pub(super) async fn publish(
        &self,
        scope: &Scope,
        name: &Name,
        mime_type: Option<String>,
        written: &Written,
        upload: &mut Upload,
    ) -> Result<Artifact> {
        let records = key::name(&self.store.base, scope, name);
        let _turn = self.turn(&records).await?;
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
        let artifact = self.number(&records, artifact, &id).await?;
        fault::reach(Point::SavePublished);
        // Within the turn: whoever deletes the version puts the same marker there again.
        upload.done().await;
        Ok(artifact)
    }

    /// Gives the bytes under `data` the next number.
    async fn number(&self, records: &Path, mut artifact: Artifact, data: &str) -> Result<Artifact> {
        let store = &self.store;
        for attempt in 0..PUBLISH_ATTEMPTS {
            let newest = index::newest(store, &artifact.scope, &artifact.name).await?;
            artifact.version = newest.map_or(0, |newest| newest.saturating_add(1));
            let path = key::version(records, artifact.version);
            let text = Record::new(&artifact, data).encode()?;
            match store
                .create(changing("publish the version"), &path, text)
                .await
            {
                Ok(Created::New) => return Ok(artifact),
                // Or by a request of ours whose answer was lost and which was sent again.
                Ok(Created::Taken) if self.is_certainly_ours(&artifact, data).await? => {
                    return Ok(artifact);
                }
                Ok(Created::Taken) => tokio::time::sleep(pause(attempt)).await,
                Err(error) => {
                    let ours = self.is_ours(&artifact, data).await;
                    return if matches!(ours, Ok(true)) {
                        Ok(artifact)
                    } else {
                        Err(error)
                    };
                }
            }
        }
        Err(Error::Storage {
            operation: "publish the version",
            why: "others were faster each time",
        })
    }

    /// The same where a failure leaves it open whether it was published.
    async fn is_certainly_ours(&self, artifact: &Artifact, data: &str) -> Result<bool> {
        let ours = self.is_ours(artifact, data).await;
        ours.map_err(|error| {
            tracing::warn!(error = %Chain(&error), "whose version it is cannot be told");
            Error::StorageUnsure {
                operation: "publish the version",
                why: "somebody has it, and the store does not say who",
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
        let record = Record::read(&self.store, scope, name, *version).await?;
        Ok(record.is_some_and(|record| record.data == data))
    }

    pub(super) async fn delete(
        &self,
        scope: &Scope,
        name: &Name,
        version: Option<u64>,
    ) -> Result<()> {
        let records = key::name(&self.store.base, scope, name);
        if let Some(version) = version {
            let _turn = self.turn(&records).await?;
            return match self.delete_one(scope, name, version).await? {
                true => Ok(()),
                false => Err(not_found(name, Some(version))),
            };
        }
        let all = index::versions(&self.store, scope, name, None, usize::MAX - 1).await?;
        if all.is_empty() {
            return Err(not_found(name, None));
        }
        for some in all.chunks(AT_ONCE) {
            // Others get theirs in between, and a daemon that stops need not wait for all of them.
            let _turn = self.turn(&records).await?;
            let deleting = futures::stream::iter(some.iter().map(Ok));
            deleting
                .try_for_each_concurrent(AT_ONCE, |version| async move {
                    self.delete_one(scope, name, *version).await.map(|_| ())
                })
                .await?;
        }
        Ok(())
    }

    /// True if it was there.
    async fn delete_one(&self, scope: &Scope, name: &Name, version: u64) -> Result<bool> {
        let store = &self.store;
        let path = key::version(&key::name(&store.base, scope, name), version);
        let remove = || store.remove(changing("delete the version"), &path);
        let record = match Record::read(store, scope, name, version).await {
            Ok(Some(record)) => record,
            Ok(None) => return Ok(false),
            Err(error @ Error::ArtifactDamaged { .. }) => {
                tracing::warn!(%error, "removed; where its bytes are is not known");
                return remove().await.map(|()| true);
            }
            Err(error) => return Err(error),
        };
        let upload = Upload::of(store, scope, name, &record.data).await?;
        fault::reach(Point::DiscardMarked);
        remove().await?;
        fault::reach(Point::DiscardUnpublished);
        // From here on it does not exist; what can't be removed now is removed later.
        upload.abort().await;
        Ok(true)
    }
}

/// Records have milliseconds: what a save answers is what a load finds.
fn now_ms() -> SystemTime {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let ms = u64::try_from(now.unwrap_or_default().as_millis()).unwrap_or(u64::MAX);
    SystemTime::UNIX_EPOCH + Duration::from_millis(ms)
}

/// A random pause that grows with the attempts.
fn pause(attempt: u32) -> Duration {
    let random = uuid::Uuid::new_v4().as_u128() % 1000;
    let most = Duration::from_millis(2).saturating_mul(attempt.saturating_add(1));
    let most = most.min(PUBLISH_PAUSE_MAX);
    most.mul_f64(random as f64 / 1000.0)
}
