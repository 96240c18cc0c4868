//! Who is who: uids and slot numbers in use, workspaces by id. Plain maps behind short locks.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use crate::error::{Error, Result};
use crate::workspace::{Workspace, WorkspaceId};

/// Slot numbers, and with them uids. No two slots share one, and one that was used rests before its next use, so that
/// nothing a tenant left with the kernel (inotify counts, keyrings) meets the next tenant.
#[derive(Debug)]
pub struct Numbers {
    base: u32,
    count: u32,
    quarantine: Duration,
    next: u32,
    used: BTreeSet<u32>,
    resting: VecDeque<(Instant, u32)>,
    /// Uids that other instances on this host use.
    foreign: BTreeSet<u32>,
}

impl Numbers {
    /// Numbers `0..count`, for uids from `base` on. The first one taken is `first`, modulo `count`.
    #[must_use]
    pub fn new(base: u32, count: u32, quarantine: Duration, first: u32) -> Self {
        Self {
            base,
            count,
            quarantine,
            next: first.checked_rem(count).unwrap_or(0),
            used: BTreeSet::new(),
            resting: VecDeque::new(),
            foreign: BTreeSet::new(),
        }
    }

    /// Takes a free number.
    ///
    /// # Errors
    /// [`Error::QuotaExceeded`] when all are in use or resting.
    pub fn take(&mut self) -> Result<u32> {
        while self
            .resting
            .front()
            .is_some_and(|(since, _)| since.elapsed() >= self.quarantine)
        {
            self.resting.pop_front();
        }
        for step in 0..self.count {
            let number = (self.next + step) % self.count;
            let free = !self.used.contains(&number)
                && !self.foreign.contains(&(self.base + number))
                && !self.resting.iter().any(|(_, resting)| *resting == number);
            if free {
                self.next = (number + 1) % self.count;
                self.used.insert(number);
                return Ok(number);
            }
        }
        Err(Error::QuotaExceeded {
            subject: "slots (engine.uid_count)".into(),
            limit: self.count.into(),
        })
    }

    /// Marks a number from a record as used. False if it is out of range or used twice.
    #[must_use]
    pub fn adopt(&mut self, number: u32) -> bool {
        number < self.count && self.used.insert(number)
    }

    /// Gives a number back; it rests first.
    pub fn give_back(&mut self, number: u32) {
        if self.used.remove(&number) {
            self.resting.push_back((Instant::now(), number));
        }
    }

    /// Stays clear of the uids of other instances.
    pub fn avoid(&mut self, uids: impl IntoIterator<Item = u32>) {
        self.foreign.extend(uids);
    }

    /// The uid of a number.
    #[must_use]
    pub fn uid(&self, number: u32) -> u32 {
        self.base + number
    }
}

/// A workspace's place in the directory: taken before its slot is claimed, so that of two equal requests one works and
/// the other waits for its result.
#[derive(Debug, Clone)]
pub struct Entry {
    /// Digest of the request that made it.
    pub request: String,
    made: watch::Receiver<Option<Workspace>>,
}

/// Who has to make the workspace of a new entry. Dropped without [`Making::done`] the entry goes away.
#[derive(Debug)]
pub struct Making {
    directory: Arc<Directory>,
    id: WorkspaceId,
    made: watch::Sender<Option<Workspace>>,
}

/// What there is for an id.
#[derive(Debug)]
pub enum Entered {
    /// Somebody else made it, or is making it.
    There(Entry),
    /// Nothing was there: the caller makes it.
    New(Making),
}

/// Workspaces by id.
#[derive(Debug, Default)]
pub struct Directory {
    entries: Mutex<BTreeMap<WorkspaceId, Entry>>,
}

// === impl Entry ===

impl Entry {
    /// The workspace, once there is one.
    #[must_use]
    pub fn workspace(&self) -> Option<Workspace> {
        self.made.borrow().clone()
    }

    /// Waits for the workspace; `None` if whoever made it gave up.
    pub async fn made(mut self) -> Option<Workspace> {
        self.made.wait_for(Option::is_some).await.ok()?.clone()
    }

    fn is_of(&self, slot: u32) -> bool {
        self.made
            .borrow()
            .as_ref()
            .is_some_and(|workspace| workspace.slot.number() == slot)
    }
}

// === impl Making ===

impl Making {
    /// The workspace is there: everybody finds it from now on.
    pub fn done(self, workspace: &Workspace) {
        self.made.send_replace(Some(workspace.clone()));
    }
}

