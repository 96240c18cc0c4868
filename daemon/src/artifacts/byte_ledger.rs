//! Ledger of what each tenant's artifacts take, in bytes and versions. It gives saves their room within the quotas
//! while they write, and follows every change of the records.
//!
//! The amounts live in memory. A count ([`super::counting`]) walks all records in the order of their keys while saves
//! and deletions go on. Each change is announced before its effect and reported after it, so that every record is
//! counted once: by the count, or by its change.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use object_store::path::Path;
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};

use crate::access::TenantName;
use crate::error::{Error, Result};

/// Amounts by tenant.
type AmountsByTenant = BTreeMap<TenantName, HeldArtifacts>;

/// Amount of artifacts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct HeldArtifacts {
    /// Bytes that count for the versions.
    pub bytes: u64,
    /// Number of versions.
    pub versions: u64,
}

/// Quotas of a tenant; `None` means unlimited.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct ArtifactQuotas {
    pub(super) bytes: Option<u64>,
    pub(super) versions: Option<u64>,
}

/// Room of a running save within its tenant's quotas.
#[derive(Debug)]
pub(super) enum SaveRoom {
    Reserved(ByteReservation),
    /// No room: the save repeats an earlier one, whose version of this size counts already.
    Repeated {
        size: u64,
    },
}

/// Ledger of the amounts of all tenants. Clones share it.
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
    /// Visible versions.
    held: AmountsByTenant,
    /// Versions that are being written.
    reserved: AmountsByTenant,
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
    held: AmountsByTenant,
    /// Key of the last record that the count has passed.
    passed: Option<Path>,
    /// Keys that the count has not passed and whose change has ended, with `true` if `held` has their bytes.
    changed: BTreeMap<Path, bool>,
}

