//! Files that may change while the daemon runs. A new version is checked and swapped as a whole; a faulty one leaves the
//! last good version in force and becomes a problem that ListProblems shows.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use arc_swap::{ArcSwap, Guard};
use parking_lot::Mutex;

use crate::error::{DaemonProblem, Error, Result};

/// Faulty new versions of watched files, by their configuration key. Clones share the table.
#[derive(Debug, Clone, Default)]
pub struct FileProblems(Arc<Mutex<BTreeMap<String, DaemonProblem>>>);

/// Files that are loaded together, and their last good version.
pub(crate) struct WatchedFile<T> {
    /// Configuration key.
    pub(crate) key: String,
    paths: Vec<PathBuf>,
    load: Box<dyn Fn() -> std::result::Result<T, String> + Send + Sync>,
    current: ArcSwap<T>,
    /// Identity of the files when they were loaded last.
    seen: Mutex<Vec<FileVersion>>,
    problems: FileProblems,
}

/// Identity of a version of a file: device, inode, size, times of the last change of contents and metadata. `None` if
/// the file cannot be examined.
type FileVersion = Option<[i64; 7]>;

impl FileProblems {
    /// Lists the faults, ordered by the files' keys.
    pub fn list(&self) -> Vec<DaemonProblem> {
        self.0.lock().values().cloned().collect()
    }

    /// Returns `true` if a key has a problem.
    fn has(&self, key: &str) -> bool {
        self.0.lock().contains_key(key)
    }

    /// Raises a problem of a key, or clears it.
    pub(crate) fn set(&self, key: &str, message: Option<String>) {
        let mut problems = self.0.lock();
        let Some(message) = message else {
            if problems.remove(key).is_some() {
                tracing::info!(key, "problem cleared");
            }
            return;
        };
        if let Some(known) = problems.get_mut(key) {
            // The time is that of the beginning.
            known.message = message;
            return;
        }
        tracing::error!(key, message, "problem raised");
        let problem = DaemonProblem {
            code: "configuration.file_invalid",
            is_error: true,
            subject: key.to_owned(),
            message,
            time: SystemTime::now(),
        };
        problems.insert(key.to_owned(), problem);
    }
}

impl<T> std::fmt::Debug for WatchedFile<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "WatchedFile({}: {:?})", self.key, self.paths)
    }
}

impl<T> WatchedFile<T> {
    /// Loads the first version. `key` is the configuration key, `paths` are all files that `load` reads.
    ///
    /// # Errors
    /// [`Error::Start`] if the files are faulty.
    pub(crate) fn open(
        key: &str,
        paths: Vec<PathBuf>,
        problems: &FileProblems,
        load: impl Fn() -> std::result::Result<T, String> + Send + Sync + 'static,
    ) -> Result<Self> {
        let seen = versions(&paths);
        let first = load()
            .map_err(|why| Error::start("a file of the configuration", format!("{key}: {why}")))?;
        Ok(Self {
            key: key.to_owned(),
            paths,
            load: Box::new(load),
            current: ArcSwap::from_pointee(first),
            seen: Mutex::new(seen),
            problems: problems.clone(),
        })
    }

    /// Returns the last good version.
    pub(crate) fn current(&self) -> Guard<Arc<T>> {
        self.current.load()
    }

    /// Loads the files again if one of them has changed. Returns `true` if a new version is in force. Blocks.
    pub(crate) fn reload_if_changed(&self) -> bool {
        let mut seen = self.seen.lock();
        let now = versions(&self.paths);
        // A read can fail for a passing reason, such as too many open files, so a fault is looked at again.
        if *seen == now && !self.problems.has(&self.key) {
            return false;
        }
        match (self.load)() {
            Ok(version) => {
                self.current.store(Arc::new(version));
                tracing::info!(key = self.key, "a new version of a file is in force");
                self.problems.set(&self.key, None);
                *seen = now;
                true
            }
            Err(why) => {
                let rest = "the last good version stays in force until this is mended";
                self.problems.set(&self.key, Some(format!("{why}; {rest}")));
                *seen = now;
                false
            }
        }
    }
}

fn versions(paths: &[PathBuf]) -> Vec<FileVersion> {
    paths.iter().map(|path| version(path)).collect()
}

fn version(path: &Path) -> FileVersion {
    // Follows links: an orchestrator changes a mounted secret by replacing a link.
    let metadata = std::fs::metadata(path).ok()?;
    Some([
        metadata.dev().cast_signed(),
        metadata.ino().cast_signed(),
        metadata.size().cast_signed(),
        metadata.mtime(),
        metadata.mtime_nsec(),
        metadata.ctime(),
        metadata.ctime_nsec(),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(path: &Path) -> std::result::Result<u32, String> {
        let text = std::fs::read_to_string(path).map_err(|error| error.to_string())?;
        text.trim()
            .parse()
            .map_err(|_| format!("{text:?} is no number"))
    }

    #[test]
    fn a_faulty_version_leaves_the_last_good_one_in_force() {
        let dir = tempfile::tempdir().expect("directory");
        let path = dir.path().join("number");
        let install = |text: &str| {
            let new = dir.path().join("new");
            std::fs::write(&new, text).expect("write");
            std::fs::rename(&new, &path).expect("rename");
        };
        install("1");
        let problems = FileProblems::default();
        let source = path.clone();
        let file = WatchedFile::open("a.number", vec![path.clone()], &problems, move || {
            number(&source)
        })
        .expect("valid");
        assert!(!file.reload_if_changed(), "nothing has changed");
        install("2");
        assert!(file.reload_if_changed());
        assert_eq!(**file.current(), 2);

        install("x");
        assert!(!file.reload_if_changed());
        assert_eq!(**file.current(), 2);
        let listed = problems.list();
        let problem = listed.first().expect("a problem");
        assert!(problem.subject == "a.number" && problem.message.contains("is no number"));
        std::fs::remove_file(&path).expect("remove");
        assert!(!file.reload_if_changed());
        assert_eq!((**file.current(), problems.list().len()), (2, 1));

        install("3");
        assert!(file.reload_if_changed());
        assert_eq!((**file.current(), problems.list().len()), (3, 0));
    }

    #[test]
    fn a_faulty_first_version_is_an_error_of_the_start() {
        let load = || Err::<u32, _>("is broken".to_owned());
        let error =
            WatchedFile::open("a.b", vec![], &FileProblems::default(), load).expect_err("broken");
        assert!(error.to_string().contains("a.b: is broken"), "{error}");
    }
}
