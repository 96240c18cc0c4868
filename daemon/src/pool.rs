//! Warm slots of one recipe: handed out at once, refilled on each claim, with a bounded queue when there is none.
//!
//! A slot enters the pool only after its guest answered, is handed out once, and never comes back. Refilling is
//! triggered by what happens (a claim, a slot's end, a failed boot's back-off), never by a poll.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use tokio::sync::{oneshot, watch};
use tokio::time::Instant;

use crate::config::PoolConfig;
use crate::engine::{ImageInfo, Limits};
use crate::error::{Error, Result};
use crate::workspace::Slot;
use crate::workspace::actor::{Actor, Adopted};
use crate::workspace::record::{Phase, Record};
use crate::workspace::slot::{self, Context};
use crate::workspace::state::State;

mod claim;
mod inventory;
mod problem;
mod reserved;

pub use inventory::Inventories;
use problem::Problem;
pub use reserved::Reserved;

/// A pool. Everything in it happens under one short lock; nothing waits while holding it.
#[derive(Debug)]
pub struct Pool {
    context: Arc<Context>,
    config: PoolConfig,
    image: ImageInfo,
    inner: Mutex<Inner>,
    /// True while requests can be served, for health.
    healthy: watch::Sender<bool>,
}

#[derive(Debug, Default)]
struct Inner {
    warm_target: usize,
    members: HashMap<u32, Member>,
    warm: VecDeque<u32>,
    waiters: VecDeque<oneshot::Sender<Reserved>>,
    /// Why the last boot failed, until one works.
    problem: Option<Problem>,
    /// Draining: nothing is booted any more.
    closed: bool,
}

#[derive(Debug)]
struct Member {
    slot: Slot,
    phase: MemberPhase,
    /// A slot of its own size for one request.
    reserved_for: Option<oneshot::Sender<Reserved>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MemberPhase {
    Booting,
    Warm,
    /// Handed out, a workspace, or ending.
    Taken,
}

impl Inner {
    /// Slots that take a place: all but failed ones whose container is gone. What the container of a quarantined or failed
    /// slot holds of the host counts.
    fn occupied(&self) -> usize {
        let is_gone = |member: &&Member| {
            let view = member.slot.view();
            matches!(view.state, State::Failed(_)) && view.record.container_id.is_none()
        };
        self.members.len() - self.members.values().filter(is_gone).count()
    }

    /// Gives a slot to whoever waits longest; comes back if nobody waits.
    fn offer_to_waiters(&mut self, mut offer: Reserved) -> Option<Reserved> {
        while let Some(waiter) = self.waiters.pop_front() {
            match waiter.send(offer) {
                Ok(()) => return None,
                Err(back) => offer = back,
            }
        }
        Some(offer)
    }
}

/// Figures of a pool, for people.
#[derive(Debug, Clone)]
pub struct Stats {
    /// As set.
    pub warm_target: usize,
    /// Ready to be handed out.
    pub warm: usize,
    /// Being made.
    pub booting: usize,
    /// Handed out, or ending.
    pub claimed: usize,
    /// Requests in the queue.
    pub waiting: usize,
    /// Why it cannot fill, and since when.
    pub problem: Option<(String, SystemTime)>,
}

impl Pool {
    /// An empty pool; [`Pool::fill`] starts it.
    #[must_use]
    pub fn new(context: Arc<Context>, config: PoolConfig, image: ImageInfo) -> Arc<Self> {
        let inner = Inner {
            warm_target: config.warm,
            ..Inner::default()
        };
        let healthy = watch::Sender::new(true);
        Arc::new(Self {
            context,
            config,
            image,
            inner: Mutex::new(inner),
            healthy,
        })
    }

    /// The recipe.
    #[must_use]
    pub fn config(&self) -> &PoolConfig {
        &self.config
    }

    /// The image as resolved at start.
    #[must_use]
    pub fn image(&self) -> &ImageInfo {
        &self.image
    }

    /// True while requests can be served.
    #[must_use]
    pub fn healthy(&self) -> watch::Receiver<bool> {
        self.healthy.subscribe()
    }

    /// Starts as many boots as are missing: warm ones and those that somebody waits for, up to the maximum.
    pub fn fill(self: &Arc<Self>) {
        let mut inner = self.lock();
        let Some(missing) = self.missing(&inner) else {
            return;
        };
        let booting = inner
            .members
            .values()
            .any(|member| member.phase == MemberPhase::Booting);
        if missing == 0 && !booting && inner.problem.take().is_some() {
            // Nothing has to be made, so nothing can tell whether it would work: the next request finds out.
            self.healthy
                .send_if_modified(|healthy| !std::mem::replace(healthy, true));
        }
        for _ in 0..missing {
            if let Err(error) = self.boot(&mut inner, self.config.limits, None) {
                let retry_at = self.note_problem(&mut inner, &error);
                self.fill_at(retry_at);
                break;
            }
        }
    }

