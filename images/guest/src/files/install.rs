//! Atomic installation of staged files: all or none. Directories are created first. Each file is then exchanged with
//! what is at its path by one rename, so that a failure can be undone.

use std::fs::File;
use std::os::fd::OwnedFd;

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, RenameFlags, renameat, renameat2};
use nix::sys::stat::{Mode, fchmod, fstat, fstatat};
use nix::unistd::{UnlinkatFlags, unlinkat};
use skilld_proto::v1::FileType;

use super::file_type;
use super::root::{WorkspaceRoot, check_writable, display_path, split_path};
use super::staging::StagingDirectory;
use super::tar_unpacker::{StagedDirectory, StagedEntries, StagedEntry};
use crate::error::Error;

/// Maximum number of entries per turn of the guest's thread.
const PLACE_SLICE: usize = 32;
/// Maximum number of attempts for a name that commands create or remove in the meantime.
const RACES_MAX: u32 = 16;

/// State of a path before a file was installed there.
#[derive(Debug, Clone, Copy)]
enum ReplacedEntry {
    Nothing,
    /// The previous entry is in the staging directory.
    Kept,
    /// The previous entry is gone, because the file system cannot exchange two names.
    Lost,
}

/// Installed entry, with what is needed to undo its installation.
#[derive(Debug)]
struct InstalledEntry {
    path: Vec<u8>,
    /// Name in the staging directory. The replaced entry has it now.
    staged: String,
    before: ReplacedEntry,
}

/// Installation of staged entries into the workspace.
#[derive(Debug)]
pub(crate) struct AtomicInstall<'a> {
    root: &'a WorkspaceRoot,
    staging: StagingDirectory,
    /// Directory that the entries' paths are relative to.
    base: Vec<u8>,
    /// Directories that the installation created.
    made: Vec<Vec<u8>>,
    /// The directory that was opened last. Entries are sorted, so the next one is mostly in it too.
    parent: Option<(Vec<u8>, OwnedFd)>,
}

impl<'a> AtomicInstall<'a> {
    /// Prepares the installation of entries whose paths are relative to `base`.
    pub(crate) fn new(root: &'a WorkspaceRoot, staging: StagingDirectory, base: &[u8]) -> Self {
        Self {
            root,
            staging,
            base: base.to_vec(),
            made: Vec::new(),
            parent: None,
        }
    }

    /// Installs all entries or none. Changes by commands to the same paths in the meantime stay.
    pub(crate) async fn install(&mut self, entries: &StagedEntries) -> Result<(), Error> {
        for (number, (path, staged)) in entries.iter().enumerate() {
            check_not_a_parent(path, staged, entries)?;
            self.check_kind(&join_path(&self.base, path), staged)?;
            pause_after(number).await;
        }
        let mut placed = Vec::new();
        let done = self.move_all(entries, &mut placed).await;
        if done.is_err() {
            for placed in placed.iter().rev() {
                let _a_tenant_was_there = self.undo_exchange(placed);
            }
            self.root.remove_directories(&self.made);
        }
        done
    }

