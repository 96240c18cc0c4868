//! Which names and versions there are. A bucket lists its keys in order, so a page costs what it holds; a directory is
//! read level by level and sorted here, because the library's listing of one would look at every file beneath.

use std::io;
use std::path::{Path as FilePath, PathBuf};

use futures::StreamExt;
use object_store::path::Path;

use super::key;
use super::name::{Name, Scope};
use super::store::{Kind, Operation, Store, harmless};
use crate::error::Result;

/// So many versions of one name are passed over in a bucket before it is asked for what comes after them.
const PASSED_MAX: usize = 1000;
/// After every version of a name, in the order of keys.
const AFTER_VERSIONS: &str = "z";
const LIST: Operation = harmless("list");
/// Numbers that one request for a page of versions covers at most.
const SPAN_MAX: u64 = 1 << 20;

/// A name and its newest version.
pub(super) type Newest = (Name, u64);

/// The newest version of an artifact; `None` if there is none.
pub(super) async fn newest(store: &Store, scope: &Scope, name: &Name) -> Result<Option<u64>> {
    let beneath = key::name(&store.base, scope, name);
    match &store.kind {
        Kind::Directory { root, .. } => {
            let dir = file_path(root, &beneath);
            let found = store.on_disk(LIST, root, move || numbers(&dir)).await?;
            Ok(found.into_iter().max())
        }
        Kind::Bucket(_) => {
            let mut listed = store.list(&beneath, None);
            while let Some(key) = next(store, &mut listed).await? {
                if let Some(version) = version_of(&key) {
                    return Ok(Some(version));
                }
            }
            Ok(None)
        }
    }
}

/// Versions of an artifact, oldest first: at most `limit` of those that come after `after`.
pub(super) async fn versions(
    store: &Store,
    scope: &Scope,
    name: &Name,
    after: Option<u64>,
    limit: usize,
) -> Result<Vec<u64>> {
    let beneath = key::name(&store.base, scope, name);
    let mut from = after.map_or(0, |after| after.saturating_add(1));
    if let Kind::Directory { root, .. } = &store.kind {
        let dir = file_path(root, &beneath);
        let mut found = store.on_disk(LIST, root, move || numbers(&dir)).await?;
        found.retain(|version| *version >= from);
        found.sort_unstable();
        found.truncate(limit);
        return Ok(found);
    }
    // The keys count down. Numbers are without gaps but for deletions, so the page is in the next `limit` of them; where
    // it is not, the window grows.
    let Some(newest) = newest(store, scope, name).await? else {
        return Ok(Vec::new());
    };
    let mut found = Vec::new();
    let mut span = limit as u64;
    while found.len() < limit && from <= newest {
        let to = from.saturating_add(span.saturating_sub(1)).min(newest);
        let above = key::version(&beneath, to.saturating_add(1));
        let mut listed = store.list(&beneath, Some(&above));
        let mut window = Vec::new();
        while let Some(key) = next(store, &mut listed).await? {
            match version_of(&key) {
                Some(version) if version >= from => window.push(version),
                _ => break,
            }
        }
        found.extend(window.into_iter().rev());
        from = to.saturating_add(1);
        span = span.saturating_mul(2).min(SPAN_MAX);
    }
    found.truncate(limit);
    Ok(found)
}

/// Names of one scope in order, each with its newest version: at most `limit` of those that come after `after`.
pub(super) async fn names(
    store: &Store,
    scope: &Scope,
    after: Option<&Name>,
    limit: usize,
) -> Result<Vec<Newest>> {
    let beneath = key::scope(&store.base, scope);
    let after = after.map(key::components);
    match &store.kind {
        Kind::Directory { root, .. } => {
            let dir = file_path(root, &beneath);
            let read = move || {
                let mut found = Vec::new();
                walk(&dir, &mut Vec::new(), after.as_deref(), limit, &mut found)?;
                Ok(found)
            };
            store.on_disk(LIST, root, read).await
        }
        Kind::Bucket(_) => names_in_bucket(store, &beneath, after, limit).await,
    }
}

async fn names_in_bucket(
    store: &Store,
    beneath: &Path,
    after: Option<Vec<String>>,
    limit: usize,
) -> Result<Vec<Newest>> {
    let past = |components: &[String]| {
        let name = components
            .iter()
            .fold(beneath.clone(), |path, part| key::join(&path, part));
        key::join(&name, AFTER_VERSIONS)
    };
    let mut found = Vec::new();
    let mut last = after;
    let mut listed = store.list(beneath, last.as_deref().map(past).as_ref());
    let mut passed = 0;
    while found.len() < limit
        && let Some(key) = next(store, &mut listed).await?
    {
        let parts: Option<Vec<String>> = key
            .prefix_match(beneath)
            .map(|parts| parts.map(|part| part.as_ref().to_owned()).collect());
        let Some((version, components)) = parts.as_deref().and_then(|parts| parts.split_last())
        else {
            continue;
        };
        if last.as_deref() == Some(components) {
            passed += 1;
            if passed > PASSED_MAX {
                passed = 0;
                listed = store.list(beneath, Some(&past(components)));
            }
            continue;
        }
        // What is not ours is passed over.
        if let (Some(version), Some(name)) =
            (key::read_version(version), key::read_name(components))
        {
            found.push((name, version));
            last = Some(components.to_vec());
            passed = 0;
        }
    }
    Ok(found)
}

async fn next(
    store: &Store,
    listed: &mut futures::stream::BoxStream<
        'static,
        object_store::Result<object_store::ObjectMeta>,
    >,
) -> Result<Option<Path>> {
    let next = async { listed.next().await.transpose() };
    let next = store.ask(LIST, next).await?.flatten();
    Ok(next.map(|object| object.location))
}

fn version_of(key: &Path) -> Option<u64> {
    key::read_version(key.filename()?)
}

// === a directory ===

/// Where a key is in a directory: keys are made of letters and digits, so nothing of them means anything to a path.
pub(super) fn file_path(root: &FilePath, key: &Path) -> PathBuf {
    root.join(key.as_ref())
}

/// Names in a directory, in no order; nothing if it is not there.
pub(super) fn entries(dir: &FilePath) -> io::Result<Vec<String>> {
    let listed = match std::fs::read_dir(dir) {
        Ok(listed) => listed,
        Err(error) if is_gone(&error) => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut names = Vec::new();
    for entry in listed {
        names.extend(entry?.file_name().into_string());
    }
    Ok(names)
}

/// Not there, or no directory: what lies beneath a name that ends here is a record.
fn is_gone(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
    )
}

/// Versions in the directory of a name, in no order. Names with a `#` are files that are being written.
fn numbers(dir: &FilePath) -> io::Result<Vec<u64>> {
    let names = entries(dir)?;
    Ok(names
        .iter()
        .filter_map(|name| key::read_version(name))
        .collect())
}

/// Collects names beneath a level, in order.
fn walk(
    dir: &FilePath,
    above: &mut Vec<String>,
    after: Option<&[String]>,
    limit: usize,
    found: &mut Vec<Newest>,
) -> io::Result<()> {
    let mut level = entries(dir)?;
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
            walk(&path, above, rest, limit, found)?;
        } else if rest.is_none()
            && let Some(newest) = numbers(&path)?.into_iter().max()
            && let Some(name) = key::read_name(above)
        {
            found.push((name, newest));
        }
        above.pop();
    }
    Ok(())
}
