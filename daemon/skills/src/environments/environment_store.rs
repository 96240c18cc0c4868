//! Store of built environments. Blocking file work; the records in memory are those on disk.
//!
//! ```text
//! STATE_DIR/environments/
//!   mounted/<name>/      one environment; mounted/ is in every container, where it cannot be listed (0711)
//!   records/<key>.json   its record; the key is a digest of need and image
//!   empty/               nothing, for ever: an overlay needs two directories
//!   tmp/                 environments that are being unpacked or removed; emptied at start
//! ```
//!
//! An environment exists when its record does. The folder comes first and is renamed into its place whole, so a daemon
//! that dies leaves either an environment or a folder without a record, which the next start removes.

use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use data_encoding::HEXLOWER;
use sha2::{Digest, Sha256};

use super::environment_record::{BuildReport, EnvironmentRecord, VERSION, unix_ms};
use crate::error::{Error, Result, tolerate};
use crate::fault::{self, Point};
use crate::skills_options::ArchiveBounds;
use crate::sources::archive::{ArchiveKind, archive_error, unpack_archive};

/// File at the top of a build's archive that reports what it did.
const REPORT: &str = "environment.json";
/// Maximum size of a report in bytes: a thousand packages with their hashes.
const REPORT_BYTES_MAX: u64 = 4 << 20;
/// Part of every key. A change of what a build produces changes it, so that older environments are not used any more.
const RECIPE: &str = "2";

/// Environments on disk and their records.
#[derive(Debug)]
pub struct EnvironmentStore {
    base: PathBuf,
    records: Mutex<HashMap<String, Arc<EnvironmentRecord>>>,
}

/// Result of one cleanup of the store.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EnvironmentCleanup {
    /// Number of environments that were removed.
    pub removed: usize,
    /// Number of environments that are left.
    pub kept: usize,
}

/// Returns the key of the environment for a need and an image, 64 hex digits.
#[must_use]
pub fn environment_key(need_digest: &str, image_id: &str) -> String {
    let text = format!("{RECIPE}\n{need_digest}\n{image_id}\n");
    HEXLOWER.encode(&Sha256::digest(text))
}

/// Returns the directory of all environments of a store, which is mounted into every container.
#[must_use]
pub fn mounted_dir(base: &Path) -> PathBuf {
    base.join("mounted")
}

/// Returns the directory of a store that stays empty.
#[must_use]
pub fn empty_dir(base: &Path) -> PathBuf {
    base.join("empty")
}

impl EnvironmentStore {
    /// Opens the store in `base`, reads its records, and removes what an earlier daemon left unfinished.
    ///
    /// # Errors
    /// `Io` when its directories cannot be made, read or emptied.
    pub fn open(base: &Path) -> Result<Self> {
        let store = Self {
            base: base.to_owned(),
            records: Mutex::default(),
        };
        let open = || -> io::Result<()> {
            tolerate(ErrorKind::NotFound, fs::remove_dir_all(store.temporary()))?;
            for (directory, mode) in [
                (base.to_owned(), 0o755),
                (mounted_dir(base), 0o711),
                (empty_dir(base), 0o755),
                (base.join("records"), 0o700),
                (store.temporary(), 0o700),
            ] {
                fs::create_dir_all(&directory)?;
                fs::set_permissions(&directory, fs::Permissions::from_mode(mode))?;
            }
            store.read_records()?;
            store.remove_unrecorded()
        };
        open().map_err(Error::io(format!("open {}", base.display())))?;
        Ok(store)
    }

    /// Returns the environment of a key, and notes that it is used.
    #[must_use]
    pub fn find(&self, key: &str) -> Option<Arc<EnvironmentRecord>> {
        let found = self.records().get(key).map(Arc::clone)?;
        let noted = File::open(self.record_path(key))
            .and_then(|record| record.set_modified(SystemTime::now()));
        if let Err(error) = noted {
            tracing::warn!(key, %error, "the use of an environment was not noted");
        }
        Some(found)
    }

