//! Records of published skills: `published/<name>/<digest>.json`, one for each version. A version is published while its
//! record exists; its files are in the store.
//!
//! Records are written to `tmp/`, synced and renamed. Deleting all versions of a name is one rename of its directory,
//! which is also the only way to delete records that cannot be read. The directory is the truth: after each change of a
//! name its records are read again.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use super::source::{Source, SourceFolders, StoredFolder};
use crate::error::{Error, Result};
use crate::fault::{self, Point};
use crate::parse::problem::Problem;
use crate::parse::reference::{is_digest, is_name};
use crate::store::Store;

/// Version of a record's format.
const FORMAT: u32 = 1;
/// Maximum number of versions that a refusal suggests.
const SUGGESTED_MAX: usize = 3;

/// Record of one published version.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PublishedRecord {
    /// [`FORMAT`].
    pub(crate) format: u32,
    pub(crate) name: String,
    /// Version from the skill's documents; may be empty.
    pub(crate) version: String,
    /// SHA-256 of the content, 64 hex digits.
    pub(crate) digest: String,
    /// Time of the publication, in milliseconds since 1970.
    pub(crate) time_ms: u64,
}

/// Selects published versions of a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VersionSelector {
    /// Selects all versions.
    All,
    /// Selects exactly this version, as the skill spells it.
    Version(String),
    /// Selects the version with this digest, 64 hex digits.
    Digest(String),
}

/// All published skills.
#[derive(Debug)]
pub(crate) struct PublishedSkills {
    base: PathBuf,
    store: Arc<Store>,
    /// Held by a change while it writes to disk, so that readers of `state` never wait for the disk.
    turn: Mutex<()>,
    state: Mutex<PublishedState>,
}

#[derive(Debug, Default)]
struct PublishedState {
    records: BTreeMap<String, NameRecords>,
    /// Folders of the records, for the catalogue.
    folders: Arc<Vec<StoredFolder>>,
}

/// Records of one name.
#[derive(Debug, Default)]
struct NameRecords {
    /// Readable records, oldest first.
    versions: Vec<PublishedRecord>,
    /// Digests from the file names of unreadable records, and why they are unreadable. Another release may read them
    /// again, or a repair may follow: their content stays in the store.
    unreadable: Vec<(String, Problem)>,
}

// === impl VersionSelector ===

impl VersionSelector {
    fn selects(&self, record: &PublishedRecord) -> bool {
        match self {
            Self::All => true,
            Self::Version(version) => record.version == *version,
            Self::Digest(digest) => record.digest == *digest,
        }
    }
}

// === impl PublishedSkills ===

impl PublishedSkills {
    /// Reads the records. One that cannot be read is a problem, not a failure.
    ///
    /// # Errors
    /// `Io` when the directory cannot be made or read.
    pub(crate) fn open(base: &Path, store: Arc<Store>) -> Result<Self> {
        let failed = |source| Error::Io {
            operation: format!("read {}", base.display()),
            source,
        };
        fs::create_dir_all(base).map_err(failed)?;
        let mut state = PublishedState::default();
        for entry in fs::read_dir(base).map_err(failed)?.flatten() {
            let records = NameRecords::read(&entry.path()).map_err(failed)?;
            state.set(&entry.file_name().to_string_lossy(), records);
        }
        state.list_folders(&store);
        Ok(Self {
            base: base.to_owned(),
            store,
            turn: Mutex::default(),
            state: Mutex::new(state),
        })
    }

    /// Returns the published skills as a source.
    pub(crate) fn source(&self) -> Source {
        let state = self.state();
        let unreadable = state.records.values().flat_map(|name| &name.unreadable);
        Source {
            root: String::new(),
            origin: None,
            from_card: false,
            folders: SourceFolders::Stored(Arc::clone(&state.folders)),
            problems: unreadable.map(|(_, problem)| problem.clone()).collect(),
        }
    }

    /// Returns `true` if a record references a digest, which must then stay in the store.
    pub(crate) fn references(&self, digest: &str) -> bool {
        self.state().records.values().any(|name| {
            name.versions.iter().any(|record| record.digest == digest)
                || name.unreadable.iter().any(|(unread, _)| unread == digest)
        })
    }

    /// Returns references to the newest versions of a name.
    pub(crate) fn newest_versions(&self, name: &str) -> Vec<String> {
        let state = self.state();
        let versions = state.versions(name).iter().rev().take(SUGGESTED_MAX);
        let references = versions.map(|record| match record.version.as_str() {
            "" => format!("{name}@sha256:{}", record.digest),
            version => format!("{name}@{version}"),
        });
        references.collect()
    }

