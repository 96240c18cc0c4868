//! The content-addressed store: `sha256/<digest>/`, written once by one rename, never changed, readable by
//! every uid. `tmp/` beside it holds what is being copied or removed, and is emptied at start.
//!
//! Who uses a digest holds a [`Lease`] on it: as long as there is one, `gc.rs` leaves the digest where it is. What is
//! staged from the store is trusted while its files are as they were when they were last read; if one was touched, all
//! are read again, and a digest that is no longer true is thrown away. So what has a root need not wait for the disk: what
//! a power cut takes of it is copied again. What is published lies nowhere else, and is synced. A digest that cannot be
//! read now may be true all the same, and stays.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use super::Problem;
use super::content::{self, Bounds, Content, Fault, Folder};
use super::contents::Contents;
use super::fingerprint::Fingerprint;
use super::watch::Watcher;
use crate::config::SkillsConfig;
use crate::error::{Error, Result};

mod gc;
mod lease;

pub use gc::Collected;
pub(super) use lease::Lease;
use lease::Shelf;

/// Times that a folder is put into the store if it is collected or damaged before it can be used.
const TRIES: usize = 8;
/// What is in the store was within bounds when it came there; they may be lower by now.
const STORED: Bounds = Bounds {
    files_max: u64::MAX,
    bytes_max: u64::MAX,
};

/// The store.
#[derive(Debug)]
pub(super) struct Store {
    base: PathBuf,
    bounds: Bounds,
    /// What is in which folder.
    contents: Contents,
    /// One copy at a time: others that want the same skill find it when it is their turn.
    taking: Mutex<()>,
    /// Digests as they were when they were last found to be true.
    intact: Mutex<HashMap<String, Fingerprint>>,
    shelf: Shelf,
}

