//! What was fetched from one URL, on disk. Several daemons may share it: whoever changes something holds the lock, and
//! whoever reads sees whole generations only.
//!
//! ```text
//! cache_dir/<sha256 of the URL>/
//!   lock              flock: one process at a time fetches, publishes and sweeps
//!   work-*/           what is being fetched; of a process that died if the lock is free
//!   00000007/         a generation, never changed: made in work-*, put here by one rename
//!     .lock           flock, shared by those that read it; its time is that of the last look at the server
//!     .ready          what it is, as JSON; a generation without it is none
//!     tree/           the skills
//! ```
//!
//! The generation with the highest number is the one that counts. Older ones are removed when nobody reads them.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use tempfile::TempDir;

use super::CARD;
use crate::fetch::Validators;

const LOCK: &str = "lock";
const WORK: &str = "work-";
const READ_LOCK: &str = ".lock";
const READY: &str = ".ready";
const TREE: &str = "tree";
/// Largest `.ready` that is written and read, bytes.
const READY_BYTES_MAX: u64 = 64 << 20;

/// What a generation is; the content of its `.ready`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Ready {
    /// Of the document that the URL leads to.
    pub(super) sha256: String,
    pub(super) validators: Validators,
    /// The document says all: as long as it is the same, so is the tree.
    pub(super) settled: bool,
    /// What was fetched besides, by its place in the tree.
    pub(super) parts: BTreeMap<String, Part>,
    /// Why something is not in the tree that should be, or not in its newest form.
    pub(super) skipped: Vec<String>,
    /// Regular files of the tree and their bytes: a machine that lost its power may have lost some.
    pub(super) files: u64,
    pub(super) bytes: u64,
}

impl Ready {
    /// Returns `true` if the document that the URL leads to is a skill card, which is then a file of the tree.
    pub(super) fn is_card(&self) -> bool {
        self.parts.iter().any(|(path, part)| {
            let (_, file) = path.split_once('/').unwrap_or_default();
            file == CARD && part.sha256 == self.sha256
        })
    }
}

/// Something that was fetched by a URL of its own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Part {
    pub(super) sha256: String,
    pub(super) validators: Validators,
}

/// A generation that is read; it stays as long as this does.
#[derive(Debug)]
pub(super) struct Generation {
    pub(super) number: u64,
    pub(super) ready: Ready,
    dir: PathBuf,
    /// Locked, shared.
    lock: File,
}

/// The directory of one URL.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    dir: PathBuf,
}

// === impl Generation ===

impl Generation {
    /// Folders of skills.
    pub(super) fn tree(&self) -> PathBuf {
        self.dir.join(TREE)
    }

    /// When the server was asked the last time, by whomever.
    pub(super) fn checked(&self) -> io::Result<SystemTime> {
        self.lock.metadata()?.modified()
    }

    /// The server still has it.
    pub(super) fn touch(&self) -> io::Result<()> {
        self.lock.set_modified(SystemTime::now())
    }

    fn open(dir: PathBuf, number: u64) -> io::Result<Self> {
        let path = dir.join(READ_LOCK);
        let lock = File::options().read(true).write(true).open(&path)?;
        lock.try_lock_shared().map_err(io::Error::from)?;
        // It may have been removed between the open and the lock.
        if fs::metadata(&path)?.ino() != lock.metadata()?.ino() {
            return Err(io::ErrorKind::NotFound.into());
        }
        let path = dir.join(READY);
        if fs::metadata(&path)?.len() > READY_BYTES_MAX {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let ready: Ready = serde_json::from_slice(&fs::read(path)?)?;
        let generation = Self {
            number,
            ready,
            dir,
            lock,
        };
        let size = Size::of(&generation.tree())?;
        if (size.files, size.bytes) != (generation.ready.files, generation.ready.bytes) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok(generation)
    }
}

// === impl Entry ===

impl Entry {
    pub(super) fn new(cache: &Path, url_sha256: &str) -> Self {
        Self {
            dir: cache.join(url_sha256),
        }
    }

    /// Makes the directories, which only we may write.
    ///
    /// # Errors
    /// Also when somebody else could put something there.
    pub(super) fn make(&self) -> io::Result<()> {
        let mut builder = DirBuilder::new();
        builder.recursive(true).mode(0o700).create(&self.dir)?;
        let own = nix::unistd::geteuid().as_raw();
        for dir in [Some(self.dir.as_path()), self.dir.parent()]
            .into_iter()
            .flatten()
        {
            let metadata = fs::metadata(dir)?;
            if metadata.uid() != own || metadata.mode() & 0o022 != 0 {
                let message = format!(
                    "{} must belong to the daemon's user, and nobody else may write it",
                    dir.display()
                );
                return Err(io::Error::new(io::ErrorKind::PermissionDenied, message));
            }
        }
        Ok(())
    }

    /// The lock, unless somebody has it. Given back when the file is dropped.
    pub(super) fn try_lock(&self) -> io::Result<Option<File>> {
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true).create(true).mode(0o600);
        let file = options.truncate(false).open(self.dir.join(LOCK))?;
        match file.try_lock() {
            Ok(()) => Ok(Some(file)),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }

