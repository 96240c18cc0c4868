//! Listings of the names and versions of artifacts. A bucket lists its keys in order, so the cost of a page depends on
//! its length only. A directory is read level by level and sorted here, because the library's listing would visit every
//! file beneath it.

use std::io;
use std::path::{Path as FilePath, PathBuf};

use futures::StreamExt;
use object_store::path::Path;

use super::backend::{ArtifactBackend, StoreKind, StoreOperation, invisible_operation};
use super::key;
use super::name::{ArtifactName, ArtifactScope};
use crate::error::Result;

/// Number of skipped keys of one name after which a bucket is asked for the keys after them.
const SKIPPED_KEYS_MAX: usize = 1000;
/// Component that sorts after every version of a name.
const AFTER_VERSIONS: &str = "z";
const LIST: StoreOperation = invisible_operation("list");
/// Maximum number of versions that one request for a page covers.
const WINDOW_MAX: u64 = 1 << 20;

/// Name of an artifact with its newest version.
pub(super) type NewestVersion = (ArtifactName, u64);

/// Version numbers of an artifact: the newest that exists, and the high-water marks that retention left.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct VersionNumbers {
    /// Newest version that exists.
    pub(super) newest: Option<u64>,
    /// High-water marks: all numbers up to these were given.
    pub(super) high_waters: Vec<u64>,
}

/// Returns the newest version of an artifact; `None` if it has none.
pub(super) async fn find_newest_version(
    store: &ArtifactBackend,
    scope: &ArtifactScope,
    name: &ArtifactName,
) -> Result<Option<u64>> {
    Ok(find_version_numbers(store, scope, name).await?.newest)
}

/// Returns the newest version of an artifact and its high-water marks.
pub(super) async fn find_version_numbers(
    store: &ArtifactBackend,
    scope: &ArtifactScope,
    name: &ArtifactName,
) -> Result<VersionNumbers> {
    let beneath = key::name_key(&store.base, scope, name);
    let mut numbers = VersionNumbers::default();
    match &store.kind {
        StoreKind::Directory { root, .. } => {
            let dir = file_path(root, &beneath);
            let tenant = scope.tenant().as_str();
            let read = move || directory_entries(&dir);
            let names = store.run_on_disk(LIST, tenant, root, read).await?;
            let versions = names.iter().filter_map(|name| key::read_version(name));
            numbers.newest = versions.max();
            let found = names.iter().filter_map(|name| key::read_high_water(name));
            numbers.high_waters.extend(found);
        }
        StoreKind::Bucket(_) => {
            // High-water marks come first.
            let mut listed = store.list_objects(&beneath, None);
            while numbers.newest.is_none()
                && let Some(key) = next_key(store, &mut listed).await?
            {
                numbers.newest = version_of_key(&key);
                numbers
                    .high_waters
                    .extend(key.filename().and_then(key::read_high_water));
            }
        }
    }
    Ok(numbers)
}

impl VersionNumbers {
    /// Returns the number of the next version.
    pub(super) fn next(&self) -> u64 {
        let given = self.high_waters.iter().copied().chain(self.newest);
        given.max().map_or(0, |last| last.saturating_add(1))
    }
}

/// Lists the versions of an artifact after `after`, oldest first, at most `limit`.
pub(super) async fn list_versions(
    store: &ArtifactBackend,
    scope: &ArtifactScope,
    name: &ArtifactName,
    after: Option<u64>,
    limit: usize,
) -> Result<Vec<u64>> {
    let beneath = key::name_key(&store.base, scope, name);
    let mut from = after.map_or(0, |after| after.saturating_add(1));
    if let StoreKind::Directory { root, .. } = &store.kind {
        let dir = file_path(root, &beneath);
        let tenant = scope.tenant().as_str();
        let read = move || directory_versions(&dir);
        let mut found = store.run_on_disk(LIST, tenant, root, read).await?;
        found.retain(|version| *version >= from);
        found.sort_unstable();
        found.truncate(limit);
        return Ok(found);
    }
    // Keys count down. Versions have gaps only from deletions, so the next `limit` numbers usually hold the page. Where
    // they do not, the window grows.
    let Some(newest) = find_newest_version(store, scope, name).await? else {
        return Ok(Vec::new());
    };
    let mut found = Vec::new();
    let mut window_len = limit as u64;
    while found.len() < limit && from <= newest {
        let to = from
            .saturating_add(window_len.saturating_sub(1))
            .min(newest);
        let above = key::version_key(&beneath, to.saturating_add(1));
        let mut listed = store.list_objects(&beneath, Some(&above));
        let mut window = Vec::new();
        while let Some(key) = next_key(store, &mut listed).await? {
            match version_of_key(&key) {
                Some(version) if version >= from => window.push(version),
                _ => break,
            }
        }
        found.extend(window.into_iter().rev());
        from = to.saturating_add(1);
        window_len = window_len.saturating_mul(2).min(WINDOW_MAX);
    }
    found.truncate(limit);
    Ok(found)
}

