//! Store of built environments. Blocking file work, except for [`EnvironmentStore::find`].
//!
//! ```text
//! STATE_DIR/environments/
//!   mounted/<name>/      one environment; mounted/ is in every container, where it cannot be listed (0711)
//!   records/<name>.json  its record, and the time of its last use as the time of the file's change
//!   empty/               nothing, for ever: an overlay needs two directories
//!   tmp/                 environments that are being unpacked or removed; emptied at start
//! ```
//!
//! An environment exists when its record does. The folder comes first and is renamed into its place whole, so a daemon
//! that dies leaves either an environment or a folder without a record, which the next start removes.
//!
//! A rebuilt environment has a new name. The one before stays until no workspace uses it, like one whose record this
//! release cannot read.

use std::collections::{BTreeSet, HashSet};
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use skilld_common::unix_time::unix_ms;

use super::environment_record::{EnvironmentKey, EnvironmentRecord, PreparedEnvironment, VERSION};
use crate::content_store::{self, make_empty_directory, removal_path};
use crate::error::{Error, Result, tolerate};
use crate::fault;
use crate::skills_options::ArchiveBounds;

mod build_archive;
mod environment_table;

use build_archive::unpack_build;
use environment_table::{EnvironmentTable, RoomShortage, StoredEnvironment};

/// Name of the quota in the file of tenants.
const BYTES_QUOTA: &str = "environment_bytes";
/// Name of the size that exceeds its limit if environments in use leave too little space for a new one.
pub const STORE_SIZE: &str =
    "the size of all environments that are in use or prepared, in bytes (skills.environments_disk)";

/// Environments on disk and their records.
#[derive(Debug)]
pub struct EnvironmentStore {
    base: PathBuf,
    /// Maximum number of bytes that all environments together count.
    bytes_max: u64,
    table: Mutex<EnvironmentTable>,
    /// Held while skills are added to a record.
    record_writes: Mutex<()>,
}

/// Record of one environment, as stored.
#[derive(Debug, Serialize, Deserialize)]
struct RecordFile {
    #[serde(flatten)]
    record: EnvironmentRecord,
    /// Names of the skills that it was prepared for.
    #[serde(default)]
    prepared_for: BTreeSet<String>,
}

/// Returns the directory of all environments of a store, which is mounted into every container.
pub fn mounted_dir(base: &Path) -> PathBuf {
    base.join("mounted")
}

/// Returns the directory of a store that stays empty.
pub fn empty_dir(base: &Path) -> PathBuf {
    base.join("empty")
}

impl EnvironmentStore {
    /// Opens the store in `base`, reads its records, and removes what an earlier daemon left unfinished. All
    /// environments together count at most `bytes_max` bytes.
    ///
    /// # Errors
    /// `Io` when its directories cannot be made, read or emptied.
    pub fn open(base: &Path, bytes_max: u64) -> Result<Self> {
        let store = Self {
            base: base.to_owned(),
            bytes_max,
            table: Mutex::default(),
            record_writes: Mutex::default(),
        };
        let open = || -> io::Result<()> {
            make_empty_directory(&store.temporary())?;
            for (directory, mode) in [
                (base.to_owned(), 0o755),
                (mounted_dir(base), 0o711),
                (empty_dir(base), 0o755),
                (base.join("records"), 0o700),
                (store.temporary(), 0o700),
            ] {
                fs::create_dir_all(&directory)?;
                // A daemon starts on a read-only disk, which refuses even a mode that the directory has.
                if fs::metadata(&directory)?.permissions().mode() & 0o7777 != mode {
                    fs::set_permissions(&directory, fs::Permissions::from_mode(mode))?;
                }
            }
            store.read_records()?;
            store.remove_unrecorded()
        };
        open().map_err(Error::io(format!("open {}", base.display())))?;
        Ok(store)
    }

    /// Returns the bytes that count for the environments of a tenant.
    pub fn held_bytes(&self, tenant: &str) -> u64 {
        self.table.lock().held_bytes(tenant)
    }

    /// Returns the environment of a key, and notes that it is used. It stays as long as the caller holds the record.
    /// Does not block.
    pub fn find(&self, key: &EnvironmentKey) -> Option<Arc<EnvironmentRecord>> {
        let mut table = self.table.lock();
        let found = table.find(key)?;
        found.last_use = SystemTime::now();
        Some(Arc::clone(&found.record))
    }

    /// Makes an unnamed temporary file for the archive of a build.
    ///
    /// # Errors
    /// `Io`.
    pub fn create_upload(&self) -> Result<File> {
        tempfile::tempfile_in(self.temporary()).map_err(Error::io("make a file for a build"))
    }

