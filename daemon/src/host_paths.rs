//! Paths of the host that may not exist yet: where they would be made, and whether this process may do so. Changes
//! nothing.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;

use nix::unistd::{AccessFlags, access};

/// Returns `path`, or its closest ancestor that exists. Blocks.
///
/// # Errors
/// The system's error, unless it is that a file does not exist.
pub(crate) fn nearest_existing(path: &Path) -> io::Result<&Path> {
    let mut nearest = path;
    loop {
        match fs::metadata(nearest) {
            Ok(_) => return Ok(nearest),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                nearest = nearest.parent().ok_or(error)?;
            }
            Err(error) => return Err(error),
        }
    }
}

/// Checks that this process may make files in a directory, after making it and its ancestors where they are missing.
/// Blocks.
///
/// # Errors
/// The system's error that making them would have.
pub(crate) fn check_writable_directory(path: &Path) -> io::Result<()> {
    // With the dot, a file in place of the directory is an error as well.
    let nearest = nearest_existing(path)?.join(".");
    access(&nearest, AccessFlags::W_OK | AccessFlags::X_OK).map_err(io::Error::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_directory_is_judged_by_its_ancestor() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let missing = dir.path().join("a/b/c");
        assert_eq!(nearest_existing(&missing).expect("found"), dir.path());
        check_writable_directory(&missing).expect("it can be made");
        assert!(!dir.path().join("a").exists(), "a check makes nothing");
        let file = dir.path().join("file");
        fs::write(&file, "").expect("write");
        for path in [file.clone(), file.join("x")] {
            let error = check_writable_directory(&path).expect_err("a file");
            assert_eq!(error.kind(), ErrorKind::NotADirectory, "{error}");
        }
    }
}
