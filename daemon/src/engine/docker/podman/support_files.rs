//! Files in the state directory that Podman needs and that Docker takes in a request or writes by itself.

use std::fs::{self, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::super::body::{DNS_OPTIONS, DNS_SEARCH, NAME_SERVER};
use crate::engine::seccomp;
use crate::error::{Error, Result};

/// Name of their directory, below the state directory.
const DIRECTORY: &str = "podman";
/// Contents of the containers' /etc/hosts. Podman would take those of the host.
const HOSTS: &str = "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n";
/// Permission bits of a file that only the engine reads.
const MODE_PRIVATE: u32 = 0o600;
/// Permission bits of a file that is mounted into containers.
const MODE_MOUNTED: u32 = 0o644;

/// Paths of the files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SupportFiles {
    /// Seccomp profile. Podman reads it when it creates a container.
    pub(super) seccomp: PathBuf,
    /// File that is mounted as /etc/hosts.
    pub(super) hosts: PathBuf,
    /// File that is mounted as /etc/resolv.conf.
    pub(super) resolv_conf: PathBuf,
}

impl SupportFiles {
    /// Writes the files below the state directory, unless they are there with the same contents. Blocks.
    ///
    /// # Errors
    ///
    /// `Error::Io` if a file can't be read or written.
    pub(super) fn install(state_dir: &Path) -> Result<Self> {
        let dir = state_dir.join(DIRECTORY);
        let failed = |source| Error::Io {
            operation: format!("write the files for Podman into {}", dir.display()),
            source,
        };
        if let Err(error) = fs::create_dir(&dir)
            && error.kind() != io::ErrorKind::AlreadyExists
        {
            return Err(failed(error));
        }
        let install = |name: &str, contents: &str, mode: u32| {
            let path = dir.join(name);
            install_file(&dir, &path, contents.as_bytes(), mode).map_err(failed)?;
            Ok::<_, Error>(path)
        };
        let resolv_conf = format!(
            "nameserver {NAME_SERVER}\nsearch {DNS_SEARCH}\noptions {}\n",
            DNS_OPTIONS.join(" ")
        );
        Ok(Self {
            seccomp: install("seccomp.json", seccomp::profile(), MODE_PRIVATE)?,
            hosts: install("hosts", HOSTS, MODE_MOUNTED)?,
            resolv_conf: install("resolv.conf", &resolv_conf, MODE_MOUNTED)?,
        })
    }
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
    let mut file = tempfile::NamedTempFile::new_in(dir)?;
    file.write_all(contents)?;
    file.as_file()
        .set_permissions(Permissions::from_mode(mode))?;
    file.as_file().sync_all()?;
    file.persist(path).map_err(|error| error.error)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).expect("metadata").permissions().mode() & 0o7777
    }

    #[test]
    fn seccomp_profile_is_a_private_file_that_a_start_repairs() {
        let state = tempfile::tempdir().expect("a directory");
        let files = SupportFiles::install(state.path()).expect("written");
        assert_eq!(files.seccomp, state.path().join("podman/seccomp.json"));
        let read = |path: &Path| fs::read_to_string(path).expect("read");
        assert_eq!(read(&files.seccomp), seccomp::profile());
        assert_eq!(mode(&files.seccomp), 0o600);
        assert_eq!(
            (mode(&files.hosts), mode(&files.resolv_conf)),
            (0o644, 0o644)
        );
        assert_eq!(
            read(&files.resolv_conf),
            "nameserver 127.0.0.1\nsearch .\noptions timeout:1 attempts:1\n"
        );

        let before = fs::metadata(&files.hosts).expect("metadata");
        fs::write(&files.seccomp, r#"{"defaultAction":"SCMP_ACT_ALLOW"}"#).expect("written");
        let again = SupportFiles::install(state.path()).expect("written again");
        assert_eq!(again, files);
        assert_eq!(read(&files.seccomp), seccomp::profile());
        fs::set_permissions(&files.seccomp, Permissions::from_mode(0o666)).expect("changed");
        SupportFiles::install(state.path()).expect("written again");
        assert_eq!(mode(&files.seccomp), 0o600);
        // What is right stays: containers have it mounted.
        let after = fs::metadata(&files.hosts).expect("metadata");
        assert_eq!(
            std::os::unix::fs::MetadataExt::ino(&before),
            std::os::unix::fs::MetadataExt::ino(&after)
        );
        let names = fs::read_dir(state.path().join("podman"))
            .expect("listed")
            .count();
        assert_eq!(names, 3);
    }

    #[test]
    fn unwritable_state_directory_is_an_error_that_names_it() {
        let state = tempfile::tempdir().expect("a directory");
        fs::write(state.path().join("podman"), "").expect("written");
        let error = SupportFiles::install(state.path()).expect_err("not a directory");
        assert!(
            error
                .to_string()
                .contains("write the files for Podman into"),
            "{error}"
        );
    }
}