    /// Fills again at a point in time.
    fn fill_at(self: &Arc<Self>, at: Instant) {
        let pool = Arc::clone(self);
        let stop = self.context.tasks.stop.clone();
        self.context.tasks.spawn(async move {
            tokio::select! {
                () = stop.cancelled() => {}
                () = tokio::time::sleep_until(at) => pool.fill(),
            }
        });
    }

    fn missing(&self, inner: &Inner) -> Option<usize> {
        if inner.closed
            || inner
                .problem
                .as_ref()
                .is_some_and(|problem| problem.retry_at > Instant::now())
        {
            return None;
        }
        let waiting = inner
            .waiters
            .iter()
            .filter(|waiter| !waiter.is_closed())
            .count();
        let coming = inner
            .members
            .values()
            .filter(|member| member.phase != MemberPhase::Taken && member.reserved_for.is_none())
            .count();
        // After a failure one boot tries whether it works again.
        let most = if inner.problem.is_some() {
            1
        } else {
            usize::MAX
        };
        let room = self.config.max.saturating_sub(inner.occupied());
        Some(
            (inner.warm_target + waiting)
                .saturating_sub(coming)
                .min(room)
                .min(most),
        )
    }

    fn boot(
        self: &Arc<Self>,
        inner: &mut Inner,
        limits: Limits,
        reserved_for: Option<oneshot::Sender<Reserved>>,
    ) -> Result<()> {
        let (number, uid) = self.context.with_numbers(|numbers| {
            let number = numbers.take()?;
            Ok::<_, Error>((number, numbers.uid(number)))
        })?;
        let record = slot::new_record(&self.config, limits, &self.image.id, number, uid);
        let (actor, slot) = Actor::new(
            Arc::clone(&self.context),
            Arc::clone(self),
            record,
            State::Booting,
        );
        inner.members.insert(
            number,
            Member {
                slot,
                phase: MemberPhase::Booting,
                reserved_for,
            },
        );
        self.context.tasks.spawn(actor.run_new());
        Ok(())
    }

    /// Takes over a slot that was there before this start.
    pub fn adopt(self: &Arc<Self>, record: Record, found: Adopted) -> Slot {
        let state = match record.phase {
            Phase::Claimed | Phase::Failed { .. } => State::Claimed,
            Phase::Booting | Phase::Ready | Phase::Closing => State::Booting,
            Phase::Quarantined { .. } => State::Quarantined,
        };
        let number = record.number;
        let (actor, slot) = Actor::new(Arc::clone(&self.context), Arc::clone(self), record, state);
        let phase = if matches!(found, Adopted::Warm(_)) {
            MemberPhase::Booting
        } else {
            MemberPhase::Taken
        };
        let member = Member {
            slot: slot.clone(),
            phase,
            reserved_for: None,
        };
        self.lock().members.insert(number, member);
        self.context.tasks.spawn(actor.run_adopted(found));
        slot
    }

    /// A slot is ready for the first time, or again: whoever waits longest gets it, else it becomes warm.
    pub fn offer(self: &Arc<Self>, number: u32) {
        {
            let mut inner = self.lock();
            inner.problem = None;
            self.healthy
                .send_if_modified(|healthy| !std::mem::replace(healthy, true));
        }
        self.hand_out(number);
        self.fill();
    }

    /// A slot that was handed out was not taken. If it is still ready others can have it.
    pub(crate) fn give_back(self: &Arc<Self>, slot: &Slot) {
        if slot.view().state == State::Ready {
            self.hand_out(slot.number());
        }
        self.fill();
    }

    fn hand_out(self: &Arc<Self>, number: u32) {
        let mut inner = self.lock();
        let Some(member) = inner.members.get_mut(&number) else {
            return;
        };
        member.phase = MemberPhase::Taken;
        let own = member.reserved_for.take();
        let offer = Reserved {
            slot: Some(member.slot.clone()),
            pool: Arc::clone(self),
            common: own.is_none(),
        };
        let unwanted = match own {
            Some(request) => request.send(offer).err(),
            None => inner.offer_to_waiters(offer),
        };
        let Some(mut unwanted) = unwanted else {
            return;
        };
        if unwanted.common && !inner.closed && inner.warm.len() < inner.warm_target {
            // It becomes warm; the offer must not come back by itself.
            unwanted.slot = None;
            if let Some(member) = inner.members.get_mut(&number) {
                member.phase = MemberPhase::Warm;
            }
            if !inner.warm.contains(&number) {
                inner.warm.push_back(number);
            }
        } else {
            unwanted.common = false;
        }
        // Dropping one that nobody wants deletes it.
        drop(inner);
        drop(unwanted);
    }

