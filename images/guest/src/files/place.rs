//! From the staging directory into place: all or nothing. Directories are made first, then every file is
//! moved with one rename, and what it replaces waits in the staging directory until all are in place.

use std::os::fd::OwnedFd;

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, RenameFlags, renameat, renameat2};
use nix::sys::stat::{Mode, fchmod, fstat, fstatat};
use nix::unistd::{UnlinkatFlags, unlinkat};
use skilld_proto::v1::FileType;

use super::archive::{Entries, Staged};
use super::file_type;
use super::root::{show, split, writable};
use super::staging::Staging;
use crate::error::Error;
use crate::guest::Guest;

/// Entries placed at a time.
const PLACE_SLICE: usize = 32;
/// Times that a name is looked at again because a tenant made or removed it meanwhile.
const RACES_MAX: u32 = 16;

/// What was under a name before a file was placed there.
#[derive(Debug, Clone, Copy)]
enum Before {
    Nothing,
    /// It is in the staging directory.
    Kept,
    /// The kernel could not exchange the two: it was replaced, and cannot come back.
    Lost,
}

/// A file that is in place.
#[derive(Debug)]
struct Placed {
    path: Vec<u8>,
    /// The name that it had, and that what it replaced has now.
    staged: String,
    before: Before,
}

/// Entries on their way from the staging directory into place.
#[derive(Debug)]
pub(crate) struct Placing<'a> {
    guest: &'a Guest,
    staging: Staging,
    /// What the entries' paths are relative to.
    base: Vec<u8>,
    /// Directories that were missing.
    made: Vec<Vec<u8>>,
    /// Opened last: entries come sorted, so that it mostly serves the next one too.
    parent: Option<(Vec<u8>, OwnedFd)>,
}

impl<'a> Placing<'a> {
    /// `base` is what the entries' paths are relative to.
    pub(crate) fn new(guest: &'a Guest, staging: Staging, base: &[u8]) -> Self {
        Self {
            guest,
            staging,
            base: base.to_vec(),
            made: Vec::new(),
            parent: None,
        }
    }

    /// All or nothing, but for what a tenant does to the same paths at the same time.
    pub(crate) async fn place(&mut self, entries: &Entries) -> Result<(), Error> {
        for (number, (path, staged)) in entries.iter().enumerate() {
            check_not_a_parent(path, staged, entries)?;
            self.check(&join(&self.base, path), staged)?;
            if number % PLACE_SLICE == PLACE_SLICE - 1 {
                tokio::task::yield_now().await;
            }
        }
        let mut placed = Vec::new();
        let done = self.move_all(entries, &mut placed).await;
        if done.is_err() {
            for placed in placed.iter().rev() {
                let _a_tenant_was_there = self.take_back(placed);
            }
            self.guest.root.remove_directories(&self.made);
        }
        done
    }

    /// Whether the workspace has room for this kind of thing under this name.
    fn check(&self, path: &[u8], staged: &Staged) -> Result<(), Error> {
        writable(path)?;
        let directory = matches!(staged, Staged::Directory { .. });
        let follow = if directory {
            OFlag::empty()
        } else {
            OFlag::O_NOFOLLOW
        };
        let failed = |errno| Error::file(&show(path), errno);
        let there = match self.guest.root.openat(path, OFlag::O_PATH | follow) {
            Err(Errno::ENOENT) => return Ok(()),
            opened => opened.map_err(failed)?,
        };
        let is_directory = file_type(&fstat(there).map_err(failed)?) == FileType::Directory;
        if is_directory == directory {
            return Ok(());
        }
        Err(failed(if directory {
            Errno::ENOTDIR
        } else {
            Errno::EISDIR
        }))
    }

    async fn move_all(&mut self, entries: &Entries, placed: &mut Vec<Placed>) -> Result<(), Error> {
        let modes = self.make_all_directories(entries).await?;
        for (number, (path, staged)) in entries.iter().enumerate() {
            let staged = match staged {
                Staged::Directory { .. } => continue,
                Staged::File(written) => &written.name,
                Staged::Link(name) => name,
            };
            let path = join(&self.base, path);
            let before = self.exchange(staged, &path)?;
            placed.push(Placed {
                path,
                staged: staged.clone(),
                before,
            });
            if number % PLACE_SLICE == PLACE_SLICE - 1 {
                tokio::task::yield_now().await;
            }
        }
        for (path, mode) in modes {
            let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW;
            let directory = self.guest.root.openat(&path, flags);
            let mode = Mode::from_bits_truncate(mode) | Mode::S_IRWXU;
            let set = directory.and_then(|directory| fchmod(directory, mode));
            set.map_err(|errno| Error::file(&show(&path), errno))?;
        }
        Ok(())
    }

