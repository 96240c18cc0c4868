//! Who uses which digest. A lease is taken and a digest is moved away under the same lock, so that nothing is ever taken
//! from under somebody who copies it.
//!
//! `used/<digest>` remembers beyond the daemon's life: its time is that of the last use, its lines are the names that the
//! digest was stored under.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use crate::error::{Error, Result};

/// Bytes of names of one digest; what is beyond is not noted.
const NAMES_BYTES_MAX: u64 = 4096;

/// The digests of a store and their users.
#[derive(Debug)]
pub(super) struct Shelf {
    base: PathBuf,
    leases: Leases,
}

/// How many leases a digest has; one that has none is not in it.
type Leases = Arc<Mutex<HashMap<String, usize>>>;

/// Keeps a digest where it is.
#[derive(Debug)]
pub(in crate::skills) struct Lease {
    digest: String,
    leases: Leases,
    used: PathBuf,
}

impl Shelf {
    pub(super) fn new(base: &Path) -> Self {
        Self {
            base: base.to_owned(),
            leases: Leases::default(),
        }
    }

    fn dir(&self, digest: &str) -> PathBuf {
        self.base.join("sha256").join(digest)
    }

    fn used(&self, digest: &str) -> PathBuf {
        self.base.join("used").join(digest)
    }

    fn leases(&self) -> MutexGuard<'_, HashMap<String, usize>> {
        lock(&self.leases)
    }

    pub(super) fn lease(&self, digest: &str) -> Option<Lease> {
        let mut leases = self.leases();
        if !self.dir(digest).is_dir() {
            return None;
        }
        *leases.entry(digest.to_owned()).or_default() += 1;
        drop(leases);
        Some(self.counted(digest))
    }

    /// The same for a digest that is about to be put there.
    pub(super) fn reserve(&self, digest: &str) -> Lease {
        *self.leases().entry(digest.to_owned()).or_default() += 1;
        self.counted(digest)
    }

    /// For one that is counted.
    fn counted(&self, digest: &str) -> Lease {
        let used = self.used(digest);
        touch(&used);
        Lease {
            digest: digest.to_owned(),
            leases: Arc::clone(&self.leases),
            used,
        }
    }

    /// Notes that a leased digest was stored under a name.
    pub(super) fn note(&self, digest: &str, name: &str) -> Result<()> {
        if self.known_as(digest).iter().any(|known| known == name) {
            return Ok(());
        }
        let path = self.used(digest);
        let note = || -> io::Result<()> {
            let mut file = File::options().append(true).create(true).open(&path)?;
            if file.metadata()?.len() < NAMES_BYTES_MAX {
                file.write_all(format!("{name}\n").as_bytes())?;
            }
            Ok(())
        };
        note().map_err(|source| Error::Io {
            operation: format!("note the name of a skill in {}", path.display()),
            source,
        })
    }

    pub(super) fn known_as(&self, digest: &str) -> Vec<String> {
        let names = fs::read_to_string(self.used(digest)).unwrap_or_default();
        names.lines().map(str::to_owned).collect()
    }

    /// When a digest was last used; when it was stored, if that is not known.
    pub(super) fn last_use(&self, digest: &str) -> Option<SystemTime> {
        let time = |path: &Path| fs::metadata(path).and_then(|metadata| metadata.modified());
        time(&self.used(digest))
            .or_else(|_| time(&self.dir(digest)))
            .ok()
    }

    /// Digests that there are.
    pub(super) fn digests(&self) -> io::Result<Vec<String>> {
        names(&self.base.join("sha256"))
    }

    /// Moves a digest to `aside`, which is on the same file system, if nobody has a lease on it and it `may` go. False
    /// if it stays.
    pub(super) fn move_aside(
        &self,
        digest: &str,
        aside: &Path,
        may: impl FnOnce() -> bool,
    ) -> io::Result<bool> {
        let leases = self.leases();
        if leases.contains_key(digest) || !may() {
            return Ok(false);
        }
        fs::rename(self.dir(digest), aside)?;
        // Before the next one can store it again.
        remove_file(&self.used(digest))?;
        Ok(true)
    }

    /// Throws a digest away whoever uses it.
    pub(super) fn discard(&self, digest: &str) -> Result<()> {
        let discard = || -> io::Result<()> {
            let aside = tempfile::tempdir_in(self.base.join("tmp"))?;
            let leases = self.leases();
            let moved = fs::rename(self.dir(digest), aside.path().join(digest));
            drop(leases);
            match moved {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
                _ => Ok(()),
            }
        };
        discard().map_err(|source| Error::Io {
            operation: format!("throw {digest} out of the store"),
            source,
        })
    }

    /// Removes notes about digests that are not there.
    pub(super) fn forget_missing(&self) -> io::Result<()> {
        for digest in names(&self.base.join("used"))? {
            let leases = self.leases();
            if !leases.contains_key(&digest) && !self.dir(&digest).is_dir() {
                remove_file(&self.used(&digest))?;
            }
        }
        Ok(())
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        // The end of the use counts.
        touch(&self.used);
        let mut leases = lock(&self.leases);
        if let Some(count) = leases.get_mut(&self.digest) {
            *count -= 1;
            if *count == 0 {
                leases.remove(&self.digest);
            }
        }
    }
}

fn lock(leases: &Leases) -> MutexGuard<'_, HashMap<String, usize>> {
    leases.lock().unwrap_or_else(PoisonError::into_inner)
}

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

fn names(dir: &Path) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(dir)? {
        names.extend(entry?.file_name().into_string());
    }
    names.sort_unstable();
    Ok(names)
}

fn remove_file(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
