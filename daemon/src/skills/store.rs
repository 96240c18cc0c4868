//! The content-addressed store: `sha256/<digest>/`, written once by one rename, never changed, readable by
//! every uid. `tmp/` beside it holds what is being copied, and is emptied at start.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use super::Problem;
use super::content::{self, Bounds, Content, Fault};
use super::fingerprint::Fingerprint;
use crate::config::SkillsConfig;
use crate::error::{Error, Result};

/// Folders that are remembered.
const REMEMBERED_MAX: usize = 10_000;

/// The store.
#[derive(Debug)]
pub(super) struct Store {
    base: PathBuf,
    bounds: Bounds,
    /// Contents of folders, good as long as their files are as they were.
    remembered: Mutex<HashMap<PathBuf, (Fingerprint, Content)>>,
    /// One copy at a time: others that want the same skill find it when it is their turn.
    taking: Mutex<()>,
}

impl Store {
    pub(super) fn open(base: &Path, config: &SkillsConfig) -> Result<Self> {
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
        Ok(Self {
            base: base.to_owned(),
            bounds: Bounds {
                files_max: config.files_max,
                bytes_max: config.bytes_max,
            },
            remembered: Mutex::default(),
            taking: Mutex::default(),
        })
    }

    /// Where a digest is, or would be.
    pub(super) fn dir(&self, digest: &str) -> PathBuf {
        self.base.join("sha256").join(digest)
    }

    /// What is in a folder, read again only if it changed.
    pub(super) fn inspect(&self, dir: &Path) -> Result<Content, Problem> {
        self.looked_at(dir, |_| true, || content::read(dir, None, self.bounds))
            .map_err(|fault| match fault {
                Fault::Skill(problem) => problem.about(dir),
                // Nothing is written here.
                Fault::Store(error) => {
                    Problem::error("skill.unreadable", error.to_string()).about(dir)
                }
            })
    }

    /// Puts a folder into the store if it is not there. The inner error is the skill's fault, the outer the host's.
    pub(super) fn take(&self, dir: &Path) -> Result<Result<Content, Problem>> {
        let stored = |content: &Content| self.dir(&content.digest).is_dir();
        if let Some(content) = self.recall(dir, Fingerprint::take(dir, self.bounds).as_ref())
            && stored(&content)
        {
            return Ok(Ok(content));
        }
        let _turn = self.taking.lock().unwrap_or_else(PoisonError::into_inner);
        match self.looked_at(dir, stored, || self.copy(dir)) {
            Ok(content) => Ok(Ok(content)),
            Err(Fault::Skill(problem)) => Ok(Err(problem.about(dir))),
            Err(Fault::Store(error)) => Err(error),
        }
    }

    fn copy(&self, dir: &Path) -> Result<Content, Fault> {
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
        let content = content::read(dir, Some(&copied), self.bounds)?;
        let place = self.dir(&content.digest);
        match fs::rename(&copied, &place) {
            Ok(()) => {}
            // It is there already: the same bytes.
            Err(_) if place.is_dir() => return Ok(content),
            Err(error) => return Err(failed("publish a skill")(error)),
        }
        File::open(self.base.join("sha256"))
            .and_then(|parent| parent.sync_all())
            .map_err(failed("publish a skill"))?;
        tracing::info!(digest = content.digest, files = content.files, bytes = content.bytes, dir = %dir.display(), "skill stored");
        Ok(content)
    }

    /// The remembered content of a folder, or what `read` finds, remembered if it can be.
    fn looked_at(
        &self,
        dir: &Path,
        good: impl FnOnce(&Content) -> bool,
        read: impl FnOnce() -> Result<Content, Fault>,
    ) -> Result<Content, Fault> {
        let started = SystemTime::now();
        let before = Fingerprint::take(dir, self.bounds);
        if let Some(content) = self.recall(dir, before.as_ref()).filter(good) {
            return Ok(content);
        }
        let content = read()?;
        let unchanged = |before: &Fingerprint| {
            !before.is_recent(started)
                && Fingerprint::take(dir, self.bounds).as_ref() == Some(before)
        };
        if let Some(before) = before.filter(unchanged) {
            let mut remembered = self.remembered();
            if remembered.len() >= REMEMBERED_MAX {
                remembered.clear();
            }
            remembered.insert(dir.to_owned(), (before, content.clone()));
        }
        Ok(content)
    }

    fn recall(&self, dir: &Path, now: Option<&Fingerprint>) -> Option<Content> {
        let remembered = self.remembered();
        let (then, content) = remembered.get(dir)?;
        (Some(then) == now).then(|| content.clone())
    }

    fn remembered(&self) -> MutexGuard<'_, HashMap<PathBuf, (Fingerprint, Content)>> {
        self.remembered
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}
