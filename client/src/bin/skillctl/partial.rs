//! A local file that gets its name when it is whole: what breaks off on the way leaves nothing.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use tempfile::{Builder, NamedTempFile};

/// A file that is being written beside its place.
#[derive(Debug)]
pub(crate) struct Partial {
    temporary: NamedTempFile,
    place: PathBuf,
}

impl Partial {
    /// Begins a file that will be at `place`.
    pub(crate) fn beside(place: &Path) -> anyhow::Result<Self> {
        let directory = match place.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            Some(_) | None => Path::new("."),
        };
        let temporary = Builder::new()
            // As any new file: the umask decides.
            .permissions(Permissions::from_mode(0o666))
            .tempfile_in(directory)
            .with_context(|| format!("cannot write beneath {}", directory.display()))?;
        Ok(Self {
            temporary,
            place: place.to_owned(),
        })
    }

    /// Where its bytes go.
    pub(crate) fn writer(&self) -> anyhow::Result<tokio::fs::File> {
        Ok(tokio::fs::File::from_std(self.temporary.reopen()?))
    }

    /// It is whole. Replaces what is at its place.
    pub(crate) fn keep(self) -> anyhow::Result<()> {
        self.temporary.persist(&self.place)?;
        Ok(())
    }
}
