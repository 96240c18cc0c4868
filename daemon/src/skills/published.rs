//! What was published: `published/<name>/<digest>.json`, a record per version. A version is published once its record
//! has its name, and no longer once it has none; the files are in the store.
//!
//! Records are written to `tmp/`, synced and renamed. All versions of a name go by one rename of their directory; that
//! takes records with it that could not be read, and nothing else does.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use super::source::{Folders, Source, Stored};
use super::{Problem, is_digest, is_name};
use crate::error::{Error, Result};
use crate::fault::{self, Point};

/// Version of a record's format.
const FORMAT: u32 = 1;
/// Versions that are named where another one was asked for.
const VERSIONS_SHOWN: usize = 3;

/// One version of a skill.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Record {
    /// [`FORMAT`].
    pub(super) format: u32,
    pub(super) name: String,
    /// As the skill says; may be empty.
    pub(super) version: String,
    /// 64 hex digits.
    pub(super) digest: String,
    /// Milliseconds since 1970.
    pub(super) time_ms: u64,
}

/// Which versions of a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Which {
    /// All that were published.
    All,
    /// Exactly this version, as the skill spells it.
    Version(String),
    /// 64 hex digits.
    Digest(String),
}

/// All that is published.
#[derive(Debug)]
pub(super) struct Published {
    base: PathBuf,
    tmp: PathBuf,
    /// Whoever changes something: the disk is not waited for under the lock of what everybody reads.
    turn: Mutex<()>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// Sorted by name, then by time.
    records: Vec<Record>,
    /// The same for the catalogue; equal as long as nothing changes.
    folders: Arc<Vec<Stored>>,
    unread: Vec<Unread>,
}

/// A record that could not be read. Another release may read it again, or a repair may follow: its content stays.
#[derive(Debug)]
struct Unread {
    path: PathBuf,
    problem: Problem,
}

impl Published {
    /// Reads the records. One that cannot be read is a problem, not a failure.
    pub(super) fn open(base: &Path, tmp: PathBuf, store: &Path) -> Result<Self> {
        let failed = |source| Error::Io {
            operation: format!("read {}", base.display()),
            source,
        };
        fs::create_dir_all(base).map_err(failed)?;
        let (mut records, mut unread) = (Vec::new(), Vec::new());
        for path in files(base).map_err(failed)? {
            match read(&path) {
                Ok(record) => records.push(record),
                Err(error) => {
                    let message = format!("a record of a published skill cannot be read: {error}");
                    tracing::error!(path = %path.display(), %error, "record of a published skill");
                    let problem = Problem::error("published.unreadable", message).about(&path);
                    unread.push(Unread { path, problem });
                }
            }
        }
        let published = Self {
            base: base.to_owned(),
            tmp,
            turn: Mutex::default(),
            state: Mutex::new(State {
                records: Vec::new(),
                folders: Arc::default(),
                unread,
            }),
        };
        published.state().set(records, store);
        Ok(published)
    }

    /// As the catalogue wants it.
    pub(super) fn source(&self) -> Source {
        let state = self.state();
        Source {
            root: String::new(),
            origin: None,
            from_card: false,
            folders: Folders::Stored(Arc::clone(&state.folders)),
            problems: state.unread.iter().map(|it| it.problem.clone()).collect(),
        }
    }

    /// Whether a digest must stay in the store.
    pub(super) fn holds(&self, digest: &str) -> bool {
        let state = self.state();
        let mut records = state.records.iter();
        records.any(|record| record.digest == digest)
            || state.unread.iter().any(|it| it.digest() == Some(digest))
    }

    /// What there is of a name, as a request names it.
    pub(super) fn versions(&self, name: &str) -> Vec<String> {
        let state = self.state();
        let same_name = state.records.iter().filter(|record| record.name == name);
        let shown = same_name.map(|record| match record.version.as_str() {
            "" => format!("{name}@sha256:{}", record.digest),
            version => format!("{name}@{version}"),
        });
        shown.rev().take(VERSIONS_SHOWN).collect()
    }

    pub(super) fn has(&self, name: &str, digest: &str) -> bool {
        let state = self.state();
        let mut records = state.records.iter();
        records.any(|record| record.name == name && record.digest == digest)
    }

