//! Runs that claim a workspace, stage or collect: which of them are active, and which were started.
//!
//! Requests of one run take turns, its workspace stays while a stream is open, and a request that is repeated after its
//! end does not run its command again.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tokio::sync::OwnedMutexGuard;

use crate::access::TenantName;

/// Maximum number of remembered runs of one tenant. Each takes some 200 bytes.
const STARTED_MAX: usize = 8192;
/// Number of active runs from which on the table looks for those that have ended.
const ACTIVE_MIN: usize = 64;

/// Tenant and resource name of the exec of a run.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RunKey {
    /// Tenant of the caller.
    pub tenant: TenantName,
    /// Resource name, `workspaces/{workspace}/execs/{exec}`.
    pub exec: String,
}

/// Table of the runs of all tenants. A new daemon knows none.
#[derive(Debug, Default)]
pub struct RunTable {
    state: Mutex<TableState>,
}

#[derive(Debug, Default)]
struct TableState {
    active: HashMap<RunKey, Weak<ActiveRun>>,
    /// Number of active runs at which the table looks for those that have ended.
    sweep_at: usize,
    started: HashMap<TenantName, StartedRuns>,
}

/// Most recent runs of one tenant whose exec was started.
#[derive(Debug, Default)]
struct StartedRuns {
    known: HashSet<String>,
    /// The known runs, oldest first.
    order: VecDeque<String>,
}

/// Run with a call or a stream.
#[derive(Debug, Default)]
pub struct ActiveRun {
    turn: Arc<tokio::sync::Mutex<()>>,
    streams: AtomicUsize,
}

/// Turn of a request, until it is dropped.
#[derive(Debug)]
pub struct RunTurn {
    _turn: OwnedMutexGuard<()>,
    /// Keeps the run in the table, so that the next request waits for this turn.
    _run: Arc<ActiveRun>,
}

/// Open stream of a run.
#[derive(Debug)]
pub struct RunStreamGuard {
    run: Option<Arc<ActiveRun>>,
}

impl RunTable {
    /// Returns the run with this key, which requests of it share.
    pub fn activate(&self, key: &RunKey) -> Arc<ActiveRun> {
        let mut state = self.lock();
        if let Some(run) = state.active.get(key).and_then(Weak::upgrade) {
            return run;
        }
        if state.active.len() >= state.sweep_at.max(ACTIVE_MIN) {
            state.active.retain(|_, run| run.strong_count() > 0);
            state.sweep_at = 2 * state.active.len();
        }
        let run = Arc::<ActiveRun>::default();
        state.active.insert(key.clone(), Arc::downgrade(&run));
        run
    }

    /// Remembers that the exec of a run was started, or may have been. Returns `false` if that was known.
    pub fn add_started(&self, key: &RunKey) -> bool {
        let mut state = self.lock();
        let runs = state.started.entry(key.tenant.clone()).or_default();
        if !runs.known.insert(key.exec.clone()) {
            return false;
        }
        runs.order.push_back(key.exec.clone());
        if runs.order.len() > STARTED_MAX
            && let Some(oldest) = runs.order.pop_front()
        {
            runs.known.remove(&oldest);
        }
        true
    }

    /// Forgets a run whose exec was not started after all.
    pub fn remove_started(&self, key: &RunKey) {
        let mut state = self.lock();
        if let Some(runs) = state.started.get_mut(&key.tenant) {
            runs.known.remove(&key.exec);
            runs.order.retain(|exec| *exec != key.exec);
        }
    }

    /// Returns `true` if the exec of a run was started, or may have been.
    pub fn was_started(&self, key: &RunKey) -> bool {
        let state = self.lock();
        let runs = state.started.get(&key.tenant);
        runs.is_some_and(|runs| runs.known.contains(&key.exec))
    }

    fn lock(&self) -> MutexGuard<'_, TableState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ActiveRun {
    /// Waits until no other request of this run claims, stages or starts.
    pub async fn take_turn(self: Arc<Self>) -> RunTurn {
        RunTurn {
            _turn: Arc::clone(&self.turn).lock_owned().await,
            _run: self,
        }
    }

    /// Counts a stream until the guard ends or is dropped.
    pub fn open_stream(self: Arc<Self>) -> RunStreamGuard {
        self.streams.fetch_add(1, Ordering::Relaxed);
        RunStreamGuard { run: Some(self) }
    }
}

impl RunStreamGuard {
    /// Ends a stream that was read to its end. Returns `true` if the run has no other one.
    pub fn end(mut self) -> bool {
        let run = self.run.take();
        run.is_some_and(|run| run.streams.fetch_sub(1, Ordering::Relaxed) == 1)
    }
}

impl Drop for RunStreamGuard {
    fn drop(&mut self) {
        if let Some(run) = &self.run {
            run.streams.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: usize) -> RunKey {
        RunKey {
            tenant: TenantName::default(),
            exec: format!("workspaces/r{number}/execs/r{number}"),
        }
    }

    #[test]
    fn only_the_oldest_run_of_the_tenant_is_forgotten() {
        let table = RunTable::default();
        let other = RunKey {
            tenant: TenantName::parse("other").expect("valid"),
            ..key(0)
        };
        assert!(table.add_started(&other));
        for number in 0..STARTED_MAX {
            assert!(table.add_started(&key(number)));
        }
        assert!(!table.add_started(&key(0)));
        assert!(table.add_started(&key(STARTED_MAX)));
        assert!(!table.was_started(&key(0)));
        assert!(table.was_started(&key(1)) && table.was_started(&other));
        table.remove_started(&key(1));
        assert!(!table.was_started(&key(1)));
    }

    #[test]
    fn runs_that_have_ended_leave_nothing_in_the_table() {
        let table = RunTable::default();
        let kept = table.activate(&key(0));
        for number in 1..10 * ACTIVE_MIN {
            drop(table.activate(&key(number)));
        }
        assert!(table.lock().active.len() <= ACTIVE_MIN);
        assert!(Arc::ptr_eq(&kept, &table.activate(&key(0))));
    }

    #[test]
    fn only_the_last_stream_of_a_run_ends_it() {
        let run = Arc::<ActiveRun>::default();
        let [first, broken, last] = [(); 3].map(|()| Arc::clone(&run).open_stream());
        assert!(!first.end());
        drop(broken);
        assert!(last.end());
    }
}
