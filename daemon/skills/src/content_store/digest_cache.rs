//! Cache of what follows from a digest alone: its files never change, so they are read once.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::error::Result;

/// Maximum weight of all cached values together, each with 1 for itself. A single value may be heavier.
const WEIGHT_MAX: usize = 20_000;
/// Size in bytes of a value of the weight 1, for instance of a file of a manifest.
pub(crate) const WEIGHT_BYTES: usize = 300;

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
        if let Some(value) = self.kept.lock().get(digest) {
            return Ok(Arc::clone(value));
        }
        // Reading happens outside the lock, so that others do not wait for a large skill.
        let value = Arc::new(read()?);
        let mut kept = self.kept.lock();
        let weight: usize = kept.values().map(|value| (self.weight)(value) + 1).sum();
        if weight + (self.weight)(&value) > WEIGHT_MAX {
            kept.clear();
        }
        kept.insert(digest.to_owned(), Arc::clone(&value));
        Ok(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse::environment_need::{EnvironmentNeed, NodeProject};

    #[test]
    fn cached_needs_are_bounded_by_their_bytes() {
        let cache = DigestCache::new(|need: &EnvironmentNeed| need.size() / WEIGHT_BYTES);
        for number in 0..100 {
            let read = || {
                let project = NodeProject {
                    lock: vec![b'x'; 1 << 20],
                    ..NodeProject::default()
                };
                let mut need = EnvironmentNeed::default();
                need.node_projects.push(project);
                Ok(need)
            };
            cache.get_or_read(&number.to_string(), read).expect("read");
        }
        let bytes: usize = cache.kept.lock().values().map(|need| need.size()).sum();
        assert!((1 << 20..=6 << 20).contains(&bytes), "{bytes}");
    }
}
