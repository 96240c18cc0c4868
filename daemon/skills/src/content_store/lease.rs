//! Leases on digests, which keep the content in the store. Taking a lease and moving a digest away hold the same lock,
//! so that no digest vanishes while it is copied.
//!
//! `used/<digest>` outlives the daemon: its modification time is that of the last use, its lines are the names under which
//! the digest was stored.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use parking_lot::Mutex;

use super::{ContentStore, removal_path};
use crate::error::{Error, Result, tolerate};

/// Maximum size of the names of one digest, in bytes; further names are not noted.
const NAMES_BYTES_MAX: u64 = 4096;

/// Number of leases by digest; digests without a lease are absent.
pub(super) type Leases = Arc<Mutex<HashMap<String, usize>>>;

/// Lease on a digest: while it exists, the digest is not collected.
#[derive(Debug)]
pub(crate) struct Lease {
    digest: String,
    leases: Leases,
    /// File whose modification time is that of the last use.
    use_note: PathBuf,
}

impl ContentStore {
    fn use_note(&self, digest: &str) -> PathBuf {
        self.base.join("used").join(digest)
    }

    /// Leases a digest; returns `None` if the store does not have it.
    pub(super) fn lease_stored(&self, digest: &str) -> Option<Lease> {
        let mut leases = self.leases.lock();
        if !self.dir(digest).is_dir() {
            return None;
        }
        *leases.entry(digest.to_owned()).or_default() += 1;
        drop(leases);
        Some(self.make_lease(digest))
    }

    /// Leases a digest that is about to be stored.
    pub(super) fn lease_future(&self, digest: &str) -> Lease {
        *self.leases.lock().entry(digest.to_owned()).or_default() += 1;
        self.make_lease(digest)
    }

    /// Makes a lease that is counted already.
    fn make_lease(&self, digest: &str) -> Lease {
        let use_note = self.use_note(digest);
        touch(&use_note);
        Lease {
            digest: digest.to_owned(),
            leases: Arc::clone(&self.leases),
            use_note,
        }
    }

    /// Notes that a leased digest was stored under a name.
    pub(crate) fn add_name(&self, digest: &str, name: &str) -> Result<()> {
        if self.names(digest).iter().any(|known| known == name) {
            return Ok(());
        }
        let path = self.use_note(digest);
        let note = || -> io::Result<()> {
            let mut file = File::options().append(true).create(true).open(&path)?;
            if file.metadata()?.len() < NAMES_BYTES_MAX {
                file.write_all(format!("{name}\n").as_bytes())?;
            }
            Ok(())
        };
        let operation = format!("note the name of a skill in {}", path.display());
        note().map_err(Error::io(operation))
    }

    /// Returns the names under which a digest was stored; empty if they are not known.
    pub(crate) fn names(&self, digest: &str) -> Vec<String> {
        let names = fs::read_to_string(self.use_note(digest)).unwrap_or_default();
        names.lines().map(str::to_owned).collect()
    }

    /// Returns the time of a digest's last use; the time when it was stored if that is not known.
    pub(super) fn last_use(&self, digest: &str) -> Option<SystemTime> {
        let time = |path: &Path| fs::metadata(path).and_then(|metadata| metadata.modified());
        time(&self.use_note(digest))
            .or_else(|_| time(&self.dir(digest)))
            .ok()
    }

    /// Returns all digests of the store.
    pub(super) fn list_digests(&self) -> io::Result<Vec<String>> {
        list_directory(&self.base.join("sha256"))
    }

    /// Moves a digest to `aside`, which is on the same file system, if it has no lease and `may_go` returns `true`
    /// then. Returns `false` if it stays.
    pub(super) fn move_unleased(
        &self,
        digest: &str,
        aside: &Path,
        may_go: impl FnOnce() -> bool,
    ) -> io::Result<bool> {
        let leases = self.leases.lock();
        if leases.contains_key(digest) || !may_go() {
            return Ok(false);
        }
        fs::rename(self.dir(digest), aside)?;
        // Removed under the lock, before the digest can be stored again.
        tolerate(ErrorKind::NotFound, fs::remove_file(self.use_note(digest)))?;
        Ok(true)
    }

    /// Discards a digest regardless of its leases.
    pub(super) fn discard(&self, digest: &str) -> Result<()> {
        let discard = || {
            let aside = removal_path(&self.tmp());
            let leases = self.leases.lock();
            let moved = fs::rename(self.dir(digest), &aside);
            tolerate(ErrorKind::NotFound, moved)?;
            drop(leases);
            tolerate(ErrorKind::NotFound, fs::remove_dir_all(aside))
        };
        discard().map_err(Error::io(format!("throw {digest} out of the store")))
    }

    /// Removes notes about digests that the store does not have.
    pub(super) fn remove_stale_notes(&self) -> io::Result<()> {
        for digest in list_directory(&self.base.join("used"))? {
            let leases = self.leases.lock();
            if !leases.contains_key(&digest) && !self.dir(&digest).is_dir() {
                tolerate(ErrorKind::NotFound, fs::remove_file(self.use_note(&digest)))?;
            }
        }
        Ok(())
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        // The age of a digest counts from the end of its last use.
        touch(&self.use_note);
        let mut leases = self.leases.lock();
        if let Some(count) = leases.get_mut(&self.digest) {
            *count -= 1;
            if *count == 0 {
                leases.remove(&self.digest);
            }
        }
    }
}

/// Sets the modification time of a file to now; makes the file if it does not exist.
fn touch(path: &Path) {
    let touched = File::options()
        .append(true)
        .create(true)
        .open(path)
        .and_then(|file| file.set_modified(SystemTime::now()));
    if let Err(error) = touched {
        tracing::warn!(path = %path.display(), %error, "the use of a skill was not noted");
    }
}

fn list_directory(dir: &Path) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(dir)? {
        names.extend(entry?.file_name().into_string());
    }
    names.sort_unstable();
    Ok(names)
}
