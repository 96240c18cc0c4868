//! Table of the environments of a store: which one a key finds, when each was used, and which may be removed. Pure.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::super::environment_record::{EnvironmentKey, EnvironmentRecord, PreparedEnvironment};

/// Environments by name, and by what they were built from.
#[derive(Debug, Default)]
pub(super) struct EnvironmentTable {
    environments: HashMap<String, StoredEnvironment>,
    /// Name of the latest environment of each key. The others have been replaced, or have no usable record.
    latest: HashMap<EnvironmentKey, String>,
}

/// Environment on disk.
#[derive(Debug)]
pub(super) struct StoredEnvironment {
    /// Record. A call that holds it as well is using the environment.
    pub(super) record: Arc<EnvironmentRecord>,
    /// Time of the last use.
    pub(super) last_use: SystemTime,
    /// Names of the skills that it was prepared for.
    pub(super) prepared_for: BTreeSet<String>,
    /// `true` if it stays although nothing uses it, because one of those skills needs it.
    pub(super) is_kept: bool,
}

impl EnvironmentTable {
    /// Adds an environment that no key finds.
    pub(super) fn add(&mut self, environment: StoredEnvironment) {
        let name = environment.record.name.clone();
        self.environments.insert(name, environment);
    }

    /// Makes an environment the one that its key finds, unless a later one has the same key.
    pub(super) fn publish(&mut self, name: &str) {
        let Some(new) = self.environments.get(name) else {
            return;
        };
        let key = &new.record.key;
        let present = self
            .latest
            .get(key)
            .and_then(|name| self.environments.get(name));
        if present.is_none_or(|present| present.record.create_time_ms <= new.record.create_time_ms)
        {
            self.latest.insert(key.clone(), name.to_owned());
        }
    }

    /// Returns the environment of a key.
    pub(super) fn find(&mut self, key: &EnvironmentKey) -> Option<&mut StoredEnvironment> {
        self.environments.get_mut(self.latest.get(key)?)
    }

    /// Returns an environment by its name.
    pub(super) fn get(&mut self, name: &str) -> Option<&mut StoredEnvironment> {
        self.environments.get_mut(name)
    }

    /// Returns `true` if an environment is on disk.
    pub(super) fn has(&self, name: &str) -> bool {
        self.environments.contains_key(name)
    }

    /// Removes an environment.
    pub(super) fn forget(&mut self, name: &str) {
        self.hide(name);
        self.environments.remove(name);
    }

    /// Returns the environments that were prepared for skills.
    pub(super) fn prepared(&self) -> Vec<PreparedEnvironment> {
        let prepared = self
            .environments
            .iter()
            .filter(|(_, environment)| !environment.prepared_for.is_empty());
        prepared
            .map(|(name, environment)| PreparedEnvironment {
                name: name.clone(),
                key: environment.record.key.clone(),
                skills: environment.prepared_for.clone(),
            })
            .collect()
    }

    /// Returns the time of the last use of each environment.
    pub(super) fn last_uses(&self) -> Vec<(String, SystemTime)> {
        let uses = self.environments.iter();
        uses.map(|(name, environment)| (name.clone(), environment.last_use))
            .collect()
    }

    /// Notes which of the examined environments are needed. One that was prepared for another skill since then is kept.
    pub(super) fn note_needs(
        &mut self,
        examined: &[PreparedEnvironment],
        needed: &HashSet<String>,
    ) {
        for prepared in examined {
            if let Some(environment) = self.environments.get_mut(&prepared.name)
                && environment.prepared_for == prepared.skills
            {
                environment.is_kept = needed.contains(&prepared.name);
            }
        }
    }

    /// Notes which environments are used now.
    pub(super) fn note_uses(&mut self, used: &HashSet<String>, now: SystemTime) {
        for (name, environment) in &mut self.environments {
            if used.contains(name) {
                environment.last_use = now;
            }
        }
    }

    /// Returns the names of the environments that are in use: those of `in_use`, and those whose records calls hold.
    ///
    /// `in_use` is asked last: a call lets go of a record only after its workspace has the environment.
    pub(super) fn used(&self, in_use: &dyn Fn() -> HashSet<String>) -> HashSet<String> {
        let held = self.environments.iter();
        let held = held.filter(|(_, environment)| Arc::strong_count(&environment.record) > 1);
        let held: Vec<String> = held.map(|(name, _)| name.clone()).collect();
        let mut used = in_use();
        used.extend(held);
        used
    }

    /// Hides the environments that nothing has used for `keep`. Returns their names.
    pub(super) fn hide_unused(
        &mut self,
        keep: Duration,
        used: &HashSet<String>,
        now: SystemTime,
    ) -> Vec<String> {
        // A time in the future has no age.
        let is_old = |last: SystemTime| now.duration_since(last).is_ok_and(|age| age >= keep);
        let unused = self
            .removable(used)
            .filter(|environment| is_old(environment.last_use));
        let names: Vec<String> = unused
            .map(|environment| environment.record.name.clone())
            .collect();
        names.iter().for_each(|name| self.hide(name));
        names
    }

    /// Hides so many environments, in the order of their last use, that the others have at most `bytes_max` bytes.
    /// Returns their names; `None` if too much is used or kept.
    pub(super) fn hide_oldest(
        &mut self,
        bytes_max: u64,
        used: &HashSet<String>,
    ) -> Option<Vec<String>> {
        let sizes = self.environments.values();
        let mut bytes: u64 = sizes.map(|environment| environment.record.bytes).sum();
        let mut removable: Vec<&StoredEnvironment> = self.removable(used).collect();
        removable.sort_by_key(|environment| environment.last_use);
        let mut names = Vec::new();
        for environment in removable {
            if bytes <= bytes_max {
                break;
            }
            bytes -= environment.record.bytes;
            names.push(environment.record.name.clone());
        }
        if bytes > bytes_max {
            return None;
        }
        names.iter().for_each(|name| self.hide(name));
        Some(names)
    }

    /// Returns the environments that nothing uses or keeps.
    fn removable(&self, used: &HashSet<String>) -> impl Iterator<Item = &StoredEnvironment> {
        self.environments.values().filter(|environment| {
            let StoredEnvironment {
                record, is_kept, ..
            } = environment;
            let is_latest = self.latest.get(&record.key) == Some(&record.name);
            let is_needed = *is_kept && is_latest;
            !is_needed && !used.contains(&record.name)
        })
    }

    /// Makes sure that no key finds an environment.
    fn hide(&mut self, name: &str) {
        self.latest.retain(|_, latest| latest != name);
    }
}