    /// A warm slot is ending, or its guest is silent: nobody gets it any more. False if somebody has it.
    pub fn withdraw(&self, number: u32) -> bool {
        let mut inner = self.lock();
        let warm = inner.warm.contains(&number);
        inner.warm.retain(|warm| *warm != number);
        if let Some(member) = inner.members.get_mut(&number) {
            member.phase = MemberPhase::Taken;
        }
        warm
    }

    /// Nothing of a slot is left.
    pub fn gone(self: &Arc<Self>, number: u32) {
        {
            let mut inner = self.lock();
            inner.members.remove(&number);
            inner.warm.retain(|warm| *warm != number);
        }
        self.fill();
    }

    /// A slot did not start: whoever it was made for is told, and the next try waits, longer each time.
    pub fn boot_failed(self: &Arc<Self>, number: u32, error: &Error) {
        // A creation whose answer did not come may have left a container.
        self.context.reconcile.notify_one();
        let retry_at = {
            let mut inner = self.lock();
            let member = inner.members.get_mut(&number);
            let own = member.and_then(|member| member.reserved_for.take());
            if own.is_some() && !matches!(error, Error::EngineUnavailable { .. }) {
                // A request's own sizes may be what it failed for; that says nothing of the pool's.
                return;
            }
            self.note_problem(&mut inner, error)
        };
        self.fill_at(retry_at);
    }

    /// The engine is back: does not wait for the back-off to pass.
    pub fn retry_now(self: &Arc<Self>) {
        if let Some(problem) = &mut self.lock().problem {
            problem.retry_at = Instant::now();
        }
        self.fill();
    }

    fn note_problem(&self, inner: &mut Inner, error: &Error) -> Instant {
        let problem = Problem::after(inner.problem.as_ref(), error);
        let retry_at = problem.retry_at;
        if problem.engine_away {
            // Whoever began to wait before this was noticed is told like those who come after it.
            inner.waiters.clear();
        }
        inner.problem = Some(problem);
        if inner.warm.is_empty() {
            self.healthy
                .send_if_modified(|healthy| std::mem::replace(healthy, false));
        }
        retry_at
    }

    /// Sets how many warm slots to keep; surplus ones are removed.
    pub fn resize(self: &Arc<Self>, warm_target: usize) {
        let surplus: Vec<Slot> = {
            let mut inner = self.lock();
            inner.warm_target = warm_target;
            let keep = inner.warm.len().min(warm_target);
            let numbers: Vec<u32> = inner.warm.split_off(keep).into();
            numbers
                .iter()
                .filter_map(|number| {
                    let member = inner.members.get_mut(number)?;
                    member.phase = MemberPhase::Taken;
                    Some(member.slot.clone())
                })
                .collect()
        };
        for slot in surplus {
            // Dropping a reserved slot that is not common deletes it.
            drop(Reserved {
                slot: Some(slot),
                pool: Arc::clone(self),
                common: false,
            });
        }
        self.fill();
    }

    /// Boots nothing any more and sends waiters away. Answers with every slot there is.
    pub fn close(&self) -> Vec<Slot> {
        let mut inner = self.lock();
        inner.closed = true;
        inner.waiters.clear();
        inner.warm.clear();
        inner
            .members
            .values()
            .map(|member| member.slot.clone())
            .collect()
    }

    /// Figures, for people.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let inner = self.lock();
        let count = |phase| {
            inner
                .members
                .values()
                .filter(|member| member.phase == phase)
                .count()
        };
        Stats {
            warm_target: inner.warm_target,
            warm: count(MemberPhase::Warm),
            booting: count(MemberPhase::Booting),
            claimed: count(MemberPhase::Taken),
            waiting: inner
                .waiters
                .iter()
                .filter(|waiter| !waiter.is_closed())
                .count(),
            problem: inner
                .problem
                .as_ref()
                .map(|problem| (problem.message.clone(), problem.time)),
        }
    }

    /// Every slot there is.
    #[must_use]
    pub fn slots(&self) -> Vec<Slot> {
        self.lock()
            .members
            .values()
            .map(|member| member.slot.clone())
            .collect()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
