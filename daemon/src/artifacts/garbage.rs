//! Cleanup after interrupted saves and deletions. Each of them writes a marker first and removes it last, so every
//! leftover of a crash has a marker. The cleanup reads markers only, never the whole store.
//!
//! A marker may belong to a running save. In a store that only this daemon uses, none does at start; in a shared one,
//! none does that is older than [`MARKER_AGE_MAX`].

use std::collections::BTreeMap;
use std::path::{Path as FilePath, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use futures::{StreamExt, TryStreamExt};

use super::backend::{ArtifactBackend, StoreKind, invisible_operation};
use super::byte_ledger::ByteLedger;
use super::key;
use super::listings::{self, directory_entries, file_path};
use super::name::{ArtifactName, ArtifactScope, RequestedScope};
use super::record::VersionRecord;
use super::upload::{SaveMarker, remove_data};
use crate::access::DAEMON_HOLDER;
use crate::error::{Chain, Error, Result};

/// Age from which on a marker belongs to no running save, since a save renews its marker far more often.
pub(super) const MARKER_AGE_MAX: Duration = Duration::from_secs(60 * 60);
/// Interval between two sweeps.
pub(super) const SWEEP_INTERVAL: Duration = Duration::from_secs(15 * 60);
/// Maximum number of records that are read at the same time.
const CONCURRENT_READS_MAX: usize = 8;

/// Times of the last renewal of markers, by id.
type SaveMarkers = BTreeMap<String, SystemTime>;

/// Starts the cleanup: once now, then at every interval. In a store that only this daemon uses, all markers present at
/// start are leftovers, because no save begins before this returns.
///
/// After a cleaned marker the ledger is counted anew, because the daemon did not know whether its version existed.
pub(super) async fn start_collection(
    store: Arc<ArtifactBackend>,
    ledger: ByteLedger,
) -> Result<()> {
    let mut found = list_markers(&store).await?;
    if matches!(store.kind, StoreKind::Directory { own: true, .. }) {
        remove_partial_files(&store, &found, Duration::ZERO).await?;
    } else {
        found = retain_older(found, MARKER_AGE_MAX);
    }
    let (tasks, stop) = (store.tasks.clone(), store.tasks.stop.clone());
    let run = async move {
        clean_markers(&store, &found).await;
        loop {
            tokio::time::sleep(SWEEP_INTERVAL).await;
            match sweep_markers(&store, MARKER_AGE_MAX).await {
                Ok(0) => {}
                Ok(_) => ledger.request_recount(),
                Err(error) => {
                    tracing::warn!(error = %Chain(&error), "leftovers of interrupted saves were not looked for");
                }
            }
        }
    };
    tasks.spawn(stop.run_until_cancelled_owned(run));
    Ok(())
}

/// Cleans up after all markers of at least this age. Returns the number of those that are gone.
pub(super) async fn sweep_markers(store: &ArtifactBackend, age: Duration) -> Result<usize> {
    let found = retain_older(list_markers(store).await?, age);
    remove_partial_files(store, &found, MARKER_AGE_MAX).await?;
    Ok(clean_markers(store, &found).await)
}

async fn list_markers(store: &ArtifactBackend) -> Result<SaveMarkers> {
    let listed = store
        .list_objects(&key::markers_key(&store.base), None)
        .map_ok(|object| {
            let id = object.location.filename().unwrap_or_default().to_owned();
            (id, SystemTime::from(object.last_modified))
        })
        .try_collect();
    store
        .request_existing(invisible_operation("list"), listed)
        .await
}

fn retain_older(mut markers: SaveMarkers, age: Duration) -> SaveMarkers {
    markers.retain(|_, renewed| renewed.elapsed().unwrap_or_default() >= age);
    markers
}

/// Cleans up after these markers. Returns the number of those that are gone.
async fn clean_markers(store: &ArtifactBackend, markers: &SaveMarkers) -> usize {
    let (mut cleaned, mut removed) = (0, 0_u64);
    for id in markers.keys() {
        match clean_marker(store, id).await {
            Ok(gone) => {
                cleaned += 1;
                removed += u64::from(gone);
            }
            Err(error) => {
                tracing::warn!(%id, error = %Chain(&error), "leftover of an interrupted save stays for now");
            }
        }
    }
    if removed > 0 {
        tracing::info!(removed, "removed leftovers of interrupted saves");
    }
    cleaned
}

/// Reads a marker: the scope and name of its save, and its multipart upload. Returns `None` if the marker is gone.
async fn read_marker(
    store: &ArtifactBackend,
    id: &str,
) -> Result<Option<(ArtifactScope, ArtifactName, Option<String>)>> {
    let marker = key::join_key(&key::markers_key(&store.base), id);
    let Some(text) = store
        .read_object(invisible_operation("clean up"), &marker)
        .await?
    else {
        return Ok(None);
    };
    let strange = |error: serde_json::Error| Error::Internal(format!("marker {id}: {error}"));
    let pending: SaveMarker = serde_json::from_slice(&text.unwrap_or_default()).map_err(strange)?;
    let scope = RequestedScope::parse("scope", &pending.app, &pending.user, &pending.session)?
        .of_tenant(&pending.tenant);
    let name = ArtifactName::parse("name", &pending.name)?;
    Ok(Some((scope, name, pending.parts)))
}

/// Removes a marker, and the bytes of its save unless they were published. Returns `true` if it removed the bytes.
async fn clean_marker(store: &ArtifactBackend, id: &str) -> Result<bool> {
    let Some((scope, name, parts)) = read_marker(store, id).await? else {
        return Ok(false);
    };
    let published = is_published(store, &scope, &name, id).await?;
    if !published {
        let data = key::data_key(&store.base, id);
        remove_data(store, &data, parts.as_deref()).await?;
        if let StoreKind::Directory { root, .. } = &store.kind {
            let mut dir = file_path(root, &data);
            dir.pop();
            remove_partial_files_in(store, root, dir, format!("{id}#"), Duration::ZERO).await?;
        }
    }
    let marker = key::join_key(&key::markers_key(&store.base), id);
    store
        .remove_object(invisible_operation("clean up"), &marker)
        .await?;
    Ok(!published)
}

/// Returns `true` if a record refers to the bytes. Reads every record of the name: a wrong answer would lose data.
async fn is_published(
    store: &ArtifactBackend,
    scope: &ArtifactScope,
    name: &ArtifactName,
    id: &str,
) -> Result<bool> {
    let versions = listings::list_versions(store, scope, name, None, usize::MAX).await?;
    let records = futures::stream::iter(versions)
        .map(|version| VersionRecord::read(store, scope, name, version))
        .buffer_unordered(CONCURRENT_READS_MAX);
    let of_this =
        records.try_filter_map(|record| async { Ok(record.filter(|record| record.data == id)) });
    let mut of_this = std::pin::pin!(of_this);
    Ok(of_this.try_next().await?.is_some())
}

/// Removes incomplete markers and records of a directory store.
async fn remove_partial_files(
    store: &ArtifactBackend,
    markers: &SaveMarkers,
    age: Duration,
) -> Result<()> {
    let StoreKind::Directory { root, .. } = &store.kind else {
        return Ok(());
    };
    let pending = file_path(root, &key::markers_key(&store.base));
    remove_partial_files_in(store, root, pending, String::new(), age).await?;
    for id in markers.keys() {
        let Ok(Some((scope, name, _))) = read_marker(store, id).await else {
            continue;
        };
        let records = file_path(root, &key::name_key(&store.base, &scope, &name));
        remove_partial_files_in(store, root, records, String::new(), age).await?;
    }
    Ok(())
}

/// Removes incomplete files of at least this age. The library appends `#` and a number to their names.
async fn remove_partial_files_in(
    store: &ArtifactBackend,
    root: &FilePath,
    dir: PathBuf,
    prefix: String,
    age: Duration,
) -> Result<()> {
    let remove = move || {
        for name in directory_entries(&dir)? {
            if !name.contains('#') || !name.starts_with(&prefix) {
                continue;
            }
            let path = dir.join(&name);
            let written = std::fs::symlink_metadata(&path).and_then(|about| about.modified());
            let old = written.is_ok_and(|time| time.elapsed().unwrap_or_default() >= age);
            if old && let Err(error) = std::fs::remove_file(&path) {
                tracing::debug!(path = %path.display(), %error, "a half-written file stays for now");
            }
        }
        Ok(())
    };
    let operation = invisible_operation("clean up");
    store
        .run_on_disk(operation, DAEMON_HOLDER, root, remove)
        .await
}
