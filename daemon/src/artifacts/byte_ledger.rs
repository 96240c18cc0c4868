//! Ledger of the bytes that each tenant's artifacts take: gives saves their room within a quota, and follows every change
//! of the records.
//!
//! The amounts live in memory. A count ([`super::counting`]) walks all records in the order of their keys while saves
//! and deletions go on. Each change is announced before its effect and reported after it, so that every record is
//! counted once: by the count, or by its change.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use object_store::path::Path;
use tokio::sync::{Notify, watch};

use crate::access::TenantName;
use crate::error::{Error, Result};

/// Name of the quota in the file of tenants.
const RESOURCE: &str = "artifact_bytes";

/// Bytes by tenant.
type BytesByTenant = BTreeMap<TenantName, u64>;

/// Ledger of the bytes of all tenants. Clones share it.
#[derive(Debug, Clone)]
pub(super) struct ByteLedger(Arc<SharedLedger>);

#[derive(Debug)]
struct SharedLedger {
    state: Mutex<LedgerState>,
    /// `true` once the first count is complete.
    is_counted: watch::Sender<bool>,
    /// Wakes the task that counts.
    recount: Notify,
}

#[derive(Debug, Default)]
struct LedgerState {
    /// Bytes of visible versions.
    held: BytesByTenant,
    /// Bytes of versions whose records are being created.
    reserved: BytesByTenant,
    /// Records that are being created or removed, by key. A count leaves them to their change.
    changing: BTreeMap<Path, ChangingRecord>,
    count: Option<RunningCount>,
    /// Number of counts that have begun.
    generation: u64,
}

/// Record that is being created or removed.
#[derive(Debug)]
struct ChangingRecord {
    /// Tenant and bytes of a record that is being removed, which count as held until its end; `None` for a new one.
    removal: Option<(TenantName, u64)>,
    /// Generation of the count that has the record's bytes; `None` if none has.
    counted_by: Option<u64>,
}

/// Count that has not reached the last record.
#[derive(Debug, Default)]
struct RunningCount {
    held: BytesByTenant,
    /// Key of the last record that the count has passed.
    passed: Option<Path>,
    /// Keys that the count has not passed and whose change has ended, with `true` if `held` has their bytes.
    changed: BTreeMap<Path, bool>,
}

/// Room that a save has taken. Dropping it gives the room back.
#[derive(Debug)]
pub(super) struct ByteReservation {
    ledger: ByteLedger,
    tenant: TenantName,
    bytes: u64,
}

/// Announced change of one record. Dropping it reports that nothing has changed.
#[derive(Debug)]
pub(super) struct RecordChange {
    ledger: ByteLedger,
    key: Path,
}

// === impl ByteLedger ===

impl Default for ByteLedger {
    fn default() -> Self {
        Self(Arc::new(SharedLedger {
            state: Mutex::default(),
            is_counted: watch::Sender::new(false),
            recount: Notify::new(),
        }))
    }
}

impl ByteLedger {
    /// Returns the bytes that a tenant holds: before the end of the first count, those that were found so far.
    pub(super) fn used(&self, tenant: &TenantName) -> u64 {
        self.lock().used(tenant, self.is_counted())
    }

    /// Returns `true` once the first count is complete.
    pub(super) fn is_counted(&self) -> bool {
        *self.0.is_counted.borrow()
    }

    /// Waits until the first count is complete, at most for `patience`.
    pub(super) async fn wait_until_counted(&self, patience: Duration) {
        let mut counted = self.0.is_counted.subscribe();
        // Without a complete count, `reserve` refuses.
        let _late = tokio::time::timeout(patience, counted.wait_for(|counted| *counted)).await;
    }

    /// Checks that a save of at least this size can succeed.
    ///
    /// # Errors
    /// `TenantQuota`; `Storage` if a tenant with a quota is not counted yet.
    pub(super) fn check_room(
        &self,
        tenant: &TenantName,
        bytes: u64,
        quota: Option<u64>,
    ) -> Result<()> {
        self.lock()
            .check_room(tenant, bytes, quota, self.is_counted())
    }

