//! Records of published skills: `published/<name>/<digest>.json`, one for each version. A version is published while
//! its record exists; its files are in the store.
//!
//! Records are written to `tmp/`, synced and renamed. Deleting all versions of a name is one rename of its directory,
//! which is also the only way to delete records that cannot be read. Records are read once, at start: a change updates
//! the records in memory with what it wrote, so that no read error can hide another version.
//!
//! Content counts for the tenant that published it while the store has it because of that tenant: also after its record
//! is gone, until the store has removed it.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use parking_lot::Mutex;

use super::skill_source::{SkillSource, SourceFolders, StoredFolder};
use crate::content_store::content_hashing::ContentSummary;
use crate::content_store::{ContentStore, removal_path};
use crate::error::{Error, Result, tolerate};
use crate::fault;
use crate::parse::problem::Problem;
use crate::parse::skill_ref::is_digest;

mod name_records;

use name_records::{FORMAT, NameRecords, PublishedRecord, UnreadableRecord, publication_bytes};
use skilld_common::unix_time::{from_unix_ms, unix_ms};

/// Maximum number of versions that a refusal suggests.
const SUGGESTED_MAX: usize = 3;

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

/// All skills that one tenant published.
#[derive(Debug)]
pub(crate) struct PublishedSkills {
    tenant: String,
    base: PathBuf,
    store: Arc<ContentStore>,
    /// Held by a change while it writes to disk, so that readers of `records` never wait for the disk.
    turn: Mutex<()>,
    /// Held from the check of a quota until the publication is recorded, so that no content is stored in vain.
    pub(crate) publishing: Mutex<()>,
    records: Mutex<RecordsByName>,
    /// Content that the tenant put into the store and that has no record, with the bytes that count for it.
    orphans: Mutex<BTreeMap<String, u64>>,
}

type RecordsByName = BTreeMap<String, NameRecords>;

// === impl VersionSelector ===

impl VersionSelector {
    /// Returns `true` if a version with this digest is selected.
    pub(crate) fn selects(&self, version: &str, digest: &str) -> bool {
        match self {
            Self::All => true,
            Self::Version(selected) => selected == version,
            Self::Digest(selected) => selected == digest,
        }
    }

    /// Returns the reference to the selected versions of a name.
    pub(crate) fn reference(&self, name: &str) -> String {
        match self {
            Self::All => name.to_owned(),
            Self::Version(version) => format!("{name}@{version}"),
            Self::Digest(digest) => format!("{name}@sha256:{digest}"),
        }
    }
}

// === impl PublishedSkills ===

