//! Cache of what follows from a digest alone: its files never change, so they are read once.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::error::Result;

/// Maximum weight of all cached values together. A file of a manifest has the weight 1 and takes about 300 bytes.
const WEIGHT_MAX: usize = 20_000;

/// Cache of values by digest.
#[derive(Debug)]
pub(crate) struct DigestCache<T> {
    kept: Mutex<HashMap<String, Arc<T>>>,
    /// Returns the weight of a value.
    weight: fn(&T) -> usize,
}

impl<T> DigestCache<T> {
    /// Makes an empty cache.
    pub(crate) fn new(weight: fn(&T) -> usize) -> Self {
        Self {
            kept: Mutex::default(),
            weight,
        }
    }

    /// Returns the value of a digest, which `read` makes if it is not cached.
    pub(crate) fn get_or_read(
        &self,
        digest: &str,
        read: impl FnOnce() -> Result<T>,
    ) -> Result<Arc<T>> {
        if let Some(value) = self.kept().get(digest) {
            return Ok(Arc::clone(value));
        }
        // Reading happens outside the lock, so that others do not wait for a large skill.
        let value = Arc::new(read()?);
        let mut kept = self.kept();
        let weight: usize = kept.values().map(|value| (self.weight)(value) + 1).sum();
        if weight + (self.weight)(&value) > WEIGHT_MAX {
            kept.clear();
        }
        kept.insert(digest.to_owned(), Arc::clone(&value));
        Ok(value)
    }

    fn kept(&self) -> MutexGuard<'_, HashMap<String, Arc<T>>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
