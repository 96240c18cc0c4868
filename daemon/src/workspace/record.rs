//! Record of a slot in `record.json`: enough to adopt the slot after a crash. It is written atomically (temporary file,
//! rename) and never edited in place.
//!
//! The rename protects against a crash of the daemon. A power cut would also need fsync, which takes 5 to 20 ms on an
//! ordinary disk. A claim is answered after the rename and synced right after the answer. A power cut in between can
//! lose only the record of a workspace whose container, processes and files it ends as well.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use skilld_common::atomic_write::AtomicWrite;

use crate::access::TenantName;
use crate::config::WorkspaceStorage;
use crate::engine::ContainerLimits;
use crate::error::{Error, Result, tolerate};
use crate::exec::{ImageEnvironment, StagedSkillRecord};
use crate::workspace::slot_state_machine::LossCause;
use crate::workspace::{WorkspaceId, WorkspaceKey};

/// Version of the format. The container of a record with another version is removed as an orphan.
pub const VERSION: u32 = 2;
const FILE: &str = "record.json";

/// Record of a slot, as stored.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SlotRecord {
    /// Format version, [`VERSION`].
    pub version: u32,
    /// Slot number, counted from the configured first uid.
    pub number: u32,
    /// Uid of the guest and of all commands.
    pub uid: u32,
    /// Name of the pool.
    pub pool: String,
    /// Image reference as configured when the slot was created.
    pub image: String,
    /// Id to which the image reference resolved.
    pub image_id: String,
    /// Variables of the image that commands get.
    #[serde(default, skip_serializing_if = "ImageEnvironment::is_empty")]
    pub image_env: ImageEnvironment,
    /// Resource limits of the container.
    pub limits: ContainerLimits,
    /// Storage of the workspace's files.
    #[serde(default)]
    pub storage: WorkspaceStorage,
    /// OCI runtime; `None` means the engine's default.
    pub oci_runtime: Option<String>,
    /// Directories of the host that are mounted into the container: path in the container → path on the host. `None` in
    /// records of releases that did not record them.
    #[serde(default)]
    pub shared_dirs: Option<BTreeMap<String, PathBuf>>,
    /// Secret that the guest must present, in hex.
    pub nonce: String,
    /// Id of the container; `None` before its creation and after its removal.
    pub container_id: Option<String>,
    /// Phase of the slot when the record was written.
    pub phase: SlotPhase,
    /// Workspace that the slot has become; `None` before the claim.
    pub claim: Option<WorkspaceClaim>,
    /// Tenant whose quotas count the container although its workspace is gone; `None` unless it is quarantined.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quarantine_tenant: Option<TenantName>,
}

/// Phase of a slot, as far as it matters after a crash.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SlotPhase {
    /// Boot in progress: the next daemon removes the slot.
    Booting,
    /// Warm: the slot returns to its pool.
    Ready,
    /// Workspace: the next daemon adopts it.
    Claimed,
    /// Removal in progress: the next daemon completes it.
    Closing,
    /// The container cannot be removed: number and uid stay in use.
    Quarantined {
        /// Start of the quarantine, in milliseconds since 1970.
        time_ms: u64,
    },
    /// Lost workspace that is still listed.
    Failed {
        /// Cause of the loss.
        cause: LossCause,
        /// Time of the loss, in milliseconds since 1970.
        time_ms: u64,
    },
}

/// Properties of the workspace that a slot has become.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkspaceClaim {
    /// Tenant of the workspace. Records of earlier releases have none.
    #[serde(default)]
    pub tenant: TenantName,
    /// Id of the principal that created the workspace; empty in records of earlier releases.
    #[serde(default)]
    pub creator: String,
    /// Workspace id.
    pub workspace: String,
    /// Digest of the request, by which its retries are recognised; see `WorkspaceRequest::request_body`.
    pub request: String,
    /// Labels of the workspace.
    pub labels: BTreeMap<String, String>,
    /// Environment variables of every exec.
    pub env: BTreeMap<String, String>,
    /// Time of the claim, in milliseconds since 1970.
    pub create_time_ms: u64,
    /// Idle timeout in milliseconds.
    pub idle_timeout_ms: u64,
    /// End of the lifetime, in milliseconds since 1970.
    pub end_time_ms: u64,
    /// Staged skills by their names.
    pub skills: BTreeMap<String, StagedSkillRecord>,
    /// Staged inputs, at most [`INPUTS_MAX`] and one per path, the latest last.
    #[serde(default)]
    pub inputs: Vec<InputRecord>,
    /// Last setup.
    #[serde(default)]
    pub setup: SetupRecord,
}