    /// Checks that the path is free, or holds the same kind of entry.
    fn check_kind(&self, path: &[u8], staged: &StagedEntry) -> Result<(), Error> {
        check_writable(path)?;
        let directory = matches!(staged, StagedEntry::Directory(_));
        let follow = if directory {
            OFlag::empty()
        } else {
            OFlag::O_NOFOLLOW
        };
        let failed = |errno| Error::file(&display_path(path), errno);
        let there = match self.root.openat(path, OFlag::O_PATH | follow) {
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

    /// Creates directories and moves all files. `placed` lists the moved files, for undoing.
    async fn move_all(
        &mut self,
        entries: &StagedEntries,
        placed: &mut Vec<InstalledEntry>,
    ) -> Result<(), Error> {
        let directories = self.make_all_directories(entries).await?;
        for (number, (path, staged)) in entries.iter().enumerate() {
            let staged = match staged {
                StagedEntry::Directory(_) => continue,
                StagedEntry::File(written) => &written.name,
                StagedEntry::Link(name) => name,
            };
            let path = join_path(&self.base, path);
            let before = self.exchange(staged, &path)?;
            placed.push(InstalledEntry {
                path,
                staged: staged.clone(),
                before,
            });
            pause_after(number).await;
        }
        // Last, since the installation of files changes the times of their directories.
        for (path, directory) in directories {
            self.complete_directory(&path, directory)?;
        }
        Ok(())
    }

    /// Sets mode and modification time of a directory that the installation created.
    fn complete_directory(&self, path: &[u8], staged: StagedDirectory) -> Result<(), Error> {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW;
        let failed = |errno| Error::file(&display_path(path), errno);
        let directory = self.root.openat(path, flags).map_err(failed)?;
        // The guest has the directory's uid and no capability, so it needs these bits to reach the entries again.
        let mode = Mode::from_bits_truncate(staged.mode) | Mode::S_IRWXU;
        fchmod(&directory, mode).map_err(failed)?;
        if let Some(mtime) = staged.mtime {
            let _out_of_range = File::from(directory).set_modified(mtime);
        }
        Ok(())
    }

    /// Creates the directories among the entries and the parents of all entries. Returns the new ones among the entries.
    async fn make_all_directories(
        &mut self,
        entries: &StagedEntries,
    ) -> Result<Vec<(Vec<u8>, StagedDirectory)>, Error> {
        let base = self.base.clone();
        self.open_parent(&base)?;
        let is_base_new = self.made.last() == Some(&base);
        let mut new = Vec::new();
        for (number, (path, staged)) in entries.iter().enumerate() {
            let is_new_base = path.is_empty() && is_base_new;
            let path = join_path(&self.base, path);
            if let StagedEntry::Directory(directory) = staged {
                let before = self.made.len();
                self.root
                    .make_directories_recording(&path, &mut self.made)?;
                if self.made.len() > before || is_new_base {
                    new.push((path, *directory));
                }
            } else {
                self.open_parent(split_path(&path).0)?;
            }
            pause_after(number).await;
        }
        Ok(new)
    }

    /// Moves a staged file to its path, and what was there to the staged name.
    fn exchange(&mut self, staged: &str, path: &[u8]) -> Result<ReplacedEntry, Error> {
        let (parent, name) = split_path(path);
        let from = self.staging.directory();
        let to = self.open_parent(parent)?;
        let mut moved = Err(Errno::EAGAIN);
        for _ in 0..RACES_MAX {
            moved = exchange_names(&from, staged, to, name);
            if !matches!(moved, Err(Errno::ENOENT | Errno::EEXIST)) {
                break;
            }
        }
        moved.map_err(|errno| {
            let path = display_path(path);
            // The only other file system in the workspace is read-only.
            if errno == Errno::EXDEV {
                Error::ReadOnly { path }
            } else {
                Error::file(&path, errno)
            }
        })
    }

    /// Undoes an exchange. What a command has put there since stays.
    fn undo_exchange(&mut self, placed: &InstalledEntry) -> Result<(), Error> {
        let (parent, name) = split_path(&placed.path);
        let staged = placed.staged.as_str();
        let from = self.staging.directory();
        let to = self.open_parent(parent)?;
        let undone = match placed.before {
            ReplacedEntry::Nothing => unlinkat(to, name, UnlinkatFlags::NoRemoveDir),
            ReplacedEntry::Kept => {
                let exchange = renameat2(&from, staged, to, name, RenameFlags::RENAME_EXCHANGE);
                // A command has removed the new file, so the old one is moved back without an exchange.
                exchange
                    .or_else(|_| renameat2(&from, staged, to, name, RenameFlags::RENAME_NOREPLACE))
            }
            ReplacedEntry::Lost => Ok(()),
        };
        undone.map_err(|errno| Error::file(&display_path(&placed.path), errno))
    }

    /// Opens the parent directory of an entry, creating it if it is missing.
    fn open_parent(&mut self, path: &[u8]) -> Result<&OwnedFd, Error> {
        let cached = self.parent.take().filter(|(cached, _)| cached == path);
        let parent = match cached {
            Some(parent) => parent,
            None => {
                let opened = self.root.make_directories_recording(path, &mut self.made)?;
                (path.to_vec(), opened)
            }
        };
        Ok(&self.parent.insert(parent).1)
    }
}

/// Lets other tasks run after every [`PLACE_SLICE`] entries.
async fn pause_after(number: usize) {
    if number % PLACE_SLICE == PLACE_SLICE - 1 {
        tokio::task::yield_now().await;
    }
}

/// Exchanges two names once. Fails with ENOENT or EEXIST if a command changed the path in between.
fn exchange_names(
    from: &OwnedFd,
    staged: &str,
    to: &OwnedFd,
    name: &[u8],
) -> Result<ReplacedEntry, Errno> {
    let exchange = || renameat2(from, staged, to, name, RenameFlags::RENAME_EXCHANGE);
    match exchange() {
        Ok(()) => {}
        Err(Errno::ENOENT) => {
            renameat2(from, staged, to, name, RenameFlags::RENAME_NOREPLACE)?;
            return Ok(ReplacedEntry::Nothing);
        }
        // Some file systems and gVisor cannot exchange names.
        Err(Errno::EINVAL | Errno::ENOSYS) => {
            let there = fstatat(to, name, AtFlags::AT_SYMLINK_NOFOLLOW).is_ok();
            renameat(from, staged, to, name)?;
            return Ok(match there {
                true => ReplacedEntry::Lost,
                false => ReplacedEntry::Nothing,
            });
        }
        Err(errno) => return Err(errno),
    }
    // Unlike a rename, an exchange also replaces a directory.
    let old = fstatat(from, staged, AtFlags::AT_SYMLINK_NOFOLLOW)?;
    if file_type(&old) == FileType::Directory {
        exchange()?;
        return Err(Errno::EISDIR);
    }
    Ok(ReplacedEntry::Kept)
}

/// Refuses a file or link that another entry of the same archive lies beneath.
fn check_not_a_parent(
    path: &[u8],
    staged: &StagedEntry,
    entries: &StagedEntries,
) -> Result<(), Error> {
    if matches!(staged, StagedEntry::Directory(_)) {
        return Ok(());
    }
    let below = [path, b"/"].concat();
    match entries.range(below.clone()..).next() {
        Some((next, _)) if next.starts_with(&below) => Err(Error::ArchiveInvalid {
            entry: display_path(next),
            problem: "lies beneath an entry that is no directory",
        }),
        _ => Ok(()),
    }
}

/// Joins a path to a base. Both may be empty.
pub(super) fn join_path(base: &[u8], path: &[u8]) -> Vec<u8> {
    match (base, path) {
        (b"", path) => path.to_vec(),
        (base, b"") => base.to_vec(),
        (base, path) => [base, b"/", path].concat(),
    }
}
