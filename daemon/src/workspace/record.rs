//! What a slot's `record.json` says: enough to take the slot over after a crash. Written atomically
//! (temporary file, rename); never edited in place.
//!
//! The rename is what a crash of the daemon needs; a power cut needs fsync too, which takes 5 to 20 ms on an ordinary
//! disk. A claim is answered after the rename and synced right after the answer: what a power cut could take in
//! between is the record of a workspace whose container, processes and files the same power cut ends.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::engine::Limits;
use crate::error::{Error, Result};
use crate::workspace::state::Cause;

/// Version of this format. A record of another version is treated as an orphan: its container is removed.
pub const VERSION: u32 = 1;
const FILE: &str = "record.json";

/// A slot on disk.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// [`VERSION`].
    pub version: u32,
    /// Slot number, counted from the configured first uid.
    pub number: u32,
    /// Owner of everything in the container.
    pub uid: u32,
    /// Name of the pool.
    pub pool: String,
    /// Image reference as configured when it was made.
    pub image: String,
    /// What that resolved to.
    pub image_id: String,
    /// Sizes of the container.
    pub limits: Limits,
    /// OCI runtime, if not the engine's default.
    pub oci_runtime: Option<String>,
    /// What the guest must prove to know, in hex.
    pub nonce: String,
    /// Set once the engine has created it.
    pub container_id: Option<String>,
    /// Where it was when this was written.
    pub phase: Phase,
    /// Set once it is a workspace.
    pub claim: Option<Claim>,
}

/// The states that make a difference after a crash.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Half made: removed.
    Booting,
    /// Warm: goes back to its pool.
    Ready,
    /// A workspace: goes on.
    Claimed,
    /// Half removed: removed.
    Closing,
    /// Its container cannot be removed: number and uid stay taken.
    Quarantined {
        /// Since when, in milliseconds since 1970.
        time_ms: u64,
    },
    /// A lost workspace that is still listed.
    Failed {
        /// Why.
        cause: Cause,
        /// When, in milliseconds since 1970.
        time_ms: u64,
    },
}

/// What makes a slot a workspace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    /// Workspace id.
    pub workspace: String,
    /// Recognises retries of the request that made it; see `Create::request`.
    pub request: String,
    /// As given.
    pub labels: BTreeMap<String, String>,
    /// For every exec.
    pub env: BTreeMap<String, String>,
    /// Milliseconds since 1970.
    pub create_time_ms: u64,
    /// Milliseconds.
    pub idle_timeout_ms: u64,
    /// Milliseconds since 1970.
    pub end_time_ms: u64,
    /// Name → digest of staged skills.
    pub skills: BTreeMap<String, String>,
    /// Staged inputs, the latest last: at most [`INPUTS_MAX`], one per path.
    #[serde(default)]
    pub inputs: Vec<Input>,
}

/// Inputs that are remembered.
pub const INPUTS_MAX: usize = 1000;

/// An input that was staged.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Input {
    /// Relative to the workspace.
    pub path: String,
    /// As asked for; empty for bytes that came with the request.
    pub from: String,
    /// Of a URL: sha256 of all of it, its query included, which `from` leaves out and which may be a secret.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub url_sha256: String,
    /// What it was to be called.
    pub name: String,
    /// Of an artifact: app, user and session.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub scope: Vec<String>,
    /// Of an artifact.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<u64>,
    /// 64 hex digits; empty for a folder or link.
    pub sha256: String,
    /// Bytes.
    pub size: u64,
    /// Milliseconds since 1970.
    pub time_ms: u64,
}

impl Claim {
    /// Remembers inputs, and forgets what was at their paths before, and the oldest ones.
    pub fn remember(&mut self, inputs: Vec<Input>) {
        let same = |path: &str| inputs.iter().any(|input| input.path == path);
        self.inputs.retain(|input| !same(&input.path));
        self.inputs.extend(inputs);
        let over = self.inputs.len().saturating_sub(INPUTS_MAX);
        self.inputs.drain(..over);
    }
}

