//! Staging directories for incoming files: hidden directories in the workspace, so that one rename installs a file.
//! Entries have numbers for names. The names that a stream gives to its files matter only when they are installed.

use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, openat};
use nix::sys::stat::{Mode, fchmod, mkdirat};
use nix::unistd::{UnlinkatFlags, linkat, symlinkat, unlinkat};
use sha2::{Digest, Sha256};
use tokio::sync::oneshot;

use super::root::{WorkspaceRoot, display_path};
use crate::error::Error;
use crate::task_spawn;

/// Parent of all staging directories. Listings and collections leave it out.
pub(crate) const STAGING_PARENT: &str = ".stage";
/// Maximum number of names tried when commands have created files of the same name.
const NAMES_TRIED: u32 = 4096;
/// Number of files removed before other tasks get their turn.
const REMOVE_SLICE: u64 = 128;

static NEXT_STAGING_NUMBER: AtomicU64 = AtomicU64::new(0);

/// Staging directory of one stream. Dropping it removes the directory.
#[derive(Debug)]
pub(crate) struct StagingDirectory {
    root: Arc<WorkspaceRoot>,
    directory: Arc<OwnedFd>,
    path: String,
    /// Number of the last entry.
    count: u64,
    /// Dropped once the directory is removed.
    cleared: Option<oneshot::Sender<()>>,
}

/// Writer of a staged file.
#[derive(Debug)]
pub(crate) struct StagedFileWriter {
    file: File,
    name: String,
    sha256: Sha256,
    size: u64,
}

/// Staged file that is complete.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FinishedFile {
    /// Name in the staging directory.
    pub(crate) name: String,
    pub(crate) size: u64,
    pub(crate) mode: u32,
    pub(crate) sha256: [u8; 32],
}

impl StagingDirectory {
    /// Creates a staging directory. It drops `cleared` when it is removed.
    pub(crate) fn new(
        root: &Arc<WorkspaceRoot>,
        cleared: oneshot::Sender<()>,
    ) -> Result<Self, Error> {
        let failed = |errno| Error::file(STAGING_PARENT, errno);
        let mut tries = 0;
        let path = loop {
            let parent = root.make_directories(STAGING_PARENT.as_bytes())?;
            let name = NEXT_STAGING_NUMBER
                .fetch_add(1, Ordering::Relaxed)
                .to_string();
            tries += 1;
            match mkdirat(parent, name.as_str(), Mode::S_IRWXU) {
                Ok(()) => break format!("{STAGING_PARENT}/{name}"),
                // The end of another stream may remove the parent, which is then created again. A command may have
                // created this name; then the next one is tried.
                Err(Errno::ENOENT | Errno::EEXIST) if tries < NAMES_TRIED => {}
                Err(errno) => return Err(failed(errno)),
            }
        };
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW;
        let directory = root.openat(path.as_bytes(), flags).map_err(failed)?;
        Ok(Self {
            root: Arc::clone(root),
            directory: Arc::new(directory),
            path,
            count: 0,
            cleared: Some(cleared),
        })
    }

    /// Returns the directory, for renames from it.
    pub(crate) fn directory(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.directory)
    }

    /// Creates an entry under the next free name.
    fn make<T>(
        &mut self,
        path: &[u8],
        make: impl Fn(BorrowedFd<'_>, &str) -> Result<T, Errno>,
    ) -> Result<(String, T), Error> {
        let mut tries = 0;
        loop {
            self.count += 1;
            let name = self.count.to_string();
            tries += 1;
            match make(self.directory.as_fd(), &name) {
                Ok(made) => return Ok((name, made)),
                // A command may have created this name, since the directory belongs to its uid.
                Err(Errno::EEXIST) if tries < NAMES_TRIED => {}
                Err(errno) => return Err(Error::file(&display_path(path), errno)),
            }
        }
    }

    /// Creates an empty file. `path` is for error messages.
    pub(crate) fn create(&mut self, path: &[u8]) -> Result<StagedFileWriter, Error> {
        let flags = OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_WRONLY | OFlag::O_CLOEXEC;
        let mode = Mode::S_IRUSR | Mode::S_IWUSR;
        let open = |directory: BorrowedFd<'_>, name: &str| openat(directory, name, flags, mode);
        let (name, file) = self.make(path, open)?;
        Ok(StagedFileWriter {
            file: file.into(),
            name,
            sha256: Sha256::new(),
            size: 0,
        })
    }

    /// Creates a symbolic link and returns its name in the directory.
    pub(crate) fn link(&mut self, path: &[u8], target: &[u8]) -> Result<String, Error> {
        let link = |directory: BorrowedFd<'_>, name: &str| symlinkat(target, directory, name);
        Ok(self.make(path, link)?.0)
    }

    /// Gives a file of the directory a second name, which it returns.
    pub(crate) fn hard_link(&mut self, path: &[u8], existing: &str) -> Result<String, Error> {
        let link = |directory: BorrowedFd<'_>, name: &str| {
            linkat(directory, existing, directory, name, AtFlags::empty())
        };
        Ok(self.make(path, link)?.0)
    }
}

impl Drop for StagingDirectory {
    /// Removes the directory with what is left in it, in slices.
    fn drop(&mut self) {
        let (root, directory) = (Arc::clone(&self.root), self.directory());
        let (path, count) = (std::mem::take(&mut self.path), self.count);
        let cleared = self.cleared.take();
        task_spawn::spawn(async move {
            for number in 1..=count {
                let name = number.to_string();
                let _moved_away = unlinkat(&directory, name.as_str(), UnlinkatFlags::NoRemoveDir);
                if number % REMOVE_SLICE == 0 {
                    tokio::task::yield_now().await;
                }
            }
            for path in [path.as_str(), STAGING_PARENT] {
                let _others_use_it = unlinkat(root.as_fd(), path, UnlinkatFlags::RemoveDir);
            }
            drop(cleared);
        });
    }
}

impl StagedFileWriter {
    /// Appends data. `path` is for error messages.
    pub(crate) fn write(&mut self, path: &[u8], data: &[u8]) -> Result<(), Error> {
        let written = self.file.write_all(data);
        written.map_err(|error| Error::io(&display_path(path), &error))?;
        self.sha256.update(data);
        self.size += data.len() as u64;
        Ok(())
    }

    /// Sets the file's mode and, if it is given, its modification time, and completes the file.
    pub(crate) fn finish(
        self,
        path: &[u8],
        mode: u32,
        mtime: Option<SystemTime>,
    ) -> Result<FinishedFile, Error> {
        let bits = Mode::from_bits_truncate(mode & 0o777);
        fchmod(&self.file, bits).map_err(|errno| Error::file(&display_path(path), errno))?;
        if let Some(mtime) = mtime {
            // A time that the file system can't keep is no reason to refuse a file.
            let _out_of_range = self.file.set_modified(mtime);
        }
        Ok(FinishedFile {
            name: self.name,
            size: self.size,
            mode,
            sha256: self.sha256.finalize().into(),
        })
    }
}
