//! Files and directories that tests write, also while a scan in the background looks at them.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};
use skilld_tests::task_dir::TaskDir;

/// Returns an unused path with this name, in a new directory of its own.
pub(crate) fn unused_path(dir: &TaskDir, name: &str) -> PathBuf {
    let dir = tempfile::tempdir_in(dir.path()).expect("a temporary directory");
    dir.keep().join(name)
}

/// Moves the directory `made` to `place` in one step, since a scan in the background may look there at any time. An
/// earlier directory at `place` moves to `made` and stays whole for a scan that still reads it.
pub(crate) fn replace_directory(made: &Path, place: &Path) {
    let flags = match place.exists() {
        true => RenameFlags::RENAME_EXCHANGE,
        false => RenameFlags::empty(),
    };
    renameat2(AT_FDCWD, made, AT_FDCWD, place, flags).expect("put into its place");
}

/// Writes a file with these permission bits, making its directories.
pub(crate) fn write_file(path: &Path, data: impl AsRef<[u8]>, mode: u32) {
    std::fs::create_dir_all(path.parent().expect("parent")).expect("mkdir");
    std::fs::write(path, data).expect("write");
    std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).expect("chmod");
}
