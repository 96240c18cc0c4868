//! Everything beneath the workspace, by descriptor. The guest has the tenant's uid and sits in the
//! tenant's mounts, so the worst that a hostile link could reach is what the tenant reads anyway; `root`
//! keeps it from reaching even that.
//!
//! No call keeps the guest's only thread for longer than about a millisecond: work is done in slices.

pub(crate) mod archive;
pub(crate) mod list;
mod place;
pub(crate) mod put;
pub(crate) mod read;
pub(crate) mod root;
pub(crate) mod staging;
pub(crate) mod walk;

use std::time::{Duration, SystemTime};

use nix::sys::stat::{FileStat, SFlag};
use skilld_proto::v1::{FileEntry, FileType};

/// Bytes of files that are read or written before others get their turn; of messages, too.
pub(crate) const SLICE_BYTES: usize = 256 * 1024;
/// What an answer that is one message may hold, with room to spare below its limit.
pub(crate) const ANSWER_BYTES_MAX: usize = 3 * 1024 * 1024;

/// The file type in a mode.
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

/// The permission bits.
pub(crate) fn mode(stat: &FileStat) -> u32 {
    stat.st_mode & 0o7777
}

/// A time of a file since 1970; times before that do not matter here.
pub(crate) fn since_epoch(seconds: i64, nanos: i64) -> Duration {
    let seconds = u64::try_from(seconds).unwrap_or(0);
    Duration::new(seconds, u32::try_from(nanos).unwrap_or(0))
}

/// When the contents changed.
pub(crate) fn mtime(stat: &FileStat) -> Option<prost_types::Timestamp> {
    let since = since_epoch(stat.st_mtime, stat.st_mtime_nsec);
    Some((SystemTime::UNIX_EPOCH + since).into())
}

/// A path as messages have it, and its bytes if those are something else.
pub(crate) fn wire_path(path: &[u8]) -> (String, tonic::codegen::Bytes) {
    match str::from_utf8(path) {
        Ok(text) => (text.to_owned(), tonic::codegen::Bytes::new()),
        Err(_) => (
            String::from_utf8_lossy(path).into_owned(),
            path.to_vec().into(),
        ),
    }
}

/// What lstat says.
pub(crate) fn entry(path: &[u8], stat: &FileStat, link_target: String) -> FileEntry {
    let (path, path_bytes) = wire_path(path);
    FileEntry {
        path,
        r#type: file_type(stat).into(),
        size: stat.st_size,
        mode: mode(stat),
        mtime: mtime(stat),
        link_target,
        path_bytes,
    }
}

/// Digits of a digest.
pub(crate) fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digit = |nibble: u8| {
        DIGITS
            .get(usize::from(nibble))
            .map_or('0', |digit| char::from(*digit))
    };
    bytes
        .iter()
        .flat_map(|byte| [digit(byte >> 4), digit(byte & 15)])
        .collect()
}
