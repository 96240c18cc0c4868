//! Reads files that decide who may do what: bounded, and only if no other user of the host could have written them.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

/// Maximum size of such a file, in bytes.
const FILE_BYTES_MAX: u64 = 4 << 20;
/// Permission bits with which other users can write to a file.
const WRITABLE_BY_OTHERS: u32 = 0o022;
/// Permission bits that a secret file must not have: besides those, users outside its group must not read it.
const EXPOSES_SECRET: u32 = WRITABLE_BY_OTHERS | 0o005;

/// Secrecy of a file's contents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Secrecy {
    /// Every user may read it.
    Public,
    /// Only its owner and its group may read it.
    Secret,
}

/// Reads a file.
///
/// # Errors
/// A message that names the file, says what is wrong and what to do.
pub(crate) fn read_protected_file(path: &Path, secrecy: Secrecy) -> Result<Vec<u8>, String> {
    let failed = |error: std::io::Error| format!("{}: cannot be read: {error}", path.display());
    // Opening a named pipe would wait for a writer otherwise.
    let mut options = File::options();
    options.read(true).custom_flags(nix::libc::O_NONBLOCK);
    let file = options.open(path).map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    if !metadata.is_file() {
        return Err(format!("{}: is not a file", path.display()));
    }
    let mode = metadata.mode() & 0o777;
    let (forbidden, remedy) = match secrecy {
        Secrecy::Public => (WRITABLE_BY_OTHERS, "chmod go-w"),
        Secrecy::Secret => (EXPOSES_SECRET, "chmod 0600"),
    };
    if mode & forbidden != 0 {
        return Err(format!(
            "{path}: has mode {mode:04o}, which lets other users {use_}: run `{remedy} {path}`",
            path = path.display(),
            use_ = if mode & WRITABLE_BY_OTHERS == 0 {
                "read it"
            } else {
                "write to it"
            },
        ));
    }
    let own = nix::unistd::geteuid().as_raw();
    if metadata.uid() != 0 && metadata.uid() != own {
        return Err(format!(
            "{path}: belongs to the user with uid {uid}, who could change it: run `chown {own} {path}`",
            path = path.display(),
            uid = metadata.uid(),
        ));
    }
    let mut bytes = Vec::new();
    let mut limited = file.take(FILE_BYTES_MAX + 1);
    limited.read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(format!(
            "{}: is over {FILE_BYTES_MAX} bytes",
            path.display()
        ));
    }
    Ok(bytes)
}

/// Reads a text file; see [`read_protected_file`].
///
/// # Errors
/// As [`read_protected_file`]; also if the file is not UTF-8.
pub(crate) fn read_protected_text(path: &Path, secrecy: Secrecy) -> Result<String, String> {
    let bytes = read_protected_file(path, secrecy)?;
    String::from_utf8(bytes).map_err(|_| format!("{}: is not UTF-8 text", path.display()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_secret_that_others_can_read_is_refused() {
        let dir = tempfile::tempdir().expect("directory");
        let path = dir.path().join("tokens");
        std::fs::write(&path, "x").expect("write");
        let read = |mode, secrecy| {
            let permissions = std::fs::Permissions::from_mode(mode);
            std::fs::set_permissions(&path, permissions).expect("chmod");
            read_protected_file(&path, secrecy)
        };
        for mode in [0o600, 0o640, 0o400] {
            read(mode, Secrecy::Secret).expect("private");
            read(mode, Secrecy::Public).expect("private");
        }
        let error = read(0o644, Secrecy::Secret).expect_err("0644");
        assert!(
            error.contains("0644") && error.contains("chmod 0600"),
            "{error}"
        );
        read(0o644, Secrecy::Public).expect("public");
        for mode in [0o660, 0o602] {
            read(mode, Secrecy::Secret).expect_err("writable");
            let error = read(mode, Secrecy::Public).expect_err("writable");
            assert!(error.contains("write to it"), "{error}");
        }
    }

    #[test]
    fn a_directory_a_pipe_a_huge_and_a_missing_file_are_refused() {
        let dir = tempfile::tempdir().expect("directory");
        let error = read_protected_file(dir.path(), Secrecy::Public).expect_err("directory");
        assert!(error.contains("not a file"), "{error}");
        let path = dir.path().join("huge");
        let file = File::create(&path).expect("file");
        file.set_len(FILE_BYTES_MAX + 1).expect("length");
        let error = read_protected_file(&path, Secrecy::Public).expect_err("huge");
        assert!(error.contains("is over"), "{error}");
        let pipe = dir.path().join("pipe");
        let mode = nix::sys::stat::Mode::S_IRUSR;
        nix::unistd::mkfifo(&pipe, mode).expect("a named pipe");
        let error = read_protected_file(&pipe, Secrecy::Public).expect_err("a named pipe");
        assert!(error.contains("not a file"), "{error}");
        let error =
            read_protected_file(&dir.path().join("none"), Secrecy::Public).expect_err("none");
        assert!(error.contains("cannot be read"), "{error}");
    }
}
