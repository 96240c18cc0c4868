//! Position of the chain's end, kept in the state directory. With it the chain continues where the log's own end is
//! missing: after a rotation while the daemon was stopped, and after records were cut off. The file also keeps the
//! losses that the log could not report before the daemon stopped.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use skilld_common::audit_chain::ChainPosition;

use crate::error::{Error, Result, tolerate};

/// Name of the file in the state directory.
const CHAIN_FILE: &str = "audit-chain";
/// Length of the file, in bytes. The JSON is filled up with spaces, so that each write replaces the one before.
const FILE_BYTES: usize = 256;

/// Contents of the file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
pub(super) struct ChainState {
    /// Position of the last line.
    #[serde(flatten)]
    pub(super) position: ChainPosition,
    /// Losses that no line reports yet.
    #[serde(flatten)]
    pub(super) losses: UnreportedLosses,
}

/// Losses that no line of the log reports yet.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
#[serde(default)]
pub(super) struct UnreportedLosses {
    /// Number of records that were not written.
    #[serde(skip_serializing_if = "is_zero")]
    pub(super) lost: u64,
    /// Number of records that may not have reached the disk.
    #[serde(skip_serializing_if = "is_zero")]
    pub(super) unsynced: u64,
    /// Length of incomplete lines that were removed, in bytes.
    #[serde(skip_serializing_if = "is_zero")]
    pub(super) removed_bytes: u64,
}

pub(super) fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// Open file with the position of the chain's end.
#[derive(Debug)]
pub(super) struct ChainFile(File);

impl ChainFile {
    /// Opens or creates the file of a state directory, and reads its contents; `None` if it has none. Blocks the
    /// thread.
    ///
    /// # Errors
    /// [`Error`] if the file can't be opened or read.
    pub(super) fn open(state_dir: &Path) -> Result<(Self, Option<ChainState>)> {
        let path = state_dir.join(CHAIN_FILE);
        let failed = |source| Error::io(format!("open {}", path.display()), source);
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)
            .map_err(failed)?;
        let mut bytes = [0; FILE_BYTES];
        let read = file.read_at(&mut bytes, 0).map_err(failed)?;
        let written = bytes.get(..read).unwrap_or_default();
        let state = serde_json::from_slice(written).ok();
        if state.is_none() && !written.is_empty() {
            tracing::warn!(path = %path.display(), "the file does not hold the position of the audit log: ignored");
        }
        Ok((Self(file), state))
    }

    /// Checks that [`Self::open`] would succeed with a file that exists. Blocks the thread.
    ///
    /// # Errors
    /// Those of [`Self::open`].
    pub(super) fn check(state_dir: &Path) -> Result<()> {
        let path = state_dir.join(CHAIN_FILE);
        let opened = OpenOptions::new().read(true).write(true).open(&path);
        let found = tolerate(io::ErrorKind::NotFound, opened.map(drop));
        found.map_err(|source| Error::io(format!("open {}", path.display()), source))
    }

    /// Writes new contents.
    pub(super) fn write(&self, state: ChainState) -> io::Result<()> {
        let json = serde_json::to_string(&state)?;
        let text = format!("{json:<width$}\n", width = FILE_BYTES - 1);
        self.0.write_all_at(text.as_bytes(), 0)
    }
}

#[cfg(test)]
mod tests {
    use skilld_common::audit_chain::LineHash;

    use super::*;

    #[test]
    fn the_largest_state_fits_and_an_earlier_format_is_read() {
        let dir = tempfile::tempdir().expect("directory");
        let largest = ChainState {
            position: ChainPosition {
                sequence: u64::MAX,
                hash: LineHash::of_line(b"x"),
            },
            losses: UnreportedLosses {
                lost: u64::MAX,
                unsynced: u64::MAX,
                removed_bytes: u64::MAX,
            },
        };
        let (file, found) = ChainFile::open(dir.path()).expect("made");
        assert_eq!(found, None);
        file.write(largest).expect("written");
        let path = dir.path().join(CHAIN_FILE);
        let length = std::fs::metadata(&path).expect("file").len();
        assert_eq!(length, FILE_BYTES as u64);
        assert_eq!(ChainFile::open(dir.path()).expect("read").1, Some(largest));
        let json = serde_json::to_string(&largest.position).expect("JSON");
        std::fs::write(&path, format!("{json:<127}\n")).expect("written");
        let earlier = ChainState {
            position: largest.position,
            losses: UnreportedLosses::default(),
        };
        assert_eq!(ChainFile::open(dir.path()).expect("read").1, Some(earlier));
    }
}
