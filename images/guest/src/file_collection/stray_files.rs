//! Stray files: those that a command left in /tmp, or in the workspace outside of the collected directories. The
//! summary names them, so that a script that writes to an unexpected place does not lose them silently.

use std::os::fd::OwnedFd;
use std::time::Duration;

use nix::fcntl::{AtFlags, OFlag, open};
use nix::sys::stat::{FileStat, Mode, fstatat};
use skilld_proto::v1::FileType;

use crate::files::root::{WorkspaceRoot, split_path};
use crate::files::since_epoch;
use crate::files::walk::{DirectoryWalk, WalkStep};

/// Maximum number of paths in the list.
const NAMED_MAX: usize = 20;
/// Maximum number of entries visited in each place, because the guest has one thread.
const ENTRIES_MAX: usize = 2000;
/// Entries of a workspace that globs collect or that no command writes.
const EXCLUDED_ENTRIES: &[&[u8]] = &[b"metadata.json", b"out", b"runs", b"skills", b"work"];
/// Path of the workspace in a container. In tests it is elsewhere, and /tmp belongs to other processes too.
const CONTAINER_WORKSPACE: &str = "/workspace";

/// Time span in which an exec changed files, on the clock that the kernel stamps files with.
#[derive(Debug, Clone, Copy)]
pub(super) struct ChangeTimeRange {
    pub(super) since: Duration,
    pub(super) until: Option<Duration>,
}

impl ChangeTimeRange {
    /// Returns `true` if a file changed in this span. A command can set the modification time, but not the time that is
    /// compared.
    pub(super) fn contains(self, stat: &FileStat) -> bool {
        let changed = since_epoch(stat.st_ctime, stat.st_ctime_nsec);
        changed >= self.since && self.until.is_none_or(|until| changed <= until)
    }
}

/// Files that changed outside of the collected directories.
#[derive(Debug, Default)]
pub(super) struct StrayFiles {
    /// Absolute paths of the files.
    pub(super) paths: Vec<Vec<u8>>,
    /// `true` if there may be more, because of a limit or a directory that could not be read.
    pub(super) is_cut: bool,
}

impl StrayFiles {
    /// Finds files outside of the workspace's directories that changed in `span`.
    pub(super) async fn find(root: &WorkspaceRoot, span: ChangeTimeRange) -> Self {
        let directory = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let mut found = Self::default();
        match root.openat(b"", directory) {
            Ok(workspace) => {
                found
                    .add(workspace, b"/workspace/", EXCLUDED_ENTRIES, span)
                    .await;
            }
            Err(_) => found.is_cut = true,
        }
        if root.is_at(CONTAINER_WORKSPACE) {
            match open("/tmp", directory | OFlag::O_NOFOLLOW, Mode::empty()) {
                Ok(tmp) => found.add(tmp, b"/tmp/", &[], span).await,
                Err(_) => found.is_cut = true,
            }
        }
        found
    }

    /// Adds the regular files beneath a directory that changed in `span`, without hidden ones and without its entries
    /// that are in `own`.
    async fn add(
        &mut self,
        directory: OwnedFd,
        prefix: &[u8],
        own: &'static [&'static [u8]],
        span: ChangeTimeRange,
    ) {
        let top = prefix.len();
        let is_wanted = move |path: &[u8]| {
            let within = path.get(top..).unwrap_or_default();
            !split_path(path).1.starts_with(b".") && !own.contains(&within)
        };
        let Ok(mut walk) = DirectoryWalk::new(directory, prefix.to_vec(), Box::new(is_wanted))
        else {
            self.is_cut = true;
            return;
        };
        for _ in 0..ENTRIES_MAX {
            let (path, kind) = match walk.next().await {
                Some(WalkStep::Entry { path, kind }) => (path, kind),
                Some(WalkStep::Closed { .. } | WalkStep::TooDeep { .. }) => {
                    self.is_cut = true;
                    continue;
                }
                None => return,
            };
            if kind != FileType::File || !is_wanted(&path) || !has_changed(&walk, &path, span) {
                continue;
            }
            if self.paths.len() >= NAMED_MAX {
                self.is_cut = true;
                return;
            }
            self.paths.push(path);
        }
        self.is_cut |= walk.next().await.is_some();
    }
}

