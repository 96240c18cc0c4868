//! Table of the environments of a store: which one a key finds, when each was used, and which may be removed. Pure.

use std::cmp::Reverse;
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

/// Reason for which there is no room for a new environment.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum RoomShortage {
    /// The tenant counts so many bytes that the new ones exceed its quota.
    OfTenant { used: u64, limit: u64 },
    /// The store is full of environments that have to stay.
    OfStore,
}

/// Environments that are chosen for removal, and the bytes that each tenant counts without them.
#[derive(Debug, Default)]
struct ChosenRemovals<'a> {
    held: HashMap<&'a str, u64>,
    chosen: Vec<&'a str>,
}

impl<'a> ChosenRemovals<'a> {
    fn held_by(&self, environment: &StoredEnvironment) -> u64 {
        self.of_tenant(&environment.record.key.tenant)
    }

    fn of_tenant(&self, tenant: &str) -> u64 {
        self.held.get(tenant).copied().unwrap_or_default()
    }

    fn total(&self) -> u64 {
        self.held.values().sum()
    }

    fn choose(&mut self, environment: &'a StoredEnvironment) {
        let record = &environment.record;
        if let Some(held) = self.held.get_mut(record.key.tenant.as_str())
            && !self.chosen.contains(&record.name.as_str())
        {
            *held -= record.held_bytes();
            self.chosen.push(&record.name);
        }
    }

    fn into_names(self) -> Vec<String> {
        self.chosen.into_iter().map(str::to_owned).collect()
    }
}

impl EnvironmentTable {
    /// Returns the bytes that count for the environments of a tenant.
    pub(super) fn held_bytes(&self, tenant: &str) -> u64 {
        let records = self.environments.values().map(|stored| &stored.record);
        let own = records.filter(|record| record.key.tenant == tenant);
        own.map(|record| record.held_bytes()).sum()
    }

    /// Hides so many environments that there is room for a new one. Returns their names.
    ///
    /// Of those that nothing uses or keeps, the tenant's own make room within its quota, and those of all tenants in the
    /// store, in the order of their last use. If that is not enough, prepared ones that nothing uses make room as long as
    /// their tenant counts more than the new one's would.
    ///
    /// # Errors
    /// [`RoomShortage`]; nothing is hidden then.
    pub(super) fn make_room(
        &mut self,
        new: &EnvironmentRecord,
        bytes_quota: Option<u64>,
        bytes_max: u64,
        used: &HashSet<String>,
    ) -> Result<Vec<String>, RoomShortage> {
        let mut removals = self.begin_removals();
        let own = new.key.tenant.as_str();
        *removals.held.entry(own).or_default() += new.held_bytes();
        let unused = self.list_removable(used);
        for &environment in &unused {
            let has_room = bytes_quota.is_none_or(|quota| removals.of_tenant(own) <= quota);
            if !has_room && environment.record.key.tenant == own {
                removals.choose(environment);
            }
        }
        if let Some(limit) = bytes_quota.filter(|quota| removals.of_tenant(own) > *quota) {
            let used = self.held_bytes(own);
            return Err(RoomShortage::OfTenant { used, limit });
        }
        for &environment in &unused {
            if removals.total() > bytes_max {
                removals.choose(environment);
            }
        }
        let mut prepared: Vec<&StoredEnvironment> = self.environments.values().collect();
        prepared.retain(|environment| {
            let name = &environment.record.name;
            !used.contains(name) && !removals.chosen.contains(&name.as_str())
        });
        while removals.total() > bytes_max {
            let others = prepared
                .iter()
                .copied()
                .filter(|one| removals.held_by(one) > removals.of_tenant(own));
            let largest = others.max_by_key(|one| (removals.held_by(one), Reverse(one.last_use)));
            let victim = largest.ok_or(RoomShortage::OfStore)?;
            removals.choose(victim);
            prepared.retain(|one| one.record.name != victim.record.name);
        }
        let names = removals.into_names();
        Ok(self.hide_all(names))
    }

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
        let held: Vec<String> = self
            .environments
            .iter()
            .filter(|(_, environment)| Arc::strong_count(&environment.record) > 1)
            .map(|(name, _)| name.clone())
            .collect();
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

    /// Hides so many of the environments that nothing uses or keeps, in the order of their last use, that all others count
    /// at most `bytes_max` bytes, if that is possible. Returns their names.
    pub(super) fn hide_oldest(&mut self, bytes_max: u64, used: &HashSet<String>) -> Vec<String> {
        let mut removals = self.begin_removals();
        for environment in self.list_removable(used) {
            if removals.total() > bytes_max {
                removals.choose(environment);
            }
        }
        let names = removals.into_names();
        self.hide_all(names)
    }

    fn begin_removals(&self) -> ChosenRemovals<'_> {
        let mut removals = ChosenRemovals::default();
        for stored in self.environments.values() {
            let tenant = stored.record.key.tenant.as_str();
            *removals.held.entry(tenant).or_default() += stored.record.held_bytes();
        }
        removals
    }

    /// Returns the environments that nothing uses or keeps, the least recently used first.
    fn list_removable(&self, used: &HashSet<String>) -> Vec<&StoredEnvironment> {
        let mut removable: Vec<&StoredEnvironment> = self.removable(used).collect();
        removable.sort_by_key(|environment| environment.last_use);
        removable
    }

    fn hide_all(&mut self, names: Vec<String>) -> Vec<String> {
        names.iter().for_each(|name| self.hide(name));
        names
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
