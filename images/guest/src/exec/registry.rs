//! Registry of all execs of the workspace: running, retained and forgotten ones.

mod forgotten_ids;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use skilld_proto::v1;
use tokio::sync::Notify;

use super::Exec;
use super::deadlines::deadline_after;
use crate::files::root::WorkspaceRoot;
use crate::output_window::{OutputBudget, OutputWindow};
use forgotten_ids::ForgottenIds;

/// Longest wait of the task that forgets execs. Its length does not matter: an exec that is to be forgotten earlier
/// wakes the task.
const WAIT_MAX: Duration = Duration::from_secs(3600);

/// Running and retained execs by their id.
#[derive(Debug)]
pub(crate) struct ExecRegistry {
    state: Mutex<RegistryState>,
    /// Notified when an exec is to be forgotten earlier than any other.
    earlier: Notify,
    pub(crate) budget: Arc<OutputBudget>,
}

#[derive(Debug)]
struct RegistryState {
    execs: HashMap<String, RegisteredExec>,
    /// Execs whose end clients know, in the order of their ends.
    ended: BTreeMap<u64, EndedExec>,
    forgotten: ForgottenIds,
    /// Time at which the next exec is forgotten, as far as the task that does it knows; `None` if it knows none.
    forget_next: Option<Instant>,
    started: u64,
    retained_max: usize,
    /// Number of execs whose leader runs.
    running: usize,
    /// Time of the most recent exit of a leader.
    idle_since: Option<Instant>,
    /// Number of execs of which a process may be left.
    living: usize,
    root: Arc<WorkspaceRoot>,
}

/// Exec that is running or retained.
#[derive(Debug)]
struct RegisteredExec {
    /// Position in the order of starts.
    number: u64,
    /// Key in [`RegistryState::ended`]; `None` while its output goes on.
    end: Option<u64>,
    exec: Arc<Exec>,
}

/// Exec whose output has ended.
#[derive(Debug)]
struct EndedExec {
    exec: Arc<Exec>,
    /// Time at which the exec is forgotten; `None` while a process of it may be left.
    forget_at: Option<Instant>,
    /// `true` while its output is kept.
    has_output: bool,
}

impl RegistryState {
    /// Forgets all but the newest of the ended execs. Keeps an exec of which a process may be left. It counts towards the
    /// limit only while it is among the newest.
    fn forget_surplus(&mut self) {
        // Every exec ends here, so this looks at the oldest and not at all that are kept.
        let surplus = self.ended.len().saturating_sub(self.retained_max);
        let oldest: Vec<String> = self
            .ended
            .values()
            .take(surplus)
            .filter(|ended| ended.forget_at.is_some())
            .map(|ended| ended.exec.id.clone())
            .collect();
        for id in oldest {
            self.forget(&id);
        }
    }

    /// Forgets an exec. Removes its directory if it is empty, or a workspace would run out of inodes by running
    /// commands. Files in it belong to the workspace and stay.
    fn forget(&mut self, id: &str) {
        self.forgotten.add(id);
        let Some(registered) = self.execs.remove(id) else {
            return;
        };
        if let Some(end) = registered.end {
            self.ended.remove(&end);
        }
        self.root.remove_run_directory(id);
    }

    /// Returns the entry of an exec in `ended`; `None` if its output goes on or it is forgotten.
    fn find_ended(&mut self, id: &str) -> Option<&mut EndedExec> {
        let end = self.execs.get(id)?.end?;
        self.ended.get_mut(&end)
    }
}

impl ExecRegistry {
    /// Returns an empty registry. It removes the directories of forgotten execs in `root`.
    pub(crate) fn new(root: Arc<WorkspaceRoot>) -> Self {
        Self {
            state: Mutex::new(RegistryState {
                root,
                execs: HashMap::new(),
                ended: BTreeMap::new(),
                forgotten: ForgottenIds::default(),
                forget_next: None,
                started: 0,
                retained_max: usize::MAX,
                running: 0,
                idle_since: None,
                living: 0,
            }),
            earlier: Notify::new(),
            budget: OutputBudget::new(u64::MAX),
        }
    }

    fn state(&self) -> MutexGuard<'_, RegistryState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the limits: number of ended execs, and bytes of output of all execs.
    pub(crate) fn set_limits(&self, retained_max: usize, retain_bytes: u64) {
        self.state().retained_max = retained_max;
        self.budget.set_max(retain_bytes);
        self.make_room();
    }

    /// Returns the exec with this id, if it is running or retained.
    pub(crate) fn get(&self, id: &str) -> Option<Arc<Exec>> {
        let state = self.state();
        let registered = state.execs.get(id)?;
        Some(Arc::clone(&registered.exec))
    }

    /// Returns `true` if an exec with this id existed and was forgotten.
    pub(crate) fn is_forgotten(&self, id: &str) -> bool {
        self.state().forgotten.contains(id)
    }

