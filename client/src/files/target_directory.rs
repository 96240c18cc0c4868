//! Local directory that received files are written to, under names that the server sends. No file is written outside of
//! it, through a link, or in part.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs::Permissions;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Component, Path, PathBuf};
use std::time::SystemTime;

use tempfile::{Builder, TempPath};
use tokio::fs::{self, File};
use tokio::io::AsyncWriteExt;

use crate::Error;
use crate::error::io_error;

/// First characters of the names of temporary files.
const TEMPORARY_PREFIX: &str = ".skilld-";
/// Mode of files whose mode is not known; the umask applies.
const FILE_MODE: u32 = 0o666;

/// Result of writing one received entry; the inner error is the reason why the entry was left out.
pub(crate) type EntryResult<T> = Result<Result<T, SkipReason>, Error>;

/// Reason why an entry was not written; completes a sentence that begins with "it".
#[derive(Debug, thiserror::Error)]
pub(crate) enum SkipReason {
    #[error("is a link to {0}, outside of the target")]
    LeadsOut(String),
    #[error("has the name of a directory that is here")]
    DirectoryExists,
    #[error("needs {0} to be a directory")]
    NoDirectory(String),
    #[error("is a link to {0}: copy that")]
    NotADirectory(String),
}

/// Mode and modification time of a received entry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EntryAttributes {
    /// Permission bits; 0 if they are not known. The user's umask takes some of them.
    pub(crate) mode: u32,
    /// Modification time; `None` if it is not known.
    pub(crate) modified: Option<SystemTime>,
}

/// Directory that receives files. Guards against the names that the server sends; not against another process that
/// changes the directory at the same time.
#[derive(Debug)]
pub(crate) struct TargetDirectory {
    root: PathBuf,
    /// Paths that are known to be directories and no links.
    checked: HashSet<PathBuf>,
    /// Directories that did not exist before.
    made: HashSet<PathBuf>,
    /// Attributes of made directories, which they get at the end. A directory comes before those in it.
    attributes: Vec<(PathBuf, EntryAttributes)>,
}

/// File that appears under its name when it is finished, and leaves nothing when it is dropped.
#[derive(Debug)]
pub(crate) struct PendingFile {
    file: File,
    temporary: TempPath,
    target: PathBuf,
    modified: Option<SystemTime>,
}

impl TargetDirectory {
    /// Opens the directory, and makes it if it does not exist.
    pub(crate) async fn open(root: &Path) -> Result<Self, Error> {
        let is_new = !fs::try_exists(root).await.map_err(io_error(root))?;
        fs::create_dir_all(root).await.map_err(io_error(root))?;
        let root = fs::canonicalize(root).await.map_err(io_error(root))?;
        Ok(Self {
            made: is_new.then(|| root.clone()).into_iter().collect(),
            root,
            checked: HashSet::new(),
            attributes: Vec::new(),
        })
    }

    /// Opens a new file.
    pub(crate) async fn create(
        &mut self,
        name: &[u8],
        attributes: EntryAttributes,
    ) -> EntryResult<PendingFile> {
        let target = match self.create_parents(name).await? {
            Ok(target) => target,
            Err(reason) => return Ok(Err(reason)),
        };
        let parent = target.parent().unwrap_or(&self.root);
        let mode = match attributes.mode & 0o777 {
            0 => FILE_MODE,
            mode => mode,
        };
        let (file, temporary) = Builder::new()
            .prefix(TEMPORARY_PREFIX)
            .permissions(Permissions::from_mode(mode))
            .tempfile_in(parent)
            .map_err(io_error(parent))?
            .into_parts();
        Ok(Ok(PendingFile {
            file: File::from_std(file),
            temporary,
            target,
            modified: attributes.modified,
        }))
    }

    /// Makes a directory unless it exists; an empty name is the target directory itself. [`Self::finish`] sets its
    /// attributes, because files still get into it. A directory that was there before keeps its own.
    pub(crate) async fn directory(
        &mut self,
        name: &[u8],
        attributes: EntryAttributes,
    ) -> EntryResult<()> {
        let made = self.create_directories(&safe_parts(name)?).await?;
        Ok(made.map(|place| {
            if self.made.contains(&place) {
                self.attributes.push((place, attributes));
            }
        }))
    }

