//! Whether files are as they were: the times, sizes and inodes of everything that was looked at. What is cached is
//! good as long as these are equal.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::content::{Bounds, LEFT_OUT};

/// A change within this time of a look may leave no trace in the times of a file (the kernel's clock tick).
const CLOCK_TICK: Duration = Duration::from_millis(50);

/// A file as it was when it was looked at: enough to see that it changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stamp {
    dev: u64,
    ino: u64,
    mode: u32,
    size: u64,
    mtime: (i64, i64),
    ctime: (i64, i64),
}

impl Stamp {
    pub(super) fn of(metadata: &fs::Metadata) -> Self {
        Self {
            dev: metadata.dev(),
            ino: metadata.ino(),
            mode: metadata.mode(),
            size: metadata.size(),
            mtime: (metadata.mtime(), metadata.mtime_nsec()),
            ctime: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }

    /// Whether a look at `time` could have missed a change that came right after it.
    pub(super) fn is_recent(&self, time: SystemTime) -> bool {
        let since = time
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default();
        let limit = since.saturating_sub(CLOCK_TICK);
        let limit = (
            i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
            i64::from(limit.subsec_nanos()),
        );
        self.ctime >= limit
    }
}

/// All files of a folder as they were.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Fingerprint(Vec<(PathBuf, Stamp)>);

impl Fingerprint {
    /// Looks at every file of a folder without reading any. `None` when that is not possible, or when there are
    /// more than the bounds allow: nothing can be remembered of such a folder.
    pub(super) fn take(dir: &Path, bounds: Bounds) -> Option<Self> {
        let mut stamps = vec![(dir.to_owned(), Stamp::of(&fs::symlink_metadata(dir).ok()?))];
        let mut ahead = vec![dir.to_owned()];
        while let Some(next) = ahead.pop() {
            for entry in fs::read_dir(&next).ok()? {
                let entry = entry.ok()?;
                if LEFT_OUT
                    .iter()
                    .any(|left_out| entry.file_name() == *left_out)
                {
                    continue;
                }
                let (path, metadata) = (entry.path(), entry.metadata().ok()?);
                if metadata.is_dir() {
                    ahead.push(path.clone());
                }
                stamps.push((path, Stamp::of(&metadata)));
            }
            if stamps.len() as u64 > bounds.files_max.saturating_mul(2) {
                return None;
            }
        }
        stamps.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        Some(Self(stamps))
    }

    /// As [`Stamp::is_recent`], for any of its files.
    pub(super) fn is_recent(&self, time: SystemTime) -> bool {
        self.0.iter().any(|(_, stamp)| stamp.is_recent(time))
    }
}
