//! Walks a directory, or everything beneath it, in the byte order of the paths. Follows no links. Memory is bounded
//! for any directory: it is read in batches of its smallest names, once per batch, and the depth is limited.
//!
//! A directory `a` has two places in the order: its own, and that of what is beneath it, `a/`. Between
//! them lies for instance `a-b`.

use std::collections::BinaryHeap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nix::dir::{Dir, Type};
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, openat};
use nix::sys::stat::{Mode, fstatat};
use skilld_proto::v1::FileType;

use super::{file_type, staging};

/// Maximum depth of nested directories.
pub(crate) const DEPTH_MAX: usize = 128;
/// Maximum number of names held per directory: all that a workspace of the default size can have.
const BATCH_NAMES_MAX: usize = 64 * 1024;
/// Maximum size of the names held per directory, in bytes, with their overhead.
const BATCH_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Overhead of a held name, in bytes.
const KEY_BYTES: usize = 48;
/// Number of names read before other tasks get their turn.
const READ_SLICE: usize = 1024;

/// Entry that a directory walk found, or directory that it did not enter.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum WalkStep {
    /// Entry of the directory that `DirectoryWalk::parent` returns, under the last component of `path`.
    Entry { path: Vec<u8>, kind: FileType },
    /// Directory that could not be entered.
    Closed { path: Vec<u8>, errno: Errno },
    /// Directory that is nested too deeply to be entered.
    TooDeep { path: Vec<u8> },
}

/// Predicate that returns `true` for directories to enter.
pub(crate) type DescendFilter = Box<dyn Fn(&[u8]) -> bool + Send + Sync>;

/// Walk with its current position.
pub(crate) struct DirectoryWalk {
    frames: Vec<WalkFrame>,
    /// Predicate for directories to enter.
    descend: DescendFilter,
    /// Path behind which the walk starts; empty for all.
    after: Vec<u8>,
}

/// Directory on the path from the top to the current position.
struct WalkFrame {
    directory: Dir,
    /// Path of the directory with a slash at its end; empty for the top.
    prefix: Vec<u8>,
    /// Keys that come next, the smallest last.
    batch: Vec<SortKey>,
    /// Greatest key of the previous batches.
    last: Option<Vec<u8>>,
    /// `true` if the directory has more names than the batch holds.
    more: bool,
}

/// Sort key of a directory entry: its name, with a slash at the end for what lies beneath it.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct SortKey {
    name: Vec<u8>,
    kind: u8,
}

impl DirectoryWalk {
    /// Starts a walk at an open directory. `prefix` is its path with a slash at its end, or empty.
    pub(crate) fn new(
        directory: OwnedFd,
        prefix: Vec<u8>,
        descend: DescendFilter,
    ) -> Result<Self, Errno> {
        Ok(Self {
            frames: vec![WalkFrame::new(directory, prefix)?],
            descend,
            after: Vec::new(),
        })
    }

    /// Skips all paths up to and including `path`.
    pub(crate) fn start_after(&mut self, path: Vec<u8>) {
        self.after = path;
    }

    /// Returns the directory that holds the entry of the last step.
    pub(crate) fn parent(&self) -> Option<BorrowedFd<'_>> {
        self.frames.last().map(|frame| frame.directory.as_fd())
    }

    /// Returns the next step; `None` at the end.
    pub(crate) async fn next(&mut self) -> Option<WalkStep> {
        loop {
            let frame = self.frames.last_mut()?;
            let Some(key) = frame.batch.pop() else {
                if !frame.more {
                    self.frames.pop();
                } else if let Err(errno) = frame.fill(&self.after, &self.descend).await {
                    let closed = self.frames.pop()?;
                    let path = without_slash(&closed.prefix).to_vec();
                    return Some(WalkStep::Closed { path, errno });
                }
                continue;
            };
            let path = [frame.prefix.as_slice(), &key.name].concat();
            if !path.ends_with(b"/") {
                let kind = FileType::try_from(i32::from(key.kind)).unwrap_or(FileType::Other);
                return Some(WalkStep::Entry { path, kind });
            }
            if let Some(problem) = self.enter(path, &key.name) {
                return Some(problem);
            }
        }
    }

    /// Enters a directory. Returns the step that reports a failure, if any.
    fn enter(&mut self, prefix: Vec<u8>, name: &[u8]) -> Option<WalkStep> {
        let path = without_slash(&prefix).to_vec();
        if self.frames.len() >= DEPTH_MAX {
            return Some(WalkStep::TooDeep { path });
        }
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let parent = self.parent()?;
        let opened = openat(parent, without_slash(name), flags, Mode::empty());
        match opened.and_then(|directory| WalkFrame::new(directory, prefix)) {
            Err(errno) => return Some(WalkStep::Closed { path, errno }),
            Ok(frame) => self.frames.push(frame),
        }
        None
    }
}

impl WalkFrame {
    /// Returns the frame of a directory of which nothing was read.
    fn new(directory: OwnedFd, prefix: Vec<u8>) -> Result<Self, Errno> {
        Ok(Self {
            directory: Dir::from_fd(directory)?,
            prefix,
            batch: Vec::new(),
            last: None,
            more: true,
        })
    }

