//! Which directories changed: the kernel tells (inotify). It queues an event before the call that made a change
//! returns, so whoever asks afterwards knows of it.
//!
//! Not every change can be told of: on file systems that others write to as well, with too many directories, through
//! a second hard link, by a mapping of memory. What is not watched is looked at again instead; for the last two there
//! is RefreshSkills.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use nix::errno::Errno;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, InotifyEvent, WatchDescriptor};
use nix::sys::statfs::{self, FsType, statfs};

/// File systems whose every change goes through this kernel, and is told of.
const LOCAL: [FsType; 7] = [
    // Of ext2 and ext3 too.
    statfs::EXT4_SUPER_MAGIC,
    statfs::XFS_SUPER_MAGIC,
    statfs::BTRFS_SUPER_MAGIC,
    statfs::F2FS_SUPER_MAGIC,
    statfs::TMPFS_MAGIC,
    statfs::OVERLAYFS_SUPER_MAGIC,
    // ZFS, which nix does not name.
    FsType(0x2FC1_2FC1),
];

/// What happened in a watched directory, or to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Change {
    /// The directory.
    pub(super) dir: PathBuf,
    pub(super) what: What,
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum What {
    /// It is not what it was: gone, moved, mounted away, or others may use it now.
    Itself,
    /// A directory in it came, went or changed its mode.
    Dir(PathBuf),
    /// Another entry came or went.
    Entry,
    /// What is in one of its files, or the file's mode.
    File(PathBuf),
}

/// All that happened since the last question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Told {
    /// This, in order.
    Changes(Vec<Change>),
    /// More than the kernel keeps: anything.
    Anything,
}

/// Watches directories. What it was told is lost if nobody asks.
#[derive(Debug)]
pub(super) struct Watcher {
    inner: Mutex<Inner>,
    max: usize,
}

#[derive(Debug)]
struct Inner {
    /// `None` where the kernel gives none.
    inotify: Option<Inotify>,
    by_path: BTreeMap<PathBuf, WatchDescriptor>,
    /// Several where one directory was found by several paths.
    by_watch: HashMap<WatchDescriptor, Vec<PathBuf>>,
    /// File systems by device: whether they tell of every change.
    local: HashMap<u64, bool>,
    /// It was logged that something is not watched.
    complained: bool,
}

impl Watcher {
    /// Watches at most `max` directories.
    pub(super) fn new(max: usize) -> Self {
        Self {
            inner: Mutex::new(Inner {
                inotify: if max > 0 { begin() } else { None },
                by_path: BTreeMap::new(),
                by_watch: HashMap::new(),
                local: HashMap::new(),
                complained: false,
            }),
            max,
        }
    }

    /// From now on every change of what is in `dir` is told. False if that can't be had.
    pub(super) fn watch(&self, dir: &Path, device: u64) -> bool {
        self.lock().watch(dir, device, self.max)
    }

    /// Whether changes in it are told.
    pub(super) fn watches(&self, dir: &Path) -> bool {
        self.lock().by_path.contains_key(dir)
    }

    /// Ends the watches of a directory and all beneath it.
    pub(super) fn forget(&self, dir: &Path) {
        self.lock().forget(dir);
    }

    /// Ends the watches of directories that are not wanted.
    pub(super) fn retain(&self, wanted: impl Fn(&Path) -> bool) {
        let mut inner = self.lock();
        let unwanted: Vec<PathBuf> = inner
            .by_path
            .keys()
            .filter(|path| !wanted(path))
            .cloned()
            .collect();
        for path in unwanted {
            inner.unwatch(&path);
        }
    }