impl Record {
    /// Writes the record of a slot, without waiting for the disk: [`sync`] does. Blocks.
    ///
    /// # Errors
    /// When the host's disk fails or is full.
    pub fn write(&self, slot_dir: &Path) -> Result<()> {
        let bytes = serde_json::to_vec_pretty(self)
            .map_err(|error| Error::Internal(format!("encode slot record: {error}")))?;
        replace(&slot_dir.join(FILE), &bytes)
    }

    /// Reads the record of a slot. Blocks. `None` if there is none, or none that this version understands.
    ///
    /// # Errors
    /// When there may be one and the host's disk fails: that is no reason to take the slot for an orphan.
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
            Err(source) => {
                return Err(Error::Io {
                    operation: format!("read {}", path.display()),
                    source,
                });
            }
        };
        let record = serde_json::from_slice(&bytes).inspect_err(|error| {
            tracing::warn!(slot = %slot_dir.display(), %error, "slot record cannot be understood");
        });
        Ok(record
            .ok()
            .filter(|record: &Self| record.version == VERSION))
    }
}

/// Waits until the record of a slot is on the disk. OK if there is none any more. Blocks.
///
/// # Errors
/// When the host's disk fails.
pub fn sync(slot_dir: &Path) -> Result<()> {
    let sync = || -> io::Result<()> {
        fs::File::open(slot_dir.join(FILE))?.sync_data()?;
        fs::File::open(slot_dir)?.sync_all()
    };
    match sync() {
        Err(source) if source.kind() != io::ErrorKind::NotFound => Err(Error::Io {
            operation: format!("sync the record in {}", slot_dir.display()),
            source,
        }),
        _ => Ok(()),
    }
}

/// Writes a file by rename, so that readers see all of it or nothing. Blocks.
///
/// # Errors
/// When the host's disk fails or is full.
pub fn replace(path: &Path, bytes: &[u8]) -> Result<()> {
    let write = || -> io::Result<()> {
        let dir = path.parent().unwrap_or(Path::new("."));
        let mut file = tempfile::NamedTempFile::new_in(dir)?;
        file.write_all(bytes)?;
        // Slots' files are read by the container's uid; the directories above keep others out.
        let mode = PermissionsExt::from_mode(0o644);
        file.as_file().set_permissions(mode)?;
        file.persist(path).map_err(|error| error.error)?;
        Ok(())
    };
    write().map_err(|source| Error::Io {
        operation: format!("write {}", path.display()),
        source,
    })
}

/// Replaces the contents of a small JSON file in place, unless it has them already. A file that is mounted into a container
/// has to stay the same inode, so [`replace`] cannot write it.
///
/// The file holds valid JSON at every step, also when its disk is full:
///
/// 1. It is made as long as the new contents, with blanks at its end. This step alone needs space on the disk. When it
///    fails, the old contents are left.
/// 2. One write replaces the old contents by the new ones, with blanks at the end if those are shorter.
/// 3. The blanks are cut off.
///
/// The kernel may interrupt the write of several pages when the daemon is killed; the next start writes the file again.
/// A file system that copies blocks on write (Btrfs, ZFS) may need space for the second step as well. It then fails as a
/// whole for contents of one block, and may leave a mix of both for longer ones.
///
/// # Errors
/// When the host's disk fails or is full.
pub fn overwrite(path: &Path, bytes: &[u8]) -> Result<()> {
    let present = match fs::read(path) {
        Ok(present) if present == bytes => return Ok(()),
        Ok(present) => present.len(),
        // Slots of a version that did not make the file ahead. Nothing has mounted it.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return replace(path, bytes),
        Err(source) => {
            return Err(Error::Io {
                operation: format!("read {}", path.display()),
                source,
            });
        }
    };
    let write = || -> io::Result<()> {
        let file = fs::OpenOptions::new().write(true).open(path)?;
        let longer = vec![b' '; bytes.len().saturating_sub(present)];
        if let Err(error) = file.write_all_at(&longer, present as u64) {
            // The blanks are harmless if this fails as well; they would only hold the rest of a full disk.
            drop(file.set_len(present as u64));
            return Err(error);
        }
        file.write_all_at(&padded(bytes, present), 0)?;
        file.set_len(bytes.len() as u64)?;
        // The container's uid reads the slot's files; the directories above keep other users out.
        file.set_permissions(fs::Permissions::from_mode(0o644))
    };
    write().map_err(|source| Error::Io {
        operation: format!("write {}", path.display()),
        source,
    })
}