    /// Reads the smallest names behind the last batch.
    async fn fill(&mut self, after: &[u8], descend: &DescendFilter) -> Result<(), Errno> {
        let mut batch = NameBatch {
            prefix: &self.prefix,
            after,
            last: self.last.as_deref(),
            smallest: BinaryHeap::new(),
            bytes: 0,
            more: false,
        };
        // The iterator borrows the directory, so entries are looked up through a copy. An O_PATH copy would not
        // suffice.
        let here = self
            .directory
            .as_fd()
            .try_clone_to_owned()
            .map_err(|_| Errno::EMFILE)?;
        let top = self.prefix.is_empty();
        let mut count = 0;
        for entry in self.directory.iter() {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if name == b"." || name == b".." || (top && name == staging::STAGING_PARENT.as_bytes())
            {
                continue;
            }
            let kind = entry_kind(&here, name, entry.file_type());
            batch.offer(name, kind);
            if kind == FileType::Directory && descend(&[&self.prefix, name].concat()) {
                batch.offer(&[name, b"/"].concat(), kind);
            }
            count += 1;
            if count % READ_SLICE == 0 {
                tokio::task::yield_now().await;
            }
        }
        let (smallest, more) = (batch.smallest, batch.more);
        self.more = more;
        self.batch = smallest.into_sorted_vec();
        self.last = self
            .batch
            .last()
            .map(|key| key.name.clone())
            .or(self.last.take());
        self.batch.reverse();
        Ok(())
    }
}

/// Batch of the smallest names behind `last` and behind the path `after`.
struct NameBatch<'a> {
    prefix: &'a [u8],
    after: &'a [u8],
    last: Option<&'a [u8]>,
    smallest: BinaryHeap<SortKey>,
    bytes: usize,
    more: bool,
}

impl NameBatch<'_> {
    /// Adds a name to the batch if it is among the smallest.
    fn offer(&mut self, name: &[u8], kind: FileType) {
        if self.last.is_some_and(|last| name <= last) || self.is_over(name) {
            return;
        }
        let full = self.smallest.len() >= BATCH_NAMES_MAX || self.bytes >= BATCH_BYTES_MAX;
        if full && self.smallest.peek().is_some_and(|key| *key.name <= *name) {
            self.more = true;
            return;
        }
        self.bytes += name.len() + KEY_BYTES;
        self.smallest.push(SortKey {
            name: name.to_vec(),
            kind: u8::try_from(i32::from(kind)).unwrap_or(0),
        });
        while self.smallest.len() > BATCH_NAMES_MAX || self.bytes > BATCH_BYTES_MAX {
            let Some(largest) = self.smallest.pop() else {
                break;
            };
            self.bytes -= largest.name.len() + KEY_BYTES;
            self.more = true;
        }
    }

    /// Returns `true` if a name comes before the position at which the walk starts.
    fn is_over(&self, name: &[u8]) -> bool {
        if self.after.is_empty() {
            return false;
        }
        let full = [self.prefix, name].concat();
        full.as_slice() <= self.after && !(full.ends_with(b"/") && self.after.starts_with(&full))
    }
}

fn entry_kind(here: &OwnedFd, name: &[u8], known: Option<Type>) -> FileType {
    match known {
        Some(Type::File) => FileType::File,
        Some(Type::Directory) => FileType::Directory,
        Some(Type::Symlink) => FileType::Symlink,
        Some(Type::Fifo | Type::Socket | Type::CharacterDevice | Type::BlockDevice) => {
            FileType::Other
        }
        None => fstatat(here, name, AtFlags::AT_SYMLINK_NOFOLLOW)
            .map_or(FileType::Other, |stat| file_type(&stat)),
    }
}

fn without_slash(path: &[u8]) -> &[u8] {
    path.strip_suffix(b"/").unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::path::Path;

    async fn walked(place: &Path, recursive: bool, after: &[u8]) -> Vec<String> {
        let directory = fs::File::open(place).expect("a directory");
        let mut walk =
            DirectoryWalk::new(directory.into(), Vec::new(), Box::new(move |_| recursive))
                .expect("a walk");
        walk.start_after(after.to_vec());
        let mut paths = Vec::new();
        while let Some(step) = walk.next().await {
            let WalkStep::Entry { path, .. } = step else {
                panic!("{step:?}");
            };
            paths.push(String::from_utf8(path).expect("text"));
        }
        paths
    }

    #[tokio::test]
    async fn paths_come_in_the_order_of_their_bytes() {
        let place = tempfile::tempdir().expect("a directory");
        for directory in ["a/x/y", "a-b", "a!", ".stage/1", "b"] {
            fs::create_dir_all(place.path().join(directory)).expect("made");
        }
        for file in ["a/f", "a-b/f", "a.f", "a/x/y/z"] {
            fs::write(place.path().join(file), "").expect("made");
        }
        std::os::unix::fs::symlink("a", place.path().join("link")).expect("made");
        let all = walked(place.path(), true, b"").await;
        let expected = [
            "a", "a!", "a-b", "a-b/f", "a.f", "a/f", "a/x", "a/x/y", "a/x/y/z", "b", "link",
        ];
        assert_eq!(all, expected);
        for (at, path) in expected.iter().enumerate() {
            assert_eq!(
                walked(place.path(), true, path.as_bytes()).await,
                expected[at + 1..]
            );
        }
        assert_eq!(
            walked(place.path(), false, b"").await,
            ["a", "a!", "a-b", "a.f", "b", "link"]
        );
    }

    #[tokio::test]
    async fn a_directory_larger_than_a_batch_comes_whole_and_sorted() {
        let place = tempfile::tempdir().expect("a directory");
        let mut expected: Vec<String> = (0..40_000).map(|n| format!("{n:0>200}")).collect();
        assert!(expected.len() * 200 > BATCH_BYTES_MAX);
        for name in &expected {
            fs::write(place.path().join(name), "").expect("made");
        }
        expected.sort();
        assert_eq!(walked(place.path(), true, b"").await, expected);
    }
}
