//! Files that a command left where nothing collects them: in /tmp, and in the workspace outside of its directories.
//! They are named in the summary, so that a script which writes to a place of its own choice does so visibly.

use std::os::fd::OwnedFd;
use std::time::Duration;

use nix::fcntl::{AtFlags, OFlag, open};
use nix::sys::stat::{Mode, fstatat};
use skilld_proto::v1::FileType;

use crate::files::root::{Root, split};
use crate::files::since_epoch;
use crate::files::walk::{Step, Walk};

/// Maximum number of files that are named.
const NAMED_MAX: usize = 20;
/// Maximum number of entries that are looked at. A command that leaves more is reported with what was seen first.
const ENTRIES_MAX: usize = 2000;
/// What of a workspace is collected by a glob or is not a command's.
const OWN: [&[u8]; 5] = [b"metadata.json", b"out", b"runs", b"skills", b"work"];
/// Where a container has its workspace. Elsewhere, in tests, /tmp belongs to others too.
const IN_CONTAINER: &str = "/workspace";

/// The time in which an exec changed files, on the clock that the kernel stamps them with.
#[derive(Debug, Clone, Copy)]
pub(super) struct Span {
    pub(super) since: Duration,
    pub(super) until: Option<Duration>,
}

/// Lists files outside of the workspace's directories that changed in `span`, as absolute paths.
pub(super) async fn files_outside(root: &Root, span: Span) -> Vec<Vec<u8>> {
    let directory = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let mut found = Vec::new();
    if let Ok(workspace) = root.openat(b"", directory) {
        changed(workspace, b"/workspace/", span, &mut found).await;
    }
    if root.is_at(IN_CONTAINER)
        && let Ok(tmp) = open("/tmp", directory | OFlag::O_NOFOLLOW, Mode::empty())
    {
        changed(tmp, b"/tmp/", span, &mut found).await;
    }
    found
}

/// Adds the regular files beneath a directory that changed in `span`, without hidden ones.
async fn changed(directory: OwnedFd, prefix: &[u8], span: Span, found: &mut Vec<Vec<u8>>) {
    let top = prefix.len();
    let is_wanted = move |path: &[u8]| {
        let within = path.get(top..).unwrap_or_default();
        !split(path).1.starts_with(b".") && !OWN.contains(&within)
    };
    let Ok(mut walk) = Walk::new(directory, prefix.to_vec(), Box::new(is_wanted)) else {
        return;
    };
    for _ in 0..ENTRIES_MAX {
        let Some(step) = walk.next().await else {
            return;
        };
        let Step::Entry { path, kind } = step else {
            continue;
        };
        if kind != FileType::File || !is_wanted(&path) {
            continue;
        }
        let Some(parent) = walk.parent() else {
            return;
        };
        let Ok(stat) = fstatat(parent, split(&path).1, AtFlags::AT_SYMLINK_NOFOLLOW) else {
            continue;
        };
        let changed = since_epoch(stat.st_ctime, stat.st_ctime_nsec);
        if changed < span.since || span.until.is_some_and(|until| changed > until) {
            continue;
        }
        found.push(path);
        if found.len() >= NAMED_MAX {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    async fn outside(root: &Root, since: Duration) -> Vec<String> {
        let span = Span { since, until: None };
        let found = files_outside(root, span).await;
        let paths = found.into_iter().map(String::from_utf8);
        paths.map(|path| path.expect("text")).collect()
    }

    #[tokio::test]
    async fn files_outside_of_the_workspaces_directories_are_named_and_bounded() {
        let place = tempfile::tempdir().expect("a directory");
        for directory in ["out", "work/deep", "runs/e", "skills", "images/a", ".cache"] {
            fs::create_dir_all(place.path().join(directory)).expect("made");
            fs::write(place.path().join(directory).join("f"), "x").expect("written");
        }
        fs::write(place.path().join("metadata.json"), "{}").expect("written");
        fs::write(place.path().join("result.txt"), "x").expect("written");
        let root = Root::open(place.path()).expect("a root");
        let expected = ["/workspace/images/a/f", "/workspace/result.txt"];
        assert_eq!(outside(&root, Duration::ZERO).await, expected);
        assert_eq!(outside(&root, Duration::MAX).await, Vec::<String>::new());
        for number in 0..100 {
            fs::write(place.path().join(format!("images/{number}")), "").expect("written");
        }
        assert_eq!(outside(&root, Duration::ZERO).await.len(), NAMED_MAX);
    }
}