impl PublishedSkills {
    /// Reads the records. One that cannot be read is a problem, not a failure.
    ///
    /// # Errors
    /// `Io` when the directory cannot be made or read.
    pub(crate) fn open(tenant: &str, base: &Path, store: &Arc<ContentStore>) -> Result<Self> {
        let failed = |source| Error::io(format!("read {}", base.display()))(source);
        fs::create_dir_all(base).map_err(failed)?;
        let mut records = RecordsByName::new();
        for entry in fs::read_dir(base).map_err(failed)?.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let read = NameRecords::read(&entry.path(), store);
            records.insert(name, read.map_err(failed)?);
        }
        Ok(Self {
            tenant: tenant.to_owned(),
            base: base.to_owned(),
            store: Arc::clone(store),
            turn: Mutex::default(),
            publishing: Mutex::default(),
            records: Mutex::new(records),
            orphans: Mutex::default(),
        })
    }

    /// Returns the published skills as a source.
    pub(crate) fn source(&self) -> SkillSource {
        let records = self.records.lock();
        let versions = records.values().flat_map(|name| &name.versions);
        let folders = versions.map(|record| StoredFolder {
            digest: record.digest.clone(),
            dir: self.store.dir(&record.digest),
            name: record.name.clone(),
            time: from_unix_ms(record.time_ms),
        });
        let unreadable = records.values().flat_map(|name| &name.unreadable);
        SkillSource {
            root: String::new(),
            origin: None,
            tenant: Some(self.tenant.clone()),
            folders: SourceFolders::Stored(folders.collect()),
            problems: unreadable.map(|record| record.problem.clone()).collect(),
        }
    }

    /// Returns `true` if a record references a digest, which must then stay in the store.
    pub(crate) fn references(&self, digest: &str) -> bool {
        self.records.lock().values().any(|name| {
            name.versions.iter().any(|record| record.digest == digest)
                || name.unreadable.iter().any(|record| record.digest == digest)
        })
    }

    /// Returns references to the newest published versions of a skill, for suggestions in errors.
    pub(crate) fn newest_versions(&self, name: &str) -> Vec<String> {
        let records = self.records.lock();
        let Some(known) = records.get(name) else {
            return Vec::new();
        };
        let versions = known.versions.iter().rev().take(SUGGESTED_MAX);
        let references = versions.map(|record| match record.version.as_str() {
            "" => format!("{name}@sha256:{}", record.digest),
            version => format!("{name}@{version}"),
        });
        references.collect()
    }

    /// Returns `true` if a digest is published under a name.
    pub(crate) fn has_digest(&self, name: &str, digest: &str) -> bool {
        let records = self.records.lock();
        let mut versions = records
            .get(name)
            .into_iter()
            .flat_map(|name| &name.versions);
        versions.any(|record| record.digest == digest)
    }

    /// Returns the bytes that count for all publications, and for content of deleted ones that the store still has.
    pub(crate) fn held_bytes(&self) -> u64 {
        let orphans: u64 = self.orphans.lock().values().sum();
        let records = self.records.lock();
        orphans + records.values().map(NameRecords::bytes).sum::<u64>()
    }

    /// Counts content that the tenant has put into the store, although it has no record.
    pub(crate) fn add_orphan(&self, content: &ContentSummary) {
        let bytes = publication_bytes(content.held_bytes());
        self.orphans.lock().insert(content.digest.clone(), bytes);
    }

    /// Returns the digests that count for the tenant without a record.
    pub(crate) fn list_orphans(&self) -> Vec<String> {
        self.orphans.lock().keys().cloned().collect()
    }

    /// Ends the count of content without a record: the store does not have it any more, or has it for something else.
    pub(crate) fn forget_orphan(&self, digest: &str) {
        self.orphans.lock().remove(digest);
    }

    /// Returns the error of a quota that is used up.
    pub(crate) fn quota_error(&self, limit: u64) -> Error {
        Error::TenantQuota {
            tenant: self.tenant.clone(),
            resource: "published_bytes",
            used: self.held_bytes(),
            limit,
        }
    }

    /// Checks that content may be published under a name and version. Returns `false` if it is published already.
    ///
    /// # Errors
    /// `VersionTaken` if the version has other content; `TenantQuota`.
    pub(crate) fn check_room(
        &self,
        name: &str,
        version: &str,
        content: &ContentSummary,
        bytes_quota: Option<u64>,
    ) -> Result<bool> {
        let records = self.records.lock();
        let known = records.get(name);
        let mut versions = known.into_iter().flat_map(|known| &known.versions);
        if let Some(same) = versions.find(|record| record.version == version) {
            if same.digest == content.digest {
                return Ok(false);
            }
            let version = if version.is_empty() { "none" } else { version };
            return Err(Error::VersionTaken {
                name: format!("skills/{name}"),
                version: version.to_owned(),
                digest: same.digest.clone(),
            });
        }
        // The new record takes the place of what is known of its digest.
        let of_records = known.map_or(0, |known| known.bytes_of(&content.digest));
        drop(records);
        let orphan = self.orphans.lock().get(&content.digest).copied();
        let replaced = of_records + orphan.unwrap_or_default();
        let needed = self
            .held_bytes()
            .saturating_sub(replaced)
            .saturating_add(publication_bytes(content.held_bytes()));
        match bytes_quota {
            Some(limit) if needed > limit => Err(self.quota_error(limit)),
            Some(_) | None => Ok(true),
        }
    }

    /// Publishes leased content of the store. Returns `false` if it is published already.
    ///
    /// # Errors
    /// As [`Self::check_room`]; `Io`.
    pub(crate) fn add(
        &self,
        name: &str,
        version: &str,
        content: &ContentSummary,
        bytes_quota: Option<u64>,
    ) -> Result<bool> {
        let _turn = self.turn.lock();
        if !self.check_room(name, version, content, bytes_quota)? {
            return Ok(false);
        }
        let digest = content.digest.as_str();
        let record = PublishedRecord {
            format: FORMAT,
            name: name.to_owned(),
            version: version.to_owned(),
            digest: digest.to_owned(),
            time_ms: unix_ms(SystemTime::now()),
            held_bytes: Some(publication_bytes(content.held_bytes())),
        };
        let written = self.write(&record);
        if written.is_ok() {
            fault::reach("publish.recorded");
        }
        let path = self.record_path(name, digest);
        let mut all_records = self.records.lock();
        match &written {
            Ok(()) => all_records
                .entry(name.to_owned())
                .or_default()
                .insert(record),
            // The write failed before there was a record, and the content may be collected.
            Err(_) if matches!(path.try_exists(), Ok(false)) => {}
            Err(error) => {
                let message =
                    format!("a record of a published skill could not be written: {error}");
                let problem = Problem::error("published.unreadable", message).about(&path);
                let records = all_records.entry(name.to_owned()).or_default();
                records.unreadable.retain(|known| known.digest != digest);
                records.unreadable.push(UnreadableRecord {
                    digest: digest.to_owned(),
                    held_bytes: publication_bytes(content.held_bytes()),
                    problem,
                });
            }
        }
        drop(all_records);
        if written.is_ok() {
            self.forget_orphan(digest);
        }
        written.map_err(Error::io(format!("record the published skill {name}")))?;
        Ok(true)
    }

    fn write(&self, record: &PublishedRecord) -> io::Result<()> {
        let path = self.record_path(&record.name, &record.digest);
        let made = fs::create_dir(self.base.join(&record.name));
        tolerate(ErrorKind::AlreadyExists, made)?;
        // Syncing the record alone is not enough: a power cut could take its new directory.
        sync_directory(&self.base)?;
        self.store
            .write_record(&path, record, || fault::reach("publish.written"))
    }

    fn record_path(&self, name: &str, digest: &str) -> PathBuf {
        self.base.join(name).join(format!("{digest}.json"))
    }

    /// Removes versions of a name, and with [`VersionSelector::All`] also its unreadable records, whose versions are
    /// not known. Returns the number of removed records, which may be 0.
    ///
    /// # Errors
    /// `Io`.
    pub(crate) fn remove(&self, name: &str, selector: &VersionSelector) -> Result<usize> {
        let _turn = self.turn.lock();
        let is_all = *selector == VersionSelector::All;
        let is_selected =
            |record: &PublishedRecord| selector.selects(&record.version, &record.digest);
        let (selected, unreadable) = {
            let records = self.records.lock();
            let Some(records) = records.get(name) else {
                return Ok(0);
            };
            let of_record = |record: &PublishedRecord| (record.digest.clone(), record.held_bytes);
            let selected: Vec<(String, Option<u64>)> = records
                .versions
                .iter()
                .filter(|record| is_selected(record))
                .map(of_record)
                .collect();
            let unreadable: Vec<_> = records
                .unreadable
                .iter()
                .map(|record| (record.digest.clone(), record.held_bytes))
                .collect();
            (selected, unreadable)
        };
        let count = selected.len() + if is_all { unreadable.len() } else { 0 };
        if count == 0 {
            return Ok(0);
        }
        let erased = if is_all {
            self.erase_name(name)
        } else {
            self.erase_versions(name, selected.iter().map(|(digest, _)| digest))
        };
        erased.map_err(Error::io(format!("remove the published skill {name}")))?;
        fault::reach("unpublish.done");
        // Before the records go, so that the bytes count without a gap.
        // The name of any other file is no digest, and must not lead out of the store.
        let removed_unreadable = unreadable
            .into_iter()
            .filter(|(digest, _)| is_all && is_digest(digest));
        let removed = selected
            .into_iter()
            .filter_map(|(digest, bytes)| Some((digest, bytes?)));
        self.orphans
            .lock()
            .extend(removed.chain(removed_unreadable));
        let mut all_records = self.records.lock();
        if is_all {
            all_records.remove(name);
        } else if let Some(records) = all_records.get_mut(name) {
            records.versions.retain(|record| !is_selected(record));
            if records.versions.is_empty() && records.unreadable.is_empty() {
                all_records.remove(name);
            }
        }
        Ok(count)
    }

    /// Removes all records of a name. A missing directory is no error: an earlier call may have failed after removing
    /// it.
    fn erase_name(&self, name: &str) -> io::Result<()> {
        let aside = removal_path(&self.store.tmp());
        let moved = fs::rename(self.base.join(name), &aside);
        tolerate(ErrorKind::NotFound, moved)?;
        fault::reach("unpublish.moved");
        sync_directory(&self.base)?;
        tolerate(ErrorKind::NotFound, fs::remove_dir_all(aside))
    }

    fn erase_versions<'a>(
        &self,
        name: &str,
        digests: impl IntoIterator<Item = &'a String>,
    ) -> io::Result<()> {
        for digest in digests {
            let removed = fs::remove_file(self.record_path(name, digest));
            tolerate(ErrorKind::NotFound, removed)?;
        }
        let dir = self.base.join(name);
        tolerate(ErrorKind::NotFound, sync_directory(&dir))?;
        let removed = tolerate(ErrorKind::NotFound, fs::remove_dir(&dir));
        tolerate(ErrorKind::DirectoryNotEmpty, removed)
    }
}