/// Returns `true` if the walk's entry changed in `span`.
fn has_changed(walk: &DirectoryWalk, path: &[u8], span: ChangeTimeRange) -> bool {
    let Some(parent) = walk.parent() else {
        return false;
    };
    let stat = fstatat(parent, split_path(path).1, AtFlags::AT_SYMLINK_NOFOLLOW);
    stat.is_ok_and(|stat| span.contains(&stat))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::path::Path;

    const ALL: ChangeTimeRange = ChangeTimeRange {
        since: Duration::ZERO,
        until: None,
    };

    fn texts(found: StrayFiles) -> Vec<String> {
        let paths = found.paths.into_iter().map(String::from_utf8);
        paths.map(|path| path.expect("text")).collect()
    }

    fn write(place: &Path, path: &str) {
        let path = place.join(path);
        fs::create_dir_all(path.parent().expect("a parent")).expect("made");
        fs::write(path, "x").expect("written");
    }

    #[tokio::test]
    async fn files_outside_of_the_workspaces_directories_are_named() {
        let place = tempfile::tempdir().expect("a directory");
        for directory in ["out", "work/deep", "runs/e", "skills", "images/a", ".cache"] {
            write(place.path(), &format!("{directory}/f"));
        }
        write(place.path(), "metadata.json");
        write(place.path(), "result.txt");
        let root = WorkspaceRoot::open(place.path()).expect("a root");
        let found = StrayFiles::find(&root, ALL).await;
        assert!(!found.is_cut);
        assert_eq!(
            texts(found),
            ["/workspace/images/a/f", "/workspace/result.txt"]
        );
        let since = Duration::MAX;
        let none = StrayFiles::find(&root, ChangeTimeRange { since, ..ALL }).await;
        assert_eq!((none.paths.len(), none.is_cut), (0, false));
    }

    async fn found_in_tmp(place: &Path, span: ChangeTimeRange) -> StrayFiles {
        let directory = fs::File::open(place).expect("a directory").into();
        let mut found = StrayFiles::default();
        found.add(directory, b"/tmp/", &[], span).await;
        found
    }

    #[tokio::test]
    async fn files_in_tmp_are_named_whatever_their_directories_are_called() {
        let place = tempfile::tempdir().expect("a directory");
        for path in ["metadata.json", "out/a", "runs/a", "skills/a", "work/a/b"] {
            write(place.path(), path);
        }
        let found = found_in_tmp(place.path(), ALL).await;
        let expected = [
            "/tmp/metadata.json",
            "/tmp/out/a",
            "/tmp/runs/a",
            "/tmp/skills/a",
            "/tmp/work/a/b",
        ];
        assert_eq!(texts(found), expected);
    }

    #[tokio::test]
    async fn a_list_that_may_lack_files_says_so() {
        let place = tempfile::tempdir().expect("a directory");
        let fill = |numbers: std::ops::Range<usize>| {
            numbers.for_each(|number| write(place.path(), &format!("{number:0>5}")));
        };
        fill(0..NAMED_MAX);
        let found = found_in_tmp(place.path(), ALL).await;
        assert_eq!((found.paths.len(), found.is_cut), (NAMED_MAX, false));
        fill(NAMED_MAX..NAMED_MAX + 1);
        let found = found_in_tmp(place.path(), ALL).await;
        assert_eq!((found.paths.len(), found.is_cut), (NAMED_MAX, true));

        let since = Duration::MAX;
        let old = ChangeTimeRange { since, ..ALL };
        fill(NAMED_MAX..ENTRIES_MAX);
        let found = found_in_tmp(place.path(), old).await;
        assert_eq!((found.paths.len(), found.is_cut), (0, false));
        fill(ENTRIES_MAX..ENTRIES_MAX + 1);
        let found = found_in_tmp(place.path(), old).await;
        assert_eq!((found.paths.len(), found.is_cut), (0, true));
    }
}
