//! Entries of the workspace that a collection opens and describes.

use std::fs::File;
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt;

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, openat, readlinkat};
use nix::sys::stat::{FileStat, Mode, fstat, fstatat};
use skilld_proto::v1::{CollectedFile, FileType, SkipReason};

use crate::files::{file_type, message_path, modification_time, permission_bits};

/// Matching entry that is opened.
pub(super) enum CollectedEntry {
    File(FileStat, File),
    Link(FileStat, Vec<u8>),
    Directory(FileStat),
}

/// Reads a symbolic link.
pub(super) fn open_link(parent: BorrowedFd<'_>, name: &[u8]) -> Result<CollectedEntry, SkipReason> {
    let target = readlinkat(parent, name).map_err(skip_reason)?;
    let stat = fstatat(parent, name, AtFlags::AT_SYMLINK_NOFOLLOW).map_err(skip_reason)?;
    Ok(CollectedEntry::Link(stat, target.as_bytes().to_vec()))
}

/// Looks at a directory.
pub(super) fn look_at_directory(
    parent: BorrowedFd<'_>,
    name: &[u8],
) -> Result<CollectedEntry, SkipReason> {
    let stat = fstatat(parent, name, AtFlags::AT_SYMLINK_NOFOLLOW).map_err(skip_reason)?;
    if file_type(&stat) == FileType::Directory {
        Ok(CollectedEntry::Directory(stat))
    } else {
        Err(SkipReason::FileType)
    }
}

/// Opens a file without waiting, even if a command has replaced it by a FIFO since it was listed.
pub(super) fn open_file(parent: BorrowedFd<'_>, name: &[u8]) -> Result<CollectedEntry, SkipReason> {
    let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
    let file = openat(parent, name, flags, Mode::empty()).map_err(skip_reason)?;
    let stat = fstat(&file).map_err(skip_reason)?;
    if file_type(&stat) == FileType::File {
        Ok(CollectedEntry::File(stat, file.into()))
    } else {
        Err(SkipReason::FileType)
    }
}

/// Describes a file for its first message.
pub(super) fn describe_file(path: &[u8], stat: &FileStat) -> CollectedFile {
    let (path, path_bytes) = message_path(path);
    CollectedFile {
        path,
        size_bytes: stat.st_size,
        mode: permission_bits(stat),
        modify_time: modification_time(stat),
        raw_path: path_bytes,
        ..Default::default()
    }
}

/// Returns why a file is skipped after a failed system call.
pub(super) fn skip_reason(errno: Errno) -> SkipReason {
    #[expect(clippy::wildcard_enum_match_arm, reason = "errno is an open set")]
    match errno {
        Errno::ENOENT => SkipReason::Gone,
        Errno::EACCES | Errno::EPERM => SkipReason::Permission,
        // A command has replaced the listed file, directory or link by something else.
        Errno::ELOOP | Errno::ENOTDIR | Errno::ENXIO | Errno::EINVAL => SkipReason::FileType,
        _ => SkipReason::IoError,
    }
}
