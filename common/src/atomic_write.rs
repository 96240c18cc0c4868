//! Files that get their contents in one step: written under a temporary name, then renamed. Readers, and a start after
//! a crash, find the old contents or the new ones, never a part of them.

use std::fs::{File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use tempfile::NamedTempFile;

/// Contents of a file under a temporary name. Dropping it removes them.
#[derive(Debug)]
pub struct AtomicWrite {
    temporary: NamedTempFile,
    /// The contents are on the disk.
    is_synced: bool,
}

impl AtomicWrite {
    /// Writes contents, with these permission bits, to a temporary file in a directory, which must be on the file
    /// system of the final name.
    ///
    /// # Errors
    /// Fails with the error of the file system.
    pub fn new(directory: &Path, contents: &[u8], mode: u32) -> io::Result<Self> {
        let mut temporary = NamedTempFile::new_in(directory)?;
        temporary.write_all(contents)?;
        let file = temporary.as_file();
        file.set_permissions(Permissions::from_mode(mode))?;
        Ok(Self {
            temporary,
            is_synced: false,
        })
    }

    /// Returns the temporary file.
    pub fn as_file(&self) -> &File {
        self.temporary.as_file()
    }

    /// Waits until the contents are on the disk. A rename without this may leave an empty file after a power cut.
    ///
    /// # Errors
    /// Fails with the error of the disk.
    pub fn sync(mut self) -> io::Result<Self> {
        self.as_file().sync_all()?;
        self.is_synced = true;
        Ok(self)
    }

    /// Gives the file its name, and replaces a file of that name. After [`Self::sync`] it waits until the name is on
    /// the disk too.
    ///
    /// # Errors
    /// Fails with the error of the file system.
    pub fn install(self, path: &Path) -> io::Result<()> {
        self.temporary.persist(path)?;
        sync_directory(path, self.is_synced)
    }

    /// Gives the file its name as [`Self::install`] does, but replaces nothing.
    ///
    /// # Errors
    /// `AlreadyExists` if something has that name; else the error of the file system.
    pub fn install_new(self, path: &Path) -> io::Result<()> {
        self.temporary.persist_noclobber(path)?;
        sync_directory(path, self.is_synced)
    }
}

/// Waits until the names in the directory of a file are on the disk, if its contents are.
fn sync_directory(path: &Path, is_synced: bool) -> io::Result<()> {
    if !is_synced {
        return Ok(());
    }
    // The parent of a bare name is empty.
    let directory = Path::new(".").join(path.parent().unwrap_or(path));
    File::open(directory)?.sync_all()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_file_gets_its_mode_and_contents_and_nothing_else_is_left() {
        let dir = tempfile::tempdir().expect("directory");
        let path = dir.path().join("file");
        let write = |contents: &[u8]| AtomicWrite::new(dir.path(), contents, 0o640);
        let first = write(b"first").and_then(AtomicWrite::sync);
        first
            .and_then(|first| first.install_new(&path))
            .expect("made");
        let second = write(b"second").expect("written").install_new(&path);
        let error = second.expect_err("exists");
        assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read(&path).expect("read"), b"first");
        let third = write(b"third").expect("written");
        third.install(&path).expect("replaced");
        assert_eq!(fs::read(&path).expect("read"), b"third");
        let mode = fs::metadata(&path).expect("metadata").permissions().mode();
        assert_eq!(mode & 0o777, 0o640);
        assert_eq!(fs::read_dir(dir.path()).expect("listed").count(), 1);
    }
}
