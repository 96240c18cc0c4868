//! Local directory that received files are written to under names that the server sends: never outside of it, never
//! through a link, never in part.

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
use crate::files::local_tree::io_error;

/// First characters of the names of temporary files.
const TEMPORARY_PREFIX: &str = ".skilld-";

/// Outcome of writing one received entry.
#[derive(Debug)]
pub(crate) enum WriteOutcome {
    /// The entry was written to this path.
    Written(PathBuf),
    /// The entry was not written.
    Skipped(SkipReason),
}

/// Reason why an entry was not written; completes a sentence that begins with "it".
#[derive(Debug, thiserror::Error)]
pub(crate) enum SkipReason {
    #[error("is a link to {0}, outside of the target")]
    LeadsOut(String),
    #[error("has the name of a directory that is here")]
    DirectoryExists,
}

/// Directory that receives files. Guards against the names that the server sends; not against another process that
/// changes the directory at the same time.
#[derive(Debug)]
pub(crate) struct TargetDirectory {
    root: PathBuf,
    /// Paths that are known to be directories and no links.
    checked: HashSet<PathBuf>,
}

/// File that appears under its name when it is finished, and leaves nothing when it is dropped.
#[derive(Debug)]
pub(crate) struct PendingFile {
    file: File,
    temporary: TempPath,
    target: PathBuf,
}

impl TargetDirectory {
    /// Opens the directory, and makes it if it does not exist.
    pub(crate) async fn open(root: &Path) -> Result<Self, Error> {
        fs::create_dir_all(root).await.map_err(io_error(root))?;
        let root = fs::canonicalize(root).await.map_err(io_error(root))?;
        Ok(Self {
            root,
            checked: HashSet::new(),
        })
    }

    /// Opens a new file. The mode decides only if it is executable; the user's umask decides the rest.
    pub(crate) async fn create(&mut self, name: &[u8], mode: u32) -> Result<PendingFile, Error> {
        let target = self.create_parents(name).await?;
        let parent = target.parent().unwrap_or(&self.root);
        let mode = if mode & 0o100 == 0 { 0o666 } else { 0o777 };
        let (file, temporary) = Builder::new()
            .prefix(TEMPORARY_PREFIX)
            .permissions(Permissions::from_mode(mode))
            .tempfile_in(parent)
            .map_err(io_error(parent))?
            .into_parts();
        Ok(PendingFile {
            file: File::from_std(file),
            temporary,
            target,
        })
    }

    /// Makes a symbolic link and atomically replaces a file or link of that name. Skips one whose target is not beneath
    /// the directory.
    pub(crate) async fn link(&mut self, name: &[u8], target: &str) -> Result<WriteOutcome, Error> {
        let link = self.create_parents(name).await?;
        let depth = link.components().count() - self.root.components().count() - 1;
        if !stays_beneath(Path::new(target), depth) {
            let why = SkipReason::LeadsOut(target.to_owned());
            return Ok(WriteOutcome::Skipped(why));
        }
        let parent = link.parent().unwrap_or(&self.root);
        let temporary = Builder::new()
            .prefix(TEMPORARY_PREFIX)
            .make_in(parent, |path| std::os::unix::fs::symlink(target, path))
            .map_err(io_error(parent))?
            .into_temp_path();
        install_file(temporary, link)
    }

    /// Returns the local path for a received name and creates its parent directories. Refuses unsafe names.
    async fn create_parents(&mut self, name: &[u8]) -> Result<PathBuf, Error> {
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
            if !self.ensure_directory(&place).await? {
                return Err(refused("a part of it is a link or a file"));
            }
        }
        place.push(file);
        Ok(place)
    }

    /// Makes a directory unless it exists. Returns `false` if the path is something else.
    async fn ensure_directory(&mut self, path: &Path) -> Result<bool, Error> {
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

impl PendingFile {
    /// Appends bytes to the file.
    pub(crate) async fn write(&mut self, data: &[u8]) -> Result<(), Error> {
        self.file
            .write_all(data)
            .await
            .map_err(io_error(&self.target))
    }

    /// Gives the file its name and replaces a file or link (not its target) of that name.
    pub(crate) async fn finish(mut self) -> Result<WriteOutcome, Error> {
        self.file.flush().await.map_err(io_error(&self.target))?;
        install_file(self.temporary, self.target)
    }
}

/// Renames a temporary file to its name. A directory of that name is not replaced.
fn install_file(temporary: TempPath, target: PathBuf) -> Result<WriteOutcome, Error> {
    match temporary.persist(&target) {
        Ok(()) => Ok(WriteOutcome::Written(target)),
        Err(error) if error.error.kind() == io::ErrorKind::IsADirectory => {
            Ok(WriteOutcome::Skipped(SkipReason::DirectoryExists))
        }
        Err(error) => Err(io_error(&target)(error.error)),
    }
}

/// Returns `true` if a link in a directory `depth` levels below the root cannot lead out of the root. Going up is
/// allowed only at the start: after a name, `..` leads wherever a link of that name has led.
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
