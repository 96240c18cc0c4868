//! Change notifications: watches directories with inotify and reports that something in them changed.
//!
//! A report only says that it is time for a scan; what changed is found by comparing fingerprints. So the contents of a
//! report do not matter, nor whether the kernel lost some, and the interval scan finds what no report told: changes on
//! network file systems, beyond the maximum of watches, or through a memory mapping.
//!
//! The kernel's queue is the only one. No thread reads it in between, so that a root whose files change without end
//! cannot keep the catalogue's task from anything.

use std::collections::{BTreeSet, HashSet};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;

use nix::errno::Errno;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, InotifyEvent, WatchDescriptor};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Maximum number of reads of the kernel's queue before a scan, each of up to 4 KiB. What remains is read before the
/// next.
const READS_MAX: usize = 256;
/// Events that are reported for a watched directory, and conditions under which it is watched.
const WATCH_FLAGS: AddWatchFlags = AddWatchFlags::IN_CREATE
    .union(AddWatchFlags::IN_DELETE)
    .union(AddWatchFlags::IN_MOVE)
    .union(AddWatchFlags::IN_DELETE_SELF)
    .union(AddWatchFlags::IN_MOVE_SELF)
    .union(AddWatchFlags::IN_MODIFY)
    .union(AddWatchFlags::IN_ATTRIB)
    .union(AddWatchFlags::IN_CLOSE_WRITE)
    .union(AddWatchFlags::IN_ONLYDIR)
    .union(AddWatchFlags::IN_DONT_FOLLOW);

/// Watches directories for changes.
#[derive(Debug)]
pub(crate) struct FolderWatcher {
    /// `None` where the kernel gives no inotify instance, or `watches_max` is 0.
    queue: Option<InotifyQueue>,
    watches: HashSet<WatchDescriptor>,
    watches_max: usize,
    has_warned: bool,
}

/// An inotify instance and the readiness of its queue.
#[derive(Debug)]
struct InotifyQueue {
    inotify: Inotify,
    /// Duplicate of the instance's file descriptor.
    readiness: AsyncFd<OwnedFd>,
}

impl InotifyQueue {
    fn new() -> io::Result<Self> {
        let inotify = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)?;
        let duplicate = inotify.as_fd().try_clone_to_owned()?;
        #[expect(
            deprecated,
            reason = "the successor is unsafe because of types that change their descriptor; OwnedFd cannot"
        )]
        let readiness = AsyncFd::with_interest(duplicate, Interest::READABLE)?;
        Ok(Self { inotify, readiness })
    }

    /// Reads the next events; none if the queue is empty.
    fn read_events(&self) -> io::Result<Vec<InotifyEvent>> {
        match self.inotify.read_events() {
            Err(Errno::EAGAIN) => {}
            events => return Ok(events?),
        }
        // Once more through Tokio, which then forgets that the queue was readable.
        let read = |_: &OwnedFd| self.inotify.read_events().map_err(io::Error::from);
        match self.readiness.try_io(Interest::READABLE, read) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(Vec::new()),
            events => events,
        }
    }
}

impl FolderWatcher {
    /// Makes a watcher that watches at most this many directories. Must be called within a Tokio runtime.
    pub(crate) fn new(watches_max: usize) -> Self {
        let queue = (watches_max > 0).then(InotifyQueue::new).and_then(|queue| {
            queue
                .inspect_err(|error| tracing::warn!(%error, "skills are not watched for changes"))
                .ok()
        });
        Self {
            queue,
            watches: HashSet::new(),
            watches_max,
            has_warned: false,
        }
    }

    /// Waits until a change is reported that [`Self::drain_reports`] has not seen.
    pub(crate) async fn changed(&self) {
        match &self.queue {
            // The guard is dropped, so the queue counts as readable until `drain_reports` finds it empty.
            Some(queue) if queue.readiness.readable().await.is_ok() => {}
            _ => std::future::pending().await,
        }
    }

    /// Discards the reports of changes that the next scan will find. Returns `true` if there were any.
    pub(crate) fn drain_reports(&self) -> bool {
        let Some(queue) = &self.queue else {
            return false;
        };
        for reads in 0..READS_MAX {
            match queue.read_events() {
                Ok(events) if events.is_empty() => return reads > 0,
                Ok(_) => {}
                Err(error) => {
                    tracing::warn!(%error, "reports of changed skills cannot be read");
                    return reads > 0;
                }
            }
        }
        true
    }