impl Store {
    pub(super) fn open(base: &Path, config: &SkillsConfig, watcher: Arc<Watcher>) -> Result<Self> {
        let failed = |operation: &str| {
            let operation = format!("{operation} {}", base.display());
            move |source| Error::Io { operation, source }
        };
        match fs::remove_dir_all(base.join("tmp")) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(failed("clean")(error));
            }
            _ => {}
        }
        fs::create_dir_all(base.join("tmp")).map_err(failed("make"))?;
        fs::create_dir_all(base.join("sha256")).map_err(failed("make"))?;
        fs::create_dir_all(base.join("used")).map_err(failed("make"))?;
        Ok(Self {
            base: base.to_owned(),
            bounds: Bounds {
                files_max: config.files_max,
                bytes_max: config.bytes_max,
            },
            contents: Contents::new(watcher),
            taking: Mutex::default(),
            intact: Mutex::default(),
            shelf: Shelf::new(base),
        })
    }

    /// Where all digests are.
    pub(super) fn digests_dir(&self) -> PathBuf {
        self.base.join("sha256")
    }

    /// The digest that a folder of the store should have.
    fn own(&self, dir: &Path) -> Option<String> {
        let name = dir.file_name()?.to_str()?;
        (dir == self.dir(name)).then(|| name.to_owned())
    }

    /// For what is on its way into the store or out of it; emptied at start.
    pub(super) fn tmp(&self) -> PathBuf {
        self.base.join("tmp")
    }

    /// Where a digest is, or would be.
    pub(super) fn dir(&self, digest: &str) -> PathBuf {
        self.base.join("sha256").join(digest)
    }

    /// What is in a folder, read again only if it changed.
    pub(super) fn inspect(&self, folder: &Folder) -> Result<Content, Problem> {
        let own = self.own(&folder.dir);
        let bounds = if own.is_some() { STORED } else { self.bounds };
        let read = || content::read(folder, None, bounds);
        let content = self.contents.of(folder, bounds, |_| true, read);
        if let Some(own) = own {
            let content = stored(&folder.dir, &own, content)?;
            return content.ok_or_else(|| damaged().about(&folder.dir));
        }
        content.map_err(|fault| fault.problem().about(&folder.dir))
    }

    /// Which contents must be looked at again.
    pub(super) fn contents(&self) -> &Contents {
        &self.contents
    }

    /// Puts a folder into the store if it is not there whole, under the name that it is known by. The inner error is
    /// the skill's fault, the outer the host's.
    pub(super) fn take(
        &self,
        folder: &Folder,
        name: &str,
    ) -> Result<Result<(Content, Lease), Problem>> {
        if let Some(digest) = self.own(&folder.dir) {
            return self.take_own(folder, &digest);
        }
        for _ in 0..TRIES {
            let (content, lease) = match self.take_once(folder)? {
                Ok(taken) => taken,
                Err(problem) => return Ok(Err(problem)),
            };
            // What was remembered may have been collected since, and what was damaged is gone: next time it is copied.
            if let Some(lease) = lease.or_else(|| self.lease(&content.digest))
                && self.is_intact(&content.digest)?
            {
                self.shelf.note(&content.digest, name)?;
                return Ok(Ok((content, lease)));
            }
        }
        let what = format!(
            "{} is collected or damaged as soon as it is stored",
            folder.dir.display()
        );
        Err(Error::Internal(what))
    }

    /// What is published lies nowhere else.
    fn take_own(&self, folder: &Folder, digest: &str) -> Result<Result<(Content, Lease), Problem>> {
        let Some(lease) = self.lease(digest) else {
            return Ok(Err(damaged().about(&folder.dir)));
        };
        if !self.is_intact(digest)? {
            return Ok(Err(damaged().about(&folder.dir)));
        }
        Ok(self.inspect(folder).map(|content| (content, lease)))
    }

    /// What is in the store already, or a copy with its lease.
    fn take_once(&self, folder: &Folder) -> Result<Result<(Content, Option<Lease>), Problem>> {
        let stored = |content: &Content| self.dir(&content.digest).is_dir();
        if let Some(content) = self.contents.recall(folder).filter(stored) {
            return Ok(Ok((content, None)));
        }
        let _turn = self.taking.lock().unwrap_or_else(PoisonError::into_inner);
        let mut leased = None;
        let copy = || {
            let (content, lease) = self.copy(folder)?;
            leased = Some(lease);
            Ok(content)
        };
        match self.contents.of(folder, self.bounds, stored, copy) {
            Ok(content) => Ok(Ok((content, leased))),
            Err(Fault::Skill(problem)) => Ok(Err(problem.about(&folder.dir))),
            Err(Fault::Store(error)) => Err(error),
        }
    }

    /// Keeps a digest in the store while it is used. `None` if it is not there.
    pub(super) fn lease(&self, digest: &str) -> Option<Lease> {
        self.shelf.lease(digest)
    }

    /// Names under which a digest was put into the store; none if that was by an earlier version.
    pub(super) fn known_as(&self, digest: &str) -> Vec<String> {
        self.shelf.known_as(digest)
    }

    /// Whether what lies under a digest has that digest. Costs a look at each file if none was touched since the last
    /// time. What was damaged is thrown away, so that the next one who takes it puts it there anew; what cannot be read
    /// is an error, and stays.
    pub(super) fn is_intact(&self, digest: &str) -> Result<bool> {
        let folder = Folder::stored(&self.dir(digest));
        let started = SystemTime::now();
        let now = Fingerprint::take(&folder, STORED, |_, _| {});
        if now.is_some() && self.intact().get(digest).copied() == now {
            return Ok(true);
        }
        let content = match content::read(&folder, None, STORED) {
            // The host's: that says nothing about the files.
            Err(Fault::Store(error)) => return Err(error),
            content => content,
        };
        let content = stored(&folder.dir, digest, content).map_err(|problem| Error::Io {
            operation: format!("read {}", problem.subject),
            source: io::Error::other(problem.message),
        });
        if content?.is_some() {
            if let Some(now) = now.filter(|now| !now.is_recent(started)) {
                self.intact().insert(digest.to_owned(), now);
            }
            return Ok(true);
        }
        tracing::error!(
            digest,
            "files of a stored skill were altered; it is thrown away"
        );
        self.shelf.discard(digest)?;
        self.forget(digest);
        Ok(false)
    }

    /// Waits until a digest is on the disk.
    pub(super) fn sync(&self, digest: &str) -> Result<()> {
        let dir = self.dir(digest);
        let synced = sync_tree(&dir).and_then(|()| File::open(self.digests_dir())?.sync_all());
        synced.map_err(|source| Error::Io {
            operation: format!("sync {}", dir.display()),
            source,
        })
    }

    /// A digest is not there any more.
    fn forget(&self, digest: &str) {
        self.intact().remove(digest);
        self.contents.forget_beneath(&self.dir(digest));
    }

    fn intact(&self) -> MutexGuard<'_, HashMap<String, Fingerprint>> {
        self.intact.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Copies a folder into the store. Its lease is older than its place there, so it is not collected in between.
    fn copy(&self, folder: &Folder) -> Result<(Content, Lease), Fault> {
        let failed = |operation: &'static str| {
            move |source| {
                Fault::Store(Error::Io {
                    operation: format!("{operation} in the store"),
                    source,
                })
            }
        };
        let temporary =
            tempfile::tempdir_in(self.base.join("tmp")).map_err(failed("make a directory"))?;
        let copied = temporary.path().join("content");
        let content = content::read(folder, Some(&copied), self.bounds)?;
        let place = self.dir(&content.digest);
        let lease = self.shelf.reserve(&content.digest);
        if place.is_dir() && self.is_intact(&content.digest).map_err(Fault::Store)? {
            return Ok((content, lease));
        }
        fs::rename(&copied, &place).map_err(failed("publish a skill"))?;
        // Nobody else writes here, so it need not be read again to be trusted.
        if let Some(now) = Fingerprint::take(&Folder::stored(&place), STORED, |_, _| {}) {
            self.intact().insert(content.digest.clone(), now);
        }
        tracing::info!(digest = content.digest, files = content.files, bytes = content.bytes, dir = %folder.dir.display(), "skill stored");
        Ok((content, lease))
    }
}

