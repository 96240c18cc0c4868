//! Retention: sweeps that remove versions which the configuration does not keep, at start and at every interval.
//!
//! One walk over all records finds versions that are too old or too many of their artifact. If tenants hold too many
//! bytes after that, further walks find their oldest versions. A walk holds one page of records, or a bounded number of
//! oldest versions, and, in a directory, the listings of the levels that it is in. Removal is that of DeleteArtifact, so an interrupted sweep leaves every version whole or absent.
//!
//! A version number is never given again after retention removed it, because clients may still refer to it.

use std::collections::btree_map::{BTreeMap, Entry};
use std::collections::{BinaryHeap, HashSet};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use futures::StreamExt;
use object_store::path::Path;

use super::garbage::SWEEP_INTERVAL;
use super::index_walk::{IndexEntry, IndexWalk};
use super::record::{FoundVersion, VersionRecord};
use super::{ArtifactVersionId, ArtifactsState, CONCURRENT_MAX, listings};
use crate::access::TenantName;
use crate::config::ArtifactsConfig;
use crate::error::{Chain, Error, Result};

/// Maximum number of artifacts whose versions are removed at the same time.
const CONCURRENT_REMOVALS_MAX: usize = 4;
/// Maximum number of oldest versions that one walk collects, of all tenants together.
const OLDEST_MAX: usize = 10_000;

/// Returns the versions that something else refers to, which retention leaves alone.
#[derive(Clone)]
pub struct ReferencedVersions(Arc<dyn Fn() -> HashSet<ArtifactVersionId> + Send + Sync>);

/// Versions that the configuration keeps.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct RetentionPolicy {
    /// Age from which on a version is removed; `None` keeps all.
    pub(super) age: Option<Duration>,
    /// Number of newest versions of an artifact that are kept; `None` keeps all.
    pub(super) versions: Option<u64>,
    /// Bytes to which the artifacts of a tenant are reduced, as quotas count them; `None` keeps all.
    pub(super) bytes: Option<u64>,
}

/// Outcome of a sweep: numbers of versions, and bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct SweepOutcome {
    /// Versions that the sweep has looked at.
    pub(super) seen: u64,
    /// Versions that were too old or too many of their artifact.
    pub(super) expired: u64,
    /// Versions of tenants that held too many bytes.
    pub(super) displaced: u64,
    /// Bytes of all removed versions.
    pub(super) removed_bytes: u64,
    /// Versions that stay because something refers to them.
    pub(super) referenced: u64,
    /// Versions that could not be removed now.
    pub(super) failed: u64,
}

/// Reason why the policy does not keep a version.
#[derive(Debug, Clone, Copy)]
pub(super) enum RemovalReason {
    /// Age of the version.
    Age,
    /// Number of newer versions of its artifact: at least this many.
    Versions(u64),
    /// Bytes that its tenant holds: more than these.
    Bytes(u64),
}

/// Versions to remove, by the key prefix of their artifact.
type Victims = BTreeMap<Path, Vec<FoundVersion>>;

/// Old version in the heap of a walk. The youngest one is at the top.
#[derive(Debug, PartialEq, Eq)]
struct OldVersion {
    found: FoundVersion,
    records: Path,
}

/// Oldest versions of one tenant that together have the bytes of its excess.
#[derive(Debug)]
struct OldestVersions {
    /// Bytes of all versions of the tenant that the walk has found.
    held: u64,
    excess: u64,
    count_max: usize,
    bytes: u64,
    heap: BinaryHeap<OldVersion>,
}

/// Position of a walk among the versions of one artifact, whose newest comes first.
#[derive(Debug, Default)]
struct VersionRank {
    records: Option<Path>,
    newer: u64,
}

