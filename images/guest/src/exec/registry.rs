//! All execs of the workspace: which id is whose, how many run, which are still kept.

mod forgotten;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use skilld_proto::v1;
use tokio::sync::Notify;

use super::Exec;
use super::run::deadlines::after;
use crate::files::root::Root;
use crate::output::{Budget, Window};
use forgotten::Forgotten;

/// How long to wait for the next end of an exec when none is kept.
const IDLE: Duration = Duration::from_secs(3600);

/// Running and retained execs.
#[derive(Debug)]
pub(crate) struct Registry {
    state: Mutex<State>,
    /// An exec ended: there is a new deadline.
    ended: Notify,
    pub(crate) budget: Arc<Budget>,
}

#[derive(Debug)]
struct State {
    execs: HashMap<String, (u64, Arc<Exec>)>,
    /// Execs that clients know to be over, in the order of their end.
    ended: Vec<EndedExec>,
    /// Whose output is at its end and may be kept, in the order of that.
    full: Vec<Arc<Exec>>,
    forgotten: Forgotten,
    started: u64,
    retained_max: usize,
    /// Execs whose leader runs.
    running: usize,
    /// When the last leader ended.
    idle_since: Option<Instant>,
    /// Execs of which a process may be left.
    living: usize,
    root: Arc<Root>,
}

/// An exec whose output is at its end.
#[derive(Debug)]
struct EndedExec {
    id: String,
    /// When it is forgotten; `None` while a process of it may be left, for as long as it can't be forgotten.
    forget_at: Option<Instant>,
}

impl State {
    /// Forgets all but the newest of the ended execs. One of which a process may be left stays, and one whose end the
    /// daemon awaits; the former takes a place only while it is among the newest, so that it never costs a newer result.
    fn forget_surplus(&mut self) {
        if self.ended.len() <= self.retained_max {
            return;
        }
        let free = self
            .ended
            .iter()
            .rev()
            .filter(|exec| !self.is_awaited(&exec.id));
        let older = free.skip(self.retained_max);
        let surplus = older.filter(|exec| exec.forget_at.is_some());
        let surplus: Vec<String> = surplus.map(|exec| exec.id.clone()).collect();
        // The oldest first.
        for id in surplus.iter().rev() {
            self.forget(id);
        }
    }

    fn is_awaited(&self, id: &str) -> bool {
        self.execs
            .get(id)
            .is_some_and(|(_, exec)| exec.is_awaited())
    }

    /// What an exec left in its own directory is the workspace's; an empty one goes with it, or a workspace would run
    /// out of inodes by running commands.
    fn forget(&mut self, id: &str) {
        self.forgotten.add(id);
        self.ended.retain(|exec| exec.id != id);
        self.full.retain(|exec| exec.id != id);
        if self.execs.remove(id).is_some() {
            self.root.remove_run_directory(id);
        }
    }
}

