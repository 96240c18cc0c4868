//! Table of workspaces by tenant and id: a map behind a short lock.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::SystemTime;

use parking_lot::Mutex;
use skilld_common::unix_time::unix_ms;
use tokio::sync::{Notify, watch};

use crate::access::{TenantLimits, TenantName};
use crate::engine::ContainerLimits;
use crate::error::{Error, Result};
use crate::usage::UsageLedger;
use crate::workspace::{Workspace, WorkspaceId, WorkspaceKey};

/// Entry of a workspace. It exists before the slot is claimed, so that of two equal requests one creates the workspace
/// and the other waits for the result.
#[derive(Debug, Clone)]
pub struct WorkspaceEntry {
    /// Digest of the request that created the workspace.
    pub request: String,
    limits: ContainerLimits,
    made: watch::Receiver<Option<Workspace>>,
    /// Time up to which the usage of the workspace is in the ledger, in milliseconds since 1970; `None` before its
    /// creation.
    accounted_ms: Option<u64>,
}

/// Guard of a new entry, whose holder creates the workspace. Dropping it without [`NewEntryGuard::finish`] removes the
/// entry.
#[derive(Debug)]
pub struct NewEntryGuard {
    table: Arc<WorkspaceTable>,
    id: WorkspaceKey,
    made: watch::Sender<Option<Workspace>>,
}

/// Result of looking up or adding an entry.
#[derive(Debug)]
pub enum EntryOutcome {
    /// Another request has created the workspace, or is creating it.
    Existing(WorkspaceEntry),
    /// The entry is new: the caller creates the workspace.
    New(NewEntryGuard),
}

/// Properties of a new entry.
#[derive(Debug, Clone, Copy)]
pub struct NewEntry<'a> {
    /// Digest of the request.
    pub request: &'a str,
    /// Limits of the container.
    pub limits: ContainerLimits,
    /// Quotas of the tenant.
    pub quotas: &'a TenantLimits,
}

/// Sums over the workspaces of a tenant, also those that are being created or removed, and over its quarantined containers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WorkspaceUsage {
    /// Number of workspaces.
    pub workspaces: u64,
    /// Sum of their memory limits, in bytes.
    pub memory_bytes: u64,
    /// Sum of their processor limits, in thousandths of a core.
    pub cpu_millis: u64,
}

/// Table of workspaces by tenant and id.
#[derive(Debug, Default)]
pub struct WorkspaceTable {
    entries: Mutex<BTreeMap<WorkspaceKey, WorkspaceEntry>>,
    /// Containers of workspaces that are gone and could not be removed, by slot. They count as their tenant's.
    quarantined: Mutex<BTreeMap<u32, (TenantName, ContainerLimits)>>,
    /// Bytes that the staged skills of a slot count for its tenant, until its directory is gone.
    staged: Mutex<BTreeMap<u32, (TenantName, u64)>>,
    /// Wakes the task that waits for the end of workspaces.
    removed: Notify,
    usage: UsageLedger,
}

// === impl WorkspaceEntry ===

impl WorkspaceEntry {
    /// Returns the workspace; `None` while it is being created.
    pub fn workspace(&self) -> Option<Workspace> {
        self.made.borrow().clone()
    }

    /// Waits for the workspace; `None` if its creation failed.
    pub async fn wait_until_created(mut self) -> Option<Workspace> {
        self.made.wait_for(Option::is_some).await.ok()?.clone()
    }

    fn is_of_slot(&self, slot: u32) -> bool {
        self.made
            .borrow()
            .as_ref()
            .is_some_and(|workspace| workspace.slot.number == slot)
    }

    /// Adds the time since the last call to the ledger.
    fn account(&mut self, tenant: &TenantName, now_ms: u64, usage: &UsageLedger) {
        if let Some(since) = self.accounted_ms.filter(|since| *since < now_ms) {
            usage.add_workspace_time(tenant, self.limits.memory_bytes, since..now_ms);
            self.accounted_ms = Some(now_ms);
        }
    }
}