    /// Publishes what is in the store and leased. False if it is published already.
    pub(super) fn add(
        &self,
        store: &Path,
        name: &str,
        version: &str,
        digest: &str,
    ) -> Result<bool> {
        let _turn = self.turn();
        let records = self.state().records.clone();
        let mut same_name = records.iter().filter(|record| record.name == name);
        if let Some(same) = same_name.find(|record| record.version == version) {
            if same.digest == digest {
                return Ok(false);
            }
            let version = if version.is_empty() { "none" } else { version };
            return Err(Error::VersionTaken {
                name: format!("skills/{name}"),
                version: version.to_owned(),
                digest: same.digest.clone(),
            });
        }
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let record = Record {
            format: FORMAT,
            name: name.to_owned(),
            version: version.to_owned(),
            digest: digest.to_owned(),
            time_ms: u64::try_from(now.unwrap_or_default().as_millis()).unwrap_or(u64::MAX),
        };
        self.write(&record).map_err(|source| Error::Io {
            operation: format!("record the published skill {name}"),
            source,
        })?;
        fault::reach(Point::PublishRecorded);
        let path = self.path(&record);
        let mut state = self.state();
        state.unread.retain(|it| it.path != path);
        state.set([records.as_slice(), &[record]].concat(), store);
        Ok(true)
    }

    fn write(&self, record: &Record) -> io::Result<()> {
        let bytes = serde_json::to_vec_pretty(record)?;
        let mut file = tempfile::NamedTempFile::new_in(&self.tmp)?;
        file.write_all(&bytes)?;
        file.as_file().sync_all()?;
        let dir = self.base.join(&record.name);
        match fs::create_dir(&dir) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
            Err(_) => {}
            Ok(()) => sync(&self.base)?,
        }
        fault::reach(Point::PublishWritten);
        file.persist(self.path(record))
            .map_err(|error| error.error)?;
        sync(&dir)
    }

    fn path(&self, record: &Record) -> PathBuf {
        let file = format!("{}.json", record.digest);
        self.base.join(&record.name).join(file)
    }

    /// Removes versions of a name; answers how many. None is no error. Records that could not be read are of no version
    /// that anybody can name.
    pub(super) fn remove(&self, store: &Path, name: &str, which: &Which) -> Result<usize> {
        let _turn = self.turn();
        let records = self.state().records.clone();
        let (gone, left): (Vec<Record>, Vec<Record>) = records.into_iter().partition(|record| {
            record.name == name
                && match which {
                    Which::All => true,
                    Which::Version(version) => record.version == *version,
                    Which::Digest(digest) => record.digest == *digest,
                }
        });
        let dir = self.base.join(name);
        let all = *which == Which::All;
        let unread = |it: &Unread| all && it.path.parent() == Some(&dir);
        let count = gone.len() + self.state().unread.iter().filter(|it| unread(it)).count();
        if count == 0 {
            return Ok(0);
        }
        let erased = if all {
            self.erase_all(name, &dir)
        } else {
            self.erase(&gone, &dir)
        };
        erased.map_err(|source| Error::Io {
            operation: format!("remove the published skill {name}"),
            source,
        })?;
        fault::reach(Point::UnpublishDone);
        let mut state = self.state();
        state.unread.retain(|it| !unread(it));
        state.set(left, store);
        Ok(count)
    }

    /// What is gone already was taken by a call that failed after it, and is as it should be.
    fn erase_all(&self, name: &str, dir: &Path) -> io::Result<()> {
        let aside = tempfile::tempdir_in(&self.tmp)?;
        let moved = fs::rename(dir, aside.path().join(name));
        is_fine(moved, ErrorKind::NotFound)?;
        fault::reach(Point::UnpublishMoved);
        sync(&self.base)
    }

    fn erase(&self, gone: &[Record], dir: &Path) -> io::Result<()> {
        for record in gone {
            is_fine(fs::remove_file(self.path(record)), ErrorKind::NotFound)?;
        }
        is_fine(sync(dir), ErrorKind::NotFound)?;
        let removed = is_fine(fs::remove_dir(dir), ErrorKind::NotFound);
        is_fine(removed, ErrorKind::DirectoryNotEmpty)
    }

    fn turn(&self) -> MutexGuard<'_, ()> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn set(&mut self, mut records: Vec<Record>, store: &Path) {
        records
            .sort_by(|a, b| (&a.name, a.time_ms, &a.digest).cmp(&(&b.name, b.time_ms, &b.digest)));
        let folders = records.iter().map(|record| Stored {
            dir: store.join(&record.digest),
            name: record.name.clone(),
            time: SystemTime::UNIX_EPOCH + Duration::from_millis(record.time_ms),
        });
        self.folders = Arc::new(folders.collect());
        self.records = records;
    }
}

