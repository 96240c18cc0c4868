//! File of the ledger's days in the state directory.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};
use skilld_common::atomic_write::AtomicWrite;

use super::UsageCounters;
use crate::access::TenantName;
use crate::error::{Error, Result};

/// Name of the file.
const FILE: &str = "usage.json";
/// Version of the format.
const VERSION: u32 = 1;

/// Counters by the number of the day since 1970.
type Days = BTreeMap<u64, UsageCounters>;

/// Contents of the file.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct UsageFile {
    version: u32,
    /// Time at which the file was written, in milliseconds since 1970.
    pub(super) saved_ms: u64,
    /// Days of each tenant.
    pub(super) tenants: BTreeMap<TenantName, Days>,
}

impl UsageFile {
    /// Makes a file without tenants.
    pub(super) fn new(saved_ms: u64) -> Self {
        Self {
            version: VERSION,
            saved_ms,
            tenants: BTreeMap::new(),
        }
    }
}

/// Loads the file; `None` if it is absent or cannot be understood. Blocks.
pub(super) fn load(state_dir: &Path) -> Option<UsageFile> {
    let path = state_dir.join(FILE);
    let read = std::fs::read(&path).and_then(|bytes| {
        let file: UsageFile = serde_json::from_slice(&bytes)?;
        (file.version == VERSION)
            .then_some(file)
            .ok_or_else(|| io::Error::other("it is of another version"))
    });
    match read {
        Ok(file) => Some(file),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => {
            tracing::warn!(path = %path.display(), %error, "usage of past days is lost");
            None
        }
    }
}

/// Replaces the file atomically. Blocks.
///
/// # Errors
/// When the host's disk fails or is full.
pub(super) fn save(
    state_dir: &Path,
    saved_ms: u64,
    tenants: BTreeMap<TenantName, Days>,
) -> Result<()> {
    let file = UsageFile {
        tenants,
        ..UsageFile::new(saved_ms)
    };
    let path = state_dir.join(FILE);
    let write = || -> io::Result<()> {
        let bytes = serde_json::to_vec(&file)?;
        let written = AtomicWrite::new(state_dir, &bytes, 0o600)?.sync()?;
        written.install(&path)
    };
    write().map_err(|source| Error::io(format!("write {}", path.display()), source))
}
