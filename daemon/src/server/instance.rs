//! The state directory: private, and used by one daemon at a time. Its `instance` file holds the id that
//! containers carry as a label, and the lock that a daemon holds for its life.

use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

use crate::error::{Error, Result};

/// Hex digits of an id: 48 random bits tell all instances that share an engine apart.
const ID_DIGITS: usize = 12;

/// A state directory in use by this process.
#[derive(Debug)]
pub(super) struct Instance {
    id: String,
    /// Held until this is dropped; the kernel lets go of it if the process dies.
    _lock: Flock<File>,
}

impl Instance {
    /// Makes the directory if needed, takes its lock, and reads or makes its id. Blocks.
    ///
    /// # Errors
    /// When the directory cannot be used, or another daemon uses it.
    pub(super) fn take(state_dir: &Path) -> Result<Self> {
        for dir in [
            state_dir.to_owned(),
            state_dir.join("slots"),
            state_dir.join("skills"),
        ] {
            private_dir(&dir)?;
        }
        let path = state_dir.join("instance");
        let failed = |operation: &str| {
            let operation = format!("{operation} {}", path.display());
            move |source| Error::Io { operation, source }
        };
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)
            .map_err(failed("open"))?;
        let mut lock = Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(_, errno)| {
            let operation = if errno == Errno::EAGAIN {
                format!(
                    "use the state directory {}: another skilld runs on it; stop that one, or give this one \
                     its own with --state-dir",
                    state_dir.display()
                )
            } else {
                format!("lock {}", path.display())
            };
            Error::Io { operation, source: errno.into() }
        })?;
        let mut id = String::new();
        lock.read_to_string(&mut id).map_err(failed("read"))?;
        let mut id = id.trim().to_owned();
        if id.is_empty() {
            id = new_id();
            lock.rewind().map_err(failed("write"))?;
            writeln!(lock, "{id}").map_err(failed("write"))?;
            lock.sync_all().map_err(failed("write"))?;
        }
        if id.len() != ID_DIGITS || !id.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(Error::Io {
                operation: format!(
                    "use {}: it does not hold the {ID_DIGITS} hex digits of an id; restore it, or remove the \
                     whole state directory",
                    path.display()
                ),
                source: std::io::ErrorKind::InvalidData.into(),
            });
        }
        Ok(Self { id, _lock: lock })
    }

    /// Stays the same over restarts.
    #[must_use]
    pub(super) fn id(&self) -> &str {
        &self.id
    }
}

fn private_dir(dir: &Path) -> Result<()> {
    let failed = |source| Error::Io {
        operation: format!("make {} private", dir.display()),
        source,
    };
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(dir)
        .map_err(failed)?;
    std::fs::set_permissions(dir, Permissions::from_mode(0o700)).map_err(failed)
}

/// The random end of a UUIDv7.
fn new_id() -> String {
    let uuid = uuid::Uuid::now_v7().simple().to_string();
    uuid.chars().skip(uuid.len() - ID_DIGITS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_id_stays_and_the_directory_is_private() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let state_dir = dir.path().join("a/state");
        let first = Instance::take(&state_dir).expect("first").id().to_owned();
        let second = Instance::take(&state_dir).expect("second").id().to_owned();
        assert_eq!(first, second);
        assert_eq!(first.len(), ID_DIGITS);
        let mode = std::fs::metadata(&state_dir)
            .expect("metadata")
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o700);
    }

    #[test]
    fn a_second_daemon_is_told_what_to_do() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let _first = Instance::take(dir.path()).expect("first");
        let error = Instance::take(dir.path()).expect_err("second").to_string();
        assert!(error.contains("another skilld runs on it"), "{error}");
        assert!(error.contains("--state-dir"), "{error}");
    }

    #[test]
    fn a_damaged_id_is_not_replaced() {
        let dir = tempfile::tempdir().expect("temporary directory");
        std::fs::write(dir.path().join("instance"), "??\n").expect("write");
        let error = Instance::take(dir.path()).expect_err("damaged").to_string();
        assert!(error.contains("hex digits"), "{error}");
    }
}
