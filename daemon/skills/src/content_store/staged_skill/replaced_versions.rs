//! Replaced versions of staged skills. A command that began with a version keeps its open files, working directory and
//! relative paths. A version is removed when no such command runs any more.

use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime};

use super::lock_directory;
use crate::error::Result;
use crate::placeholders::PLUGINS_DIR;

/// Prefix of the file name: hidden, and no skill's name begins with it.
const PREFIX: &str = ".replaced-";
/// Maximum number of replaced versions in a slot; the oldest are removed. Usually there are as many as commands, and
/// those that were replaced within [`SPAWN_TIME`] of a start.
const KEPT_MAX: usize = 256;
/// Maximum time from a command's reported start until it has entered its directory.
const SPAWN_TIME: Duration = Duration::from_secs(1);
/// Maximum time from the recorded time of a replacement until it is done.
const EXCHANGE_TIME: Duration = Duration::from_millis(200);

/// Period in which a version of a staged skill, replaced since, was the current one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct VersionActivePeriod {
    /// Milliseconds since 1970.
    until: u128,
    /// Milliseconds since 1970.
    from: u128,
}

impl VersionActivePeriod {
    pub(super) fn new(from: SystemTime, until: SystemTime) -> Self {
        Self {
            until: unix_ms(until),
            from: unix_ms(from),
        }
    }

    pub(super) fn file_name(self, skill: &str) -> String {
        format!("{PREFIX}{}-{}-{skill}", self.from, self.until)
    }

    fn parse(file_name: &str) -> Option<Self> {
        let mut parts = file_name.strip_prefix(PREFIX)?.splitn(3, '-');
        let from = parts.next()?.parse().ok()?;
        let until = parts.next()?.parse().ok()?;
        parts.next().map(|_| Self { until, from })
    }

    /// Returns `true` if a command that started then may have begun with the version.
    fn includes_start(self, start: SystemTime) -> bool {
        let start = unix_ms(start);
        self.from <= start + SPAWN_TIME.as_millis()
            && start <= self.until + EXCHANGE_TIME.as_millis()
    }
}

pub(super) fn unix_ms(time: SystemTime) -> u128 {
    time.duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default()
        .as_millis()
}

/// Returns `true` if a slot has replaced versions, of skills or of plugins.
pub(crate) fn has_replaced(target: &Path) -> bool {
    let has_some = |dir: &Path| {
        fs::read_dir(dir).is_ok_and(|mut entries| {
            entries.any(|entry| {
                let name = entry.map(|entry| entry.file_name());
                name.is_ok_and(|name| name.as_encoded_bytes().starts_with(PREFIX.as_bytes()))
            })
        })
    };
    has_some(target) || has_some(&target.join(PLUGINS_DIR))
}

/// Removes replaced versions that no command uses, and the oldest beyond [`KEPT_MAX`]. `starts` are the start times of
/// all commands that ran at `asked`; `None` when they are not known. Blocks.
///
/// # Errors
/// `Io` when the slot is gone.
pub(crate) fn remove_replaced(
    target: &Path,
    asked: SystemTime,
    starts: Option<&[SystemTime]>,
) -> Result<()> {
    let _turn = lock_directory(target)?;
    remove_replaced_in(target, asked, starts);
    remove_replaced_in(&target.join(PLUGINS_DIR), asked, starts);
    Ok(())
}