/// Record of the last setup of a workspace.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetupRecord {
    /// Part of the ids of its execs; empty if there was none.
    pub run_id: String,
    /// Digest of its content; empty while it runs, and if it failed.
    pub digest: String,
}

/// Maximum number of recorded inputs.
pub const INPUTS_MAX: usize = 1000;
/// Maximum size of the recorded inputs in the file of the record, in bytes. Each staging writes all of them, and they
/// count for no quota.
const INPUTS_BYTES_MAX: usize = 1 << 20;

/// Record of a staged input.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct InputRecord {
    /// Path relative to the workspace.
    pub path: String,
    /// Reference as the client gave it; empty for bytes of the request.
    pub from: String,
    /// SHA-256 of a whole URL with its query, which `from` omits because it may be a secret; empty for other sources.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub url_sha256: String,
    /// Requested file name, sanitised.
    pub name: String,
    /// App, user and session of an artifact; empty for other sources.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub scope: Vec<String>,
    /// Version of an artifact; `None` for other sources.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<u64>,
    /// SHA-256 as 64 hex digits; empty for a folder or link.
    pub sha256: String,
    /// Size in bytes.
    pub size: u64,
    /// Time of the staging, in milliseconds since 1970.
    pub time_ms: u64,
}

impl WorkspaceClaim {
    /// Returns tenant and id of the workspace.
    pub fn key(&self) -> WorkspaceKey {
        WorkspaceId::new(self.workspace.clone()).of_tenant(&self.tenant)
    }

    /// Adds inputs. Earlier records of the same paths are dropped, and the oldest beyond [`INPUTS_MAX`] and
    /// [`INPUTS_BYTES_MAX`].
    pub fn add_inputs(&mut self, inputs: Vec<InputRecord>) {
        let same = |path: &str| inputs.iter().any(|input| input.path == path);
        self.inputs.retain(|input| !same(&input.path));
        self.inputs.extend(inputs);
        let mut bytes = 0;
        let latest = self.inputs.iter().rev().take(INPUTS_MAX);
        let fitting = latest.take_while(|input| {
            bytes += input.file_bytes();
            bytes <= INPUTS_BYTES_MAX
        });
        let over = self.inputs.len() - fitting.count();
        self.inputs.drain(..over);
    }
}

impl InputRecord {
    /// Returns the size of the record in its file, in bytes.
    fn file_bytes(&self) -> usize {
        // Only what JSON cannot express has none.
        serde_json::to_vec_pretty(self).map_or(0, |json| json.len())
    }
}

impl SlotRecord {
    /// Returns `true` if a directory of the host is mounted at this path in the container.
    pub fn has_shared_dir(&self, path: &str) -> bool {
        let mounted = self.shared_dirs.as_ref();
        mounted.is_some_and(|mounted| mounted.contains_key(path))
    }

    /// Writes the record of a slot without waiting for the disk; [`sync_record`] waits. Blocks.
    ///
    /// # Errors
    /// When the host's disk fails or is full.
    pub fn write(&self, slot_dir: &Path) -> Result<()> {
        let bytes = serde_json::to_vec_pretty(self)
            .map_err(|error| Error::Internal(format!("encode slot record: {error}")))?;
        replace_file(&slot_dir.join(FILE), &bytes)
    }

    /// Reads the record of a slot. Returns `None` if there is none, or one of an unknown format. Blocks.
    ///
    /// # Errors
    /// When the host's disk fails. The slot must not count as an orphan then.
    pub fn read(slot_dir: &Path) -> Result<Option<Self>> {
        let path = slot_dir.join(FILE);
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
                ) =>
            {
                return Ok(None);
            }
            Err(source) => return Err(Error::io(format!("read {}", path.display()), source)),
        };
        let record = serde_json::from_slice(&bytes).inspect_err(|error| {
            tracing::warn!(slot = %slot_dir.display(), %error, "slot record cannot be understood");
        });
        Ok(record
            .ok()
            .filter(|record: &Self| record.version == VERSION))
    }
}

