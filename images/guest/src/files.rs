//! Workspace files, accessed through descriptors. The guest has the uid and the mounts of the commands, so a hostile
//! link could reach only what a command can read. `root` prevents even that.
//!
//! No call keeps the guest's only thread for longer than about a millisecond: work is done in slices.

mod install;
pub(crate) mod list;
pub(crate) mod put;
pub(crate) mod read;
pub(crate) mod root;
pub(crate) mod staging;
pub(crate) mod tar_unpacker;
pub(crate) mod walk;

use std::fs::File;
use std::io::Read;
use std::time::{Duration, SystemTime};

use nix::sys::stat::{FileStat, SFlag};
use skilld_proto::v1::{FileEntry, FileType};
use tonic::codegen::Bytes;

/// Maximum bytes of a file that are read or written before other tasks get their turn, and of a data message.
pub(crate) const SLICE_BYTES: usize = 256 * 1024;
/// Maximum size of a response that is one message, in bytes. It leaves room below the message limit.
pub(crate) const ANSWER_BYTES_MAX: usize = 3 * 1024 * 1024;

/// Returns the file type in a mode.
pub(crate) fn file_type(stat: &FileStat) -> FileType {
    let kind = SFlag::from_bits_truncate(stat.st_mode & SFlag::S_IFMT.bits());
    if kind == SFlag::S_IFREG {
        FileType::File
    } else if kind == SFlag::S_IFDIR {
        FileType::Directory
    } else if kind == SFlag::S_IFLNK {
        FileType::Symlink
    } else {
        FileType::Other
    }
}

/// Returns the permission bits of a mode.
pub(crate) fn permission_bits(stat: &FileStat) -> u32 {
    stat.st_mode & 0o7777
}

/// Converts a file time to the time since 1970. Earlier times become 0.
pub(crate) fn since_epoch(seconds: i64, nanos: i64) -> Duration {
    let seconds = u64::try_from(seconds).unwrap_or(0);
    Duration::new(seconds, u32::try_from(nanos).unwrap_or(0))
}

/// Returns the modification time of a file as a timestamp of the API.
pub(crate) fn modification_time(stat: &FileStat) -> Option<prost_types::Timestamp> {
    timestamp(stat.st_mtime, stat.st_mtime_nsec)
}

fn timestamp(seconds: i64, nanos: i64) -> Option<prost_types::Timestamp> {
    let time = SystemTime::UNIX_EPOCH.checked_add(since_epoch(seconds, nanos));
    time.map(prost_types::Timestamp::from)
}

/// Converts a path for a message: as text, and as bytes if it is not UTF-8.
pub(crate) fn message_path(path: &[u8]) -> (String, Bytes) {
    match str::from_utf8(path) {
        Ok(text) => (text.to_owned(), Bytes::new()),
        Err(_) => (
            String::from_utf8_lossy(path).into_owned(),
            path.to_vec().into(),
        ),
    }
}

/// Describes a file by its status. `link_target` is empty unless the file is a link.
pub(crate) fn file_entry(path: &[u8], stat: &FileStat, link_target: String) -> FileEntry {
    let (path, path_bytes) = message_path(path);
    FileEntry {
        path,
        file_type: file_type(stat).into(),
        size_bytes: stat.st_size,
        mode: permission_bits(stat),
        modify_time: modification_time(stat),
        link_target,
        raw_path: path_bytes,
        change_time: timestamp(stat.st_ctime, stat.st_ctime_nsec),
    }
}

/// Reads at most `most` bytes of the `left` ones of a file; empty at its end.
pub(crate) fn read_slice(file: &File, left: u64, most: usize) -> std::io::Result<Bytes> {
    let length = left.min(most as u64);
    let mut data = Vec::with_capacity(usize::try_from(length).unwrap_or(most));
    file.take(length).read_to_end(&mut data)?;
    Ok(data.into())
}
