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
/// Names that are tried, when others have made files of theirs.
const NAMES_TRIED: u32 = 4096;
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
        let mut tries = 0;
        let path = loop {
            let parent = guest.root.make_directories(DIRECTORY.as_bytes())?;
            let name = NEXT.fetch_add(1, Ordering::Relaxed).to_string();
            tries += 1;
            match mkdirat(parent, name.as_str(), Mode::S_IRWXU) {
                Ok(()) => break format!("{DIRECTORY}/{name}"),
                // Another stream's end may remove the directory in between; then it is made again. A command may have
                // made one of that name; then the next one is taken.
                Err(Errno::ENOENT | Errno::EEXIST) if tries < NAMES_TRIED => {}
                Err(errno) => return Err(failed(errno)),
            }
        };
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

    /// Makes something under the next name that is free.
    fn make<T>(
        &mut self,
        path: &[u8],
        make: impl Fn(BorrowedFd<'_>, &str) -> Result<T, Errno>,
    ) -> Result<(String, T), Error> {
        let mut tries = 0;
        loop {
            let name = self.next_name()?;
            tries += 1;
            match make(self.directory()?, &name) {
                Ok(made) => return Ok((name, made)),
                // A command may have made one of that name: the directory is its owner's too.
                Err(Errno::EEXIST) if tries < NAMES_TRIED => {}
                Err(errno) => return Err(Error::file(&show(path), errno)),
            }
        }
    }

    /// A new, empty file. `path` is for messages.
    pub(crate) fn create(&mut self, path: &[u8]) -> Result<Writing, Error> {
        let flags = OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_WRONLY | OFlag::O_CLOEXEC;
        let mode = Mode::S_IRUSR | Mode::S_IWUSR;
        let open = |directory: BorrowedFd<'_>, name: &str| openat(directory, name, flags, mode);
        let (name, file) = self.make(path, open)?;
        Ok(Writing {
            file: file.into(),
            name,
            sha256: Sha256::new(),
            size: 0,
        })
    }

    /// A new symbolic link; its name in the directory.
    pub(crate) fn link(&mut self, path: &[u8], target: &[u8]) -> Result<String, Error> {
        let link = |directory: BorrowedFd<'_>, name: &str| symlinkat(target, directory, name);
        Ok(self.make(path, link)?.0)
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
