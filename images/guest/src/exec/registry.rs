//! All execs of the workspace: which id is whose, how many run, which are still kept.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use super::Exec;
use crate::output::Budget;

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
    /// In the order of their end, with the time when they are forgotten.
    ended: VecDeque<(Instant, String)>,
    started: u64,
    retained_max: usize,
    /// Execs whose leader runs.
    running: usize,
    /// When the last leader ended.
    idle_since: Option<Instant>,
    /// Execs of which a process may be left.
    living: usize,
}

impl State {
    fn forget_oldest(&mut self) -> bool {
        let oldest = self.ended.pop_front();
        oldest.is_some_and(|(_, id)| self.execs.remove(&id).is_some())
    }
}

impl Registry {
    pub(crate) fn new() -> Self {
        Self {
            state: Mutex::new(State {
                execs: HashMap::new(),
                ended: VecDeque::new(),
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
        let until = Instant::now() + exec.retain_after_exit();
        state.ended.push_back((until, exec.id.clone()));
        drop(state);
        self.make_room();
        self.ended.notify_one();
    }

    /// Forgets ended execs, the oldest first, while there are too many of them or the windows of all
    /// together hold too much.
    pub(crate) fn make_room(&self) {
        let mut state = self.state();
        while state.ended.len() > state.retained_max || self.budget.is_over() {
            if !state.forget_oldest() {
                return;
            }
        }
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
        let State { execs, ended, .. } = &mut *state;
        ended.retain(|(until, id)| {
            let keep = *until > now;
            if !keep {
                execs.remove(id);
            }
            keep
        });
        ended.iter().map(|(until, _)| *until).min()
    }
}
