//! Local file that gets its name when it is complete; an incomplete one is removed.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use tempfile::{Builder, NamedTempFile};

/// File that is being written under a temporary name beside its destination.
#[derive(Debug)]
pub(crate) struct PartialFile {
    temporary: NamedTempFile,
    destination: PathBuf,
}

impl PartialFile {
    /// Creates the temporary file for a destination.
    pub(crate) fn create(destination: &Path) -> anyhow::Result<Self> {
        let directory = parent_directory(destination);
        let temporary = Builder::new()
            // As any new file: the umask decides.
            .permissions(Permissions::from_mode(0o666))
            .tempfile_in(directory)
            .with_context(|| format!("cannot write beneath {}", directory.display()))?;
        Ok(Self {
            temporary,
            destination: destination.to_owned(),
        })
    }

    /// Returns a writer of the temporary file.
    pub(crate) fn writer(&self) -> anyhow::Result<tokio::fs::File> {
        Ok(tokio::fs::File::from_std(self.temporary.reopen()?))
    }

    /// Installs the complete file at its destination.
    pub(crate) fn install(self) -> anyhow::Result<()> {
        self.temporary.persist(&self.destination)?;
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
