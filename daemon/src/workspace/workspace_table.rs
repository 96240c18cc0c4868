//! Table of workspaces by id: a map behind a short lock.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use crate::error::{Error, Result};
use crate::workspace::{Workspace, WorkspaceId};

/// Entry of a workspace. It exists before the slot is claimed, so that of two equal requests one creates the workspace
/// and the other waits for the result.
#[derive(Debug, Clone)]
pub struct WorkspaceEntry {
    /// Digest of the request that created the workspace.
    pub request: String,
    made: watch::Receiver<Option<Workspace>>,
}

/// Guard of a new entry, whose holder creates the workspace. Dropping it without [`NewEntryGuard::finish`] removes the
/// entry.
#[derive(Debug)]
pub struct NewEntryGuard {
    table: Arc<WorkspaceTable>,
    id: WorkspaceId,
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

/// Table of workspaces by id.
#[derive(Debug, Default)]
pub struct WorkspaceTable {
    entries: Mutex<BTreeMap<WorkspaceId, WorkspaceEntry>>,
}

// === impl WorkspaceEntry ===

impl WorkspaceEntry {
    /// Returns the workspace; `None` while it is being created.
    #[must_use]
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
            .is_some_and(|workspace| workspace.slot.number() == slot)
    }
}

// === impl NewEntryGuard ===

impl NewEntryGuard {
    /// Publishes the workspace.
    pub fn finish(self, workspace: &Workspace) {
        self.made.send_replace(Some(workspace.clone()));
    }
}

impl Drop for NewEntryGuard {
    fn drop(&mut self) {
        let made = self.made.subscribe();
        if made.borrow().is_none() {
            let mut entries = self.table.lock();
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
    /// Returns the entry of an id, or adds a new one if there are fewer than `max`.
    ///
    /// # Errors
    /// [`Error::QuotaExceeded`].
    pub fn enter(
        self: &Arc<Self>,
        id: &WorkspaceId,
        request: &str,
        max: usize,
    ) -> Result<EntryOutcome> {
        let mut entries = self.lock();
        if let Some(entry) = entries.get(id) {
            return Ok(EntryOutcome::Existing(entry.clone()));
        }
        if entries.len() >= max {
            let limit = u64::try_from(max).unwrap_or(u64::MAX);
            let subject = "workspaces (workspaces.count_max)".to_owned();
            return Err(Error::QuotaExceeded { subject, limit });
        }
        let (sender, made) = watch::channel(None);
        entries.insert(
            id.clone(),
            WorkspaceEntry {
                request: request.to_owned(),
                made,
            },
        );
        Ok(EntryOutcome::New(NewEntryGuard {
            table: Arc::clone(self),
            id: id.clone(),
            made: sender,
        }))
    }

    /// Adds a workspace of an earlier daemon.
    pub fn adopt(&self, request: String, workspace: Workspace) {
        let id = workspace.id().clone();
        let (_, made) = watch::channel(Some(workspace));
        self.lock().insert(id, WorkspaceEntry { request, made });
    }

    /// Removes the workspace of a slot. A workspace of another slot under the same id stays.
    pub fn remove(&self, id: &WorkspaceId, slot: u32) {
        let mut entries = self.lock();
        if entries.get(id).is_some_and(|entry| entry.is_of_slot(slot)) {
            entries.remove(id);
        }
    }

    /// Finds a workspace.
    #[must_use]
    pub fn get(&self, id: &WorkspaceId) -> Option<Workspace> {
        self.lock().get(id)?.workspace()
    }

    /// Lists the workspaces after an id, in order.
    #[must_use]
    pub fn list_after(&self, id: Option<&WorkspaceId>) -> Vec<Workspace> {
        use std::ops::Bound::{Excluded, Unbounded};
        let entries = self.lock();
        let from = id.map_or(Unbounded, Excluded);
        entries
            .range::<WorkspaceId, _>((from, Unbounded))
            .filter_map(|(_, entry)| entry.workspace())
            .collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<WorkspaceId, WorkspaceEntry>> {
        // No holder panics, and a map is consistent between two operations anyway.
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_is_bounded_and_drops_failed_creations() {
        let table = Arc::new(WorkspaceTable::default());
        let id = |text: &str| WorkspaceId::new(text.to_owned());
        let EntryOutcome::New(creation) = table.enter(&id("a"), "1", 1).expect("room") else {
            panic!("the entry is new");
        };
        assert!(table.enter(&id("b"), "1", 1).is_err());
        let EntryOutcome::Existing(entry) = table.enter(&id("a"), "2", 1).expect("there") else {
            panic!("it is being created");
        };
        assert_eq!(entry.request, "1");
        drop(creation);
        assert!(matches!(
            table.enter(&id("b"), "1", 1),
            Ok(EntryOutcome::New(_))
        ));
    }
}
