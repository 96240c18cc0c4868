//! Files that Podman needs and that Docker takes in a request or writes by itself. These are the seccomp profile in the
//! state directory, and a resolv.conf in the directory of each slot. Containers share no mounted file, because a lock
//! on it would reach another tenant.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use skilld_common::atomic_write::AtomicWrite;

use super::super::body::{DNS_OPTIONS, DNS_SEARCH, NAME_SERVER};
use crate::engine::seccomp;
use crate::error::{Error, Result};

/// Name of their directory, below the state directory.
const DIRECTORY: &str = "podman";
/// Permission bits of a file that only the engine reads.
const MODE_PRIVATE: u32 = 0o600;
/// Permission bits of a file that is mounted into containers.
const MODE_MOUNTED: u32 = 0o644;

/// Paths of the files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SupportFiles {
    /// Seccomp profile. Podman reads it when it creates a container.
    pub(super) seccomp: PathBuf,
    /// File that is mounted as /etc/resolv.conf.
    pub(super) resolv_conf: PathBuf,
}

impl SupportFiles {
    /// Writes the files of a container into the directory of its slot. Blocks.
    ///
    /// # Errors
    ///
    /// `Error::Io` if a file can't be written.
    pub(super) fn write(seccomp: PathBuf, slot_dir: &Path) -> Result<Self> {
        let resolv_conf = format!(
            "nameserver {NAME_SERVER}\nsearch {DNS_SEARCH}\noptions {}\n",
            DNS_OPTIONS.join(" ")
        );
        let write = |name: &str, contents: &str| {
            let path = slot_dir.join(name);
            install_file(slot_dir, &path, contents.as_bytes(), MODE_MOUNTED)
                .map_err(|source| write_error(slot_dir, source))?;
            Ok::<_, Error>(path)
        };
        Ok(Self {
            resolv_conf: write("resolv.conf", &resolv_conf)?,
            seccomp,
        })
    }
}

/// Writes the seccomp profile below the state directory, unless it is there with the same contents. Blocks.
///
/// # Errors
///
/// `Error::Io` if it can't be read or written.
pub(super) fn install_seccomp_profile(state_dir: &Path) -> Result<PathBuf> {
    let dir = state_dir.join(DIRECTORY);
    if let Err(error) = fs::create_dir(&dir)
        && error.kind() != io::ErrorKind::AlreadyExists
    {
        return Err(write_error(&dir, error));
    }
    let path = dir.join("seccomp.json");
    install_file(&dir, &path, seccomp::profile().as_bytes(), MODE_PRIVATE)
        .map_err(|source| write_error(&dir, source))?;
    Ok(path)
}

fn write_error(dir: &Path, source: io::Error) -> Error {
    let operation = format!("write the files for Podman into {}", dir.display());
    Error::io(operation, source)
}

/// Writes a file in one step, unless it has these contents and permissions. A container keeps the file that it was
/// created with.
fn install_file(dir: &Path, path: &Path, contents: &[u8], mode: u32) -> io::Result<()> {
    let is_current = fs::symlink_metadata(path)
        .is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o7777 == mode)
        && fs::read(path).is_ok_and(|found| found == contents);
    if is_current {
        return Ok(());
    }
    AtomicWrite::new(dir, contents, mode)?.sync()?.install(path)
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;

    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).expect("metadata").permissions().mode() & 0o7777
    }

    #[test]
    fn seccomp_profile_is_a_private_file_that_a_start_repairs() {
        let state = tempfile::tempdir().expect("a directory");
        let path = install_seccomp_profile(state.path()).expect("written");
        assert_eq!(path, state.path().join("podman/seccomp.json"));
        let read = || fs::read_to_string(&path).expect("read");
        assert_eq!(read(), seccomp::profile());
        assert_eq!(mode(&path), 0o600);

        fs::write(&path, r#"{"defaultAction":"SCMP_ACT_ALLOW"}"#).expect("written");
        let again = install_seccomp_profile(state.path()).expect("written again");
        assert_eq!(again, path);
        assert_eq!(read(), seccomp::profile());
        fs::set_permissions(&path, Permissions::from_mode(0o666)).expect("changed");
        install_seccomp_profile(state.path()).expect("written again");
        assert_eq!(mode(&path), 0o600);
        let names = fs::read_dir(state.path().join("podman"))
            .expect("listed")
            .count();
        assert_eq!(names, 1);
    }

    #[test]
    fn every_slot_has_files_of_its_own() {
        let slot = tempfile::tempdir().expect("a directory");
        let files = SupportFiles::write("/profile".into(), slot.path()).expect("written");
        let read = |path: &Path| fs::read_to_string(path).expect("read");
        assert_eq!(files.resolv_conf, slot.path().join("resolv.conf"));
        assert_eq!(
            read(&files.resolv_conf),
            "nameserver 127.0.0.1\nsearch .\noptions timeout:1 attempts:1\n"
        );
        assert_eq!(mode(&files.resolv_conf), 0o644);
    }

    #[test]
    fn unwritable_state_directory_is_an_error_that_names_it() {
        let state = tempfile::tempdir().expect("a directory");
        fs::write(state.path().join("podman"), "").expect("written");
        let error = install_seccomp_profile(state.path()).expect_err("not a directory");
        assert!(
            error
                .to_string()
                .contains("write the files for Podman into"),
            "{error}"
        );
    }
}