    /// Makes an unnamed temporary file for the archive of a build.
    ///
    /// # Errors
    /// `Io`.
    pub fn create_upload(&self) -> Result<File> {
        tempfile::tempfile_in(self.temporary()).map_err(Error::io("make a file for a build"))
    }

    /// Unpacks the archive of a build as the environment of a need and an image. `name` is new and random. Blocks.
    ///
    /// # Errors
    /// `ArchiveInvalid` for an archive or a report that a build does not make; `LimitExceeded`; `Io`.
    pub fn install(
        &self,
        archive: &mut File,
        name: &str,
        need_digest: &str,
        image_id: &str,
        bounds: &ArchiveBounds,
    ) -> Result<Arc<EnvironmentRecord>> {
        let failed = |operation: &'static str| Error::io(format!("{operation} an environment"));
        let temporary = tempfile::tempdir_in(self.temporary()).map_err(failed("unpack"))?;
        let tree = temporary.path().join("tree");
        let unpacked = unpack_archive(archive, Some(ArchiveKind::Tar), &tree, bounds)?;
        let report = read_report(&unpacked.root)?;
        make_python_links(&unpacked.root, &report).map_err(failed("link the interpreter of"))?;
        fault::reach(Point::EnvironmentUnpacked);
        let place = mounted_dir(&self.base).join(name);
        fs::rename(&unpacked.root, &place).map_err(failed("install"))?;
        fault::reach(Point::EnvironmentInstalled);
        let record = EnvironmentRecord {
            version: VERSION,
            name: name.to_owned(),
            need: need_digest.to_owned(),
            image_id: image_id.to_owned(),
            files: unpacked.files,
            bytes: unpacked.bytes,
            create_time_ms: unix_ms(SystemTime::now()),
            report,
        };
        let key = environment_key(need_digest, image_id);
        self.write_record(&key, &record).map_err(failed("record"))?;
        let record = Arc::new(record);
        self.records().insert(key, Arc::clone(&record));
        tracing::info!(
            environment = name,
            files = record.files,
            bytes = record.bytes,
            packages = record.report.packages.len() + record.report.node_packages.len(),
            "environment built"
        );
        Ok(record)
    }

    /// Removes environments that were not used for `keep` and whose names are not `used`. Blocks.
    ///
    /// # Errors
    /// `Io`.
    pub fn collect(&self, keep: Duration, used: &HashSet<String>) -> Result<EnvironmentCleanup> {
        let mut cleanup = EnvironmentCleanup::default();
        let known: Vec<(String, String)> = self
            .records()
            .iter()
            .map(|(key, record)| (key.clone(), record.name.clone()))
            .collect();
        let failed = || Error::io(format!("remove environments in {}", self.base.display()));
        for (key, name) in known {
            if used.contains(&name) || !self.is_unused(&key, keep) {
                cleanup.kept += 1;
                continue;
            }
            self.remove(&key, &name).map_err(failed())?;
            cleanup.removed += 1;
        }
        Ok(cleanup)
    }

    /// Removes one environment: first its record, so that no call finds it any more.
    fn remove(&self, key: &str, name: &str) -> io::Result<()> {
        self.records().remove(key);
        tolerate(ErrorKind::NotFound, fs::remove_file(self.record_path(key)))?;
        let aside = tempfile::tempdir_in(self.temporary())?;
        let place = aside.path().join("tree");
        tolerate(
            ErrorKind::NotFound,
            fs::rename(mounted_dir(&self.base).join(name), &place),
        )?;
        tolerate(ErrorKind::NotFound, fs::remove_dir_all(&place))?;
        tracing::info!(environment = name, "unused environment removed");
        Ok(())
    }

    fn is_unused(&self, key: &str, keep: Duration) -> bool {
        let modified = fs::metadata(self.record_path(key)).and_then(|record| record.modified());
        // A time in the future has no age.
        let age = modified.map(|time| SystemTime::now().duration_since(time).ok());
        age.is_ok_and(|age| age.is_some_and(|age| age >= keep))
    }

