//! Cache of manifests by digest: the files of a digest never change, so they are read and hashed once.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use super::Manifest;
use crate::error::Result;

/// Maximum number of files in all cached manifests together; one takes about 300 bytes.
const FILES_MAX: usize = 20_000;

/// Cache of manifests by digest.
#[derive(Debug, Default)]
pub(crate) struct ManifestCache {
    kept: Mutex<HashMap<String, Arc<Manifest>>>,
}

impl ManifestCache {
    /// Returns the manifest of a digest, which `read` makes if it is not cached.
    pub(crate) fn get_or_read(
        &self,
        digest: &str,
        read: impl FnOnce() -> Result<Manifest>,
    ) -> Result<Arc<Manifest>> {
        let locked = || self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(manifest) = locked().get(digest) {
            return Ok(Arc::clone(manifest));
        }
        // Reading happens outside the lock, so that others do not wait for a large skill.
        let manifest = Arc::new(read()?);
        let mut kept = locked();
        let files: usize = kept
            .values()
            .map(|manifest| manifest.files().len() + 1)
            .sum();
        if files + manifest.files().len() > FILES_MAX {
            kept.clear();
        }
        kept.insert(digest.to_owned(), Arc::clone(&manifest));
        Ok(manifest)
    }
}
