//! Ids of forgotten execs. A start that is repeated after its exec was forgotten must not run the command again.

use std::collections::{HashSet, VecDeque};
use std::hash::{BuildHasher, RandomState};

/// Maximum number of remembered ids. The oldest are dropped first.
const IDS_MAX: usize = 8192;

/// Bounded set of the ids of forgotten execs, kept as hashes.
#[derive(Debug, Default)]
pub(super) struct ForgottenIds {
    keys: RandomState,
    known: HashSet<u64>,
    order: VecDeque<u64>,
}

impl ForgottenIds {
    /// Adds an id and drops the oldest one if there are too many.
    pub(super) fn add(&mut self, id: &str) {
        let key = self.keys.hash_one(id);
        if !self.known.insert(key) {
            return;
        }
        self.order.push_back(key);
        if self.order.len() > IDS_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.known.remove(&oldest);
        }
    }

    /// Returns `true` if the id is remembered.
    pub(super) fn contains(&self, id: &str) -> bool {
        self.known.contains(&self.keys.hash_one(id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_api_says_how_many_ids_are_remembered() {
        let api = include_str!("../../../../../proto/skilld/v1/exec.proto");
        let ids = format!("last {},{:03} ids", IDS_MAX / 1000, IDS_MAX % 1000);
        assert!(api.contains(&ids), "{ids}");
    }

    #[test]
    fn the_latest_ids_are_remembered_and_no_more() {
        let mut forgotten = ForgottenIds::default();
        for number in 0..=IDS_MAX {
            forgotten.add(&format!("exec{number}"));
            forgotten.add("exec1");
        }
        assert!(!forgotten.contains("exec0"));
        assert!(forgotten.contains("exec2"));
        assert!(forgotten.contains(&format!("exec{IDS_MAX}")));
        assert_eq!(forgotten.order.len(), IDS_MAX);
        assert_eq!(forgotten.known.len(), IDS_MAX);
    }
}
