//! Temporary directory of a test whose background tasks write into it or read it.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::mpsc;

use tempfile::TempDir;
use tokio::runtime::Handle;
use tokio_util::task::TaskTracker;

/// Maximum length of a test's name in the name of its directory: the paths of sockets end at 107 bytes.
const NAME_MAX: usize = 24;

/// Temporary directory that is removed once the test has dropped it and every task of a tracker has ended, at the latest
/// at the end of the runtime. A [`TempDir`] is removed at once, and stays if a blocking call writes into it meanwhile.
#[derive(Debug)]
pub struct TaskDir {
    path: PathBuf,
    /// Dropped with this value, which begins the removal.
    _in_use: mpsc::Sender<()>,
}

impl TaskDir {
    /// Makes the directory. Must be called within the runtime that `tracker` spawns its tasks on.
    pub fn new(tracker: &TaskTracker) -> Self {
        let dir = create_named_dir();
        let path = dir.path().to_owned();
        let (in_use, dropped) = mpsc::channel::<()>();
        let (tracker, runtime) = (tracker.clone(), Handle::current());
        // The end of a runtime drops its tasks and then waits for blocking calls, of which this is one.
        TaskTracker::new().spawn_blocking(move || {
            dropped.recv().unwrap_or_default();
            tracker.close();
            runtime.block_on(tracker.wait());
            remove(&dir.keep());
        });
        Self {
            path,
            _in_use: in_use,
        }
    }

    /// Returns the path of the directory.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Makes a temporary directory that has the test's name in its own, so that a directory that is left can be traced.
fn create_named_dir() -> TempDir {
    // The test harness names the thread of each test after it.
    let thread = std::thread::current();
    let test = thread
        .name()
        .and_then(|name| name.rsplit("::").next())
        .unwrap_or("test");
    let prefix = format!("{}-", test.get(..NAME_MAX).unwrap_or(test));
    let dir = tempfile::Builder::new().prefix(&prefix).tempdir();
    dir.expect("a temporary directory")
}

/// Removes a directory. A blocking call whose task was dropped may still be writing its last file into it.
fn remove(dir: &Path) {
    while let Err(error) = std::fs::remove_dir_all(dir) {
        assert_eq!(error.kind(), ErrorKind::DirectoryNotEmpty, "{error}");
        std::thread::yield_now();
    }
}
