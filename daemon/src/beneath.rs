//! Opening what lies beneath a directory, and nothing else: openat2, so that no link leads out of it, however it is
//! moved meanwhile. For reading; the folders are the operator's or the daemon's own, never a workspace's.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};

/// Attempts to open one path. Each takes microseconds and fails if any process of the host renames or mounts meanwhile.
const TRIES: usize = 1000;

/// Opens a path for reading, empty for the directory itself, without waiting for a FIFO's writer. `flags` are added,
/// for instance O_DIRECTORY; links are followed as long as they stay beneath.
///
/// # Errors
/// EXDEV for a way out, and what open(2) says.
pub(crate) fn open(dir: impl AsFd, path: &Path, flags: OFlag) -> nix::Result<OwnedFd> {
    resolve(dir, path, flags, ResolveFlag::empty())
}

/// The same without following any link.
///
/// # Errors
/// ELOOP for a link on the way, and as [`open`].
pub(crate) fn open_without_links(
    dir: impl AsFd,
    path: &Path,
    flags: OFlag,
) -> nix::Result<OwnedFd> {
    resolve(dir, path, flags, ResolveFlag::RESOLVE_NO_SYMLINKS)
}

fn resolve(dir: impl AsFd, path: &Path, flags: OFlag, more: ResolveFlag) -> nix::Result<OwnedFd> {
    let path = if path.as_os_str().is_empty() {
        Path::new(".")
    } else {
        path
    };
    let flags = flags | OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC | OFlag::O_NOCTTY;
    let beneath = ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_MAGICLINKS | more;
    for _ in 0..TRIES {
        match openat2(
            dir.as_fd(),
            path,
            OpenHow::new().flags(flags).resolve(beneath),
        ) {
            // A rename anywhere meanwhile can make it give up on `..`.
            Err(Errno::EAGAIN | Errno::EINTR) => {}
            opened => return opened,
        }
    }
    Err(Errno::EAGAIN)
}