/// Waits until the entries of a directory are on the disk.
fn sync_directory(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::skills_options::SkillsOptions;

    fn digest(letter: &str) -> String {
        letter.repeat(64)
    }

    fn content(letter: &str) -> ContentSummary {
        ContentSummary {
            digest: digest(letter),
            bytes: 10,
            ..ContentSummary::default()
        }
    }

    fn open(dir: &Path) -> PublishedSkills {
        let store = ContentStore::open(dir, &SkillsOptions::for_tests()).expect("a store");
        PublishedSkills::open("default", &dir.join("published"), &Arc::new(store)).expect("opens")
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
        let add = |letter| published.add("csv", letter, &content(letter), None);
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
    fn an_unreadable_record_hides_no_version_and_stays_protected() {
        let dir = tempfile::tempdir().expect("a directory");
        let published = open(dir.path());
        let name = dir.path().join("published/csv");
        let add = |letter| published.add("csv", letter, &content(letter), None);
        for letter in ["a", "b"] {
            assert!(add(letter).expect("published"));
        }
        // Reading a directory as a file fails with an error of the system.
        let record = name.join(format!("{}.json", digest("a")));
        fs::remove_file(&record).expect("removed");
        fs::create_dir(&record).expect("mkdir");
        assert!(add("c").expect("published"));
        assert_eq!(
            published.newest_versions("csv"),
            ["csv@c", "csv@b", "csv@a"]
        );
        assert_eq!(published.source().problems, []);
        // A write that fails leaves the digest protected, and can be repeated.
        let record = name.join(format!("{}.json", digest("d")));
        fs::create_dir(&record).expect("mkdir");
        add("d").expect_err("a directory has the record's name");
        assert!(published.references(&digest("d")));
        assert_eq!(published.source().problems.len(), 1);
        fs::remove_dir(&record).expect("removed");
        assert!(add("d").expect("published"));
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
