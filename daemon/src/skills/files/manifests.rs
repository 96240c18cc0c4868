//! Manifests that were made: a digest's never changes, so it is read and hashed once.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use super::Manifest;
use crate::error::Result;

/// Files of all manifests that are kept together; one takes about 300 bytes.
const FILES_MAX: usize = 20_000;

/// Manifests by digest.
#[derive(Debug, Default)]
pub(in crate::skills) struct Manifests {
    kept: Mutex<HashMap<String, Arc<Manifest>>>,
}

impl Manifests {
    /// The manifest of a digest, made by `read` if it is not there.
    pub(in crate::skills) fn get(
        &self,
        digest: &str,
        read: impl FnOnce() -> Result<Manifest>,
    ) -> Result<Arc<Manifest>> {
        let locked = || self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(manifest) = locked().get(digest) {
            return Ok(Arc::clone(manifest));
        }
        // Not under the lock: others need not wait for a large one.
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
