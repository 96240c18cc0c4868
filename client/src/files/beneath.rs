//! Files written beneath a local directory under names that somebody else chose: never outside of it, never
//! through a link, never half.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs::Permissions;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Component, Path, PathBuf};

use tempfile::{Builder, TempPath};
use tokio::fs::{self, File};
use tokio::io::AsyncWriteExt;

use crate::Error;
use crate::files::tree::io_error;

const TEMPORARY_PREFIX: &str = ".skilld-";

/// What became of something that came.
#[derive(Debug)]
pub(crate) enum Placed {
    /// It has its name.
    There(PathBuf),
    /// It was not written, for this reason.
    Refused(Refusal),
}

/// Why something was not written, after "it".
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refusal {
    #[error("is a link to {0}, outside of the target")]
    LeadsOut(String),
    #[error("has the name of a directory that is here")]
    DirectoryThere,
}

/// A directory that is written beneath. Guards against the names; not against another process that changes
/// the directory at the same time.
#[derive(Debug)]
pub(crate) struct Beneath {
    root: PathBuf,
    /// Known to be directories and no links.
    checked: HashSet<PathBuf>,
}

/// A file that appears under its name when it is finished, and leaves nothing when it is dropped.
#[derive(Debug)]
pub(crate) struct Pending {
    file: File,
    temporary: TempPath,
    target: PathBuf,
}

impl Beneath {
    /// Makes the directory if it is not there.
    pub(crate) async fn open(root: &Path) -> Result<Self, Error> {
        fs::create_dir_all(root).await.map_err(io_error(root))?;
        let root = fs::canonicalize(root).await.map_err(io_error(root))?;
        Ok(Self {
            root,
            checked: HashSet::new(),
        })
    }

    /// Opens a new file. Of the mode only "executable" is taken; the rest is the user's umask.
    pub(crate) async fn create(&mut self, name: &[u8], mode: u32) -> Result<Pending, Error> {
        let target = self.place(name).await?;
        let parent = target.parent().unwrap_or(&self.root);
        let mode = if mode & 0o100 == 0 { 0o666 } else { 0o777 };
        let (file, temporary) = Builder::new()
            .prefix(TEMPORARY_PREFIX)
            .permissions(Permissions::from_mode(mode))
            .tempfile_in(parent)
            .map_err(io_error(parent))?
            .into_parts();
        Ok(Pending {
            file: File::from_std(file),
            temporary,
            target,
        })
    }

    /// Makes a symbolic link, replacing a file or link that has the name at once. Refuses one whose target is
    /// not beneath the directory too.
    pub(crate) async fn link(&mut self, name: &[u8], target: &str) -> Result<Placed, Error> {
        let link = self.place(name).await?;
        let depth = link.components().count() - self.root.components().count() - 1;
        if !stays_beneath(Path::new(target), depth) {
            let why = Refusal::LeadsOut(target.to_owned());
            return Ok(Placed::Refused(why));
        }
        let parent = link.parent().unwrap_or(&self.root);
        let temporary = Builder::new()
            .prefix(TEMPORARY_PREFIX)
            .make_in(parent, |path| std::os::unix::fs::symlink(target, path))
            .map_err(io_error(parent))?
            .into_temp_path();
        place(temporary, link)
    }

    /// Where a name is, with its directories made.
    async fn place(&mut self, name: &[u8]) -> Result<PathBuf, Error> {
        let refused = |problem| Error::UnsafeName {
            path: String::from_utf8_lossy(name).into_owned(),
            problem,
        };
        if name.contains(&0) {
            return Err(refused("it has a NUL in it"));
        }
        let path = Path::new(OsStr::from_bytes(name));
        let mut parts = Vec::new();
        for component in path.components() {
            match component {
                Component::Normal(part) => parts.push(part),
                Component::CurDir => {}
                Component::ParentDir | Component::RootDir | Component::Prefix(_) => {
                    return Err(refused("it leads out of the target directory"));
                }
            }
        }
        let Some((file, directories)) = parts.split_last() else {
            return Err(refused("it names no file"));
        };
        let mut place = self.root.clone();
        for directory in directories {
            place.push(directory);
            if !self.is_directory(&place).await? {
                return Err(refused("a part of it is a link or a file"));
            }
        }
        place.push(file);
        Ok(place)
    }

    /// Makes a directory unless there is one; false if there is something else.
    async fn is_directory(&mut self, path: &Path) -> Result<bool, Error> {
        if self.checked.contains(path) {
            return Ok(true);
        }
        match fs::symlink_metadata(path).await {
            Ok(metadata) if !metadata.is_dir() => return Ok(false),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                fs::create_dir(path).await.map_err(io_error(path))?;
            }
            Err(error) => return Err(io_error(path)(error)),
        }
        self.checked.insert(path.to_owned());
        Ok(true)
    }
}

impl Pending {
    /// Adds bytes.
    pub(crate) async fn write(&mut self, data: &[u8]) -> Result<(), Error> {
        self.file
            .write_all(data)
            .await
            .map_err(io_error(&self.target))
    }

    /// Gives the file its name, replacing a file or link (not what it points to) that has it.
    pub(crate) async fn finish(mut self) -> Result<Placed, Error> {
        self.file.flush().await.map_err(io_error(&self.target))?;
        place(self.temporary, self.target)
    }
}

/// Renames to a name that may be taken, by anything but a directory.
fn place(temporary: TempPath, target: PathBuf) -> Result<Placed, Error> {
    match temporary.persist(&target) {
        Ok(()) => Ok(Placed::There(target)),
        Err(error) if error.error.kind() == io::ErrorKind::IsADirectory => {
            Ok(Placed::Refused(Refusal::DirectoryThere))
        }
        Err(error) => Err(io_error(&target)(error.error)),
    }
}

/// Whether a link in a directory `depth` below the root can only lead beneath the root. Going up is allowed at
/// the start only: after a name, `..` leads wherever a link of that name has led.
fn stays_beneath(target: &Path, depth: usize) -> bool {
    let mut ups = 0;
    let mut below = false;
    for component in target.components() {
        match component {
            Component::ParentDir if below => return false,
            Component::ParentDir => ups += 1,
            Component::Normal(_) => below = true,
            Component::CurDir => {}
            Component::RootDir | Component::Prefix(_) => return false,
        }
    }
    below && ups <= depth
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_that_could_lead_out_are_told_from_those_that_cannot() {
        let check = |target: &str, depth, expected| {
            assert_eq!(
                stays_beneath(Path::new(target), depth),
                expected,
                "{target}"
            );
        };
        check("report.md", 0, true);
        check("../report.md", 1, true);
        check("../../report.md", 1, false);
        check("/etc/passwd", 3, false);
        check("dir/../../x", 1, false);
        check("..", 1, false);
        check("", 0, false);
    }
}