    fn read_records(&self) -> io::Result<()> {
        for entry in fs::read_dir(self.base.join("records"))? {
            let path = entry?.path();
            let record = fs::read(&path).map(|bytes| serde_json::from_slice(&bytes));
            let record: Option<EnvironmentRecord> = record.ok().and_then(Result::ok);
            let key = path.file_stem().and_then(|stem| stem.to_str());
            let usable = record.filter(|record| {
                record.version == VERSION
                    && key == Some(environment_key(&record.need, &record.image_id).as_str())
                    && mounted_dir(&self.base).join(&record.name).is_dir()
            });
            if let (Some(key), Some(record)) = (key, usable) {
                self.records().insert(key.to_owned(), Arc::new(record));
            } else {
                tracing::warn!(record = %path.display(), "record of no environment removed");
                fs::remove_file(&path)?;
            }
        }
        Ok(())
    }

    /// Removes folders without a record.
    fn remove_unrecorded(&self) -> io::Result<()> {
        let known: HashSet<String> = self
            .records()
            .values()
            .map(|record| record.name.clone())
            .collect();
        for entry in fs::read_dir(mounted_dir(&self.base))? {
            let entry = entry?;
            let is_known = entry
                .file_name()
                .to_str()
                .is_some_and(|name| known.contains(name));
            if !is_known {
                fs::remove_dir_all(entry.path())?;
            }
        }
        Ok(())
    }

    fn write_record(&self, key: &str, record: &EnvironmentRecord) -> io::Result<()> {
        let mut file = tempfile::NamedTempFile::new_in(self.temporary())?;
        file.write_all(&serde_json::to_vec_pretty(record)?)?;
        file.persist(self.record_path(key))
            .map_err(|error| error.error)?;
        Ok(())
    }

    fn record_path(&self, key: &str) -> PathBuf {
        self.base.join("records").join(format!("{key}.json"))
    }

    fn temporary(&self) -> PathBuf {
        self.base.join("tmp")
    }

    fn records(&self) -> MutexGuard<'_, HashMap<String, Arc<EnvironmentRecord>>> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reads and checks the report of an unpacked build.
fn read_report(root: &Path) -> Result<BuildReport> {
    let invalid = |why: String| archive_error(format!("has a {REPORT} that {why}"));
    let path = root.join(REPORT);
    // No link was made of this name: the archive is the daemon's own script's, but its container is not trusted.
    let metadata = fs::symlink_metadata(&path).map_err(|_| invalid("is missing".to_owned()))?;
    if !metadata.is_file() || metadata.len() > REPORT_BYTES_MAX {
        return Err(invalid("is no file of at most 4 MiB".to_owned()));
    }
    let bytes = fs::read(&path).map_err(Error::io(format!("read {}", path.display())))?;
    let report: BuildReport =
        serde_json::from_slice(&bytes).map_err(|error| invalid(format!("is invalid: {error}")))?;
    report.check().map_err(invalid)?;
    Ok(report)
}

/// Makes the links to the image's interpreter in `venv/bin`. No archive contains them, because they lead out of it.
fn make_python_links(root: &Path, report: &BuildReport) -> io::Result<()> {
    let Some(python) = &report.python else {
        return Ok(());
    };
    let bin = root.join("venv/bin");
    // The daemon follows no link that a build made.
    for directory in [root.join("venv"), bin.clone()] {
        if fs::symlink_metadata(&directory).is_ok_and(|metadata| !metadata.is_dir()) {
            return Err(io::Error::other("venv/bin is no directory"));
        }
    }
    fs::create_dir_all(&bin)?;
    symlink(&python.executable, bin.join("python"))?;
    symlink("python", bin.join("python3"))?;
    let minor = python.minor_version().unwrap_or_default();
    symlink("python", bin.join(format!("python{minor}")))
}

#[cfg(test)]
mod tests;