    /// Watches these directories and no others. Returns `true` if a new one is watched, whose state before that moment
    /// must be looked at again.
    pub(crate) fn watch_only(&mut self, directories: &BTreeSet<PathBuf>) -> bool {
        let Some(queue) = &self.queue else {
            return false;
        };
        let (mut watches, mut exceeded) = (HashSet::new(), None);
        for directory in directories {
            if watches.len() >= self.watches_max {
                exceeded = Some("more directories than skilld watches");
                break;
            }
            // A directory that is watched already keeps its watch; another one that has its path now gets a new one.
            match queue.inotify.add_watch(directory, WATCH_FLAGS) {
                Ok(watch) => drop(watches.insert(watch)),
                Err(Errno::ENOSPC) => {
                    exceeded = Some("the host's limit fs.inotify.max_user_watches is reached");
                }
                // The directory is gone, or is closed to the daemon, which the scan reports.
                Err(_) => {}
            }
        }
        for watch in self.watches.difference(&watches) {
            // Fails where the kernel ended the watch with its directory.
            let _ended = queue.inotify.rm_watch(*watch);
        }
        let is_new = !watches.is_subset(&self.watches);
        self.watches = watches;
        if let Some(reason) = exceeded
            && !std::mem::replace(&mut self.has_warned, true)
        {
            tracing::warn!(
                reason,
                "some skills are not watched: only the interval rescan sees their changes"
            );
        }
        is_new
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::{Duration, Instant};

    use tokio::time::timeout;

    use super::*;

    const DEADLINE: Duration = Duration::from_secs(60);

    /// Waits for the next report; a report that Tokio noticed after it was read does not count.
    async fn next_report(watcher: &FolderWatcher) {
        let reported = async {
            loop {
                watcher.changed().await;
                if watcher.drain_reports() {
                    return;
                }
            }
        };
        timeout(DEADLINE, reported).await.expect("reported");
        while watcher.drain_reports() {}
    }

    #[tokio::test]
    async fn endless_changes_delay_no_call_and_do_not_stop_the_watcher() {
        let dir = tempfile::tempdir().expect("temp dir");
        let (one, two) = (dir.path().join("one"), dir.path().join("two"));
        fs::create_dir_all(&one).expect("mkdir");
        fs::create_dir_all(&two).expect("mkdir");
        let mut watcher = FolderWatcher::new(10);
        assert!(watcher.watch_only(&BTreeSet::from([one.clone()])));
        let done = AtomicBool::new(false);
        let mut reports = 0;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let (from, to) = (one.join("from"), one.join("to"));
                fs::write(&from, "").expect("written");
                while !done.load(Ordering::Relaxed) {
                    fs::rename(&from, &to).expect("renamed");
                    fs::rename(&to, &from).expect("renamed");
                }
            });
            let (begin, mut round) = (Instant::now(), 0);
            while round < 100 || (reports == 0 && begin.elapsed() < DEADLINE) {
                round += 1;
                let mut directories = BTreeSet::from([one.clone()]);
                if round % 2 == 0 {
                    directories.insert(two.clone());
                }
                watcher.watch_only(&directories);
                reports += usize::from(watcher.drain_reports());
            }
            done.store(true, Ordering::Relaxed);
        });
        assert!(reports > 0);
        while watcher.drain_reports() {}
        watcher.watch_only(&BTreeSet::from([one.clone(), two.clone()]));
        fs::write(two.join("file"), "").expect("written");
        next_report(&watcher).await;
        // Tokio may notice a queue that was read already, but only once.
        while timeout(Duration::ZERO, watcher.changed()).await.is_ok() {
            assert!(!watcher.drain_reports());
        }
    }

    #[tokio::test]
    async fn a_replaced_directory_is_watched_instead_of_its_predecessor() {
        let dir = tempfile::tempdir().expect("temp dir");
        let (skill, aside) = (dir.path().join("skill"), dir.path().join("aside"));
        fs::create_dir_all(&skill).expect("mkdir");
        let mut watcher = FolderWatcher::new(10);
        let both = BTreeSet::from([dir.path().to_owned(), skill.clone()]);
        assert!(watcher.watch_only(&both));
        assert!(!watcher.watch_only(&both));
        fs::rename(&skill, &aside).expect("renamed");
        fs::create_dir(&skill).expect("mkdir");
        next_report(&watcher).await;
        assert!(watcher.watch_only(&both));
        // The end of the old watch is reported too.
        while watcher.drain_reports() {}
        fs::write(aside.join("file"), "").expect("written");
        assert!(!watcher.drain_reports());
        fs::write(skill.join("file"), "").expect("written");
        next_report(&watcher).await;
    }

    #[tokio::test]
    async fn lost_reports_are_a_report_and_watching_goes_on() {
        let dir = tempfile::tempdir().expect("temp dir");
        let mut watcher = FolderWatcher::new(10);
        let directories = BTreeSet::from([dir.path().to_owned()]);
        assert!(watcher.watch_only(&directories));
        let limit = fs::read_to_string("/proc/sys/fs/inotify/max_queued_events").expect("limit");
        for number in 0..=limit.trim().parse::<u32>().expect("a number") {
            fs::create_dir(dir.path().join(number.to_string())).expect("mkdir");
        }
        next_report(&watcher).await;
        assert!(!watcher.watch_only(&directories));
        fs::write(dir.path().join("file"), "").expect("written");
        next_report(&watcher).await;
    }

    #[tokio::test]
    async fn only_so_many_directories_are_watched_and_always_the_same() {
        let dir = tempfile::tempdir().expect("temp dir");
        let directories: BTreeSet<_> = (0..9).map(|n| dir.path().join(n.to_string())).collect();
        for directory in &directories {
            fs::create_dir(directory).expect("mkdir");
        }
        let mut watcher = FolderWatcher::new(5);
        assert!(watcher.watch_only(&directories));
        assert!(!watcher.watch_only(&directories));
        fs::write(dir.path().join("8/file"), "").expect("written");
        assert!(!watcher.drain_reports());
    }
}