/// Room that a save has taken for its version. Dropping it gives the room back.
#[derive(Debug)]
pub(super) struct ByteReservation {
    ledger: ByteLedger,
    tenant: TenantName,
    amount: HeldArtifacts,
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
    /// Returns what a tenant holds: before the end of the first count, what was found so far.
    pub(super) fn used(&self, tenant: &TenantName) -> HeldArtifacts {
        self.0.state.lock().used(tenant, self.is_counted())
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

    /// Takes room for a version of at least these bytes, which is about to be written.
    ///
    /// # Errors
    /// `TenantQuota`; `Storage` if a tenant with a quota of bytes is not counted yet.
    pub(super) fn reserve(
        &self,
        tenant: &TenantName,
        bytes: u64,
        quotas: ArtifactQuotas,
    ) -> Result<ByteReservation> {
        let mut room = ByteReservation {
            ledger: self.clone(),
            tenant: tenant.clone(),
            amount: HeldArtifacts::default(),
        };
        room.take(HeldArtifacts::version(bytes), quotas)?;
        Ok(room)
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
        let mut guard = self.0.state.lock();
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
        let mut state = self.0.state.lock();
        state.generation += 1;
        state.count = Some(RunningCount::default());
    }

    /// Adds the next records of the running count, which are those up to `last`.
    pub(super) fn add_counted(&self, records: Vec<(Path, TenantName, u64)>, last: &Path) {
        let mut guard = self.0.state.lock();
        let state = &mut *guard;
        let Some(count) = &mut state.count else {
            return;
        };
        for (key, tenant, bytes) in records {
            if !state.changing.contains_key(&key) && !count.changed.contains_key(&key) {
                add(&mut count.held, &tenant, HeldArtifacts::version(bytes));
            }
        }
        count.changed = count.changed.split_off(last);
        count.changed.remove(last);
        count.passed = Some(last.clone());
    }

    /// Ends the running count and puts its amounts in place of the known ones. Returns the sum of their bytes.
    pub(super) fn finish_count(&self) -> u64 {
        let mut guard = self.0.state.lock();
        let state = &mut *guard;
        if let Some(count) = state.count.take() {
            state.held = count.held;
            for record in state.changing.values() {
                if let Some((tenant, bytes)) = &record.removal
                    && record.counted_by != Some(state.generation)
                {
                    add(&mut state.held, tenant, HeldArtifacts::version(*bytes));
                }
            }
        }
        let sum = state.held.values().map(|held| held.bytes).sum();
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

    /// Returns the tenants that hold more bytes than this, with the excess.
    pub(super) fn excess_over(&self, limit: u64) -> BTreeMap<TenantName, u64> {
        let state = self.0.state.lock();
        let over = state.held.iter().filter_map(|(tenant, held)| {
            let excess = held.bytes.checked_sub(limit).filter(|excess| *excess > 0)?;
            Some((tenant.clone(), excess))
        });
        over.collect()
    }
}

// === impl LedgerState ===

impl LedgerState {
    fn used(&self, tenant: &TenantName, is_counted: bool) -> HeldArtifacts {
        let held = match &self.count {
            Some(count) if !is_counted => &count.held,
            _ => &self.held,
        };
        let of = |amounts: &AmountsByTenant| amounts.get(tenant).copied().unwrap_or_default();
        of(held).plus(of(&self.reserved))
    }

    /// Checks that a tenant may hold this amount more for a version that has the room of `own`.
    fn check_room(
        &self,
        tenant: &TenantName,
        (own, more): (HeldArtifacts, HeldArtifacts),
        quotas: ArtifactQuotas,
        is_counted: bool,
    ) -> Result<()> {
        if quotas.bytes.is_some() && !is_counted {
            return Err(Error::Storage {
                operation: "save within the quota",
                why: "the artifacts are still being counted after the start of the server",
            });
        }
        let used = self.used(tenant, is_counted);
        let (others, needed) = (used.minus(own), used.plus(more));
        for (resource, used, needed, limit) in [
            ("artifact_bytes", others.bytes, needed.bytes, quotas.bytes),
            (
                "artifacts",
                others.versions,
                needed.versions,
                quotas.versions,
            ),
        ] {
            if let Some(limit) = limit.filter(|limit| needed > *limit) {
                return Err(Error::tenant_quota(tenant, resource, used, limit));
            }
        }
        Ok(())
    }

    /// Moves a reserved amount to the held ones.
    fn commit_reservation(&mut self, key: &Path, tenant: &TenantName, amount: HeldArtifacts) {
        self.changing.remove(key);
        subtract(&mut self.reserved, tenant, amount);
        add(&mut self.held, tenant, amount);
        if let Some(count) = &mut self.count {
            add(&mut count.held, tenant, amount);
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

impl ByteReservation {
    /// Takes more room for the version, so that it has these bytes.
    ///
    /// # Errors
    /// As [`ByteLedger::reserve`].
    pub(super) fn grow(&mut self, bytes: u64, quotas: ArtifactQuotas) -> Result<()> {
        let more = HeldArtifacts {
            bytes: bytes.saturating_sub(self.amount.bytes),
            versions: 0,
        };
        self.take(more, quotas)
    }

    fn take(&mut self, more: HeldArtifacts, quotas: ArtifactQuotas) -> Result<()> {
        let mut state = self.ledger.0.state.lock();
        let amounts = (self.amount, more);
        state.check_room(&self.tenant, amounts, quotas, self.ledger.is_counted())?;
        add(&mut state.reserved, &self.tenant, more);
        drop(state);
        self.amount = self.amount.plus(more);
        Ok(())
    }
}

impl Drop for ByteReservation {
    fn drop(&mut self) {
        let mut state = self.ledger.0.state.lock();
        subtract(&mut state.reserved, &self.tenant, self.amount);
    }
}

// === impl RecordChange ===

impl RecordChange {
    /// Reports that the record was created, or may have been: its bytes count as held.
    pub(super) fn created(self, mut room: ByteReservation) {
        let amount = std::mem::take(&mut room.amount);
        let mut state = self.ledger.0.state.lock();
        state.commit_reservation(&self.key, &room.tenant, amount);
    }

    /// Reports that the record was removed.
    pub(super) fn removed(self) {
        let mut guard = self.ledger.0.state.lock();
        let state = &mut *guard;
        let Some(record) = state.changing.remove(&self.key) else {
            return;
        };
        let Some((tenant, bytes)) = record.removal else {
            return;
        };
        let amount = HeldArtifacts::version(bytes);
        subtract(&mut state.held, &tenant, amount);
        if let Some(count) = &mut state.count {
            if record.counted_by == Some(state.generation) {
                subtract(&mut count.held, &tenant, amount);
            }
            count.note_changed(&self.key, false);
        }
    }
}

impl Drop for RecordChange {
    fn drop(&mut self) {
        self.ledger.0.state.lock().changing.remove(&self.key);
    }
}

// === impl HeldArtifacts ===

impl HeldArtifacts {
    /// Returns the amount of one version that counts so many bytes.
    fn version(bytes: u64) -> Self {
        Self { bytes, versions: 1 }
    }

    fn plus(self, other: Self) -> Self {
        Self {
            bytes: self.bytes.saturating_add(other.bytes),
            versions: self.versions.saturating_add(other.versions),
        }
    }

    fn minus(self, other: Self) -> Self {
        Self {
            bytes: self.bytes.saturating_sub(other.bytes),
            versions: self.versions.saturating_sub(other.versions),
        }
    }
}

fn add(amounts: &mut AmountsByTenant, tenant: &TenantName, more: HeldArtifacts) {
    let amount = amounts.entry(tenant.clone()).or_default();
    *amount = amount.plus(more);
}

/// Subtracts an amount. A tenant that holds nothing has no entry.
fn subtract(amounts: &mut AmountsByTenant, tenant: &TenantName, less: HeldArtifacts) {
    let Some(amount) = amounts.get_mut(tenant) else {
        return;
    };
    *amount = amount.minus(less);
    if *amount == HeldArtifacts::default() {
        amounts.remove(tenant);
    }
}

#[cfg(test)]
mod tests;