    /// The generation that counts. One that is damaged is none.
    pub(super) fn newest(&self) -> Option<Generation> {
        let mut numbers = self.numbers();
        while let Some(number) = numbers.pop() {
            match Generation::open(self.path(number), number) {
                Ok(generation) => return Some(generation),
                Err(error) => {
                    let dir = self.path(number);
                    tracing::debug!(dir = %dir.display(), %error, "not a generation");
                }
            }
        }
        None
    }

    /// A directory to fetch into. Under the lock.
    pub(super) fn work(&self) -> io::Result<TempDir> {
        let dir = tempfile::Builder::new()
            .prefix(WORK)
            .tempdir_in(&self.dir)?;
        DirBuilder::new().mode(0o700).create(tree(dir.path()))?;
        Ok(dir)
    }

    /// Makes what is in a work directory the generation that counts. Under the lock.
    pub(super) fn publish(&self, work: TempDir, mut ready: Ready) -> io::Result<Generation> {
        let size = Size::of(&tree(work.path()))?;
        (ready.files, ready.bytes) = (size.files, size.bytes);
        let mut options = OpenOptions::new();
        let options = options.write(true).create_new(true).mode(0o600);
        options.open(work.path().join(READ_LOCK))?;
        let text = serde_json::to_vec(&ready)?;
        if text.len() as u64 > READY_BYTES_MAX {
            let message = "its server says more about its files than is remembered";
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, message));
        }
        let mut file = options.open(work.path().join(READY))?;
        file.write_all(&text)?;
        file.sync_all()?;
        // A damaged one may have a higher number than the one that counts.
        let number = self.numbers().last().map_or(1, |last| last + 1);
        fs::rename(work.path(), self.path(number))?;
        // It is elsewhere now.
        let _gone = work.keep();
        File::open(&self.dir)?.sync_all()?;
        let generation = Generation::open(self.path(number), number)?;
        // The clock of file systems is coarse, and this is compared with when somebody asked.
        generation.touch()?;
        Ok(generation)
    }

    /// Removes what is left of processes that died, and generations older than `newest` that nobody reads. Those that
    /// were replaced just now stay: somebody may be about to read them. Under the lock.
    pub(super) fn sweep(&self, newest: Option<&Generation>, grace: Duration) -> io::Result<()> {
        for entry in fs::read_dir(&self.dir)? {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if name.starts_with(WORK) {
                fs::remove_dir_all(&path)?;
            }
        }
        let Some(newest) = newest else { return Ok(()) };
        let published = fs::metadata(newest.dir.join(READY))?.modified()?;
        let recent = published.elapsed().is_ok_and(|age| age < grace);
        for number in self.numbers() {
            let dir = self.path(number);
            let whole = dir.join(READY).exists();
            if number == newest.number || (whole && (recent || number > newest.number)) {
                continue;
            }
            if let Ok(lock) = File::open(dir.join(READ_LOCK))
                && lock.try_lock().is_err()
            {
                continue;
            }
            // At once gone for those who come now, then piece by piece.
            let gone = self.dir.join(format!("{WORK}removed-{number}"));
            fs::rename(&dir, &gone)?;
            fs::remove_dir_all(&gone)?;
        }
        Ok(())
    }

    /// Ascending.
    fn numbers(&self) -> Vec<u64> {
        let Ok(entries) = fs::read_dir(&self.dir) else {
            return Vec::new();
        };
        let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        let mut numbers: Vec<u64> = names
            .filter(|name| name.len() == 8)
            .filter_map(|name| name.parse().ok())
            .collect();
        numbers.sort_unstable();
        numbers
    }

    fn path(&self, number: u64) -> PathBuf {
        self.dir.join(format!("{number:08}"))
    }
}

/// Where the skills are in a work directory.
pub(super) fn tree(work: &Path) -> PathBuf {
    work.join(TREE)
}

/// What is beneath a directory; links are not followed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Size {
    /// Whatever it is.
    pub(super) entries: u64,
    /// Regular files.
    pub(super) files: u64,
    /// Of these.
    pub(super) bytes: u64,
}

impl Size {
    pub(super) fn of(dir: &Path) -> io::Result<Self> {
        let mut size = Self::default();
        let mut ahead = vec![dir.to_owned()];
        while let Some(next) = ahead.pop() {
            for entry in fs::read_dir(next)? {
                let entry = entry?;
                let metadata = entry.metadata()?;
                size.entries += 1;
                if metadata.is_dir() {
                    ahead.push(entry.path());
                } else if metadata.is_file() {
                    size.files += 1;
                    size.bytes += metadata.len();
                }
            }
        }
        Ok(size)
    }
}

/// Puts a tree that is never changed to another place; its files are shared with the first one.
pub(super) fn link_tree(from: &Path, to: &Path) -> io::Result<()> {
    DirBuilder::new().mode(0o755).create(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            link_tree(&entry.path(), &target)?;
        } else {
            fs::hard_link(entry.path(), target)?;
        }
    }
    Ok(())
}