/// Files of the form `<name>/<digest>.json`.
fn files(base: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for dir in fs::read_dir(base)? {
        let dir = dir?.path();
        if !dir.is_dir() {
            continue;
        }
        for file in fs::read_dir(&dir)? {
            files.push(file?.path());
        }
    }
    files.sort_unstable();
    Ok(files)
}

fn read(path: &Path) -> io::Result<Record> {
    let record: Record = serde_json::from_slice(&fs::read(path)?)?;
    let expected = Path::new(&record.name).join(format!("{}.json", record.digest));
    let good = record.format == FORMAT && is_name(&record.name) && is_digest(&record.digest);
    if !good || !path.ends_with(expected) {
        return Err(io::Error::other("it is not what its name says"));
    }
    Ok(record)
}

impl Unread {
    /// What it is named after.
    fn digest(&self) -> Option<&str> {
        self.path.file_stem()?.to_str()
    }
}

fn is_fine(done: io::Result<()>, fine: ErrorKind) -> io::Result<()> {
    match done {
        Err(error) if error.kind() == fine => Ok(()),
        done => done,
    }
}

fn sync(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest(letter: &str) -> String {
        letter.repeat(64)
    }

    fn open(dir: &Path) -> Published {
        let tmp = dir.join("tmp");
        fs::create_dir_all(&tmp).expect("mkdir");
        Published::open(&dir.join("published"), tmp, &dir.join("store")).expect("opens")
    }

    #[test]
    fn the_content_of_a_record_that_cannot_be_read_is_kept() {
        let dir = tempfile::tempdir().expect("a directory");
        let name = dir.path().join("published/csv");
        fs::create_dir_all(&name).expect("mkdir");
        let newer = r#"{"format": 2, "what": "another release wrote"}"#;
        fs::write(name.join(format!("{}.json", digest("a"))), newer).expect("write");
        let published = open(dir.path());
        assert_eq!(published.source().problems.len(), 1);
        assert!(published.holds(&digest("a")));
        assert!(!published.holds(&digest("b")));

        // Another version comes and goes.
        let store = dir.path().join("store");
        let add = |letter| published.add(&store, "csv", letter, &digest(letter));
        add("b").expect("published");
        let remove = |which| published.remove(&store, "csv", &which).expect("removed");
        assert_eq!(remove(Which::Version("b".into())), 1);
        assert_eq!(remove(Which::Digest(digest("a"))), 0);
        assert!(open(dir.path()).holds(&digest("a")));

        // It is published anew, and nothing is wrong any more.
        add("a").expect("published");
        assert_eq!(published.source().problems, []);

        // Whoever removes all of a name means it.
        fs::write(name.join(format!("{}.json", digest("a"))), newer).expect("write");
        let published = open(dir.path());
        let removed = published.remove(&store, "csv", &Which::All);
        assert_eq!(removed.expect("removed"), 1);
        assert!(!published.holds(&digest("a")) && !name.exists());
        assert_eq!(published.source().problems, []);
    }

    #[test]
    fn a_removal_that_failed_half_way_can_be_repeated() {
        let dir = tempfile::tempdir().expect("a directory");
        let published = open(dir.path());
        let name = dir.path().join("published/csv");
        fs::create_dir_all(&name).expect("mkdir");
        let gone = ["a", "b"].map(|letter| Record {
            format: FORMAT,
            name: "csv".into(),
            version: String::new(),
            digest: digest(letter),
            time_ms: 0,
        });
        // The first call took one of them.
        fs::write(name.join(format!("{}.json", digest("b"))), "{}").expect("write");
        for _ in 0..2 {
            published.erase(&gone, &name).expect("removed");
            assert!(!name.exists());
        }
        fs::create_dir(&name).expect("mkdir");
        for _ in 0..2 {
            published.erase_all("csv", &name).expect("removed");
            assert!(!name.exists());
        }
    }
}
