//! Which content a folder has, remembered: a folder is read again only if something in it changed. Where the kernel
//! tells of changes nothing is looked at until then; elsewhere the times and sizes of all files are compared.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use super::content::{Bounds, Content, Fault, Folder};
use super::fingerprint::Fingerprint;
use super::watch::Watcher;

/// Folders that are remembered. More than there can be skills at once; what went is cleared by the catalogue.
const REMEMBERED_MAX: usize = 200_000;

/// The contents.
#[derive(Debug)]
pub(super) struct Contents {
    watcher: Arc<Watcher>,
    known: Mutex<BTreeMap<PathBuf, Known>>,
    /// Given to each folder that is remembered anew, and to each change.
    next: AtomicU64,
}

#[derive(Debug, Default)]
struct Known {
    /// Another one whenever the folder was said to have changed, or was forgotten: what was read before does not count.
    changes: u64,
    content: Option<Content>,
    /// As the folder was; `None` if it changed too shortly before.
    fingerprint: Option<Fingerprint>,
    /// Good until a change is told.
    told: bool,
}

impl Contents {
    pub(super) fn new(watcher: Arc<Watcher>) -> Self {
        Self {
            watcher,
            known: Mutex::default(),
            next: AtomicU64::default(),
        }
    }

    /// What is in a folder, if nothing has to be looked at to know it.
    pub(super) fn recall(&self, folder: &Folder) -> Option<Content> {
        let known = self.known();
        let known = known.get(&folder.dir).filter(|known| known.told)?;
        known.content.clone()
    }

    /// What is in a folder: what is remembered if it is `good`, else what `read` finds.
    pub(super) fn of(
        &self,
        folder: &Folder,
        bounds: Bounds,
        good: impl Fn(&Content) -> bool,
        read: impl FnOnce() -> Result<Content, Fault>,
    ) -> Result<Content, Fault> {
        if let Some(content) = self.recall(folder).filter(&good) {
            return Ok(content);
        }
        let changes = self.changes(&folder.dir);
        let started = SystemTime::now();
        let mut watched = true;
        // Watched before they are read: nothing is missed in between.
        let before = Fingerprint::take(folder, bounds, |dir, device| {
            watched = watched && !folder.fixed && self.watcher.watch(dir, device);
        });
        let told = folder.fixed || (watched && before.is_some());
        if let Some(content) = self.same(folder, before, told, changes).filter(&good) {
            return Ok(content);
        }
        let content = read()?;
        let settled = before.filter(|before| !before.is_recent(started));
        let unchanged = |before: &Fingerprint| {
            told || Fingerprint::take(folder, bounds, |_, _| {}).as_ref() == Some(before)
        };
        // A link's target may lie where nobody looks.
        let told = told && content.followed == 0;
        let fingerprint = settled.filter(unchanged);
        let mut all = self.known();
        if let Some(known) = all
            .get_mut(&folder.dir)
            .filter(|known| known.changes == changes)
        {
            known.content = (told || fingerprint.is_some()).then(|| content.clone());
            (known.fingerprint, known.told) = (fingerprint, told);
        }
        Ok(content)
    }

    /// Something beneath a folder changed, or may have.
    pub(super) fn changed(&self, dir: &Path) {
        if let Some(known) = self.known().get_mut(dir) {
            known.changes = self.next();
            known.told = false;
        }
    }

    /// Anything may have changed.
    pub(super) fn all_changed(&self) {
        for known in self.known().values_mut() {
            known.changes = self.next();
            known.told = false;
        }
    }

    /// A folder and all beneath it are elsewhere now, or nowhere.
    pub(super) fn forget_beneath(&self, dir: &Path) {
        let mut all = self.known();
        let beneath = all.range(dir.to_owned()..).map(|(path, _)| path);
        let beneath = beneath.take_while(|path| path.starts_with(dir));
        let paths: Vec<PathBuf> = beneath.cloned().collect();
        for path in paths {
            all.remove(&path);
        }
    }

    /// Which change of a folder was the last one; from now on they are counted.
    fn changes(&self, dir: &Path) -> u64 {
        let mut all = self.known();
        if all.len() >= REMEMBERED_MAX {
            all.clear();
        }
        let new = || Known {
            changes: self.next(),
            ..Known::default()
        };
        all.entry(dir.to_owned()).or_insert_with(new).changes
    }

    fn next(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// What was read when the folder was just as it is.
    fn same(
        &self,
        folder: &Folder,
        now: Option<Fingerprint>,
        told: bool,
        changes: u64,
    ) -> Option<Content> {
        let mut all = self.known();
        let known = all.get_mut(&folder.dir)?;
        let content = known.content.clone()?;
        if now.is_none() || known.fingerprint != now || known.changes != changes {
            return None;
        }
        known.told = told && content.followed == 0;
        Some(content)
    }

    fn known(&self) -> MutexGuard<'_, BTreeMap<PathBuf, Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn content(digest: &str) -> Content {
        Content {
            digest: digest.to_owned(),
            files: 1,
            bytes: 1,
            own_links: Vec::new(),
            followed: 0,
        }
    }

    #[test]
    fn what_was_read_while_a_folder_was_taken_away_does_not_count() {
        let dir = tempfile::tempdir().expect("a directory");
        let folder = Folder::stored(dir.path());
        let bounds = Bounds {
            files_max: 10,
            bytes_max: 10,
        };
        let contents = Contents::new(Arc::new(Watcher::new(0)));
        let half = contents.of(
            &folder,
            bounds,
            |_| true,
            || {
                // It is collected, published again, and looked at by somebody else.
                contents.forget_beneath(&folder.dir);
                let whole = contents.of(&folder, bounds, |_| true, || Ok(content("whole")));
                assert_eq!(whole.expect("read").digest, "whole");
                Ok(content("half"))
            },
        );
        assert_eq!(half.expect("read").digest, "half");
        let kept = contents.recall(&folder).map(|content| content.digest);
        assert_eq!(kept.as_deref(), Some("whole"));
    }
}