/// Lists the names of one scope after `after`, each with its newest version, at most `limit`.
pub(super) async fn list_names(
    store: &ArtifactBackend,
    scope: &ArtifactScope,
    after: Option<&ArtifactName>,
    limit: usize,
) -> Result<Vec<NewestVersion>> {
    let beneath = key::scope_key(&store.base, scope);
    let after = after.map(key::name_components);
    match &store.kind {
        StoreKind::Directory { root, .. } => {
            let dir = file_path(root, &beneath);
            let read = move || {
                let mut found = Vec::new();
                collect_names(&dir, &mut Vec::new(), after.as_deref(), limit, &mut found)?;
                Ok(found)
            };
            let tenant = scope.tenant().as_str();
            store.run_on_disk(LIST, tenant, root, read).await
        }
        StoreKind::Bucket(_) => list_names_in_bucket(store, &beneath, after, limit).await,
    }
}

async fn list_names_in_bucket(
    store: &ArtifactBackend,
    beneath: &Path,
    after: Option<Vec<String>>,
    limit: usize,
) -> Result<Vec<NewestVersion>> {
    let past = |components: &[String]| {
        let name = components
            .iter()
            .fold(beneath.clone(), |path, part| key::join_key(&path, part));
        key::join_key(&name, AFTER_VERSIONS)
    };
    let mut found = Vec::new();
    let mut last = after;
    let mut listed = store.list_objects(beneath, last.as_deref().map(past).as_ref());
    let mut skipped = 0;
    while found.len() < limit
        && let Some(key) = next_key(store, &mut listed).await?
    {
        let parts: Option<Vec<String>> = key
            .prefix_match(beneath)
            .map(|parts| parts.map(|part| part.as_ref().to_owned()).collect());
        let Some((version, components)) = parts.as_deref().and_then(|parts| parts.split_last())
        else {
            continue;
        };
        if last.as_deref() == Some(components) {
            skipped += 1;
            if skipped > SKIPPED_KEYS_MAX {
                skipped = 0;
                listed = store.list_objects(beneath, Some(&past(components)));
            }
            continue;
        }
        // Foreign keys are skipped.
        if let (Some(version), Some(name)) =
            (key::read_version(version), key::read_name(components))
        {
            found.push((name, version));
            last = Some(components.to_vec());
            skipped = 0;
        }
    }
    Ok(found)
}

async fn next_key(
    store: &ArtifactBackend,
    listed: &mut futures::stream::BoxStream<
        'static,
        object_store::Result<object_store::ObjectMeta>,
    >,
) -> Result<Option<Path>> {
    let next = async { listed.next().await.transpose() };
    let next = store.request(LIST, next).await?.flatten();
    Ok(next.map(|object| object.location))
}

fn version_of_key(key: &Path) -> Option<u64> {
    key::read_version(key.filename()?)
}

// === a directory ===

/// Returns the path of a key in a directory store. Keys consist of letters, digits and `/`, so they are safe paths.
pub(super) fn file_path(root: &FilePath, key: &Path) -> PathBuf {
    root.join(key.as_ref())
}

/// Lists the names in a directory, unsorted; none if it does not exist.
pub(super) fn directory_entries(dir: &FilePath) -> io::Result<Vec<String>> {
    let listed = match std::fs::read_dir(dir) {
        Ok(listed) => listed,
        Err(error) if is_absent(&error) => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut names = Vec::new();
    for entry in listed {
        names.extend(entry?.file_name().into_string());
    }
    Ok(names)
}

/// Returns `true` if a path does not exist or is no directory, such as the record of a shorter name.
fn is_absent(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
    )
}

/// Lists the versions in the directory of a name, unsorted. File names with a `#` are incomplete files.
fn directory_versions(dir: &FilePath) -> io::Result<Vec<u64>> {
    let names = directory_entries(dir)?;
    Ok(names
        .iter()
        .filter_map(|name| key::read_version(name))
        .collect())
}

/// Collects the names beneath one directory level, in order.
fn collect_names(
    dir: &FilePath,
    above: &mut Vec<String>,
    after: Option<&[String]>,
    limit: usize,
    found: &mut Vec<NewestVersion>,
) -> io::Result<()> {
    let mut level = directory_entries(dir)?;
    level.sort_unstable();
    for component in level {
        if found.len() >= limit {
            return Ok(());
        }
        let begins = after.and_then(<[String]>::split_first);
        let rest = match begins {
            Some((first, _)) if component < *first => continue,
            Some((first, rest)) if component == *first => Some(rest),
            _ => None,
        };
        let path = dir.join(&component);
        let continued = key::is_continued(&component);
        above.push(component);
        if continued {
            collect_names(&path, above, rest, limit, found)?;
        } else if rest.is_none()
            && let Some(newest) = directory_versions(&path)?.into_iter().max()
            && let Some(name) = key::read_name(above)
        {
            found.push((name, newest));
        }
        above.pop();
    }
    Ok(())
}