    /// What happened since the last question.
    pub(super) fn told(&self) -> Told {
        let mut inner = self.lock();
        let mut changes = Vec::new();
        loop {
            let events = match inner.inotify.as_ref().map(Inotify::read_events) {
                None | Some(Err(Errno::EAGAIN)) => return Told::Changes(changes),
                Some(Err(Errno::EINTR)) => continue,
                Some(Ok(events)) => events,
                Some(Err(errno)) => {
                    tracing::error!(error = %errno, "skills are watched no longer");
                    inner.give_up();
                    return Told::Anything;
                }
            };
            for event in events {
                if event.mask.contains(AddWatchFlags::IN_Q_OVERFLOW) {
                    tracing::info!("too many changes at once: all skills are looked at again");
                    inner.begin_again();
                    return Told::Anything;
                }
                inner.take(&event, &mut changes);
            }
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn watch(&mut self, dir: &Path, device: u64, max: usize) -> bool {
        if self.by_path.contains_key(dir) {
            return true;
        }
        let Some(inotify) = &self.inotify else {
            return false;
        };
        let local = *self.local.entry(device).or_insert_with(|| {
            statfs(dir).is_ok_and(|stat| LOCAL.contains(&stat.filesystem_type()))
        });
        if !local {
            return false;
        }
        if self.by_path.len() >= max {
            self.complain("skills.watches_max is reached");
            return false;
        }
        let wanted = AddWatchFlags::IN_CREATE
            | AddWatchFlags::IN_DELETE
            | AddWatchFlags::IN_MOVE
            | AddWatchFlags::IN_MODIFY
            | AddWatchFlags::IN_ATTRIB
            | AddWatchFlags::IN_DELETE_SELF
            | AddWatchFlags::IN_MOVE_SELF
            | AddWatchFlags::IN_ONLYDIR
            | AddWatchFlags::IN_DONT_FOLLOW;
        match inotify.add_watch(dir, wanted) {
            Ok(watch) => {
                self.by_path.insert(dir.to_owned(), watch);
                self.by_watch.entry(watch).or_default().push(dir.to_owned());
                true
            }
            Err(Errno::ENOSPC | Errno::ENOMEM) => {
                self.complain("the host's limit fs.inotify.max_user_watches is reached");
                false
            }
            Err(_) => false,
        }
    }

    fn complain(&mut self, why: &str) {
        if !std::mem::replace(&mut self.complained, true) {
            tracing::warn!(why, "some skills are not watched: every list looks at them");
        }
    }

    fn forget(&mut self, dir: &Path) {
        let beneath = self.by_path.range(dir.to_owned()..);
        let beneath = beneath.take_while(|(path, _)| path.starts_with(dir));
        let paths: Vec<PathBuf> = beneath.map(|(path, _)| path.clone()).collect();
        for path in paths {
            self.unwatch(&path);
        }
    }

    fn unwatch(&mut self, path: &Path) {
        let Some(watch) = self.by_path.remove(path) else {
            return;
        };
        let Some(paths) = self.by_watch.get_mut(&watch) else {
            return;
        };
        paths.retain(|other| other != path);
        if paths.is_empty() {
            self.by_watch.remove(&watch);
            if let Some(inotify) = &self.inotify {
                // It fails where the kernel has ended it already.
                let _ended = inotify.rm_watch(watch);
            }
        }
    }

    /// Nothing is watched any more. Among what was lost may be the end of any watch, so none of them is kept.
    fn begin_again(&mut self) {
        self.give_up();
        self.inotify = begin();
    }

    fn give_up(&mut self) {
        self.inotify = None;
        self.by_path.clear();
        self.by_watch.clear();
    }

    fn take(&mut self, event: &InotifyEvent, changes: &mut Vec<Change>) {
        let Some(dirs) = self.by_watch.get(&event.wd).cloned() else {
            return;
        };
        for dir in dirs {
            let what = what(&dir, event);
            match &what {
                What::Itself => self.forget(&dir),
                What::Dir(path) => self.forget(path),
                What::Entry | What::File(_) => {}
            }
            // A file that is written comes in many pieces.
            let change = Change { dir, what };
            if changes.last() != Some(&change) {
                changes.push(change);
            }
        }
    }
}

fn begin() -> Option<Inotify> {
    match Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC) {
        Ok(inotify) => Some(inotify),
        Err(errno) => {
            tracing::warn!(error = %errno, "skills are not watched: every list looks at all of them");
            None
        }
    }
}

fn what(dir: &Path, event: &InotifyEvent) -> What {
    let has = |flags| event.mask.intersects(flags);
    match &event.name {
        Some(name) if has(AddWatchFlags::IN_ISDIR) => What::Dir(dir.join(name)),
        Some(name) if has(AddWatchFlags::IN_MODIFY | AddWatchFlags::IN_ATTRIB) => {
            What::File(dir.join(name))
        }
        Some(_) => What::Entry,
        None => What::Itself,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::MetadataExt;

    use super::*;

    /// More than the kernel keeps, two files by turns, since equal events in a row are one.
    fn overflow(dir: &Path) {
        let most = fs::read_to_string("/proc/sys/fs/inotify/max_queued_events").expect("a limit");
        let most: usize = most.trim().parse().expect("a number");
        for number in 0..=most / 2 {
            let path = dir.join(["a", "b"][number % 2]);
            fs::write(&path, "").expect("write");
            fs::remove_file(&path).expect("remove");
        }
    }

    #[test]
    fn after_too_many_changes_what_came_in_a_directorys_place_is_watched() {
        let top = tempfile::tempdir().expect("temp dir");
        let (lost, other) = (top.path().join("lost"), top.path().join("other"));
        let watcher = Watcher::new(10);
        let watch = |dir: &Path| {
            let device = fs::metadata(dir).expect("there").dev();
            assert!(watcher.watch(dir, device), "not on a local file system");
        };
        for dir in [&lost, &other] {
            fs::create_dir(dir).expect("mkdir");
            watch(dir);
        }
        overflow(&other);
        // Nobody is told of this.
        fs::remove_dir(&lost).expect("rmdir");
        fs::create_dir(&lost).expect("mkdir");
        assert_eq!(watcher.told(), Told::Anything);
        assert_eq!(
            watcher.told(),
            Told::Changes(Vec::new()),
            "what is told is over"
        );
        for dir in [&lost, &other] {
            watch(dir);
            fs::write(dir.join("new"), "").expect("write");
            let Told::Changes(changes) = watcher.told() else {
                panic!("too many again");
            };
            let told = changes.iter().any(|change| change.dir == *dir);
            assert!(told, "{}: {changes:?}", dir.display());
        }
    }
}
