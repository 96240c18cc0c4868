//! The content-addressed store: `sha256/<digest>/`, written once by one rename, never changed, readable by every uid.
//!
//! `tmp/` beside it holds what is being copied or removed, and is emptied at start. A user of a digest holds a
//! [`Lease`]: `store_cleanup.rs` removes no leased digest. Staged content is trusted while the fingerprint of its files
//! is as it was when they were last hashed; otherwise all files are hashed again, and a digest that no longer matches
//! is discarded. Content of a root need not be synced, because it is copied again if a power cut takes it; published
//! content exists nowhere else and is synced.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use parking_lot::Mutex;
use serde::Serialize;
use serde::de::DeserializeOwned;
use skilld_common::atomic_write::AtomicWrite;

use crate::error::{Error, Result};
use crate::held_bytes::measure_held_bytes;
use crate::parse::problem::{LeftOutEntries, Problem};
use crate::skills_options::SkillsOptions;

pub mod content_hashing;
pub(crate) mod digest_cache;
mod lease;
pub mod link_policy;
pub(crate) mod metadata_fingerprint;
pub mod skill_files;
pub(crate) mod staged_skill;
mod store_cleanup;

use content_hashing::{ContentBounds, ContentSource, ContentSummary, IngestError};
pub(crate) use lease::Lease;
use lease::Leases;
use metadata_fingerprint::MetadataFingerprint;
pub use store_cleanup::StoreCleanup;

/// Code of the problem of published content whose files were altered or are gone.
pub(crate) const DAMAGED: &str = "skill.damaged";
/// Bounds for content of the store: it was within the configured bounds when it came there, which may be lower now.
const NO_BOUNDS: ContentBounds = ContentBounds {
    files_max: u64::MAX,
    bytes_max: u64::MAX,
};

/// The content-addressed store.
#[derive(Debug)]
pub(crate) struct ContentStore {
    base: PathBuf,
    /// Bounds of one skill.
    pub(crate) bounds: ContentBounds,
    /// Maximum size of a SKILL.md, in bytes.
    pub(crate) skill_md_bytes_max: u64,
    /// Digests that were verified, with the fingerprint of their files at that time.
    verified: Mutex<HashMap<String, (MetadataFingerprint, ContentSummary)>>,
    leases: Leases,
}

impl ContentStore {
    /// Opens the store in `base` and empties its temporary directory.
    ///
    /// # Errors
    /// `Io` when its directories cannot be made or emptied.
    pub(crate) fn open(base: &Path, options: &SkillsOptions) -> Result<Self> {
        let temporary = base.join("tmp");
        make_empty_directory(&temporary)
            .map_err(Error::io(format!("clean {}", temporary.display())))?;
        for name in ["sha256", "used"] {
            let directory = base.join(name);
            let failed = Error::io(format!("make {}", directory.display()));
            fs::create_dir_all(directory).map_err(failed)?;
        }
        Ok(Self {
            base: base.to_owned(),
            bounds: ContentBounds {
                files_max: options.files_max,
                bytes_max: options.bytes_max,
            },
            skill_md_bytes_max: options.skill_md_bytes_max,
            verified: Mutex::default(),
            leases: Leases::default(),
        })
    }

    /// Directory for files on their way into the store or out of it.
    pub(crate) fn tmp(&self) -> PathBuf {
        self.base.join("tmp")
    }

    /// Directory of a digest, which need not exist.
    pub(crate) fn dir(&self, digest: &str) -> PathBuf {
        self.base.join("sha256").join(digest)
    }

    /// Hashes a folder and copies it into the store unless the store has its digest. `name` is remembered as a name of
    /// the digest.
    ///
    /// # Errors
    /// `Skill` for what the skill must not have; `Host` when the host failed.
    pub(crate) fn ingest(
        &self,
        folder: &ContentSource,
        name: &str,
    ) -> Result<ContentSummary, IngestError> {
        let content = content_hashing::read_content(folder, None, self.bounds)?;
        if self.dir(&content.digest).is_dir() {
            return Ok(content);
        }
        match self.copy(folder, name) {
            Ok((content, _lease)) => Ok(content),
            // The digest is known, and listing needs no more: who stages the skill tries again and gets the error.
            Err(IngestError::Host(error)) => {
                tracing::warn!(%error, dir = %folder.dir.display(), "a skill was not stored");
                Ok(content)
            }
            Err(error) => Err(error),
        }
    }

    /// Copies a folder into the store if its content is not there, and leases it.
    ///
    /// # Errors
    /// As [`Self::ingest`].
    pub(crate) fn copy(
        &self,
        folder: &ContentSource,
        name: &str,
    ) -> Result<(ContentSummary, Lease), IngestError> {
        self.copy_bounded(folder, name, self.bounds)
    }

    /// Copies a tree into the store whose size its caller has bounded, and leases it.
    ///
    /// # Errors
    /// As [`Self::ingest`].
    pub(crate) fn copy_unbounded(
        &self,
        folder: &ContentSource,
        name: &str,
    ) -> Result<(ContentSummary, Lease), IngestError> {
        self.copy_bounded(folder, name, NO_BOUNDS)
    }

