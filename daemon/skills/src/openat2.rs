//! Opens files for reading strictly beneath a directory, with openat2(2). No symbolic link and no concurrent rename
//! leads out of it. Used for folders of the operator or the daemon, never for a workspace.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};

/// Maximum number of attempts to open one path with openat2. An attempt takes microseconds; it fails if a process on
/// the host renames or mounts anything at the same time.
const ATTEMPTS_MAX: usize = 1000;

/// Opens a path beneath `dir` for reading. The empty path is the directory itself. Does not wait for the writer of a
/// FIFO. `flags` are added, for example O_DIRECTORY. Follows symbolic links that stay beneath `dir`.
///
/// # Errors
///
/// EXDEV if the path leads out of `dir`; otherwise the errors of open(2).
pub fn open_following_links(dir: impl AsFd, path: &Path, flags: OFlag) -> nix::Result<OwnedFd> {
    open_with(dir, path, flags, ResolveFlag::empty())
}

/// Opens a path beneath `dir` for reading, as [`open_following_links`] does, but follows no symbolic link.
///
/// # Errors
///
/// ELOOP if a component is a symbolic link; otherwise the errors of [`open_following_links`].
pub fn open_without_links(dir: impl AsFd, path: &Path, flags: OFlag) -> nix::Result<OwnedFd> {
    open_with(dir, path, flags, ResolveFlag::RESOLVE_NO_SYMLINKS)
}

fn open_with(
    dir: impl AsFd,
    path: &Path,
    flags: OFlag,
    extra_flags: ResolveFlag,
) -> nix::Result<OwnedFd> {
    let path = if path.as_os_str().is_empty() {
        Path::new(".")
    } else {
        path
    };
    let flags = flags | OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC | OFlag::O_NOCTTY;
    let beneath = ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_MAGICLINKS | extra_flags;
    for _ in 0..ATTEMPTS_MAX {
        match openat2(
            dir.as_fd(),
            path,
            OpenHow::new().flags(flags).resolve(beneath),
        ) {
            // The kernel cannot resolve `..` safely while any path of the host is renamed.
            Err(Errno::EAGAIN | Errno::EINTR) => {}
            opened => return opened,
        }
    }
    Err(Errno::EAGAIN)
}
