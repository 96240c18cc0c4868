//! Collection of unused digests: those that nothing references and that were not used for a while. Each is moved to
//! `tmp/` by one rename and removed there, so that a digest is whole or absent whenever the daemon dies.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::time::{Duration, SystemTime};

use super::{ContentStore, removal_path};
use crate::error::{Error, Result};
use crate::fault;

/// Result of a garbage collection of the store.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StoreCleanup {
    /// Number of digests that were removed.
    pub removed: usize,
    /// Number of digests that are left.
    pub kept: usize,
}

impl ContentStore {
    /// Removes digests that were not used for `keep`, unless they are `referenced`, or `is_pinned` returns `true` at
    /// the moment of removal. Blocks.
    ///
    /// # Errors
    /// `Io`.
    pub(crate) fn collect(
        &self,
        keep: Duration,
        referenced: &HashSet<String>,
        is_pinned: impl Fn(&str) -> bool,
    ) -> Result<StoreCleanup> {
        let is_unused = |digest: &str| {
            let last = self.last_use(digest);
            let age = last.and_then(|last| SystemTime::now().duration_since(last).ok());
            // A time in the future has no age.
            age.is_some_and(|age| age >= keep)
        };
        let collect = || {
            let mut collection = StoreCleanup::default();
            for digest in self.list_digests()? {
                let is_candidate = is_unused(&digest) && !referenced.contains(&digest);
                // The digest may have been used or published since, so the lock's holder asks again.
                let may_go = || is_unused(&digest) && !is_pinned(&digest);
                if is_candidate && self.remove_unleased(&digest, may_go)? {
                    collection.removed += 1;
                } else {
                    collection.kept += 1;
                }
            }
            self.remove_stale_notes()?;
            Ok(collection)
        };
        let operation = format!("collect unused skills in {}", self.base.display());
        collect().map_err(Error::io(operation))
    }

    /// Removes a digest if it has no lease and `may_go` returns `true`. Returns `false` if it stays.
    pub(crate) fn remove_unleased(
        &self,
        digest: &str,
        may_go: impl FnOnce() -> bool,
    ) -> io::Result<bool> {
        let place = removal_path(&self.tmp());
        if !self.move_unleased(digest, &place, may_go)? {
            return Ok(false);
        }
        fault::reach("clear.moved");
        self.forget(digest);
        fs::remove_dir_all(&place)?;
        tracing::info!(digest, "unused skill removed from the store");
        Ok(true)
    }
}