    /// Gives the directories that were made here their modes and times.
    pub(crate) async fn finish(self) -> Result<(), Error> {
        // Children come before their parents, whose modes may close the way to them, and times before modes for the
        // same reason.
        for (path, attributes) in self.attributes.iter().rev() {
            let failed = || io_error(path);
            if let Some(modified) = attributes.modified {
                let directory = std::fs::File::open(path).map_err(failed())?;
                directory.set_modified(modified).map_err(failed())?;
            }
            let mode = attributes.mode & 0o777;
            if mode != 0 {
                let current = fs::metadata(path).await.map_err(failed())?;
                // When the directory was made, the umask took what it takes, and a parent gave its set-group-id bit.
                let mode = current.permissions().mode() & (mode | !0o777);
                let mode = Permissions::from_mode(mode);
                fs::set_permissions(path, mode).await.map_err(failed())?;
            }
        }
        Ok(())
    }

    /// Makes a symbolic link and atomically replaces a file or link of that name. Skips one whose target is not beneath
    /// the directory.
    pub(crate) async fn link(&mut self, name: &[u8], target: &str) -> EntryResult<PathBuf> {
        let link = match self.create_parents(name).await? {
            Ok(link) => link,
            Err(reason) => return Ok(Err(reason)),
        };
        let depth = link.components().count() - self.root.components().count() - 1;
        if !stays_beneath(Path::new(target), depth) {
            return Ok(Err(SkipReason::LeadsOut(target.to_owned())));
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
    async fn create_parents(&mut self, name: &[u8]) -> EntryResult<PathBuf> {
        let parts = safe_parts(name)?;
        let Some((file, directories)) = parts.split_last() else {
            return Err(unsafe_name(name, "it names no file"));
        };
        let parent = self.create_directories(directories).await?;
        Ok(parent.map(|parent| parent.join(file)))
    }

    /// Returns the local path of a directory and makes what is missing of it. A local link or file is never followed, nor
    /// replaced by a directory.
    async fn create_directories(&mut self, parts: &[&OsStr]) -> EntryResult<PathBuf> {
        let mut place = self.root.clone();
        for part in parts {
            place.push(part);
            if !self.ensure_directory(&place).await? {
                return Ok(Err(SkipReason::NoDirectory(place.display().to_string())));
            }
        }
        Ok(Ok(place))
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
                self.made.insert(path.to_owned());
            }
            Err(error) => return Err(io_error(path)(error)),
        }
        self.checked.insert(path.to_owned());
        Ok(true)
    }
}

/// Returns the components of a received name. Refuses names that lead out of the target directory.
fn safe_parts(name: &[u8]) -> Result<Vec<&OsStr>, Error> {
    if name.contains(&0) {
        return Err(unsafe_name(name, "it has a NUL in it"));
    }
    let mut parts = Vec::new();
    for component in Path::new(OsStr::from_bytes(name)).components() {
        match component {
            Component::Normal(part) => parts.push(part),
            Component::CurDir => {}
            Component::ParentDir | Component::RootDir | Component::Prefix(_) => {
                return Err(unsafe_name(name, "it leads out of the target directory"));
            }
        }
    }
    Ok(parts)
}

fn unsafe_name(name: &[u8], problem: &'static str) -> Error {
    Error::UnsafeName {
        path: String::from_utf8_lossy(name).into_owned(),
        problem,
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
    pub(crate) async fn finish(mut self) -> EntryResult<PathBuf> {
        self.file.flush().await.map_err(io_error(&self.target))?;
        if let Some(modified) = self.modified {
            let file = self.file.into_std().await;
            file.set_modified(modified)
                .map_err(io_error(&self.target))?;
        }
        install_file(self.temporary, self.target)
    }
}

/// Renames a temporary file to its name. A directory of that name is not replaced.
fn install_file(temporary: TempPath, target: PathBuf) -> EntryResult<PathBuf> {
    match temporary.persist(&target) {
        Ok(()) => Ok(Ok(target)),
        Err(error) if error.error.kind() == io::ErrorKind::IsADirectory => {
            Ok(Err(SkipReason::DirectoryExists))
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