    /// Copies a folder within other bounds than those of a skill into the store, and leases it.
    ///
    /// # Errors
    /// As [`Self::ingest`].
    pub(crate) fn copy_bounded(
        &self,
        folder: &ContentSource,
        name: &str,
        bounds: ContentBounds,
    ) -> Result<(ContentSummary, Lease), IngestError> {
        let failed = |operation: &str| {
            let failed = Error::io(format!("{operation} in the store"));
            |source| IngestError::Host(failed(source))
        };
        // The temporary directory itself is renamed into the store: one around it would have to be removed for each
        // skill. Ext4 without a journal skips every inode that was freed in the last minutes when it makes a file.
        let copied = tempfile::tempdir_in(self.tmp()).map_err(failed("make a directory"))?;
        let content = content_hashing::read_content(folder, Some(copied.path()), bounds)?;
        let target = self.dir(&content.digest);
        // The lease comes before the rename, so that the digest is not collected in between.
        let lease = self.lease_future(&content.digest);
        let is_stored = target.is_dir() && self.is_intact(&content.digest)?;
        if !is_stored {
            match fs::rename(copied.path(), &target) {
                Ok(()) => drop(copied.keep()),
                // Another thread stored the same content meanwhile.
                Err(_) if target.is_dir() => {}
                Err(error) => return Err(failed("publish a skill")(error)),
            }
            if let Some(now) = self.fingerprint(&content.digest) {
                // What was left out is of this folder. Another one may have the same content.
                let stored = ContentSummary {
                    left_out: LeftOutEntries::default(),
                    ..content.clone()
                };
                self.verified
                    .lock()
                    .insert(content.digest.clone(), (now, stored));
            }
            tracing::info!(
                digest = content.digest,
                files = content.files,
                bytes = content.bytes,
                dir = %folder.dir.display(),
                "skill stored"
            );
        }
        self.add_name(&content.digest, name)?;
        Ok((content, lease))
    }

    /// Leases a digest if the store has it whole; discards it if its files were altered.
    ///
    /// # Errors
    /// `Io` when its files cannot be read, which says nothing about them.
    pub(crate) fn lease_intact(&self, digest: &str) -> Result<Option<Lease>> {
        let Some(lease) = self.lease_stored(digest) else {
            return Ok(None);
        };
        Ok(self.is_intact(digest)?.then_some(lease))
    }

    /// Returns `true` if the files of a digest are as they were when they were last verified.
    pub(crate) fn is_unchanged(&self, digest: &str) -> bool {
        let now = self.fingerprint(digest);
        now.is_some_and(|now| self.content_if_unchanged(digest, &now).is_some())
    }

    /// Returns the content of a digest, whose files are hashed unless they are unchanged since the last time.
    ///
    /// # Errors
    /// A problem when the files were altered or cannot be read.
    pub(crate) fn verified_content(&self, digest: &str) -> Result<ContentSummary, Problem> {
        let verified = self.verify(digest).map_err(|error| {
            let problem = IngestError::Host(error).into_problem();
            problem.about(&self.dir(digest))
        });
        verified?.ok_or_else(|| {
            let message = "its files in the store were altered or are gone; publish it again";
            Problem::error(DAMAGED, message).about(&self.dir(digest))
        })
    }

    /// Verifies a digest; discards it if its files were altered, so that it can be stored anew.
    fn is_intact(&self, digest: &str) -> Result<bool> {
        if self.verify(digest)?.is_some() {
            return Ok(true);
        }
        tracing::error!(
            digest,
            "files of a stored skill were altered; discarding it"
        );
        self.discard(digest)?;
        self.forget(digest);
        Ok(false)
    }

    /// Returns the content of a digest; `None` if files are gone or were altered.
    fn verify(&self, digest: &str) -> Result<Option<ContentSummary>> {
        let started = SystemTime::now();
        let now = self.fingerprint(digest);
        let known = now.and_then(|now| self.content_if_unchanged(digest, &now));
        if known.is_some() {
            return Ok(known);
        }
        let dir = self.dir(digest);
        let read = content_hashing::read_content(&ContentSource::stored(&dir), None, NO_BOUNDS);
        let content = check_digest(&dir, digest, read)?;
        if let Some(content) = &content
            && let Some(now) = now.filter(|now| !now.is_recent(started))
        {
            let entry = (now, content.clone());
            self.verified.lock().insert(digest.to_owned(), entry);
        }
        Ok(content)
    }

    /// Returns the content of a digest if its files had this fingerprint when they were last verified.
    fn content_if_unchanged(
        &self,
        digest: &str,
        now: &MetadataFingerprint,
    ) -> Option<ContentSummary> {
        let verified = self.verified.lock();
        let (then, content) = verified.get(digest)?;
        (then == now).then(|| content.clone())
    }

    fn fingerprint(&self, digest: &str) -> Option<MetadataFingerprint> {
        MetadataFingerprint::take(&ContentSource::stored(&self.dir(digest)), NO_BOUNDS, |_| {})
    }

