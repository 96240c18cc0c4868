//! Records of the published versions of one name: which of them can be read, and what each counts.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::content_store::{ContentStore, read_record};
use crate::held_bytes::held_bytes;
use crate::parse::problem::Problem;
use crate::parse::skill_name::is_name;
use crate::parse::skill_ref::is_digest;

/// Version of a record's format.
pub(super) const FORMAT: u32 = 1;
/// Number of files and directories that a publication has beside its content: its record, that one's directory, and the
/// store's note about the digest.
const RECORD_OBJECTS: u64 = 3;

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
    /// Bytes that count for the publication; `None` in records of earlier releases.
    #[serde(default)]
    pub(crate) held_bytes: Option<u64>,
}

/// Record that is unreadable or may not be on disk. Another release may read it, a repair may follow, or the
/// publication may be repeated: its content stays in the store, and counts.
#[derive(Debug)]
pub(super) struct UnreadableRecord {
    /// Digest from the record's file name.
    pub(super) digest: String,
    /// Bytes that count for the publication.
    pub(super) held_bytes: u64,
    pub(super) problem: Problem,
}

/// Records of one name.
#[derive(Debug, Default)]
pub(super) struct NameRecords {
    /// Readable records, oldest first.
    pub(super) versions: Vec<PublishedRecord>,
    pub(super) unreadable: Vec<UnreadableRecord>,
}

// === impl NameRecords ===

impl NameRecords {
    /// Reads the records in the directory of a name; a missing directory has none.
    pub(super) fn read(dir: &Path, store: &ContentStore) -> io::Result<Self> {
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
                Ok(mut record) => {
                    let of_store = || publication_bytes(store.held_bytes(&record.digest));
                    record.held_bytes = record.held_bytes.or_else(|| Some(of_store()));
                    records.versions.push(record);
                }
                Err(error) => {
                    let message = format!("a record of a published skill cannot be read: {error}");
                    tracing::error!(path = %path.display(), %error, "record of a published skill");
                    let problem = Problem::error("published.unreadable", message).about(&path);
                    let digest = path.file_stem().unwrap_or_default().to_string_lossy();
                    // The name of any other file must not lead out of the store.
                    let content = match is_digest(&digest) {
                        true => store.held_bytes(&digest),
                        false => 0,
                    };
                    records.unreadable.push(UnreadableRecord {
                        digest: digest.into_owned(),
                        held_bytes: publication_bytes(content),
                        problem,
                    });
                }
            }
        }
        records
            .versions
            .sort_by(|a, b| a.age_order().cmp(&b.age_order()));
        records.unreadable.sort_by(|a, b| a.digest.cmp(&b.digest));
        Ok(records)
    }

    /// Returns the bytes that count for all versions.
    pub(super) fn bytes(&self) -> u64 {
        let versions = self.versions.iter().filter_map(|record| record.held_bytes);
        let unreadable = self.unreadable.iter().map(|record| record.held_bytes);
        versions.chain(unreadable).sum()
    }

    /// Returns the bytes that count for a digest.
    pub(super) fn bytes_of(&self, digest: &str) -> u64 {
        let versions = self
            .versions
            .iter()
            .filter(|known| known.digest == digest)
            .filter_map(|known| known.held_bytes);
        let unreadable = self
            .unreadable
            .iter()
            .filter(|known| known.digest == digest)
            .map(|known| known.held_bytes);
        versions.chain(unreadable).sum()
    }

    /// Adds a record that was written, in place of what was known of its digest.
    pub(super) fn insert(&mut self, record: PublishedRecord) {
        self.unreadable
            .retain(|known| known.digest != record.digest);
        self.versions.retain(|known| known.digest != record.digest);
        let older = |known: &PublishedRecord| known.age_order() < record.age_order();
        let at = self.versions.partition_point(older);
        self.versions.insert(at, record);
    }
}

// === impl PublishedRecord ===

impl PublishedRecord {
    /// Returns the key by which records are sorted, oldest first.
    fn age_order(&self) -> (u64, &str) {
        (self.time_ms, &self.digest)
    }

    /// Reads a record and checks that it is the one that its path names.
    fn read(path: &Path) -> io::Result<Self> {
        let record: Self = read_record(path)?;
        let expected = Path::new(&record.name).join(format!("{}.json", record.digest));
        let is_valid =
            record.format == FORMAT && is_name(&record.name) && is_digest(&record.digest);
        if !is_valid || !path.ends_with(expected) {
            return Err(io::Error::other("it is not what its name says"));
        }
        Ok(record)
    }
}

/// Returns the bytes that count for a publication whose content counts so many.
pub(super) fn publication_bytes(content: u64) -> u64 {
    held_bytes(content, RECORD_OBJECTS)
}