// === impl NewEntryGuard ===

impl NewEntryGuard {
    /// Publishes the workspace.
    pub fn finish(self, workspace: &Workspace) {
        if let Some(entry) = self.table.entries.lock().get_mut(&self.id) {
            entry.accounted_ms = Some(create_time_ms(workspace));
        }
        self.made.send_replace(Some(workspace.clone()));
    }
}

impl Drop for NewEntryGuard {
    fn drop(&mut self) {
        let made = self.made.subscribe();
        if made.borrow().is_none() {
            let mut entries = self.table.entries.lock();
            if entries
                .get(&self.id)
                .is_some_and(|entry| entry.made.same_channel(&made))
            {
                entries.remove(&self.id);
            }
        }
    }
}

// === impl WorkspaceTable ===

impl WorkspaceTable {
    /// Creates an empty table that adds the usage of its workspaces to a ledger.
    pub fn new(usage: UsageLedger) -> Self {
        Self {
            entries: Mutex::default(),
            quarantined: Mutex::default(),
            staged: Mutex::default(),
            removed: Notify::new(),
            usage,
        }
    }

    /// Returns the entry of an id, or adds a new one if there are fewer than `max` and the tenant's quotas permit it.
    ///
    /// # Errors
    /// [`Error::QuotaExceeded`], [`Error::TenantQuota`].
    pub fn enter(
        self: &Arc<Self>,
        id: &WorkspaceKey,
        new: NewEntry<'_>,
        max: usize,
    ) -> Result<EntryOutcome> {
        let mut entries = self.entries.lock();
        if let Some(entry) = entries.get(id) {
            return Ok(EntryOutcome::Existing(entry.clone()));
        }
        if entries.len() >= max {
            let limit = u64::try_from(max).unwrap_or(u64::MAX);
            let subject = "workspaces (workspaces.count_max)";
            return Err(Error::quota_exceeded(subject, limit));
        }
        let used = sum_usage(&entries, &id.tenant).plus(self.quarantined_usage(&id.tenant));
        used.check_room(&id.tenant, new.limits, new.quotas)?;
        let (sender, made) = watch::channel(None);
        entries.insert(
            id.clone(),
            WorkspaceEntry {
                request: new.request.to_owned(),
                limits: new.limits,
                made,
                accounted_ms: None,
            },
        );
        Ok(EntryOutcome::New(NewEntryGuard {
            table: Arc::clone(self),
            id: id.clone(),
            made: sender,
        }))
    }

    /// Adds a workspace of an earlier daemon, whose ledger has its usage up to the time at which it was saved.
    pub fn adopt(&self, request: String, workspace: Workspace) {
        let accounted_ms = create_time_ms(&workspace).max(self.usage.saved_ms());
        let limits = workspace.snapshot().record.limits;
        let key = workspace.key.clone();
        let (_, made) = watch::channel(Some(workspace));
        self.entries.lock().insert(
            key,
            WorkspaceEntry {
                request,
                limits,
                made,
                accounted_ms: Some(accounted_ms),
            },
        );
    }

    /// Removes the workspace of a slot, and its execs from those that run. A workspace of another slot under the same id
    /// stays.
    pub fn remove(&self, id: &WorkspaceKey, slot: u32) {
        let mut entries = self.entries.lock();
        if entries.get(id).is_some_and(|entry| entry.is_of_slot(slot))
            && let Some(mut entry) = entries.remove(id)
        {
            entry.account(&id.tenant, unix_ms(SystemTime::now()), &self.usage);
            if let Some(workspace) = entry.workspace() {
                workspace.running_execs().clear();
            }
            self.removed.notify_one();
        }
    }

    /// Waits until a workspace was removed since the latest call. For one task only.
    pub async fn wait_for_removal(&self) {
        self.removed.notified().await;
    }