/// Waits until the record of a slot is on the disk. Succeeds if there is none. Blocks.
///
/// # Errors
/// When the host's disk fails.
pub fn sync_record(slot_dir: &Path) -> Result<()> {
    let sync = || -> io::Result<()> {
        fs::File::open(slot_dir.join(FILE))?.sync_data()?;
        fs::File::open(slot_dir)?.sync_all()
    };
    let synced = tolerate(io::ErrorKind::NotFound, sync());
    synced.map_err(|source| Error::io(format!("sync the record in {}", slot_dir.display()), source))
}

/// Replaces a file atomically by a rename. Blocks.
///
/// # Errors
/// When the host's disk fails or is full.
fn replace_file(path: &Path, bytes: &[u8]) -> Result<()> {
    let directory = path.parent().unwrap_or(Path::new("."));
    // The container's uid reads the slot's files; the directories above keep other users out.
    let written = AtomicWrite::new(directory, bytes, 0o644).and_then(|new| new.install(path));
    written.map_err(|source| Error::io(format!("write {}", path.display()), source))
}

/// Replaces the contents of a small JSON file in place, unless it has them already. A file that is mounted into a
/// container has to stay the same inode, so [`replace_file`] cannot write it.
///
/// The file holds valid JSON at every step, also when its disk is full:
///
/// 1. Blanks extend the file to the length of the new contents. Only this step needs space on the disk. If it fails, the old
///    contents stay.
/// 2. One write replaces the old contents by the new ones, with blanks at the end if those are shorter.
/// 3. The blanks are cut off.
///
/// A kill of the daemon may interrupt the write of several pages; the next start writes the file again. A copy-on-write
/// file system (Btrfs, ZFS) may need space for the second step as well. Then contents of one block stay as they were,
/// and longer ones may become a mix of old and new.
///
/// # Errors
/// When the host's disk fails or is full.
pub fn overwrite_file(path: &Path, bytes: &[u8]) -> Result<()> {
    let present = match fs::read(path) {
        Ok(present) if present == bytes => return Ok(()),
        Ok(present) => present.len(),
        // Earlier releases did not create the file ahead, so no container mounts it.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return replace_file(path, bytes),
        Err(source) => return Err(Error::io(format!("read {}", path.display()), source)),
    };
    let write = || -> io::Result<()> {
        let file = fs::OpenOptions::new().write(true).open(path)?;
        let longer = vec![b' '; bytes.len().saturating_sub(present)];
        if let Err(error) = file.write_all_at(&longer, present as u64) {
            // The blanks are harmless if this fails as well; they would only hold the rest of a full disk.
            drop(file.set_len(present as u64));
            return Err(error);
        }
        file.write_all_at(&pad_with_blanks(bytes, present), 0)?;
        file.set_len(bytes.len() as u64)?;
        // The container's uid reads the slot's files; the directories above keep other users out.
        file.set_permissions(fs::Permissions::from_mode(0o644))
    };
    write().map_err(|source| Error::io(format!("write {}", path.display()), source))
}

