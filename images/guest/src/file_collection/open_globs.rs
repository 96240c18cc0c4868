//! Globs of a collection without a changed match. The summary names those that match nothing, and a file of those whose
//! matches are all unchanged.

use std::collections::{BTreeMap, BTreeSet};

use super::glob::GlobSet;

/// Globs by their numbers that have matched no changed entry yet, each with the first unchanged one.
#[derive(Debug, Default)]
pub(super) struct OpenGlobs(BTreeMap<usize, Option<Vec<u8>>>);

impl OpenGlobs {
    /// Returns all globs of a request that has this number of them.
    pub(super) fn new(count: usize) -> Self {
        Self((0..count).map(|number| (number, None)).collect())
    }

    /// Records an entry that a glob matches.
    pub(super) fn record(&mut self, globs: &GlobSet, path: &[u8], is_changed: bool) {
        if self.0.is_empty() {
            return;
        }
        for number in globs.matching(path) {
            if is_changed {
                self.0.remove(&number);
            } else if let Some(first) = self.0.get_mut(&number) {
                first.get_or_insert_with(|| path.to_vec());
            }
        }
    }

    /// Returns those of the request's globs that have matched nothing.
    pub(super) fn unmatched(&self, globs: Vec<String>) -> Vec<String> {
        globs
            .into_iter()
            .enumerate()
            .filter(|(number, _)| self.0.get(number) == Some(&None))
            .map(|(_, glob)| glob)
            .collect()
    }

    /// Returns the first match of each glob whose matches are all unchanged.
    pub(super) fn into_unchanged(self) -> BTreeSet<Vec<u8>> {
        self.0.into_values().flatten().collect()
    }
}
