//! Walk over the records of all tenants in the order of their keys, page by page.
//!
//! A bucket lists its keys in order, so the walk remembers the last one. A directory is read level by level and sorted;
//! the walk holds the listings of the levels that it is in, and no thread between two pages.

use std::io;
use std::path::{Path as FilePath, PathBuf};
use std::time::SystemTime;

use futures::{StreamExt, TryStreamExt};
use object_store::path::Path;

use super::backend::{ArtifactBackend, StoreKind, StoreOperation, invisible_operation};
use super::key;
use super::listings::{directory_entries, file_path};
use crate::access::DAEMON_HOLDER;
use crate::error::Result;

/// Maximum number of records in one page.
pub(super) const PAGE_MAX: usize = 1000;
/// Maximum number of entries of a directory that one page visits, with those of levels and of high-water marks. A page has
/// to end within the time limit of a request.
pub(super) const VISITED_MAX: usize = 4000;
const WALK: StoreOperation = invisible_operation("list all records");

/// Record that a walk has found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct IndexEntry {
    /// Key of the record.
    pub(super) key: Path,
    /// Time at which the record was written, as the store knows it.
    pub(super) written: SystemTime,
}

/// Walk over all records.
#[derive(Debug)]
pub(super) struct IndexWalk<'a> {
    store: &'a ArtifactBackend,
    position: WalkPosition,
}

#[derive(Debug)]
enum WalkPosition {
    /// Levels of a directory that the walk is in, from `index/` down.
    Directory {
        root: PathBuf,
        levels: Vec<OpenLevel>,
    },
    /// Last key of the bucket's previous page; `None` before the first page.
    Bucket { after: Option<Path> },
}

/// Directory with the entries that are left, the last one first.
#[derive(Debug)]
struct OpenLevel {
    key: Path,
    entries: Vec<String>,
}

impl<'a> IndexWalk<'a> {
    /// Begins before the first record.
    pub(super) async fn begin(store: &'a ArtifactBackend) -> Result<Self> {
        let position = match &store.kind {
            StoreKind::Directory { root, .. } => {
                let (index, at) = (key::index_key(&store.base), root.clone());
                let read = move || OpenLevel::read(&at, index);
                let first = store.run_on_disk(WALK, DAEMON_HOLDER, root, read);
                WalkPosition::Directory {
                    root: root.clone(),
                    levels: vec![first.await?],
                }
            }
            StoreKind::Bucket(_) => WalkPosition::Bucket { after: None },
        };
        Ok(Self { store, position })
    }

    /// Returns the next records, which may be none; `None` at the end. After an error the walk is at its end.
    pub(super) async fn next_page(&mut self) -> Result<Option<Vec<IndexEntry>>> {
        match &mut self.position {
            WalkPosition::Directory { levels, .. } if levels.is_empty() => Ok(None),
            WalkPosition::Directory { root, levels } => {
                let (at, mut open) = (root.clone(), std::mem::take(levels));
                let read = move || {
                    let page = next_directory_page(&at, &mut open)?;
                    Ok((page, open))
                };
                let (page, open) = self
                    .store
                    .run_on_disk(WALK, DAEMON_HOLDER, root, read)
                    .await?;
                *levels = open;
                Ok(Some(page))
            }
            WalkPosition::Bucket { after } => {
                let index = key::index_key(&self.store.base);
                let listing = self
                    .store
                    .list_objects(&index, after.as_ref())
                    .take(PAGE_MAX)
                    .try_collect::<Vec<_>>();
                let listed = self.store.request_existing(WALK, listing).await?;
                let Some(last) = listed.last() else {
                    return Ok(None);
                };
                *after = Some(last.location.clone());
                let records = listed
                    .into_iter()
                    .filter(|object| is_record(&object.location));
                let page = records.map(|object| IndexEntry {
                    key: object.location,
                    written: object.last_modified.into(),
                });
                Ok(Some(page.collect()))
            }
        }
    }
}

impl OpenLevel {
    fn read(root: &FilePath, key: Path) -> io::Result<Self> {
        let mut entries = directory_entries(&file_path(root, &key))?;
        // Incomplete files have other characters in their names.
        entries.retain(|name| name.bytes().all(|byte| byte.is_ascii_alphanumeric()));
        entries.sort_unstable_by(|a, b| b.cmp(a));
        Ok(Self { key, entries })
    }
}

/// Returns the next records of a directory, and goes on in its levels.
fn next_directory_page(
    root: &FilePath,
    levels: &mut Vec<OpenLevel>,
) -> io::Result<Vec<IndexEntry>> {
    let mut page = Vec::new();
    for _ in 0..VISITED_MAX {
        let Some(level) = levels.last_mut().filter(|_| page.len() < PAGE_MAX) else {
            break;
        };
        let Some(entry) = level.entries.pop() else {
            levels.pop();
            continue;
        };
        let key = key::join_key(&level.key, &entry);
        let name = key.filename().unwrap_or_default();
        if key::read_high_water(name).is_some() {
            continue;
        }
        if key::read_version(name).is_none() {
            levels.push(OpenLevel::read(root, key)?);
            continue;
        }
        // A record that was removed meanwhile is not part of the walk.
        if let Ok(about) = std::fs::symlink_metadata(file_path(root, &key)) {
            let written = about.modified()?;
            page.push(IndexEntry { key, written });
        }
    }
    Ok(page)
}

fn is_record(key: &Path) -> bool {
    key.filename().and_then(key::read_version).is_some()
}