    /// Brings the ledger up to date: adds what all workspaces have used up to a time, in milliseconds since 1970.
    pub fn account(&self, now_ms: u64) {
        for (key, entry) in self.entries.lock().iter_mut() {
            entry.account(&key.tenant, now_ms, &self.usage);
        }
    }

    /// Returns what the workspaces of a tenant hold.
    pub fn usage(&self, tenant: &TenantName) -> WorkspaceUsage {
        sum_usage(&self.entries.lock(), tenant).plus(self.quarantined_usage(tenant))
    }

    /// Counts the container of a slot as its tenant's after its workspace has gone.
    pub fn quarantine(&self, slot: u32, tenant: TenantName, limits: ContainerLimits) {
        self.quarantined.lock().insert(slot, (tenant, limits));
    }

    /// Ends the counts of a slot whose container and directory are gone.
    pub fn end_quarantine(&self, slot: u32) {
        self.quarantined.lock().remove(&slot);
        self.staged.lock().remove(&slot);
    }

    /// Reserves bytes for skills that are about to be staged in a workspace, if its tenant has room within `limit`.
    ///
    /// # Errors
    /// [`Error::TenantQuota`].
    pub fn reserve_staged(
        &self,
        workspace: &Workspace,
        bytes: u64,
        limit: Option<u64>,
    ) -> Result<()> {
        let (entries, tenant) = (self.entries.lock(), &workspace.key.tenant);
        let mut staged = self.staged.lock();
        let used = sum_staged(&staged, tenant);
        let needed = used.saturating_add(bytes);
        if let Some(limit) = limit.filter(|limit| needed > *limit) {
            return Err(Error::tenant_quota(tenant, "staged_bytes", used, limit));
        }
        let slot = workspace.slot.number;
        if entries
            .get(&workspace.key)
            .is_some_and(|entry| entry.is_of_slot(slot))
        {
            let (_, own) = staged.entry(slot).or_insert((tenant.clone(), 0));
            *own = own.saturating_add(bytes);
        }
        Ok(())
    }

    /// Sets the bytes that the staged skills of a workspace count, unless it has ended.
    pub fn set_staged(&self, workspace: &Workspace, bytes: u64) {
        let (entries, slot) = (self.entries.lock(), workspace.slot.number);
        if entries
            .get(&workspace.key)
            .is_some_and(|entry| entry.is_of_slot(slot))
        {
            let tenant = workspace.key.tenant.clone();
            self.staged.lock().insert(slot, (tenant, bytes));
        }
    }

    /// Returns the bytes that the staged skills of a tenant's workspaces count.
    pub fn staged_bytes(&self, tenant: &TenantName) -> u64 {
        sum_staged(&self.staged.lock(), tenant)
    }

    fn quarantined_usage(&self, tenant: &TenantName) -> WorkspaceUsage {
        let quarantined = self.quarantined.lock();
        let own = quarantined.values().filter(|(holder, _)| holder == tenant);
        own.fold(WorkspaceUsage::default(), |sum, (_, limits)| {
            sum.plus(WorkspaceUsage::of(*limits))
        })
    }

    /// Finds a workspace.
    pub fn get(&self, id: &WorkspaceKey) -> Option<Workspace> {
        self.entries.lock().get(id)?.workspace()
    }

    /// Lists the workspaces of all tenants, in order.
    pub fn list_all(&self) -> Vec<Workspace> {
        let entries = self.entries.lock();
        entries
            .values()
            .filter_map(WorkspaceEntry::workspace)
            .collect()
    }

    /// Lists a tenant's workspaces after an id, in order.
    pub fn list_after(&self, tenant: &TenantName, id: Option<&WorkspaceId>) -> Vec<Workspace> {
        use std::ops::Bound::{Excluded, Included};
        // No id is empty, so the empty one comes before all.
        let first = WorkspaceId::new(String::new()).of_tenant(tenant);
        let from = id.map_or(Included(first), |id| Excluded(id.of_tenant(tenant)));
        let entries = self.entries.lock();
        entries
            .range((from, std::ops::Bound::Unbounded))
            .take_while(|(key, _)| key.tenant == *tenant)
            .filter_map(|(_, entry)| entry.workspace())
            .collect()
    }
}

