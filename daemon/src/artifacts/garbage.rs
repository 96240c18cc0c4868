//! What interrupted saves and deletions left. Whoever writes or removes bytes says so with a marker first and takes it
//! away last, so that what a crash leaves has one. Cleaning up looks at markers only, never at the whole store.
//!
//! A marker may be somebody's who is at it: in a store of our own not at the start, in a shared one not when it is old.

use std::collections::BTreeMap;
use std::path::{Path as FilePath, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use futures::{StreamExt, TryStreamExt};

use super::index::{self, entries, file_path};
use super::key;
use super::name::{Name, Scope};
use super::record::Record;
use super::store::{Kind, Store, harmless};
use super::upload::{Pending, forget};
use crate::error::{Chain, Error, Result};

/// A marker that was not renewed for this long is nobody's any more: a save renews its own far more often.
pub(super) const AGE: Duration = Duration::from_secs(60 * 60);
/// Between two looks.
const INTERVAL: Duration = Duration::from_secs(15 * 60);
/// Records that are read at once.
const READS: usize = 8;

/// Markers by id, with the time of the last renewal.
type Markers = BTreeMap<String, SystemTime>;

/// Cleans up now, and again from time to time. What is there at the start of a store that is our own is garbage: nobody
/// saves before this returns.
pub(super) async fn start(store: Arc<Store>) -> Result<()> {
    let mut found = markers(&store).await?;
    if matches!(store.kind, Kind::Directory { own: true, .. }) {
        remove_halves(&store, &found, Duration::ZERO).await?;
    } else {
        found = older(found, AGE);
    }
    let (tasks, stop) = (store.tasks.clone(), store.tasks.stop.clone());
    let run = async move {
        clean_all(&store, &found).await;
        loop {
            tokio::time::sleep(INTERVAL).await;
            if let Err(error) = sweep(&store, AGE).await {
                tracing::warn!(error = %Chain(&error), "no look at what interrupted saves left");
            }
        }
    };
    tasks.spawn(async move {
        tokio::select! {
            () = run => {}
            () = stop.cancelled() => {}
        }
    });
    Ok(())
}

/// Cleans up after whatever has a marker of this age.
pub(super) async fn sweep(store: &Store, age: Duration) -> Result<()> {
    let found = older(markers(store).await?, age);
    remove_halves(store, &found, AGE).await?;
    clean_all(store, &found).await;
    Ok(())
}

async fn markers(store: &Store) -> Result<Markers> {
    let listed = store.list(&key::pending(&store.base), None);
    let listed = listed.map_ok(|object| {
        let id = object.location.filename().unwrap_or_default().to_owned();
        (id, SystemTime::from(object.last_modified))
    });
    let listed = listed.try_collect();
    store.must(harmless("list"), listed).await
}

fn older(mut markers: Markers, age: Duration) -> Markers {
    markers.retain(|_, renewed| renewed.elapsed().unwrap_or_default() >= age);
    markers
}

async fn clean_all(store: &Store, markers: &Markers) {
    let mut removed = 0_u64;
    for id in markers.keys() {
        match clean(store, id).await {
            Ok(gone) => removed += u64::from(gone),
            Err(error) => {
                tracing::warn!(%id, error = %Chain(&error), "what an interrupted save left stays for now");
            }
        }
    }
    if removed > 0 {
        tracing::info!(removed, "removed what interrupted saves had left");
    }
}

/// Whose bytes they are; `None` if the marker is gone.
async fn read(store: &Store, id: &str) -> Result<Option<(Scope, Name, Option<String>)>> {
    let marker = key::join(&key::pending(&store.base), id);
    let Some(text) = store.read(harmless("clean up"), &marker).await? else {
        return Ok(None);
    };
    let strange = |error: serde_json::Error| Error::Internal(format!("marker {id}: {error}"));
    let pending: Pending = serde_json::from_slice(&text.unwrap_or_default()).map_err(strange)?;
    let scope = Scope::parse("scope", &pending.app, &pending.user, &pending.session)?;
    let name = Name::parse("name", &pending.name)?;
    Ok(Some((scope, name, pending.parts)))
}

/// Removes the bytes of a save unless they were published, and its marker. True if there were bytes to remove.
async fn clean(store: &Store, id: &str) -> Result<bool> {
    let Some((scope, name, parts)) = read(store, id).await? else {
        return Ok(false);
    };
    let published = is_published(store, &scope, &name, id).await?;
    if !published {
        let data = key::data(&store.base, id);
        forget(store, &data, parts.as_deref()).await?;
        if let Kind::Directory { root, .. } = &store.kind {
            let mut dir = file_path(root, &data);
            dir.pop();
            remove_in(store, root, dir, format!("{id}#"), Duration::ZERO).await?;
        }
    }
    let marker = key::join(&key::pending(&store.base), id);
    store.remove(harmless("clean up"), &marker).await?;
    Ok(!published)
}

/// Whether a record points to the bytes. All of them are read: this is for what a crash left, and must not be wrong.
async fn is_published(store: &Store, scope: &Scope, name: &Name, id: &str) -> Result<bool> {
    let versions = index::versions(store, scope, name, None, usize::MAX).await?;
    let records = futures::stream::iter(versions)
        .map(|version| Record::read(store, scope, name, version))
        .buffer_unordered(READS);
    let of_this =
        records.try_filter_map(|record| async { Ok(record.filter(|record| record.data == id)) });
    let mut of_this = std::pin::pin!(of_this);
    Ok(of_this.try_next().await?.is_some())
}

/// Removes markers and records that were being written when somebody was interrupted. They are small, and so it is rare.
async fn remove_halves(store: &Store, markers: &Markers, age: Duration) -> Result<()> {
    let Kind::Directory { root, .. } = &store.kind else {
        return Ok(());
    };
    let pending = file_path(root, &key::pending(&store.base));
    remove_in(store, root, pending, String::new(), age).await?;
    for id in markers.keys() {
        let Ok(Some((scope, name, _))) = read(store, id).await else {
            continue;
        };
        let records = file_path(root, &key::name(&store.base, &scope, &name));
        remove_in(store, root, records, String::new(), age).await?;
    }
    Ok(())
}

/// Removes files of this age that the library was writing: it puts `#` and a number after their names.
async fn remove_in(
    store: &Store,
    root: &FilePath,
    dir: PathBuf,
    prefix: String,
    age: Duration,
) -> Result<()> {
    let remove = move || {
        for name in entries(&dir)? {
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
    store.on_disk(harmless("clean up"), root, remove).await
}