/// Directories after what is in them. Links are in their directories.
fn sync_tree(dir: &Path) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        if kind.is_dir() {
            sync_tree(&entry.path())?;
        } else if kind.is_file() {
            File::open(entry.path())?.sync_all()?;
        }
    }
    File::open(dir)?.sync_all()
}

/// What was read of a digest's directory; `None` if that is not what was stored there. An error says nothing about that.
fn stored(
    dir: &Path,
    digest: &str,
    read: Result<Content, Fault>,
) -> Result<Option<Content>, Problem> {
    match read {
        Ok(content) => Ok(Some(content).filter(|content| content.digest == digest)),
        Err(fault) => {
            let problem = fault.problem();
            // What a skill must not have was not there when it was stored.
            let altered =
                problem.code != content::UNREADABLE || dir.try_exists().is_ok_and(|is| !is);
            if altered {
                Ok(None)
            } else {
                Err(problem.about(dir))
            }
        }
    }
}

fn damaged() -> Problem {
    let message = "its files in the store were altered or are gone; publish it again";
    Problem::error("skill.damaged", message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_could_not_be_read_is_not_what_was_altered() {
        let there = tempfile::tempdir().expect("a directory");
        let gone = there.path().join("gone");
        let fault = |code| Err(Fault::Skill(Problem::error(code, "too many open files")));
        let content = |digest: &str| Content {
            digest: digest.to_owned(),
            files: 1,
            bytes: 1,
            own_links: Vec::new(),
            followed: 0,
        };
        let is = |dir: &Path, read| stored(dir, "a", read).map(|content| content.is_some());
        assert_eq!(is(there.path(), Ok(content("a"))), Ok(true));
        assert_eq!(is(there.path(), Ok(content("b"))), Ok(false));
        assert_eq!(is(there.path(), fault("skill.special_file")), Ok(false));
        assert_eq!(is(&gone, fault(content::UNREADABLE)), Ok(false));
        let error = is(there.path(), fault(content::UNREADABLE)).expect_err("not known");
        assert_eq!(error.message, "too many open files");
    }
}