/// Starts the task that sweeps until the daemon stops, unless the policy keeps everything.
pub(super) fn start_sweeps(artifacts: Arc<ArtifactsState>, referenced: ReferencedVersions) {
    if artifacts.retention == RetentionPolicy::default() {
        return;
    }
    let (tasks, stop) = (
        artifacts.store.tasks.clone(),
        artifacts.store.tasks.stop.clone(),
    );
    let run = async move {
        loop {
            // The bytes of tenants are known only then.
            artifacts.ledger.wait_until_counted(Duration::MAX).await;
            if let Err(error) = artifacts.sweep(SystemTime::now(), &referenced).await {
                tracing::warn!(error = %Chain(&error), "artifacts were not swept to their end");
            }
            tokio::time::sleep(SWEEP_INTERVAL).await;
        }
    };
    tasks.spawn(stop.run_until_cancelled_owned(run));
}

// === impl ReferencedVersions ===

impl ReferencedVersions {
    /// Wraps the function that collects them.
    pub fn new(collect: impl Fn() -> HashSet<ArtifactVersionId> + Send + Sync + 'static) -> Self {
        Self(Arc::new(collect))
    }

    /// Returns the versions to which something refers now.
    pub(super) fn collect(&self) -> HashSet<ArtifactVersionId> {
        (self.0)()
    }
}

impl fmt::Debug for ReferencedVersions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ReferencedVersions")
    }
}

// === impl RetentionPolicy ===

impl RetentionPolicy {
    pub(super) fn new(config: &ArtifactsConfig) -> Self {
        Self {
            age: config.retention_age,
            versions: Some(config.retention_versions).filter(|versions| *versions > 0),
            bytes: config.retention_bytes,
        }
    }

    fn is_too_old(self, created: SystemTime, now: SystemTime) -> bool {
        let age = now.duration_since(created).unwrap_or_default();
        self.age.is_some_and(|limit| age >= limit)
    }

    fn is_too_many(self, newer: u64) -> bool {
        self.versions.is_some_and(|kept| newer >= kept)
    }
}

// === impl ArtifactsState ===

impl ArtifactsState {
    /// Removes the versions that the policy does not keep at this time.
    ///
    /// # Errors
    /// `Storage` if the records cannot be listed; `Draining`. Versions that cannot be removed are counted instead.
    pub(super) async fn sweep(
        &self,
        now: SystemTime,
        referenced: &ReferencedVersions,
    ) -> Result<SweepOutcome> {
        let begin = Instant::now();
        let mut outcome = SweepOutcome::default();
        if self.retention.age.is_some() || self.retention.versions.is_some() {
            self.sweep_expired(now, referenced, &mut outcome).await?;
        }
        if let Some(limit) = self.retention.bytes {
            while self.sweep_oldest(limit, referenced, &mut outcome).await? {}
        }
        let SweepOutcome {
            seen,
            expired,
            displaced,
            removed_bytes,
            ..
        } = outcome;
        tracing::info!(
            seen, expired, displaced, removed_bytes, referenced = outcome.referenced, failed = outcome.failed,
            took = ?begin.elapsed(), "swept artifacts"
        );
        Ok(outcome)
    }

    /// Removes versions that are too old or too many of their artifact.
    async fn sweep_expired(
        &self,
        now: SystemTime,
        referenced: &ReferencedVersions,
        outcome: &mut SweepOutcome,
    ) -> Result<()> {
        let (policy, mut rank) = (self.retention, VersionRank::default());
        let mut walk = IndexWalk::begin(&self.store).await?;
        while let Some(page) = walk.next_page().await? {
            outcome.seen += page.len() as u64;
            // The store's time saves reading most records. The record's own time decides.
            let candidates = page
                .into_iter()
                .map(|entry| (rank.next(&entry.key), entry))
                .filter(|(newer, entry)| {
                    policy.is_too_many(*newer) || policy.is_too_old(entry.written, now)
                });
            let mut found = self.read_records(candidates.collect(), outcome).await?;
            found.sort_unstable_by_key(|(newer, ..)| *newer);
            let (mut expired, mut surplus) = (Vec::new(), Vec::new());
            let mut readable = BTreeMap::<Path, u64>::new();
            for (newer, records, found) in found {
                let mut is_surplus = false;
                if let Some(kept) = policy.versions.filter(|kept| newer >= *kept) {
                    let readable = match readable.entry(records.clone()) {
                        Entry::Occupied(known) => known.into_mut(),
                        Entry::Vacant(none) => {
                            none.insert(self.count_readable_newer(&found.id, kept).await?)
                        }
                    };
                    is_surplus = *readable >= kept;
                    *readable += 1;
                }
                if policy.is_too_old(found.create_time, now) {
                    expired.push((records, found));
                } else if is_surplus {
                    surplus.push((records, found));
                }
            }
            let reason = RemovalReason::Age;
            outcome.expired += self.remove(expired, reason, referenced, outcome).await?;
            if let Some(kept) = policy.versions {
                let reason = RemovalReason::Versions(kept);
                outcome.expired += self.remove(surplus, reason, referenced, outcome).await?;
            }
        }
        Ok(())
    }