    /// Returns `true` if a digest is published under a name.
    pub(crate) fn has_digest(&self, name: &str, digest: &str) -> bool {
        let state = self.state();
        let mut versions = state.versions(name).iter();
        versions.any(|record| record.digest == digest)
    }

    /// Publishes a leased digest of the store. Returns `false` if it is published already.
    ///
    /// # Errors
    /// `VersionTaken` if the version has other content; `Io`.
    pub(crate) fn add(&self, name: &str, version: &str, digest: &str) -> Result<bool> {
        let _turn = self.turn();
        let same_version = |record: &&PublishedRecord| record.version == version;
        if let Some(same) = self.state().versions(name).iter().find(same_version) {
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
        let record = PublishedRecord {
            format: FORMAT,
            name: name.to_owned(),
            version: version.to_owned(),
            digest: digest.to_owned(),
            time_ms: u64::try_from(now.unwrap_or_default().as_millis()).unwrap_or(u64::MAX),
        };
        let added = self.write(&record).and_then(|()| {
            fault::reach(Point::PublishRecorded);
            self.reload(name)
        });
        added.map_err(|source| Error::Io {
            operation: format!("record the published skill {name}"),
            source,
        })?;
        Ok(true)
    }

    fn write(&self, record: &PublishedRecord) -> io::Result<()> {
        let path = self.record_path(&record.name, &record.digest);
        match fs::create_dir(self.base.join(&record.name)) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
            Err(_) => {}
            Ok(()) => sync_directory(&self.base)?,
        }
        let bytes = serde_json::to_vec_pretty(record)?;
        self.store.write_record(&path, &bytes, || {
            fault::reach(Point::PublishWritten);
        })
    }

    fn record_path(&self, name: &str, digest: &str) -> PathBuf {
        self.base.join(name).join(format!("{digest}.json"))
    }

    /// Removes versions of a name, and with [`VersionSelector::All`] also its unreadable records, whose versions are not
    /// known. Returns the number of removed records, which may be 0.
    ///
    /// # Errors
    /// `Io`.
    pub(crate) fn remove(&self, name: &str, selector: &VersionSelector) -> Result<usize> {
        let _turn = self.turn();
        let (selected, unreadable) = {
            let state = self.state();
            let versions = state.versions(name).iter();
            let selected = versions.filter(|record| selector.selects(record));
            let selected: Vec<String> = selected.map(|record| record.digest.clone()).collect();
            let records = state.records.get(name);
            (selected, records.map_or(0, |name| name.unreadable.len()))
        };
        let is_all = *selector == VersionSelector::All;
        let count = selected.len() + if is_all { unreadable } else { 0 };
        if count == 0 {
            return Ok(0);
        }
        let erased = if is_all {
            self.erase_name(name)
        } else {
            self.erase_versions(name, &selected)
        };
        let removed = erased.and_then(|()| {
            fault::reach(Point::UnpublishDone);
            self.reload(name)
        });
        removed.map_err(|source| Error::Io {
            operation: format!("remove the published skill {name}"),
            source,
        })?;
        Ok(count)
    }

    /// Removes all records of a name. A missing directory is no error: an earlier call may have failed after removing it.
    fn erase_name(&self, name: &str) -> io::Result<()> {
        let aside = tempfile::tempdir_in(self.store.tmp())?;
        let moved = fs::rename(self.base.join(name), aside.path().join(name));
        allow(ErrorKind::NotFound, moved)?;
        fault::reach(Point::UnpublishMoved);
        sync_directory(&self.base)
    }

    fn erase_versions(&self, name: &str, digests: &[String]) -> io::Result<()> {
        for digest in digests {
            let removed = fs::remove_file(self.record_path(name, digest));
            allow(ErrorKind::NotFound, removed)?;
        }
        let dir = self.base.join(name);
        allow(ErrorKind::NotFound, sync_directory(&dir))?;
        let removed = allow(ErrorKind::NotFound, fs::remove_dir(&dir));
        allow(ErrorKind::DirectoryNotEmpty, removed)
    }

    /// Reads the records of one name again.
    fn reload(&self, name: &str) -> io::Result<()> {
        let records = NameRecords::read(&self.base.join(name))?;
        let mut state = self.state();
        state.set(name, records);
        state.list_folders(&self.store);
        Ok(())
    }

    fn turn(&self) -> MutexGuard<'_, ()> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn state(&self) -> MutexGuard<'_, PublishedState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl PublishedState ===

impl PublishedState {
    /// Returns the readable records of a name, oldest first.
    fn versions(&self, name: &str) -> &[PublishedRecord] {
        let records = self.records.get(name);
        records.map_or(&[], |name| name.versions.as_slice())
    }