    /// Unpacks the archive of a build as the environment of a key, in place of an earlier one. `name` is new and random.
    /// Environments that are not in use are removed if the space is needed: those of the key's tenant if it would count
    /// more than `bytes_quota`, and of other tenants those that were prepared only if such a tenant counts more. `in_use`
    /// returns the names of those that workspaces have. Blocks.
    ///
    /// # Errors
    /// `ArchiveInvalid` for an archive or a report that a build does not make; `LimitExceeded` for an archive that is too
    /// large, or if those in use leave too little space; `TenantQuota`; `Io`.
    pub fn install(
        &self,
        archive: &mut File,
        (name, key): (&str, &EnvironmentKey),
        bounds: &ArchiveBounds,
        bytes_quota: Option<u64>,
        in_use: &dyn Fn() -> HashSet<String>,
    ) -> Result<Arc<EnvironmentRecord>> {
        let failed = |operation: &'static str| Error::io(format!("{operation} an environment"));
        let temporary = tempfile::tempdir_in(self.temporary()).map_err(failed("unpack"))?;
        let tree = temporary.path().join("tree");
        let within = bounds.within(bytes_quota);
        let unpacked = unpack_build(archive, &tree, &within);
        let (unpacked, report) = unpacked.map_err(|error| match (error, bytes_quota) {
            (Error::LimitExceeded { .. }, Some(limit)) if within != *bounds => Error::TenantQuota {
                tenant: key.tenant.clone(),
                resource: BYTES_QUOTA,
                used: self.held_bytes(&key.tenant),
                limit,
            },
            (error, _) => error,
        })?;
        // The daemon does not check the files later. One call for the whole file system is faster than one for each of 60,000 files.
        let synced = File::open(&tree).and_then(|tree| Ok(nix::unistd::syncfs(tree)?));
        synced.map_err(failed("sync"))?;
        fault::reach("environment.unpacked");
        let record = EnvironmentRecord {
            version: VERSION,
            name: name.to_owned(),
            key: key.clone(),
            files: unpacked.files,
            bytes: unpacked.bytes,
            entries: unpacked.entries,
            create_time_ms: unix_ms(SystemTime::now()),
            report,
        };
        let (record, prepared_for) = self.reserve(record, bytes_quota, in_use)?;
        if let Err(error) = self.place(&unpacked.root, &record, &prepared_for) {
            self.remove_or_warn(name);
            return Err(failed("install")(error));
        }
        self.table.lock().publish(name);
        tracing::info!(
            environment = name,
            files = record.files,
            bytes = record.bytes,
            packages = record.report.packages.len() + record.report.node_packages.len(),
            "environment built"
        );
        Ok(record)
    }

    /// Adds a new environment to the table, where no call finds it yet, and removes others until there is space for it.
    /// Returns its record, and the skills that the environment in its place was prepared for.
    fn reserve(
        &self,
        mut record: EnvironmentRecord,
        bytes_quota: Option<u64>,
        in_use: &dyn Fn() -> HashSet<String>,
    ) -> Result<(Arc<EnvironmentRecord>, BTreeSet<String>)> {
        let mut table = self.table.lock();
        let mut prepared_for = BTreeSet::new();
        if let Some(replaced) = table.find(&record.key) {
            prepared_for.clone_from(&replaced.prepared_for);
            // The clock may have been set back, and the latest one counts.
            let after = replaced.record.create_time_ms + 1;
            record.create_time_ms = record.create_time_ms.max(after);
        }
        let used = table.used(in_use);
        let made = table.make_room(&record, bytes_quota, self.bytes_max, &used);
        let removed = made.map_err(|shortage| match shortage {
            RoomShortage::OfTenant { used, limit } => Error::TenantQuota {
                tenant: record.key.tenant.clone(),
                resource: BYTES_QUOTA,
                used,
                limit,
            },
            RoomShortage::OfStore => Error::LimitExceeded {
                what: STORE_SIZE.to_owned(),
                limit: self.bytes_max,
            },
        })?;
        let record = Arc::new(record);
        table.add(StoredEnvironment {
            record: Arc::clone(&record),
            last_use: SystemTime::now(),
            is_kept: !prepared_for.is_empty(),
            prepared_for: prepared_for.clone(),
        });
        drop(table);
        removed.iter().for_each(|name| self.remove_or_warn(name));
        Ok((record, prepared_for))
    }

    /// Moves an unpacked environment to its place and records it.
    fn place(
        &self,
        root: &Path,
        record: &EnvironmentRecord,
        prepared_for: &BTreeSet<String>,
    ) -> io::Result<()> {
        let mounted = mounted_dir(&self.base);
        fs::rename(root, mounted.join(&record.name))?;
        File::open(mounted)?.sync_all()?;
        fault::reach("environment.installed");
        self.write_record(record, prepared_for)
    }

    /// Notes that an environment was built ahead for skills, so that it stays while one of them needs it. Blocks.
    ///
    /// # Errors
    /// `Io`: nothing is noted.
    pub fn mark_prepared(&self, name: &str, skills: &BTreeSet<String>) -> Result<()> {
        // A call that finds its skills in the table finds them in the record too.
        let _write_turn = self.record_writes.lock();
        let mut table = self.table.lock();
        let Some(environment) = table.get(name) else {
            return Ok(());
        };
        if skills.is_subset(&environment.prepared_for) {
            environment.is_kept = true;
            return Ok(());
        }
        let record = Arc::clone(&environment.record);
        let prepared_for = &environment.prepared_for | skills;
        drop(table);
        self.write_record(&record, &prepared_for)
            .map_err(Error::io(format!("record environment {name}")))?;
        if let Some(environment) = self.table.lock().get(name) {
            environment.prepared_for = prepared_for;
            environment.is_kept = true;
        }
        Ok(())
    }