    /// Returns the bytes that count for the files of a digest, by their metadata; 0 if the store does not have the digest.
    pub(crate) fn held_bytes(&self, digest: &str) -> u64 {
        measure_held_bytes(&self.dir(digest))
    }

    /// Waits until the files of a digest are on the disk.
    ///
    /// # Errors
    /// `Io`.
    pub(crate) fn sync(&self, digest: &str) -> Result<()> {
        let dir = self.dir(digest);
        let synced =
            sync_tree(&dir).and_then(|()| File::open(self.base.join("sha256"))?.sync_all());
        synced.map_err(Error::io(format!("sync {}", dir.display())))
    }

    /// Writes a record like [`write_record`], with the store's directory of temporary files.
    ///
    /// # Errors
    /// Fails with the error of the file system.
    pub(crate) fn write_record(
        &self,
        path: &Path,
        record: &impl Serialize,
        before_rename: impl FnOnce(),
    ) -> io::Result<()> {
        write_record(&self.tmp(), path, record, before_rename)
    }

    fn forget(&self, digest: &str) {
        self.verified.lock().remove(digest);
    }
}

/// Writes a record as JSON, atomically: to a file in `temporary`, synced, then renamed. Calls `before_rename` in between.
///
/// # Errors
/// Fails with the error of the file system.
pub(crate) fn write_record(
    temporary: &Path,
    path: &Path,
    record: &impl Serialize,
    before_rename: impl FnOnce(),
) -> io::Result<()> {
    let written =
        AtomicWrite::new(temporary, &serde_json::to_vec_pretty(record)?, 0o600)?.sync()?;
    before_rename();
    written.install(path)
}

/// Reads a record that [`write_record`] wrote.
///
/// # Errors
/// Fails with the error of the file system or of the parser.
pub(crate) fn read_record<T: DeserializeOwned>(path: &Path) -> io::Result<T> {
    Ok(serde_json::from_slice(&fs::read(path)?)?)
}

/// Makes a directory, or removes everything in it. One that exists needs no space, so a daemon starts on a full disk.
///
/// # Errors
/// Fails with the error of the file system.
pub(crate) fn make_empty_directory(dir: &Path) -> io::Result<()> {
    fs::create_dir_all(dir)?;
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        match entry.file_type()?.is_dir() {
            true => fs::remove_dir_all(entry.path())?,
            false => fs::remove_file(entry.path())?,
        }
    }
    Ok(())
}

/// Returns a path beneath a directory of temporary files that nothing has. A directory is moved there before it is
/// removed: nothing is created for that, so a full disk refuses no removal.
pub(crate) fn removal_path(temporary: &Path) -> PathBuf {
    static REMOVALS: AtomicU64 = AtomicU64::new(0);
    let number = REMOVALS.fetch_add(1, Ordering::Relaxed);
    temporary.join(format!("removed-{number}"))
}

/// Syncs a tree: directories after their entries. Links are part of their directories.
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

/// Returns what was read of a digest's directory if it has the digest; `None` if it was altered.
fn check_digest(
    dir: &Path,
    digest: &str,
    read: Result<ContentSummary, IngestError>,
) -> Result<Option<ContentSummary>> {
    match read {
        Ok(content) => {
            let is_whole = content.digest == digest && content.left_out.total == 0;
            Ok(is_whole.then_some(content))
        }
        Err(IngestError::Host(error)) => Err(error),
        Err(IngestError::Skill(problem)) => {
            // Whatever a skill must not have was not there when it was stored.
            let is_gone = dir.try_exists().is_ok_and(|exists| !exists);
            if problem.code != content_hashing::UNREADABLE || is_gone {
                return Ok(None);
            }
            let failed = Error::io(format!("read {}", dir.display()));
            Err(failed(io::Error::other(problem.message)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unreadable_files_are_not_taken_for_altered_ones() {
        let there = tempfile::tempdir().expect("a directory");
        let gone = there.path().join("gone");
        let fault = |code| {
            Err(IngestError::Skill(Problem::error(
                code,
                "too many open files",
            )))
        };
        let content = |digest: &str| ContentSummary {
            digest: digest.to_owned(),
            files: 1,
            bytes: 1,
            ..ContentSummary::default()
        };
        let mut with_fifo = content("a");
        with_fifo.left_out.add("pipe", "is a FIFO");
        let is_intact = |dir: &Path, read| check_digest(dir, "a", read).map(|it| it.is_some());
        assert!(is_intact(there.path(), Ok(content("a"))).expect("read"));
        assert!(!is_intact(there.path(), Ok(content("b"))).expect("read"));
        assert!(!is_intact(there.path(), Ok(with_fifo)).expect("read"));
        assert!(!is_intact(there.path(), fault("skill.too_deep")).expect("read"));
        assert!(!is_intact(&gone, fault(content_hashing::UNREADABLE)).expect("read"));
        let error =
            is_intact(there.path(), fault(content_hashing::UNREADABLE)).expect_err("not known");
        assert!(matches!(error, Error::Io { .. }), "{error}");
    }
}