    /// Forgets an exec that has ended. Its current readers read on to the end.
    pub(crate) fn delete(&self, exec: &Exec) {
        self.state().forget(&exec.id);
    }

    /// Adds a new exec, which counts as running from here on.
    pub(crate) fn insert(&self, exec: Arc<Exec>) {
        let mut state = self.state();
        state.started += 1;
        state.running += 1;
        state.living += 1;
        let id = exec.id.clone();
        let registered = RegisteredExec {
            number: state.started,
            end: None,
            exec,
        };
        state.execs.insert(id, registered);
    }

    /// Returns the execs after a position, with their numbers, in the order of their starts. 0 returns all.
    pub(crate) fn list_after(&self, number: u64) -> Vec<(u64, Arc<Exec>)> {
        let state = self.state();
        let mut execs: Vec<_> = state
            .execs
            .values()
            .filter(|registered| registered.number > number)
            .map(|registered| (registered.number, Arc::clone(&registered.exec)))
            .collect();
        drop(state);
        execs.sort_unstable_by_key(|(number, _)| *number);
        execs
    }

    /// Returns the number of execs whose leader runs.
    pub(crate) fn running(&self) -> usize {
        self.state().running
    }

    /// Returns the time since the last leader exited; `None` if there was none.
    pub(crate) fn idle_time(&self) -> Option<Duration> {
        self.state().idle_since.map(|since| since.elapsed())
    }

    /// Returns the number of execs of which a process may be left.
    pub(crate) fn living(&self) -> usize {
        self.state().living
    }

    /// Records that the leader of an exec has exited.
    pub(crate) fn count_leader_exit(&self) {
        let mut state = self.state();
        state.running = state.running.saturating_sub(1);
        state.idle_since = Some(Instant::now());
    }

    /// Records that no process of an exec is left. From here on its retention time runs.
    pub(crate) fn exec_ended(&self, exec: &Exec) {
        let mut state = self.state();
        state.living = state.living.saturating_sub(1);
        let forget_at = deadline_after(Instant::now(), exec.retain_after_exit());
        if let Some(ended) = state.find_ended(&exec.id) {
            ended.forget_at = Some(forget_at);
        }
        // Most execs are kept equally long. The task that forgets them then waits for an older one already.
        if state.forget_next.is_none_or(|next| forget_at < next) {
            self.earlier.notify_one();
        }
        drop(state);
        self.make_room();
    }

    /// Records that the output of an exec has ended. Callers do this before clients can see the end, so that no client
    /// sees more ended execs than the limit.
    pub(crate) fn output_ended(&self, exec: &Arc<Exec>) {
        let mut state = self.state();
        let end = state.ended.last_key_value().map_or(0, |(last, _)| last + 1);
        if let Some(registered) = state.execs.get_mut(&exec.id) {
            registered.end = Some(end);
            let ended = EndedExec {
                exec: Arc::clone(exec),
                forget_at: None,
                has_output: true,
            };
            state.ended.insert(end, ended);
        }
        drop(state);
        self.make_room();
    }

    /// Forgets surplus execs and, while the windows exceed their budget, empties those of ended execs, oldest first.
    /// Their results are kept for the promised time.
    pub(crate) fn make_room(&self) {
        let mut state = self.state();
        state.forget_surplus();
        if self.budget.is_over() {
            let full = state.ended.values_mut().filter(|ended| ended.has_output);
            for ended in full {
                ended.has_output = !empty_windows(&ended.exec);
                if !self.budget.is_over() {
                    break;
                }
            }
        }
    }

    /// Forgets execs whose retention time is over, forever.
    pub(crate) async fn forget_expired_execs(&self) {
        loop {
            let next = self.forget_overdue(Instant::now());
            let wait = next.map_or(WAIT_MAX, |next| {
                next.saturating_duration_since(Instant::now())
            });
            let _either = tokio::time::timeout(wait, self.earlier.notified()).await;
        }
    }

    /// Forgets execs whose retention time is over at `now`. Returns when the next one is due.
    fn forget_overdue(&self, now: Instant) -> Option<Instant> {
        let mut state = self.state();
        let is_due = |ended: &&EndedExec| ended.forget_at.is_some_and(|at| at <= now);
        let overdue: Vec<String> = state
            .ended
            .values()
            .filter(is_due)
            .map(|ended| ended.exec.id.clone())
            .collect();
        for id in overdue {
            state.forget(&id);
        }
        let next = state
            .ended
            .values()
            .filter_map(|ended| ended.forget_at)
            .min();
        state.forget_next = next;
        next
    }
}

/// Empties the windows of an ended exec. Returns `false` if it is BLOCKing and has a reader, which may lose nothing.
fn empty_windows(exec: &Exec) -> bool {
    let mut state = exec.state();
    if exec.spec.on_full() == v1::OutputFullPolicy::Block && !state.readers.is_empty() {
        return false;
    }
    state.windows.iter_mut().for_each(OutputWindow::empty);
    true
}

#[cfg(test)]
mod tests;