    fn set(&mut self, name: &str, records: NameRecords) {
        if records.versions.is_empty() && records.unreadable.is_empty() {
            self.records.remove(name);
        } else {
            self.records.insert(name.to_owned(), records);
        }
    }

    fn list_folders(&mut self, store: &Store) {
        let versions = self.records.values().flat_map(|name| &name.versions);
        let folders = versions.map(|record| StoredFolder {
            digest: record.digest.clone(),
            dir: store.dir(&record.digest),
            name: record.name.clone(),
            time: SystemTime::UNIX_EPOCH + Duration::from_millis(record.time_ms),
        });
        self.folders = Arc::new(folders.collect());
    }
}

// === impl NameRecords ===

impl NameRecords {
    /// Reads the records in the directory of a name; a missing directory has none.
    fn read(dir: &Path) -> io::Result<Self> {
        let mut records = Self::default();
        let entries = match fs::read_dir(dir) {
            Err(error)
                if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) =>
            {
                return Ok(records);
            }
            entries => entries?,
        };
        for entry in entries {
            let path = entry?.path();
            match PublishedRecord::read(&path) {
                Ok(record) => records.versions.push(record),
                Err(error) => {
                    let message = format!("a record of a published skill cannot be read: {error}");
                    tracing::error!(path = %path.display(), %error, "record of a published skill");
                    let problem = Problem::error("published.unreadable", message).about(&path);
                    let digest = path.file_stem().unwrap_or_default().to_string_lossy();
                    records.unreadable.push((digest.into_owned(), problem));
                }
            }
        }
        let age = |record: &PublishedRecord| (record.time_ms, record.digest.clone());
        records.versions.sort_by_cached_key(age);
        records.unreadable.sort_by(|a, b| a.0.cmp(&b.0));
        Ok(records)
    }
}

// === impl PublishedRecord ===

impl PublishedRecord {
    /// Reads a record and checks that it is the one that its path names.
    fn read(path: &Path) -> io::Result<Self> {
        let record: Self = serde_json::from_slice(&fs::read(path)?)?;
        let expected = Path::new(&record.name).join(format!("{}.json", record.digest));
        let is_valid =
            record.format == FORMAT && is_name(&record.name) && is_digest(&record.digest);
        if !is_valid || !path.ends_with(expected) {
            return Err(io::Error::other("it is not what its name says"));
        }
        Ok(record)
    }
}

/// Turns an error of the allowed kind into success.
fn allow(kind: ErrorKind, result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == kind => Ok(()),
        result => result,
    }
}

/// Waits until the entries of a directory are on the disk.
fn sync_directory(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::SkillsOptions;

    fn digest(letter: &str) -> String {
        letter.repeat(64)
    }

    fn open(dir: &Path) -> PublishedSkills {
        let store = Store::open(dir, &SkillsOptions::for_tests()).expect("a store");
        PublishedSkills::open(&dir.join("published"), Arc::new(store)).expect("opens")
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
        assert!(published.references(&digest("a")));
        assert!(!published.references(&digest("b")));

        // Another version comes and goes.
        let add = |letter| published.add("csv", letter, &digest(letter));
        add("b").expect("published");
        let remove = |which| published.remove("csv", &which).expect("removed");
        assert_eq!(remove(VersionSelector::Version("b".into())), 1);
        assert_eq!(remove(VersionSelector::Digest(digest("a"))), 0);
        assert!(open(dir.path()).references(&digest("a")));

        // It is published anew, and nothing is wrong any more.
        add("a").expect("published");
        assert_eq!(published.source().problems, []);

        // Whoever removes all of a name means it.
        fs::write(name.join(format!("{}.json", digest("a"))), newer).expect("write");
        let published = open(dir.path());
        let removed = published.remove("csv", &VersionSelector::All);
        assert_eq!(removed.expect("removed"), 1);
        assert!(!published.references(&digest("a")) && !name.exists());
        assert_eq!(published.source().problems, []);
    }

    #[test]
    fn a_removal_that_failed_half_way_can_be_repeated() {
        let dir = tempfile::tempdir().expect("a directory");
        let published = open(dir.path());
        let name = dir.path().join("published/csv");
        fs::create_dir_all(&name).expect("mkdir");
        let gone = ["a", "b"].map(digest);
        // The first call took one of them.
        fs::write(name.join(format!("{}.json", digest("b"))), "{}").expect("write");
        for _ in 0..2 {
            published.erase_versions("csv", &gone).expect("removed");
            assert!(!name.exists());
        }
        fs::create_dir(&name).expect("mkdir");
        for _ in 0..2 {
            published.erase_name("csv").expect("removed");
            assert!(!name.exists());
        }
    }
}
