//! Where bytes wait until all of them have come: a hidden directory in the workspace, so that a rename
//! puts a file into place. What is in it has numbers for names; whatever a stream calls its files is
//! looked at only when they are placed.

use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use nix::errno::Errno;
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::{Mode, fchmod, mkdirat};
use nix::unistd::{UnlinkatFlags, symlinkat, unlinkat};
use sha2::{Digest, Sha256};
use tokio::sync::oneshot;

use super::root::show;
use crate::error::Error;
use crate::guest::Guest;
use crate::tasks;

/// Not listed, not collected.
pub(crate) const DIRECTORY: &str = ".stage";
/// Removed at a time.
const REMOVE_SLICE: u64 = 128;

static NEXT: AtomicU64 = AtomicU64::new(0);

/// One stream's files. What is left in it goes when it is dropped.
#[derive(Debug)]
pub(crate) struct Staging {
    inner: Option<Inner>,
}

#[derive(Debug)]
struct Inner {
    guest: Arc<Guest>,
    directory: OwnedFd,
    path: String,
    count: u64,
    _cleared: oneshot::Sender<()>,
}

/// A file that is being written.
#[derive(Debug)]
pub(crate) struct Writing {
    file: File,
    name: String,
    sha256: Sha256,
    size: u64,
}

/// A file that is complete.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Written {
    /// In the staging directory.
    pub(crate) name: String,
    pub(crate) size: u64,
    pub(crate) mode: u32,
    pub(crate) sha256: [u8; 32],
}

impl Staging {
    /// `cleared` is dropped when nothing is left of it.
    pub(crate) fn new(guest: &Arc<Guest>, cleared: oneshot::Sender<()>) -> Result<Self, Error> {
        let failed = |errno| Error::file(DIRECTORY, errno);
        let path = format!("{DIRECTORY}/{}", NEXT.fetch_add(1, Ordering::Relaxed));
        // Another stream's end may remove the directory in between; then it is made again.
        let mut made = Err(Errno::ENOENT);
        for _ in 0..8 {
            let parent = guest.root.make_directories(DIRECTORY.as_bytes())?;
            let name = path.rsplit('/').next().unwrap_or_default();
            made = mkdirat(parent, name, Mode::S_IRWXU);
            if made != Err(Errno::ENOENT) {
                break;
            }
        }
        made.map_err(failed)?;
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW;
        let directory = guest.root.openat(path.as_bytes(), flags).map_err(failed)?;
        Ok(Self {
            inner: Some(Inner {
                guest: Arc::clone(guest),
                directory,
                path,
                count: 0,
                _cleared: cleared,
            }),
        })
    }

    fn inner(&mut self) -> Result<&mut Inner, Error> {
        self.inner.as_mut().ok_or(Error::NotReady)
    }

    fn next_name(&mut self) -> Result<String, Error> {
        let inner = self.inner()?;
        inner.count += 1;
        Ok(inner.count.to_string())
    }

    /// The directory, to rename from.
    pub(crate) fn directory(&mut self) -> Result<BorrowedFd<'_>, Error> {
        Ok(self.inner()?.directory.as_fd())
    }

    /// A new, empty file. `path` is for messages.
    pub(crate) fn create(&mut self, path: &[u8]) -> Result<Writing, Error> {
        let name = self.next_name()?;
        let flags = OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_WRONLY | OFlag::O_CLOEXEC;
        let mode = Mode::S_IRUSR | Mode::S_IWUSR;
        let file = openat(self.directory()?, name.as_str(), flags, mode);
        Ok(Writing {
            file: file
                .map_err(|errno| Error::file(&show(path), errno))?
                .into(),
            name,
            sha256: Sha256::new(),
            size: 0,
        })
    }

    /// A new symbolic link; its name in the directory.
    pub(crate) fn link(&mut self, path: &[u8], target: &[u8]) -> Result<String, Error> {
        let name = self.next_name()?;
        let made = symlinkat(target, self.directory()?, name.as_str());
        made.map_err(|errno| Error::file(&show(path), errno))?;
        Ok(name)
    }

    /// Removes what is left, in slices.
    pub(crate) async fn clear(mut self) {
        if let Some(inner) = self.inner.take() {
            inner.remove().await;
        }
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        if let Some(inner) = self.inner.take() {
            tasks::spawn(inner.remove());
        }
    }
}

impl Inner {
    async fn remove(self) {
        for number in 1..=self.count {
            let name = number.to_string();
            let _moved_away = unlinkat(&self.directory, name.as_str(), UnlinkatFlags::NoRemoveDir);
            if number % REMOVE_SLICE == 0 {
                tokio::task::yield_now().await;
            }
        }
        for path in [self.path.as_str(), DIRECTORY] {
            let _others_use_it = unlinkat(self.guest.root.as_fd(), path, UnlinkatFlags::RemoveDir);
        }
    }
}

impl Writing {
    /// Appends. `path` is for messages.
    pub(crate) fn write(&mut self, path: &[u8], data: &[u8]) -> Result<(), Error> {
        self.file.write_all(data).map_err(|error| {
            let errno = error.raw_os_error().map_or(Errno::EIO, Errno::from_raw);
            Error::file(&show(path), errno)
        })?;
        self.sha256.update(data);
        self.size += data.len() as u64;
        Ok(())
    }

    pub(crate) fn finish(self, path: &[u8], mode: u32) -> Result<Written, Error> {
        let bits = Mode::from_bits_truncate(mode & 0o777);
        fchmod(&self.file, bits).map_err(|errno| Error::file(&show(path), errno))?;
        Ok(Written {
            name: self.name,
            size: self.size,
            mode,
            sha256: self.sha256.finalize().into(),
        })
    }
}