    /// Returns the number of newer versions of the same artifact whose records can be read, at most `count_max`. A damaged
    /// record keeps nothing, so it must not displace a version that can be loaded.
    async fn count_readable_newer(&self, id: &ArtifactVersionId, count_max: u64) -> Result<u64> {
        let ArtifactVersionId {
            scope,
            name,
            version,
        } = id;
        let listed = listings::list_versions(&self.store, scope, name, Some(*version), usize::MAX);
        let mut reading = futures::stream::iter(listed.await?)
            .map(|version| VersionRecord::read(&self.store, scope, name, version))
            .buffered(CONCURRENT_MAX);
        let mut readable = 0;
        while readable < count_max
            && let Some(read) = reading.next().await
        {
            match read {
                Ok(record) => readable += u64::from(record.is_some()),
                Err(Error::ArtifactDamaged { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(readable)
    }

    /// Returns `false` if the reason for removing a version is gone: what is newer, or other versions of its tenant, were
    /// deleted meanwhile.
    pub(super) async fn is_still_surplus(
        &self,
        id: &ArtifactVersionId,
        reason: RemovalReason,
    ) -> Result<bool> {
        Ok(match reason {
            RemovalReason::Age => true,
            RemovalReason::Versions(kept) => self.count_readable_newer(id, kept).await? >= kept,
            RemovalReason::Bytes(limit) => {
                let excess = self.ledger.excess_over(limit);
                excess.contains_key(id.scope.tenant())
            }
        })
    }

    /// Removes the oldest versions of tenants that hold too many bytes. Returns `true` if a further walk may find more.
    async fn sweep_oldest(
        &self,
        limit: u64,
        referenced: &ReferencedVersions,
        outcome: &mut SweepOutcome,
    ) -> Result<bool> {
        let excess = self.ledger.excess_over(limit);
        if excess.is_empty() {
            return Ok(false);
        }
        let referenced_versions = referenced.collect();
        let count_max = (OLDEST_MAX / excess.len()).max(1);
        let mut oldest: BTreeMap<TenantName, OldestVersions> = excess
            .into_iter()
            .map(|(tenant, excess)| {
                let oldest = OldestVersions {
                    held: 0,
                    excess,
                    count_max,
                    bytes: 0,
                    heap: BinaryHeap::new(),
                };
                (tenant, oldest)
            })
            .collect();
        let mut walk = IndexWalk::begin(&self.store).await?;
        while let Some(page) = walk.next_page().await? {
            outcome.seen += page.len() as u64;
            let candidates = page.into_iter().map(|entry| (0, entry)).collect();
            for (_, records, found) in self.read_records(candidates, outcome).await? {
                let Some(oldest) = oldest.get_mut(found.id.scope.tenant()) else {
                    continue;
                };
                oldest.held += found.held_bytes();
                if !referenced_versions.contains(&found.id) {
                    oldest.add(OldVersion { found, records });
                }
            }
        }
        let before = outcome.displaced;
        for mut oldest in oldest.into_values() {
            if oldest.reduce_excess(limit) {
                self.ledger.request_recount();
            }
            let victims = oldest.heap.into_iter().map(|old| (old.records, old.found));
            let (victims, reason) = (victims.collect(), RemovalReason::Bytes(limit));
            outcome.displaced += self.remove(victims, reason, referenced, outcome).await?;
        }
        Ok(outcome.displaced > before && !self.ledger.excess_over(limit).is_empty())
    }

    /// Reads the records of entries with their ranks. Absent and damaged ones are left out.
    async fn read_records(
        &self,
        entries: Vec<(u64, IndexEntry)>,
        outcome: &mut SweepOutcome,
    ) -> Result<Vec<(u64, Path, FoundVersion)>> {
        let mut reading = futures::stream::iter(entries)
            .map(|(newer, entry)| async move {
                let found = FoundVersion::read(&self.store, &entry.key).await;
                (newer, entry.key, found)
            })
            .buffer_unordered(CONCURRENT_MAX);
        let mut read = Vec::new();
        while let Some((newer, key, found)) = reading.next().await {
            match found {
                Ok(Some(found)) => read.push((newer, records_key(&key), found)),
                Ok(None) => {}
                // A client can delete it, and an operator may repair it.
                Err(error @ Error::ArtifactDamaged { .. }) => {
                    tracing::warn!(%error, "left out of the sweep");
                    outcome.failed += 1;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(read)
    }

    /// Removes versions to which nothing refers. Returns the number of those that still existed.
    async fn remove(
        &self,
        victims: Vec<(Path, FoundVersion)>,
        reason: RemovalReason,
        referenced: &ReferencedVersions,
        outcome: &mut SweepOutcome,
    ) -> Result<u64> {
        if victims.is_empty() {
            return Ok(0);
        }
        let mut by_artifact = Victims::new();
        for (records, found) in victims {
            by_artifact.entry(records).or_default().push(found);
        }
        let mut removing = futures::stream::iter(by_artifact.into_values())
            .map(|mut versions| async move {
                versions.sort_unstable_by_key(|found| found.id.version);
                let discarded = self.discard(&versions, reason, referenced).await;
                (discarded, versions.len())
            })
            .buffer_unordered(CONCURRENT_REMOVALS_MAX);
        let mut removed = 0;
        while let Some((discarded, versions)) = removing.next().await {
            match discarded {
                Ok(discarded) => {
                    removed += discarded.count;
                    outcome.removed_bytes += discarded.bytes;
                    outcome.referenced += discarded.referenced;
                }
                Err(Error::Draining) => return Err(Error::Draining),
                Err(error) => {
                    tracing::warn!(error = %Chain(&error), "versions of an artifact stay for now");
                    outcome.failed += versions as u64;
                }
            }
        }
        Ok(removed)
    }
}

// === impl OldestVersions ===

impl OldestVersions {
    fn add(&mut self, version: OldVersion) {
        self.bytes += version.found.held_bytes();
        self.heap.push(version);
        self.trim();
    }

    /// Reduces the excess to that of the versions which the walk has found, and returns `true` if it was greater. Another
    /// daemon of the store may have removed versions, and a save with an uncertain end may have created none.
    fn reduce_excess(&mut self, limit: u64) -> bool {
        let found = self.held.saturating_sub(limit);
        let is_less = found < self.excess;
        self.excess = self.excess.min(found);
        self.trim();
        is_less
    }

    /// Drops the youngest versions that are not needed for the excess.
    fn trim(&mut self) {
        while let Some(youngest) = self.heap.peek() {
            let rest = self.bytes - youngest.found.held_bytes();
            if rest < self.excess && self.heap.len() <= self.count_max {
                break;
            }
            self.heap.pop();
            self.bytes = rest;
        }
    }
}

// === impl OldVersion ===

impl Ord for OldVersion {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        let order = |it: &Self| (it.found.create_time, it.found.id.version);
        order(self)
            .cmp(&order(other))
            .then_with(|| self.records.cmp(&other.records))
    }
}

impl PartialOrd for OldVersion {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

// === impl VersionRank ===

impl VersionRank {
    /// Returns the number of newer versions of the same artifact.
    fn next(&mut self, key: &Path) -> u64 {
        let records = Some(records_key(key));
        if self.records == records {
            self.newer += 1;
        } else {
            (self.records, self.newer) = (records, 0);
        }
        self.newer
    }
}

/// Returns the key prefix of a record's artifact.
fn records_key(key: &Path) -> Path {
    let text = key.as_ref();
    Path::from(text.rsplit_once('/').map_or(text, |(records, _)| records))
}
