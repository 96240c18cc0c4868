//! Local file that gets its name when it is complete; an incomplete one is removed.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Context as _, bail};
use tempfile::{Builder, NamedTempFile};

/// Permission bits of a new file; the umask applies.
pub(crate) const NEW_FILE_MODE: u32 = 0o666;

/// File that is being written under a temporary name beside its destination.
#[derive(Debug)]
pub(crate) struct PartialFile {
    temporary: NamedTempFile,
    destination: PathBuf,
}

impl PartialFile {
    /// Creates the temporary file for a destination. The umask takes from the permission bits. Refuses a device, FIFO or
    /// socket, which would be replaced by a file.
    pub(crate) fn create(destination: &Path, mode: u32) -> anyhow::Result<Self> {
        let found = destination.metadata();
        if found.is_ok_and(|found| !found.is_file() && !found.is_dir()) {
            bail!(
                "{} is no file: write to -, and redirect stdout",
                destination.display()
            );
        }
        let directory = parent_directory(destination);
        let temporary = Builder::new()
            .permissions(Permissions::from_mode(mode))
            .tempfile_in(directory)
            .with_context(|| format!("cannot write beneath {}", directory.display()))?;
        Ok(Self {
            temporary,
            destination: destination.to_owned(),
        })
    }

    /// Returns a writer of the temporary file.
    pub(crate) fn writer(&self) -> anyhow::Result<tokio::fs::File> {
        // The mode may not permit to open it again.
        let file = self.temporary.as_file().try_clone()?;
        Ok(tokio::fs::File::from_std(file))
    }

    /// Sets the modification time of the file, which is written.
    pub(crate) fn set_modified(&self, time: SystemTime) -> anyhow::Result<()> {
        Ok(self.temporary.as_file().set_modified(time)?)
    }

    /// Installs the complete file at its destination.
    pub(crate) fn install(self) -> anyhow::Result<()> {
        let Self {
            temporary,
            destination,
        } = self;
        let installed = temporary.persist(&destination);
        installed.with_context(|| format!("cannot write {}", destination.display()))?;
        Ok(())
    }
}

/// Returns the directory of a local path; `.` for a bare name.
pub(crate) fn parent_directory(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        Some(_) | None => Path::new("."),
    }
}
