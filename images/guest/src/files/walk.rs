//! Walks a directory, or all that is beneath it, in the order of the bytes of the paths, following no
//! link. Memory is bounded whatever a tenant puts there: a directory is read in batches of its smallest
//! names, again for each batch, and the depth has an end.
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

/// Directories below one another.
pub(crate) const DEPTH_MAX: usize = 128;
/// Names held of one directory: all that a workspace of the default size can have.
const BATCH: usize = 64 * 1024;
/// The same in bytes, with what holding a name takes.
const BATCH_BYTES: usize = 4 * 1024 * 1024;
/// What holding a name takes beside its bytes.
const KEY_BYTES: usize = 48;
/// Names read before others get their turn.
const READ_SLICE: usize = 1024;

/// What a walk comes by.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Beneath `Walk::parent`, with its last component as name there.
    Entry { path: Vec<u8>, kind: FileType },
    /// A directory that could not be entered.
    Closed { path: Vec<u8>, errno: Errno },
    /// A directory below too many others.
    TooDeep { path: Vec<u8> },
}

/// What is done with a directory.
pub(crate) type Descend = Box<dyn Fn(&[u8]) -> bool + Send + Sync>;

/// A walk, and where it is.
pub(crate) struct Walk {
    frames: Vec<Frame>,
    /// Whether to look beneath a directory.
    descend: Descend,
    /// Start behind this path.
    after: Vec<u8>,
}

struct Frame {
    directory: Dir,
    /// Empty, or ending with a slash.
    prefix: Vec<u8>,
    /// The next keys, the smallest last.
    batch: Vec<Key>,
    /// The greatest key that was in a batch.
    last: Option<Vec<u8>>,
    /// There was more than one batch holds.
    more: bool,
}

/// A name; with a slash at its end it stands for what is beneath.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    name: Vec<u8>,
    kind: u8,
}

impl Walk {
    /// From an open directory. `prefix` is its path and a slash, or empty.
    pub(crate) fn new(
        directory: OwnedFd,
        prefix: Vec<u8>,
        descend: Descend,
    ) -> Result<Self, Errno> {
        let frame = Frame {
            directory: Dir::from_fd(directory)?,
            prefix,
            batch: Vec::new(),
            last: None,
            more: true,
        };
        Ok(Self {
            frames: vec![frame],
            descend,
            after: Vec::new(),
        })
    }

    /// Leaves out all up to a path, and the path.
    pub(crate) fn start_after(&mut self, path: Vec<u8>) {
        self.after = path;
    }

    /// Where the entry of the last step is.
    pub(crate) fn parent(&self) -> Option<BorrowedFd<'_>> {
        self.frames.last().map(|frame| frame.directory.as_fd())
    }

    /// The next one; `None` at the end.
    pub(crate) async fn next(&mut self) -> Option<Step> {
        loop {
            let frame = self.frames.last_mut()?;
            let Some(key) = frame.batch.pop() else {
                if !frame.more {
                    self.frames.pop();
                } else if let Err(errno) = frame.fill(&self.after, &self.descend).await {
                    let closed = self.frames.pop()?;
                    let path = without_slash(&closed.prefix).to_vec();
                    return Some(Step::Closed { path, errno });
                }
                continue;
            };
            let path = [frame.prefix.as_slice(), &key.name].concat();
            if !path.ends_with(b"/") {
                let kind = FileType::try_from(i32::from(key.kind)).unwrap_or(FileType::Other);
                return Some(Step::Entry { path, kind });
            }
            if let Some(problem) = self.enter(path, &key.name) {
                return Some(problem);
            }
        }
    }

    fn enter(&mut self, prefix: Vec<u8>, name: &[u8]) -> Option<Step> {
        let path = without_slash(&prefix).to_vec();
        if self.frames.len() >= DEPTH_MAX {
            return Some(Step::TooDeep { path });
        }
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let parent = self.parent()?;
        let opened =
            openat(parent, without_slash(name), flags, Mode::empty()).and_then(Dir::from_fd);
        match opened {
            Err(errno) => Some(Step::Closed { path, errno }),
            Ok(directory) => {
                self.frames.push(Frame {
                    directory,
                    prefix,
                    batch: Vec::new(),
                    last: None,
                    more: true,
                });
                None
            }
        }
    }
}

impl Frame {
    /// Reads the directory for the smallest names behind the last batch.
    async fn fill(&mut self, after: &[u8], descend: &Descend) -> Result<(), Errno> {
        let mut batch = Batch {
            prefix: &self.prefix,
            after,
            last: self.last.as_deref(),
            smallest: BinaryHeap::new(),
            bytes: 0,
            more: false,
        };
        // O_PATH would not do: the copy is only there to name entries while the iterator is borrowed.
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
            if name == b"." || name == b".." || (top && name == staging::DIRECTORY.as_bytes()) {
                continue;
            }
            let kind = kind(&here, name, entry.file_type());
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

/// The smallest names behind `last`, and behind the path `after`.
struct Batch<'a> {
    prefix: &'a [u8],
    after: &'a [u8],
    last: Option<&'a [u8]>,
    smallest: BinaryHeap<Key>,
    bytes: usize,
    more: bool,
}

impl Batch<'_> {
    fn offer(&mut self, name: &[u8], kind: FileType) {
        if self.last.is_some_and(|last| name <= last) || self.is_over(name) {
            return;
        }
        let full = self.smallest.len() >= BATCH || self.bytes >= BATCH_BYTES;
        if full && self.smallest.peek().is_some_and(|key| *key.name <= *name) {
            self.more = true;
            return;
        }
        self.bytes += name.len() + KEY_BYTES;
        self.smallest.push(Key {
            name: name.to_vec(),
            kind: u8::try_from(i32::from(kind)).unwrap_or(0),
        });
        while self.smallest.len() > BATCH || self.bytes > BATCH_BYTES {
            let Some(largest) = self.smallest.pop() else {
                break;
            };
            self.bytes -= largest.name.len() + KEY_BYTES;
            self.more = true;
        }
    }

    /// Whether it comes before the place where the walk starts.
    fn is_over(&self, name: &[u8]) -> bool {
        if self.after.is_empty() {
            return false;
        }
        let full = [self.prefix, name].concat();
        full.as_slice() <= self.after && !(full.ends_with(b"/") && self.after.starts_with(&full))
    }
}

fn kind(here: &OwnedFd, name: &[u8], known: Option<Type>) -> FileType {
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
            Walk::new(directory.into(), Vec::new(), Box::new(move |_| recursive)).expect("a walk");
        walk.start_after(after.to_vec());
        let mut paths = Vec::new();
        while let Some(step) = walk.next().await {
            let Step::Entry { path, .. } = step else {
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
        assert!(expected.len() * 200 > BATCH_BYTES);
        for name in &expected {
            fs::write(place.path().join(name), "").expect("made");
        }
        expected.sort();
        assert_eq!(walked(place.path(), true, b"").await, expected);
    }
}
