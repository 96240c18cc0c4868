//! Fingerprints of folders: times, sizes and inodes of all files. A folder whose fingerprint is unchanged need not be
//! read again.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

use crate::content_store::content_hashing::{ContentBounds, ContentSource, EXCLUDED_NAMES};

/// A change within this time of an examination may leave no trace in the times of a file (the kernel's clock tick).
const CLOCK_TICK: Duration = Duration::from_millis(50);

/// Times of a file: seconds since 1970, and nanoseconds.
type FileTime = (i64, i64);
/// State of one file, which any change of it changes: time of the last change, then device, inode, mode, size and time
/// of the last change of its contents.
type FileStamp = (FileTime, u64, u64, u32, u64, FileTime);

fn stamp_file(file: &fs::Metadata) -> FileStamp {
    let changed = (file.ctime(), file.ctime_nsec());
    let modified = (file.mtime(), file.mtime_nsec());
    (
        changed,
        file.dev(),
        file.ino(),
        file.mode(),
        file.size(),
        modified,
    )
}

/// Returns the last time whose changes are sure to have other times than a change at `time`.
fn just_before(time: SystemTime) -> FileTime {
    let since = time.duration_since(SystemTime::UNIX_EPOCH);
    let limit = since.unwrap_or_default().saturating_sub(CLOCK_TICK);
    let seconds = i64::try_from(limit.as_secs()).unwrap_or(i64::MAX);
    (seconds, i64::from(limit.subsec_nanos()))
}

/// State of all files of a folder at one time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MetadataFingerprint {
    /// Hash of all paths and stamps.
    hash: u64,
    /// Time of the last change of any of the files.
    newest: FileTime,
}

impl MetadataFingerprint {
    /// Examines every file of a folder without reading any. Calls `visit` with each directory before its entries are
    /// examined. Returns `None` if a file cannot be examined, or if the folder exceeds the bounds: such a folder must
    /// be read again each time.
    pub(crate) fn take(
        folder: &ContentSource,
        bounds: ContentBounds,
        mut visit: impl FnMut(&Path),
    ) -> Option<Self> {
        let top = stamp_file(&fs::symlink_metadata(&folder.dir).ok()?);
        let mut stamps = vec![(folder.dir.clone(), top)];
        let mut ahead = vec![folder.dir.clone()];
        while let Some(next) = ahead.pop() {
            visit(&next);
            for entry in fs::read_dir(&next).ok()? {
                let entry = entry.ok()?;
                let (name, path) = (entry.file_name(), entry.path());
                if EXCLUDED_NAMES.iter().any(|excluded| name == *excluded)
                    || folder.is_nested(&path)
                {
                    continue;
                }
                let metadata = entry.metadata().ok()?;
                if metadata.is_dir() {
                    ahead.push(path.clone());
                }
                if metadata.is_symlink()
                    && let Ok(target) = fs::metadata(&path)
                {
                    // The skill may include the target's files, whose changes the target's stamp does not show.
                    if target.is_dir() && !path.canonicalize().ok()?.starts_with(&folder.dir) {
                        return None;
                    }
                    // The skill may include the target's content.
                    stamps.push((path.join("."), stamp_file(&target)));
                }
                stamps.push((path, stamp_file(&metadata)));
            }
            if stamps.len() as u64 > bounds.files_max.saturating_mul(2) {
                return None;
            }
        }
        stamps.sort_unstable();
        let newest = stamps.iter().map(|(_, stamp)| stamp.0).max()?;
        let mut hasher = DefaultHasher::new();
        stamps.hash(&mut hasher);
        let hash = hasher.finish();
        Some(Self { hash, newest })
    }

    /// Returns `true` if a change right after `time` could leave the fingerprint as it is.
    pub(crate) fn is_recent(&self, time: SystemTime) -> bool {
        self.newest >= just_before(time)
    }
}