// === impl WorkspaceUsage ===

impl WorkspaceUsage {
    /// Returns the usage of one container.
    fn of(limits: ContainerLimits) -> Self {
        Self {
            workspaces: 1,
            memory_bytes: limits.memory_bytes,
            cpu_millis: limits.cpu_millis,
        }
    }

    fn plus(self, other: Self) -> Self {
        Self {
            workspaces: self.workspaces + other.workspaces,
            memory_bytes: self.memory_bytes.saturating_add(other.memory_bytes),
            cpu_millis: self.cpu_millis.saturating_add(other.cpu_millis),
        }
    }

    /// Checks that a tenant may have one more workspace with these limits.
    fn check_room(
        self,
        tenant: &TenantName,
        limits: ContainerLimits,
        quotas: &TenantLimits,
    ) -> Result<()> {
        let checks = [
            ("workspaces", self.workspaces, 1, quotas.workspaces),
            (
                "memory",
                self.memory_bytes,
                limits.memory_bytes,
                quotas.memory_bytes,
            ),
            (
                "cpus",
                self.cpu_millis,
                limits.cpu_millis,
                quotas.cpu_millis,
            ),
        ];
        for (resource, used, more, limit) in checks {
            let Some(limit) = limit.filter(|limit| used.saturating_add(more) > *limit) else {
                continue;
            };
            return Err(Error::tenant_quota(tenant, resource, used, limit));
        }
        Ok(())
    }
}

/// Returns the time of a workspace's claim, in milliseconds since 1970.
fn create_time_ms(workspace: &Workspace) -> u64 {
    let view = workspace.snapshot();
    let claim = view.record.claim.as_ref();
    claim.map_or_else(|| unix_ms(SystemTime::now()), |claim| claim.create_time_ms)
}

fn sum_staged(staged: &BTreeMap<u32, (TenantName, u64)>, tenant: &TenantName) -> u64 {
    let own = staged.values().filter(|(holder, _)| holder == tenant);
    own.fold(0, |sum, (_, bytes)| sum.saturating_add(*bytes))
}

/// Sums up the entries of a tenant.
fn sum_usage(
    entries: &BTreeMap<WorkspaceKey, WorkspaceEntry>,
    tenant: &TenantName,
) -> WorkspaceUsage {
    // No id is empty, so the empty one comes before all.
    let first = WorkspaceId::new(String::new()).of_tenant(tenant);
    let own = entries
        .range(first..)
        .take_while(|(key, _)| key.tenant == *tenant);
    own.fold(WorkspaceUsage::default(), |sum, (_, entry)| {
        sum.plus(WorkspaceUsage::of(entry.limits))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_is_bounded_and_drops_failed_creations() {
        let table = Arc::new(WorkspaceTable::default());
        let quotas = TenantLimits::default();
        let new = |request: &'static str| NewEntry {
            request,
            limits: ContainerLimits {
                memory_bytes: 1,
                cpu_millis: 1,
                pids: 1,
                disk_bytes: 1,
                inodes: 1,
            },
            quotas: &quotas,
        };
        let id = |text: &str| WorkspaceId::new(text.to_owned()).of_tenant(&TenantName::default());
        let EntryOutcome::New(creation) = table.enter(&id("a"), new("1"), 1).expect("room") else {
            panic!("the entry is new");
        };
        assert!(table.enter(&id("b"), new("1"), 1).is_err());
        let EntryOutcome::Existing(entry) = table.enter(&id("a"), new("2"), 1).expect("there")
        else {
            panic!("it is being created");
        };
        assert_eq!(entry.request, "1");
        drop(creation);
        assert!(matches!(
            table.enter(&id("b"), new("1"), 1),
            Ok(EntryOutcome::New(_))
        ));
    }
}
