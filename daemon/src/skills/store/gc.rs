//! What leaves the store: digests that nothing refers to and nobody has used for a while. Each is moved to `tmp/` by one
//! rename and removed there, so that a digest is whole or not there, whenever the daemon dies.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::time::{Duration, SystemTime};

use super::Store;
use crate::error::{Error, Result};
use crate::fault::{self, Point};

/// What a collection did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Collected {
    /// Digests that were removed.
    pub removed: usize,
    /// Digests that are left.
    pub kept: usize,
}

impl Store {
    /// Removes what was not used for `keep` and is neither among the digests that `referenced` answers, which is asked
    /// once and only if there is something to remove, nor `pinned` at the moment when it goes. Blocking.
    pub(in crate::skills) fn collect(
        &self,
        keep: Duration,
        referenced: impl FnOnce() -> HashSet<String>,
        pinned: impl Fn(&str) -> bool,
    ) -> Result<Collected> {
        let failed = |source| Error::Io {
            operation: format!("collect what is unused in {}", self.base.display()),
            source,
        };
        let unused = |digest: &str| {
            let last = self.shelf.last_use(digest);
            let age = last.and_then(|last| SystemTime::now().duration_since(last).ok());
            // A time to come is no age.
            age.is_some_and(|age| age >= keep)
        };
        let mut collected = Collected::default();
        let all = self.shelf.digests().map_err(failed)?;
        collected.kept = all.len();
        let candidates: Vec<String> = all.into_iter().filter(|digest| unused(digest)).collect();
        if !candidates.is_empty() {
            let referenced = referenced();
            // It may have been used or published since it was looked at.
            let may_go = |digest: &str| unused(digest) && !pinned(digest);
            for digest in candidates {
                if !referenced.contains(&digest) && self.remove(&digest, &may_go).map_err(failed)? {
                    collected.removed += 1;
                    collected.kept -= 1;
                }
            }
        }
        self.shelf.forget_missing().map_err(failed)?;
        Ok(collected)
    }

    fn remove(&self, digest: &str, may_go: &impl Fn(&str) -> bool) -> io::Result<bool> {
        let aside = tempfile::tempdir_in(self.tmp())?;
        let place = aside.path().join(digest);
        if !self.shelf.move_aside(digest, &place, || may_go(digest))? {
            return Ok(false);
        }
        fault::reach(Point::ClearMoved);
        self.forget(digest);
        fs::remove_dir_all(&place)?;
        tracing::info!(digest, "unused skill removed from the store");
        Ok(true)
    }
}