/// Returns the bytes with spaces at their end, at least `length` in all.
fn padded(bytes: &[u8], length: usize) -> Vec<u8> {
    let mut padded = bytes.to_vec();
    padded.resize(length.max(bytes.len()), b' ');
    padded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_valid_json_between_its_write_and_its_cut() {
        let old = b"{\"skills\": {\"a-long-name\": \"0123456789\"}}\n";
        for new in [&b"{}\n"[..], b"{\"skills\": {\"b\": \"1\"}}\n"] {
            let between = padded(new, old.len());
            assert_eq!(between.len(), old.len());
            let read: serde_json::Value = serde_json::from_slice(&between).expect("JSON");
            let written: serde_json::Value = serde_json::from_slice(new).expect("JSON");
            assert_eq!(read, written);
        }
        assert_eq!(padded(old, 3), old);
    }

    #[test]
    fn a_mounted_file_is_overwritten_in_place() {
        use std::os::unix::fs::MetadataExt;

        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("metadata.json");
        overwrite(&path, b"a text").expect("made");
        let before = fs::metadata(&path).expect("there");
        overwrite(&path, b"a longer text").expect("written");
        assert_eq!(fs::read(&path).expect("read"), b"a longer text");
        overwrite(&path, b"short").expect("written");
        let after = fs::metadata(&path).expect("there");
        assert_eq!(before.ino(), after.ino());
        assert_eq!(after.mode() & 0o777, 0o644);
        assert_eq!(fs::read(&path).expect("read"), b"short");
        overwrite(&path, b"short").expect("nothing to do");
        assert_eq!(
            fs::metadata(&path).expect("there").mtime_nsec(),
            after.mtime_nsec()
        );
    }

    fn sample() -> Record {
        Record {
            version: VERSION,
            number: 7,
            uid: 200_007,
            pool: "default".into(),
            image: "skilld/base:latest".into(),
            image_id: "sha256:0".into(),
            limits: Limits {
                memory_bytes: 1,
                cpu_millis: 2,
                pids: 3,
                disk_bytes: 4,
                inodes: 5,
            },
            oci_runtime: None,
            nonce: "00ff".into(),
            container_id: Some("c".into()),
            phase: Phase::Failed {
                cause: Cause::OomKilled,
                time_ms: 5,
            },
            claim: Some(Claim {
                workspace: "w".into(),
                request: "aa".into(),
                labels: BTreeMap::from([("k".into(), "v".into())]),
                env: BTreeMap::new(),
                create_time_ms: 1,
                idle_timeout_ms: 2,
                end_time_ms: 3,
                skills: BTreeMap::new(),
                inputs: Vec::new(),
            }),
        }
    }

    #[test]
    fn record_reads_back_as_written() {
        let dir = tempfile::tempdir().expect("temp dir");
        sample().write(dir.path()).expect("write");
        sync(dir.path()).expect("sync");
        assert_eq!(Record::read(dir.path()).expect("readable"), Some(sample()));
        assert_eq!(
            fs::read_dir(dir.path()).expect("list").count(),
            1,
            "no temporary file is left"
        );
    }

    #[test]
    fn damaged_and_foreign_records_are_no_records() {
        let dir = tempfile::tempdir().expect("temp dir");
        assert_eq!(Record::read(dir.path()).expect("readable"), None);
        for bytes in [&b"{"[..], b"", b"{\"version\":1}", b"\xff\xfe"] {
            fs::write(dir.path().join(FILE), bytes).expect("write");
            assert_eq!(Record::read(dir.path()).expect("readable"), None);
        }
        Record {
            version: VERSION + 1,
            ..sample()
        }
        .write(dir.path())
        .expect("write");
        assert_eq!(Record::read(dir.path()).expect("readable"), None);
    }
}