impl Registry {
    pub(crate) fn new(root: Arc<Root>) -> Self {
        Self {
            state: Mutex::new(State {
                root,
                execs: HashMap::new(),
                ended: Vec::new(),
                full: Vec::new(),
                forgotten: Forgotten::default(),
                started: 0,
                retained_max: usize::MAX,
                running: 0,
                idle_since: None,
                living: 0,
            }),
            ended: Notify::new(),
            budget: Budget::new(u64::MAX),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets what is kept: ended execs, and bytes of output in all.
    pub(crate) fn set_limits(&self, retained_max: usize, retain_bytes: u64) {
        self.state().retained_max = retained_max;
        self.budget.set_max(retain_bytes);
        self.make_room();
    }

    pub(crate) fn get(&self, id: &str) -> Option<Arc<Exec>> {
        self.state().execs.get(id).map(|(_, exec)| Arc::clone(exec))
    }

    /// There was one with this id, and nothing is known of it any more.
    pub(crate) fn is_forgotten(&self, id: &str) -> bool {
        self.state().forgotten.contains(id)
    }

    /// Forgets one of which nothing is left. Those that read it read on to its end.
    pub(crate) fn delete(&self, exec: &Exec) {
        self.state().forget(&exec.id);
    }

    /// Takes a new exec, which counts as running from here on.
    pub(crate) fn insert(&self, exec: Arc<Exec>) {
        let mut state = self.state();
        state.started += 1;
        state.running += 1;
        state.living += 1;
        let number = state.started;
        state.execs.insert(exec.id.clone(), (number, exec));
    }

    /// All, in order of their start.
    pub(crate) fn list(&self) -> Vec<Arc<Exec>> {
        let state = self.state();
        let mut execs: Vec<_> = state.execs.values().cloned().collect();
        drop(state);
        execs.sort_unstable_by_key(|(number, _)| *number);
        execs.into_iter().map(|(_, exec)| exec).collect()
    }

    /// Execs whose leader runs.
    pub(crate) fn running(&self) -> usize {
        self.state().running
    }

    /// Since the last leader ended; `None` if there was none.
    pub(crate) fn idle_time(&self) -> Option<Duration> {
        self.state().idle_since.map(|since| since.elapsed())
    }

    /// Execs of which a process may be left.
    pub(crate) fn living(&self) -> usize {
        self.state().living
    }

    /// Says that the leader of an exec is gone.
    pub(crate) fn leader_ended(&self) {
        let mut state = self.state();
        state.running = state.running.saturating_sub(1);
        state.idle_since = Some(Instant::now());
    }

    /// Says that nothing is left of an exec, and nothing more will come: it is kept for a while.
    pub(crate) fn exec_ended(&self, exec: &Exec) {
        let mut state = self.state();
        state.living = state.living.saturating_sub(1);
        let ended = state.ended.iter_mut().rfind(|ended| ended.id == exec.id);
        if let Some(ended) = ended {
            ended.forget_at = Some(after(Instant::now(), exec.retain_after_exit()));
        }
        drop(state);
        self.make_room();
        self.ended.notify_one();
    }

    /// Says that the daemon has heard of the end of an exec: it is kept like any other from here on.
    pub(crate) fn told(&self, exec: &Exec) {
        exec.told();
        self.make_room();
        self.ended.notify_one();
    }

    /// Says that the output of an exec is at its end: what is kept of it makes room for others. To be called before
    /// clients can know of the end, so that they never see more ended execs than are kept.
    pub(crate) fn output_ended(&self, exec: &Arc<Exec>) {
        let mut state = self.state();
        if state.execs.contains_key(&exec.id) {
            state.ended.push(EndedExec {
                id: exec.id.clone(),
                forget_at: None,
            });
            state.full.push(Arc::clone(exec));
        }
        drop(state);
        self.make_room();
    }

    /// The oldest first, forgets ended execs while there are too many of them, and empties the windows of those that
    /// are at their end while all together hold too much: a result is kept for as long as it was promised.
    pub(crate) fn make_room(&self) {
        let mut state = self.state();
        state.forget_surplus();
        let full = &mut state.full;
        full.retain(|exec| !self.budget.is_over() || !empty_windows(exec));
    }

    /// Forgets what is over its time, for ever.
    pub(crate) async fn forget_in_time(&self) {
        loop {
            let next = self.forget_overdue(Instant::now());
            let wait = next.map_or(IDLE, |next| next.saturating_duration_since(Instant::now()));
            let _either = tokio::time::timeout(wait, self.ended.notified()).await;
        }
    }

    fn forget_overdue(&self, now: Instant) -> Option<Instant> {
        let mut state = self.state();
        let is_due = |exec: &&EndedExec| {
            let is_over = exec.forget_at.is_some_and(|at| at <= now);
            is_over && !state.is_awaited(&exec.id)
        };
        let overdue = state.ended.iter().filter(is_due);
        let overdue: Vec<String> = overdue.map(|exec| exec.id.clone()).collect();
        for id in overdue {
            state.forget(&id);
        }
        let due = state.ended.iter().filter_map(|exec| exec.forget_at);
        // The others go when the daemon has been told.
        due.filter(|at| *at > now).min()
    }
}

/// Empties the windows of an exec whose output is at its end; false while somebody reads it who may lose nothing.
fn empty_windows(exec: &Exec) -> bool {
    let mut state = exec.state();
    if exec.spec.on_full() == v1::OnFull::Block && !state.readers.is_empty() {
        return false;
    }
    state.windows.iter_mut().for_each(Window::empty);
    true
}

#[cfg(test)]
mod tests;
