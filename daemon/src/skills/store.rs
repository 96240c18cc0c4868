//! The content-addressed store: `sha256/<digest>/`, written once by one rename, never changed, readable by
//! every uid. `tmp/` beside it holds what is being copied, and is emptied at start.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use super::Problem;
use super::content::{self, Bounds, Content, Fault, Folder};
use super::contents::Contents;
use super::watch::Watcher;
use crate::config::SkillsConfig;
use crate::error::{Error, Result};

/// The store.
#[derive(Debug)]
pub(super) struct Store {
    base: PathBuf,
    bounds: Bounds,
    /// What is in which folder.
    contents: Contents,
    /// One copy at a time: others that want the same skill find it when it is their turn.
    taking: Mutex<()>,
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
        Ok(Self {
            base: base.to_owned(),
            bounds: Bounds {
                files_max: config.files_max,
                bytes_max: config.bytes_max,
            },
            contents: Contents::new(watcher),
            taking: Mutex::default(),
        })
    }

    /// Where a digest is, or would be.
    pub(super) fn dir(&self, digest: &str) -> PathBuf {
        self.base.join("sha256").join(digest)
    }

    /// What is in a folder, read again only if it changed.
    pub(super) fn inspect(&self, folder: &Folder) -> Result<Content, Problem> {
        let read = || content::read(folder, None, self.bounds);
        let content = self.contents.of(folder, self.bounds, |_| true, read);
        content.map_err(|fault| match fault {
            Fault::Skill(problem) => problem.about(&folder.dir),
            // Nothing is written here.
            Fault::Store(error) => {
                Problem::error("skill.unreadable", error.to_string()).about(&folder.dir)
            }
        })
    }

    /// Which contents must be looked at again.
    pub(super) fn contents(&self) -> &Contents {
        &self.contents
    }

    /// Puts a folder into the store if it is not there. The inner error is the skill's fault, the outer the host's.
    pub(super) fn take(&self, folder: &Folder) -> Result<Result<Content, Problem>> {
        let stored = |content: &Content| self.dir(&content.digest).is_dir();
        if let Some(content) = self.contents.recall(folder).filter(stored) {
            return Ok(Ok(content));
        }
        let _turn = self.taking.lock().unwrap_or_else(PoisonError::into_inner);
        let copy = || self.copy(folder);
        match self.contents.of(folder, self.bounds, stored, copy) {
            Ok(content) => Ok(Ok(content)),
            Err(Fault::Skill(problem)) => Ok(Err(problem.about(&folder.dir))),
            Err(Fault::Store(error)) => Err(error),
        }
    }

    fn copy(&self, folder: &Folder) -> Result<Content, Fault> {
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
        match fs::rename(&copied, &place) {
            Ok(()) => {}
            // It is there already: the same bytes.
            Err(_) if place.is_dir() => return Ok(content),
            Err(error) => return Err(failed("publish a skill")(error)),
        }
        File::open(self.base.join("sha256"))
            .and_then(|parent| parent.sync_all())
            .map_err(failed("publish a skill"))?;
        tracing::info!(digest = content.digest, files = content.files, bytes = content.bytes, dir = %folder.dir.display(), "skill stored");
        Ok(content)
    }
}