    /// Takes room for a version that is about to be published.
    ///
    /// # Errors
    /// As [`Self::check_room`].
    pub(super) fn reserve(
        &self,
        tenant: &TenantName,
        bytes: u64,
        quota: Option<u64>,
    ) -> Result<ByteReservation> {
        let mut state = self.lock();
        state.check_room(tenant, bytes, quota, self.is_counted())?;
        add(&mut state.reserved, tenant, bytes);
        Ok(ByteReservation {
            ledger: self.clone(),
            tenant: tenant.clone(),
            bytes,
        })
    }

    /// Announces that a record with this key is about to be created.
    pub(super) fn begin_creation(&self, key: &Path) -> RecordChange {
        self.begin_change(key, None)
    }

    /// Announces that the record with this key, of a version with this size, is about to be removed.
    pub(super) fn begin_removal(
        &self,
        key: &Path,
        tenant: &TenantName,
        bytes: u64,
    ) -> RecordChange {
        self.begin_change(key, Some((tenant.clone(), bytes)))
    }

    fn begin_change(&self, key: &Path, removal: Option<(TenantName, u64)>) -> RecordChange {
        let mut guard = self.lock();
        let state = &mut *guard;
        let has_bytes = |count: &&RunningCount| {
            count.has_passed(key) || count.changed.get(key).copied().unwrap_or_default()
        };
        let counted_by = state.count.as_ref().filter(has_bytes);
        let changing = ChangingRecord {
            removal,
            counted_by: counted_by.map(|_| state.generation),
        };
        state.changing.insert(key.clone(), changing);
        RecordChange {
            ledger: self.clone(),
            key: key.clone(),
        }
    }

    /// Begins a count from the first record.
    pub(super) fn begin_count(&self) {
        let mut state = self.lock();
        state.generation += 1;
        state.count = Some(RunningCount::default());
    }

    /// Adds the next records of the running count, which are those up to `last`.
    pub(super) fn add_counted(&self, records: Vec<(Path, TenantName, u64)>, last: &Path) {
        let mut guard = self.lock();
        let state = &mut *guard;
        let Some(count) = &mut state.count else {
            return;
        };
        for (key, tenant, bytes) in records {
            if !state.changing.contains_key(&key) && !count.changed.contains_key(&key) {
                add(&mut count.held, &tenant, bytes);
            }
        }
        count.changed = count.changed.split_off(last);
        count.changed.remove(last);
        count.passed = Some(last.clone());
    }

    /// Ends the running count and puts its amounts in place of the known ones. Returns their sum.
    pub(super) fn finish_count(&self) -> u64 {
        let mut guard = self.lock();
        let state = &mut *guard;
        if let Some(count) = state.count.take() {
            state.held = count.held;
            for record in state.changing.values() {
                if let Some((tenant, bytes)) = &record.removal
                    && record.counted_by != Some(state.generation)
                {
                    add(&mut state.held, tenant, *bytes);
                }
            }
        }
        let sum = state.held.values().sum();
        drop(guard);
        self.0.is_counted.send_replace(true);
        sum
    }

    /// Asks for a new count, because what the store has is not certain.
    pub(super) fn request_recount(&self) {
        self.0.recount.notify_one();
    }

    /// Waits until a new count is asked for.
    pub(super) async fn recount_requested(&self) {
        self.0.recount.notified().await;
    }

    /// Returns the tenants that hold more than this, with the excess.
    pub(super) fn excess_over(&self, limit: u64) -> BytesByTenant {
        let state = self.lock();
        let over = state.held.iter().filter_map(|(tenant, held)| {
            let excess = held.checked_sub(limit).filter(|excess| *excess > 0)?;
            Some((tenant.clone(), excess))
        });
        over.collect()
    }

