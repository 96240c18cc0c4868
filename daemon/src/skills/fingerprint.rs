//! Whether files are as they were: the times, sizes and inodes of everything that was looked at. What is cached is
//! good as long as these are equal.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

use sha2::{Digest, Sha256};

use super::content::{Bounds, Folder, LEFT_OUT};

/// A change within this time of a look may leave no trace in the times of a file (the kernel's clock tick).
const CLOCK_TICK: Duration = Duration::from_millis(50);

/// A file as it was when it was looked at: enough to see that it changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
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
        self.ctime >= just_before(time)
    }

    fn update(&self, hash: &mut Sha256) {
        for number in [self.dev, self.ino, self.mode.into(), self.size] {
            hash.update(number.to_le_bytes());
        }
        for number in [self.mtime.0, self.mtime.1, self.ctime.0, self.ctime.1] {
            hash.update(number.to_le_bytes());
        }
    }
}

/// The last time whose changes are sure to differ from those at `time`.
fn just_before(time: SystemTime) -> (i64, i64) {
    let since = time.duration_since(SystemTime::UNIX_EPOCH);
    let limit = since.unwrap_or_default().saturating_sub(CLOCK_TICK);
    let seconds = i64::try_from(limit.as_secs()).unwrap_or(i64::MAX);
    (seconds, i64::from(limit.subsec_nanos()))
}

/// All files of a folder as they were, boiled down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Fingerprint {
    /// sha256 of every path and stamp.
    hash: [u8; 32],
    newest: (i64, i64),
}

impl Fingerprint {
    /// Looks at every file of a folder without reading any. `visit` gets each directory and its device before
    /// that is looked into. `None` when that is not possible, or when there are more than the bounds allow: nothing
    /// can be remembered of such a folder.
    pub(super) fn take(
        folder: &Folder,
        bounds: Bounds,
        mut visit: impl FnMut(&Path, u64),
    ) -> Option<Self> {
        let top = Stamp::of(&fs::symlink_metadata(&folder.dir).ok()?);
        let mut stamps = vec![(folder.dir.clone(), top)];
        let mut ahead = vec![(folder.dir.clone(), top.dev)];
        while let Some((next, device)) = ahead.pop() {
            visit(&next, device);
            for entry in fs::read_dir(&next).ok()? {
                let entry = entry.ok()?;
                let (name, path) = (entry.file_name(), entry.path());
                if LEFT_OUT.iter().any(|left_out| name == *left_out) || folder.is_nested(&path) {
                    continue;
                }
                let metadata = entry.metadata().ok()?;
                if metadata.is_dir() {
                    ahead.push((path.clone(), metadata.dev()));
                }
                if metadata.is_symlink()
                    && let Ok(target) = fs::metadata(&path)
                {
                    // A folder elsewhere may have been copied, and does not tell of changes in its files.
                    if target.is_dir() && !path.canonicalize().ok()?.starts_with(&folder.dir) {
                        return None;
                    }
                    // What it leads to may have been copied.
                    stamps.push((path.join("."), Stamp::of(&target)));
                }
                stamps.push((path, Stamp::of(&metadata)));
            }
            if stamps.len() as u64 > bounds.files_max.saturating_mul(2) {
                return None;
            }
        }
        stamps.sort_unstable();
        let newest = stamps.iter().map(|(_, stamp)| stamp.ctime).max()?;
        let mut hash = Sha256::new();
        for (path, stamp) in &stamps {
            hash.update(path.as_os_str().len().to_le_bytes());
            hash.update(path.as_os_str().as_bytes());
            stamp.update(&mut hash);
        }
        Some(Self {
            hash: hash.finalize().into(),
            newest,
        })
    }

    /// As [`Stamp::is_recent`], for any of its files.
    pub(super) fn is_recent(&self, time: SystemTime) -> bool {
        self.newest >= just_before(time)
    }
}