    /// Those that are entries and those that entries are in; the modes of the former, where they are new.
    async fn make_all_directories(
        &mut self,
        entries: &Entries,
    ) -> Result<Vec<(Vec<u8>, u32)>, Error> {
        let base = self.base.clone();
        self.parent(&base)?;
        let mut modes = Vec::new();
        for (number, (path, staged)) in entries.iter().enumerate() {
            let path = join(&self.base, path);
            if let Staged::Directory { mode } = staged {
                let before = self.made.len();
                self.guest
                    .root
                    .make_directories_noting(&path, &mut self.made)?;
                if self.made.len() > before {
                    modes.push((path, *mode));
                }
            } else {
                self.parent(split(&path).0)?;
            }
            if number % PLACE_SLICE == PLACE_SLICE - 1 {
                tokio::task::yield_now().await;
            }
        }
        Ok(modes)
    }

    /// Puts a staged file under its name, and what was there under the staged one.
    fn exchange(&mut self, staged: &str, path: &[u8]) -> Result<Before, Error> {
        let (parent, name) = split(path);
        let from = self.staging.directory()?.try_clone_to_owned();
        let from = from.map_err(|_| Error::file(staged, Errno::EMFILE))?;
        let to = self.parent(parent)?;
        let mut moved = Err(Errno::EAGAIN);
        for _ in 0..RACES_MAX {
            moved = exchange_once(&from, staged, to, name);
            if !matches!(moved, Err(Errno::ENOENT | Errno::EEXIST)) {
                break;
            }
        }
        moved.map_err(|errno| {
            let path = show(path);
            // The only other file system below the workspace is the read-only one.
            if errno == Errno::EXDEV {
                Error::ReadOnly { path }
            } else {
                Error::file(&path, errno)
            }
        })
    }

    /// Undoes an exchange. What a tenant has put there since stays.
    fn take_back(&mut self, placed: &Placed) -> Result<(), Error> {
        let (parent, name) = split(&placed.path);
        let staged = placed.staged.as_str();
        let from = self.staging.directory()?.try_clone_to_owned();
        let from = from.map_err(|_| Error::file(staged, Errno::EMFILE))?;
        let to = self.parent(parent)?;
        let undone = match placed.before {
            Before::Nothing => unlinkat(to, name, UnlinkatFlags::NoRemoveDir),
            Before::Kept => {
                let exchange = renameat2(&from, staged, to, name, RenameFlags::RENAME_EXCHANGE);
                // A tenant has removed the new one: the old one comes back all the same.
                exchange
                    .or_else(|_| renameat2(&from, staged, to, name, RenameFlags::RENAME_NOREPLACE))
            }
            Before::Lost => Ok(()),
        };
        undone.map_err(|errno| Error::file(&show(&placed.path), errno))
    }

    /// Removes what is left in the staging directory: what was replaced, or did not come into place.
    pub(crate) async fn clear(self) {
        self.staging.clear().await;
    }

    fn parent(&mut self, path: &[u8]) -> Result<&OwnedFd, Error> {
        let cached = self.parent.take().filter(|(cached, _)| cached == path);
        let parent = match cached {
            Some(parent) => parent,
            None => {
                let opened = self
                    .guest
                    .root
                    .make_directories_noting(path, &mut self.made)?;
                (path.to_vec(), opened)
            }
        };
        Ok(&self.parent.insert(parent).1)
    }
}

/// ENOENT and EEXIST when a tenant was faster.
fn exchange_once(from: &OwnedFd, staged: &str, to: &OwnedFd, name: &[u8]) -> Result<Before, Errno> {
    let exchange = || renameat2(from, staged, to, name, RenameFlags::RENAME_EXCHANGE);
    match exchange() {
        Ok(()) => {}
        Err(Errno::ENOENT) => {
            renameat2(from, staged, to, name, RenameFlags::RENAME_NOREPLACE)?;
            return Ok(Before::Nothing);
        }
        // Not every kernel can, and gVisor cannot.
        Err(Errno::EINVAL | Errno::ENOSYS) => {
            let there = fstatat(to, name, AtFlags::AT_SYMLINK_NOFOLLOW).is_ok();
            renameat(from, staged, to, name)?;
            return Ok(if there { Before::Lost } else { Before::Nothing });
        }
        Err(errno) => return Err(errno),
    }
    // A rename would have refused to replace a directory; an exchange does not.
    let old = fstatat(from, staged, AtFlags::AT_SYMLINK_NOFOLLOW)?;
    if file_type(&old) == FileType::Directory {
        exchange()?;
        return Err(Errno::EISDIR);
    }
    Ok(Before::Kept)
}

/// A file or link in the way of another entry of the same archive.
fn check_not_a_parent(path: &[u8], staged: &Staged, entries: &Entries) -> Result<(), Error> {
    if matches!(staged, Staged::Directory { .. }) {
        return Ok(());
    }
    let below = join(path, b"");
    match entries.range(below.clone()..).next() {
        Some((next, _)) if next.starts_with(&below) => Err(Error::ArchiveInvalid {
            entry: show(next),
            problem: "lies beneath an entry that is no directory",
        }),
        _ => Ok(()),
    }
}

/// A path beneath another, which may be empty.
pub(super) fn join(base: &[u8], path: &[u8]) -> Vec<u8> {
    if base.is_empty() {
        return path.to_vec();
    }
    [base, b"/", path].concat()
}