    fn lock(&self) -> MutexGuard<'_, LedgerState> {
        // No code panics while it holds the lock, so the amounts are consistent.
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl LedgerState ===

impl LedgerState {
    fn used(&self, tenant: &TenantName, is_counted: bool) -> u64 {
        let held = match &self.count {
            Some(count) if !is_counted => &count.held,
            _ => &self.held,
        };
        let of = |bytes: &BytesByTenant| bytes.get(tenant).copied().unwrap_or_default();
        of(held).saturating_add(of(&self.reserved))
    }

    fn check_room(
        &self,
        tenant: &TenantName,
        bytes: u64,
        quota: Option<u64>,
        is_counted: bool,
    ) -> Result<()> {
        let Some(limit) = quota else {
            return Ok(());
        };
        if !is_counted {
            return Err(Error::Storage {
                operation: "save within the quota",
                why: "the artifacts are still being counted after the start of the server",
            });
        }
        let used = self.used(tenant, is_counted);
        // An empty version takes no bytes, but a quota of 0 permits none at all.
        if limit == 0 || used.saturating_add(bytes) > limit {
            return Err(Error::TenantQuota {
                tenant: tenant.to_string(),
                resource: RESOURCE,
                used,
                limit,
                retry_after: None,
            });
        }
        Ok(())
    }

    /// Moves reserved bytes to the held ones.
    fn commit_reservation(&mut self, key: &Path, tenant: &TenantName, bytes: u64) {
        self.changing.remove(key);
        subtract(&mut self.reserved, tenant, bytes);
        add(&mut self.held, tenant, bytes);
        if let Some(count) = &mut self.count {
            add(&mut count.held, tenant, bytes);
            count.note_changed(key, true);
        }
    }
}

// === impl RunningCount ===

impl RunningCount {
    fn has_passed(&self, key: &Path) -> bool {
        self.passed.as_ref().is_some_and(|passed| key <= passed)
    }

    fn note_changed(&mut self, key: &Path, has_bytes: bool) {
        if !self.has_passed(key) {
            self.changed.insert(key.clone(), has_bytes);
        }
    }
}

// === impl ByteReservation ===

impl Drop for ByteReservation {
    fn drop(&mut self) {
        subtract(&mut self.ledger.lock().reserved, &self.tenant, self.bytes);
    }
}

// === impl RecordChange ===

impl RecordChange {
    /// Reports that the record was created, or may have been: its bytes count as held.
    pub(super) fn created(self, mut room: ByteReservation) {
        let bytes = std::mem::take(&mut room.bytes);
        self.ledger
            .lock()
            .commit_reservation(&self.key, &room.tenant, bytes);
    }

    /// Reports that the record was removed.
    pub(super) fn removed(self) {
        let mut guard = self.ledger.lock();
        let state = &mut *guard;
        let Some(record) = state.changing.remove(&self.key) else {
            return;
        };
        let Some((tenant, bytes)) = record.removal else {
            return;
        };
        subtract(&mut state.held, &tenant, bytes);
        if let Some(count) = &mut state.count {
            if record.counted_by == Some(state.generation) {
                subtract(&mut count.held, &tenant, bytes);
            }
            count.note_changed(&self.key, false);
        }
    }
}

impl Drop for RecordChange {
    fn drop(&mut self) {
        self.ledger.lock().changing.remove(&self.key);
    }
}

fn add(amounts: &mut BytesByTenant, tenant: &TenantName, bytes: u64) {
    let amount = amounts.entry(tenant.clone()).or_default();
    *amount = amount.saturating_add(bytes);
}

/// Subtracts an amount. A tenant that holds nothing has no entry.
fn subtract(amounts: &mut BytesByTenant, tenant: &TenantName, bytes: u64) {
    let Some(amount) = amounts.get_mut(tenant) else {
        return;
    };
    *amount = amount.saturating_sub(bytes);
    if *amount == 0 {
        amounts.remove(tenant);
    }
}

#[cfg(test)]
mod tests;