/// Removes the replaced versions of one directory.
fn remove_replaced_in(dir: &Path, asked: SystemTime, starts: Option<&[SystemTime]>) {
    let mut kept = Vec::new();
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let name = entry.file_name();
        if let Some(replaced) = name.to_str().and_then(VersionActivePeriod::parse) {
            kept.push((replaced, entry.path()));
        }
    }
    kept.sort();
    let too_many = kept.len().saturating_sub(KEPT_MAX);
    for (index, (replaced, path)) in kept.into_iter().enumerate() {
        // Commands that are missing from the list may have begun with a version that was replaced after the question.
        let known = replaced.until <= unix_ms(asked);
        let unused = |starts: &[SystemTime]| {
            known && !starts.iter().any(|start| replaced.includes_start(*start))
        };
        let over = index < too_many || starts.is_some_and(unused);
        if over {
            match fs::remove_dir_all(&path) {
                Err(error) => {
                    tracing::warn!(path = %path.display(), %error, "a replaced skill was not removed");
                }
                Ok(()) => tracing::debug!(path = %path.display(), "replaced skill removed"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_millis(ms)
    }

    /// A slot's `skills/` with versions that were in use between these times.
    fn kept(times: &[(u64, u64)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().expect("temp dir");
        fs::create_dir(dir.path().join("current")).expect("mkdir");
        fs::write(dir.path().join(".metadata.json"), "{}").expect("write");
        for (from, until) in times {
            let name = VersionActivePeriod::new(at(*from), at(*until)).file_name("a-b");
            fs::create_dir_all(dir.path().join(name).join("scripts")).expect("mkdir");
        }
        dir
    }

    fn left(dir: &Path) -> Vec<(u128, u128)> {
        let names = fs::read_dir(dir).expect("dir").flatten();
        let mut left: Vec<_> = names
            .filter_map(|entry| VersionActivePeriod::parse(entry.file_name().to_str()?))
            .map(|replaced| (replaced.from, replaced.until))
            .collect();
        left.sort_unstable();
        left
    }

    #[test]
    fn a_version_goes_when_no_command_that_began_with_it_runs() {
        let times = [(0, 10_000), (10_000, 20_000), (20_000, 30_000)];
        for (starts, expected) in [
            (&[][..], &[][..]),
            (&[at(15_000)], &[(10_000, 20_000)]),
            // Near an exchange it may have been either.
            (&[at(20_100)], &[(10_000, 20_000), (20_000, 30_000)]),
            (&[at(19_500)], &[(10_000, 20_000), (20_000, 30_000)]),
            (&[at(20_500)], &[(20_000, 30_000)]),
            (&[at(40_000)], &[]),
            (&[at(5_000), at(25_000)], &[(0, 10_000), (20_000, 30_000)]),
        ] {
            let dir = kept(&times);
            remove_replaced(dir.path(), at(50_000), Some(starts)).expect("swept");
            assert_eq!(left(dir.path()), expected, "{starts:?}");
            assert!(dir.path().join("current").is_dir());
        }
    }

    #[test]
    fn what_was_replaced_since_the_question_stays() {
        let dir = kept(&[(0, 10_000), (10_000, 60_000)]);
        remove_replaced(dir.path(), at(50_000), Some(&[])).expect("swept");
        assert_eq!(left(dir.path()), [(10_000, 60_000)]);
        assert!(has_replaced(dir.path()));
    }

    #[test]
    fn versions_that_are_kept_are_bounded() {
        let times: Vec<(u64, u64)> = (0..262).map(|n| (n, n + 1)).collect();
        // Nobody knows what runs, or a guest says that all of them are in use.
        for starts in [None, Some(&[at(100)][..])] {
            let dir = kept(&times);
            remove_replaced(dir.path(), at(1000), starts).expect("swept");
            let left = left(dir.path());
            assert_eq!((left.len(), left[0]), (KEPT_MAX, (6, 7)), "{starts:?}");
        }
    }

    #[test]
    fn names_are_read_back_and_no_others() {
        let replaced = VersionActivePeriod::new(at(5), at(7));
        assert_eq!(
            VersionActivePeriod::parse(&replaced.file_name("x-1-2")),
            Some(replaced)
        );
        for name in [
            "a",
            ".metadata.json",
            ".replaced-",
            ".replaced-1-a",
            ".replaced-1-2",
            ".replaced-x-2-a",
        ] {
            assert_eq!(VersionActivePeriod::parse(name), None, "{name}");
        }
    }
}