impl Drop for Making {
    fn drop(&mut self) {
        let made = self.made.subscribe();
        if made.borrow().is_none() {
            let mut entries = self.directory.lock();
            if entries
                .get(&self.id)
                .is_some_and(|entry| entry.made.same_channel(&made))
            {
                entries.remove(&self.id);
            }
        }
    }
}

// === impl Directory ===

impl Directory {
    /// The entry of an id: the one there is, or a new one if there are fewer than `max`.
    ///
    /// # Errors
    /// [`Error::QuotaExceeded`].
    pub fn enter(self: &Arc<Self>, id: &WorkspaceId, request: &str, max: usize) -> Result<Entered> {
        let mut entries = self.lock();
        if let Some(entry) = entries.get(id) {
            return Ok(Entered::There(entry.clone()));
        }
        if entries.len() >= max {
            let limit = u64::try_from(max).unwrap_or(u64::MAX);
            let subject = "workspaces (workspaces.count_max)".to_owned();
            return Err(Error::QuotaExceeded { subject, limit });
        }
        let (sender, made) = watch::channel(None);
        entries.insert(
            id.clone(),
            Entry {
                request: request.to_owned(),
                made,
            },
        );
        Ok(Entered::New(Making {
            directory: Arc::clone(self),
            id: id.clone(),
            made: sender,
        }))
    }

    /// Puts a workspace in that was there before this start.
    pub fn adopt(&self, request: String, workspace: Workspace) {
        let id = workspace.id().clone();
        let (_, made) = watch::channel(Some(workspace));
        self.lock().insert(id, Entry { request, made });
    }

    /// Takes out the workspace that a slot was. Another slot's under the same id stays.
    pub fn remove(&self, id: &WorkspaceId, slot: u32) {
        let mut entries = self.lock();
        if entries.get(id).is_some_and(|entry| entry.is_of(slot)) {
            entries.remove(id);
        }
    }

    /// Finds one.
    #[must_use]
    pub fn get(&self, id: &WorkspaceId) -> Option<Workspace> {
        self.lock().get(id)?.workspace()
    }

    /// All after an id, in order.
    #[must_use]
    pub fn after(&self, id: Option<&WorkspaceId>) -> Vec<Workspace> {
        use std::ops::Bound::{Excluded, Unbounded};
        let entries = self.lock();
        let from = id.map_or(Unbounded, Excluded);
        entries
            .range::<WorkspaceId, _>((from, Unbounded))
            .filter_map(|(_, entry)| entry.workspace())
            .collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<WorkspaceId, Entry>> {
        // Nothing panics while holding it, and a map is whole between two operations anyway.
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn uid_rests_before_reuse() {
        let mut numbers = Numbers::new(1000, 2, Duration::from_secs(60), 0);
        let first = numbers.take().expect("free");
        let second = numbers.take().expect("free");
        assert_ne!(numbers.uid(first), numbers.uid(second));
        assert!(numbers.take().is_err(), "none is shared");
        numbers.give_back(first);
        assert!(numbers.take().is_err(), "it rests");
        tokio::time::advance(Duration::from_secs(60)).await;
        assert_eq!(numbers.take().expect("rested"), first);
    }

    #[test]
    fn uids_of_other_instances_are_avoided() {
        let mut numbers = Numbers::new(1000, 3, Duration::ZERO, 0);
        numbers.avoid([1000, 1001, 77]);
        assert_eq!(numbers.take().expect("free"), 2);
        assert!(numbers.take().is_err());
    }

    #[test]
    fn adopted_numbers_are_used_once() {
        let mut numbers = Numbers::new(1000, 3, Duration::ZERO, 0);
        assert!(numbers.adopt(1));
        assert!(!numbers.adopt(1), "twice");
        assert!(!numbers.adopt(3), "out of range");
        assert_eq!(numbers.take().expect("free"), 0);
        assert_eq!(numbers.take().expect("free"), 2);
    }

    #[test]
    fn directory_has_a_limit_and_forgets_what_was_given_up() {
        let directory = Arc::new(Directory::default());
        let id = |text: &str| WorkspaceId::new(text.to_owned());
        let Entered::New(making) = directory.enter(&id("a"), "1", 1).expect("room") else {
            panic!("nothing was there");
        };
        assert!(directory.enter(&id("b"), "1", 1).is_err());
        let Entered::There(entry) = directory.enter(&id("a"), "2", 1).expect("there") else {
            panic!("it is being made");
        };
        assert_eq!(entry.request, "1");
        drop(making);
        assert!(matches!(
            directory.enter(&id("b"), "1", 1),
            Ok(Entered::New(_))
        ));
    }
}