    /// Returns the environments that were built ahead for skills.
    pub fn prepared(&self) -> Vec<PreparedEnvironment> {
        self.table.lock().prepared()
    }

    /// Removes environments that nothing has used for `keep`, and the least recently used ones beyond the maximum size.
    /// Of the `examined` environments, as [`Self::prepared`] returned them, the `needed` ones stay even if they are unused.
    /// `in_use` returns the names of those that workspaces have. Blocks.
    pub fn collect(
        &self,
        keep: Duration,
        examined: &[PreparedEnvironment],
        needed: &HashSet<String>,
        in_use: &dyn Fn() -> HashSet<String>,
    ) {
        let now = SystemTime::now();
        let mut table = self.table.lock();
        let used = table.used(in_use);
        table.note_needs(examined, needed);
        table.note_uses(&used, now);
        let mut removed = table.hide_unused(keep, &used, now);
        removed.extend(table.hide_oldest(self.bytes_max, &used));
        let last_uses = table.last_uses();
        drop(table);
        tracing::debug!(
            environments = last_uses.len(),
            removed = removed.len(),
            "environments collected"
        );
        removed.iter().for_each(|name| self.remove_or_warn(name));
        for (name, time) in last_uses {
            let noted =
                File::open(self.record_path(&name)).and_then(|record| record.set_modified(time));
            if let Err(error) = tolerate(ErrorKind::NotFound, noted) {
                tracing::warn!(environment = name, %error, "the use of an environment was not noted");
            }
        }
    }

    /// Removes an environment that no call finds. What cannot be removed stays in the table for the next collection.
    fn remove_or_warn(&self, name: &str) {
        match self.remove(name) {
            Ok(()) => tracing::info!(environment = name, "environment removed"),
            Err(error) => {
                tracing::warn!(environment = name, %error, "environment cannot be removed");
            }
        }
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        tolerate(ErrorKind::NotFound, fs::remove_file(self.record_path(name)))?;
        let place = removal_path(&self.temporary());
        tolerate(
            ErrorKind::NotFound,
            fs::rename(mounted_dir(&self.base).join(name), &place),
        )?;
        tolerate(ErrorKind::NotFound, fs::remove_dir_all(&place))?;
        self.table.lock().forget(name);
        Ok(())
    }

    /// Reads all records. An environment whose record is not understood may be in use, so it stays and is not found.
    fn read_records(&self) -> io::Result<()> {
        for entry in fs::read_dir(self.base.join("records"))? {
            let path = entry?.path();
            let name = path.file_stem().unwrap_or_default().to_string_lossy();
            if !mounted_dir(&self.base).join(&*name).try_exists()? {
                tracing::warn!(record = %path.display(), "record of no environment removed");
                fs::remove_file(&path)?;
                continue;
            }
            let parsed: Option<RecordFile> = serde_json::from_slice(&fs::read(&path)?).ok();
            let parsed =
                parsed.filter(|file| file.record.version == VERSION && file.record.name == name);
            let is_usable = parsed.is_some();
            if !is_usable {
                tracing::warn!(record = %path.display(), "record of an environment is not understood");
            }
            let file = parsed.unwrap_or_else(|| RecordFile {
                record: EnvironmentRecord {
                    name: name.to_string(),
                    ..EnvironmentRecord::default()
                },
                prepared_for: BTreeSet::new(),
            });
            let mut table = self.table.lock();
            table.add(StoredEnvironment {
                record: Arc::new(file.record),
                last_use: fs::metadata(&path)?.modified()?,
                is_kept: !file.prepared_for.is_empty(),
                prepared_for: file.prepared_for,
            });
            if is_usable {
                table.publish(&name);
            }
        }
        Ok(())
    }

    /// Removes folders without a record.
    fn remove_unrecorded(&self) -> io::Result<()> {
        for entry in fs::read_dir(mounted_dir(&self.base))? {
            let entry = entry?;
            if !self.table.lock().has(&entry.file_name().to_string_lossy()) {
                fs::remove_dir_all(entry.path())?;
            }
        }
        Ok(())
    }

    /// Writes the record of an environment, with the skills that it was prepared for.
    fn write_record(
        &self,
        record: &EnvironmentRecord,
        prepared_for: &BTreeSet<String>,
    ) -> io::Result<()> {
        let file = RecordFile {
            record: record.clone(),
            prepared_for: prepared_for.clone(),
        };
        let path = self.record_path(&record.name);
        content_store::write_record(&self.temporary(), &path, &file, || {})
    }

    fn record_path(&self, name: &str) -> PathBuf {
        self.base.join("records").join(format!("{name}.json"))
    }

    fn temporary(&self) -> PathBuf {
        self.base.join("tmp")
    }
}

#[cfg(test)]
mod tests;