/// Returns the bytes with spaces at their end, at least `length` in all.
fn pad_with_blanks(bytes: &[u8], length: usize) -> Vec<u8> {
    let mut padded = bytes.to_vec();
    padded.resize(length.max(bytes.len()), b' ');
    padded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overwritten_file_is_valid_json_before_it_is_truncated() {
        let old = b"{\"skills\": {\"a-long-name\": \"0123456789\"}}\n";
        for new in [&b"{}\n"[..], b"{\"skills\": {\"b\": \"1\"}}\n"] {
            let between = pad_with_blanks(new, old.len());
            assert_eq!(between.len(), old.len());
            let read: serde_json::Value = serde_json::from_slice(&between).expect("JSON");
            let written: serde_json::Value = serde_json::from_slice(new).expect("JSON");
            assert_eq!(read, written);
        }
        assert_eq!(pad_with_blanks(old, 3), old);
    }

    #[test]
    fn mounted_file_is_overwritten_in_place() {
        use std::os::unix::fs::MetadataExt;

        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("metadata.json");
        overwrite_file(&path, b"a text").expect("made");
        let before = fs::metadata(&path).expect("there");
        overwrite_file(&path, b"a longer text").expect("written");
        assert_eq!(fs::read(&path).expect("read"), b"a longer text");
        overwrite_file(&path, b"short").expect("written");
        let after = fs::metadata(&path).expect("there");
        assert_eq!(before.ino(), after.ino());
        assert_eq!(after.mode() & 0o777, 0o644);
        assert_eq!(fs::read(&path).expect("read"), b"short");
        overwrite_file(&path, b"short").expect("nothing to do");
        assert_eq!(
            fs::metadata(&path).expect("there").mtime_nsec(),
            after.mtime_nsec()
        );
    }

    fn sample() -> SlotRecord {
        SlotRecord {
            version: VERSION,
            number: 7,
            uid: 200_007,
            pool: "default".into(),
            image: "skilld/base:latest".into(),
            image_id: "sha256:0".into(),
            image_env: ImageEnvironment::new(&["A=1".into(), "PATH=/opt/x".into()]),
            limits: ContainerLimits {
                memory_bytes: 1,
                cpu_millis: 2,
                pids: 3,
                disk_bytes: 4,
                inodes: 5,
            },
            storage: WorkspaceStorage::Disk,
            oci_runtime: None,
            shared_dirs: Some(BTreeMap::from([("/opt/x".into(), "/x".into())])),
            nonce: "00ff".into(),
            container_id: Some("c".into()),
            phase: SlotPhase::Failed {
                cause: LossCause::OomKilled,
                time_ms: 5,
            },
            claim: Some(WorkspaceClaim {
                tenant: TenantName::default(),
                creator: "anonymous".to_owned(),
                workspace: "w".into(),
                request: "aa".into(),
                labels: BTreeMap::from([("k".into(), "v".into())]),
                env: BTreeMap::new(),
                create_time_ms: 1,
                idle_timeout_ms: 2,
                end_time_ms: 3,
                skills: BTreeMap::from([("s".into(), StagedSkillRecord::default())]),
                inputs: Vec::new(),
                setup: SetupRecord::default(),
            }),
            quarantine_tenant: Some(TenantName::default()),
        }
    }

    #[test]
    fn oldest_inputs_go_before_a_record_becomes_too_large() {
        let mut record = sample();
        let claim = record.claim.as_mut().expect("claimed");
        let input = |number: usize, bytes: usize| InputRecord {
            path: format!("work/inputs/{number}"),
            // A control character takes six bytes in JSON.
            from: "\u{1}".repeat(bytes),
            ..InputRecord::default()
        };
        claim.add_inputs((0..2 * INPUTS_MAX).map(|number| input(number, 0)).collect());
        assert_eq!(claim.inputs.len(), INPUTS_MAX);
        claim.add_inputs((0..INPUTS_MAX).map(|number| input(number, 4096)).collect());
        let latest = claim.inputs.last().expect("some").path.clone();
        assert_eq!(latest, format!("work/inputs/{}", INPUTS_MAX - 1));
        let dir = tempfile::tempdir().expect("temp dir");
        record.write(dir.path()).expect("write");
        let written = fs::metadata(dir.path().join(FILE)).expect("there").len();
        // Its inputs are indented.
        let most = 2 * INPUTS_BYTES_MAX as u64;
        assert!(written > 1 << 19 && written < most, "{written}");
    }

    #[test]
    fn record_reads_back_as_written() {
        let dir = tempfile::tempdir().expect("temp dir");
        sample().write(dir.path()).expect("write");
        sync_record(dir.path()).expect("sync");
        assert_eq!(
            SlotRecord::read(dir.path()).expect("readable"),
            Some(sample())
        );
        assert_eq!(
            fs::read_dir(dir.path()).expect("list").count(),
            1,
            "no temporary file is left"
        );
    }

    #[test]
    fn damaged_and_foreign_records_are_ignored() {
        let dir = tempfile::tempdir().expect("temp dir");
        assert_eq!(SlotRecord::read(dir.path()).expect("readable"), None);
        for bytes in [&b"{"[..], b"", b"{\"version\":1}", b"\xff\xfe"] {
            fs::write(dir.path().join(FILE), bytes).expect("write");
            assert_eq!(SlotRecord::read(dir.path()).expect("readable"), None);
        }
        for version in [VERSION - 1, VERSION + 1] {
            let record = SlotRecord {
                version,
                ..sample()
            };
            record.write(dir.path()).expect("write");
            assert_eq!(SlotRecord::read(dir.path()).expect("readable"), None);
        }
    }
}
