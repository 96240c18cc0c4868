//! Task that owns the state of one pool. It never waits for a slot or for a request.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::task::Poll;

use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;

use super::backoff::BootFailure;
use super::reservation::ReservationEnd;
use super::{
    Pool, PoolMessage, PoolSnapshot, SlotLauncher, SlotReport, SlotReservation, TenantShare,
};
use crate::access::TenantName;
use crate::error::{DaemonProblem, Result};
use crate::metrics::QueueWaitTimer;

mod claims;
mod refill;
#[cfg(test)]
mod tests;

/// Task of one pool: its state, and the loop that serves its messages.
#[derive(Debug)]
pub(super) struct PoolTask {
    pool: Arc<Pool>,
    launcher: Arc<dyn SlotLauncher>,
    is_open: bool,
    /// The daemon drains: the pool boots nothing and hands nothing out.
    is_closed: bool,
    warm_target: usize,
    members: BTreeMap<u32, PoolMember>,
    /// Warm slots in the order in which they are handed out.
    warm: VecDeque<u32>,
    /// Requests in the order of their arrival; `claims.rs` chooses the tenant that is served next.
    queue: VecDeque<WaitingRequest>,
    reservation_ends: FuturesUnordered<BoxFuture<'static, ReservationEnd>>,
    /// `None` once a boot has worked.
    failure: Option<BootFailure>,
    /// Reason why the pool's image is absent; `None` once the pool has it, and before the first report.
    absent_image: Option<DaemonProblem>,
    /// Time at which the pool fills itself again after a failed boot.
    refill_at: Option<Instant>,
    snapshot: watch::Sender<PoolSnapshot>,
    is_healthy: watch::Sender<bool>,
}

/// Slot of a pool.
#[derive(Debug)]
struct PoolMember {
    phase: MemberPhase,
    /// The slot has the pool's limits, so any request can use it.
    is_common: bool,
    /// Request for which a slot with limits of its own boots.
    requester: Option<WaitingRequest>,
    /// Tenant that the slot was reserved for; `None` while no tenant has it.
    holder: Option<TenantName>,
}

/// Availability of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MemberPhase {
    Booting,
    Warm,
    /// A request holds the reservation. A slot that its guest has left meanwhile does not become warm again.
    Reserved {
        is_withdrawn: bool,
    },
    /// The slot is a workspace, or ends.
    Taken,
    /// The guest is silent, or the slot ends. [`SlotReport::Ready`] makes it available again.
    Withdrawn,
    /// The slot is a failed workspace without a container. It does not count against `max`.
    Vacated,
}

/// Request that waits for a slot.
#[derive(Debug)]
struct WaitingRequest {
    share: TenantShare,
    reply: oneshot::Sender<Result<SlotReservation>>,
    deadline: Instant,
    /// Measures the wait in the queue; `None` for a request that is not in it.
    in_queue: Option<QueueWaitTimer>,
}

impl WaitingRequest {
    fn answer(self, result: Result<SlotReservation>) {
        if self.reply.send(result).is_err() {
            // A reservation that the caller did not receive is dropped, and the slot returns.
            tracing::trace!("caller has gone away");
        }
    }
}

impl PoolTask {
    pub(super) fn new(
        pool: Arc<Pool>,
        launcher: Arc<dyn SlotLauncher>,
        snapshot: watch::Sender<PoolSnapshot>,
        is_healthy: watch::Sender<bool>,
    ) -> Self {
        let task = Self {
            warm_target: pool.config.warm,
            pool,
            launcher,
            is_open: false,
            is_closed: false,
            members: BTreeMap::new(),
            warm: VecDeque::new(),
            queue: VecDeque::new(),
            reservation_ends: FuturesUnordered::new(),
            failure: None,
            absent_image: None,
            refill_at: None,
            snapshot,
            is_healthy,
        };
        task.publish();
        task
    }

    /// Serves messages until the caller drops the future.
    pub(super) async fn run(mut self, mut messages: mpsc::Receiver<PoolMessage>) {
        loop {
            let timer = self.timer();
            tokio::select! {
                // A withdrawal that a slot sent before its reservation ended must be known by then.
                biased;
                () = sleep_until(timer) => self.on_timer(),
                Some(message) = messages.recv() => self.on_message(message),
                Some(end) = self.reservation_ends.next() => self.on_reservation_end(&end),
                () = any_abandoned(&mut self.queue) => {
                    self.queue.retain(|waiter| !waiter.reply.is_closed());
                }
                else => return,
            }
            self.publish();
        }
    }

    fn on_message(&mut self, message: PoolMessage) {
        match message {
            PoolMessage::Adopt {
                number,
                is_warm,
                holder,
            } => {
                let phase = match is_warm {
                    true => MemberPhase::Booting,
                    false => MemberPhase::Taken,
                };
                self.insert_member(number, phase, true, None);
                if let Some(member) = self.members.get_mut(&number) {
                    member.holder = holder;
                }
            }
            PoolMessage::Open => {
                (self.is_open, self.is_closed) = (true, false);
                self.fill();
            }
            PoolMessage::Report { number, report } => self.on_report(number, report),
            PoolMessage::Claim {
                share,
                limits,
                reply,
            } => {
                let deadline = Instant::now() + self.pool.config.claim_timeout;
                let waiter = WaitingRequest {
                    share,
                    reply,
                    deadline,
                    in_queue: None,
                };
                self.on_claim(limits, waiter);
                self.fill();
            }
            PoolMessage::RetryBoot => {
                if let Some(failure) = &mut self.failure {
                    failure.retry_at = Instant::now();
                }
                self.fill();
            }
            PoolMessage::ImageFound => {
                self.absent_image = None;
                self.set_healthy(true);
                self.fill();
            }
            PoolMessage::ImageAbsent(problem) => self.absent_image = Some(problem),
            PoolMessage::Resize { warm_target, reply } => {
                self.warm_target = warm_target;
                while self.warm.len() > warm_target
                    && let Some(number) = self.warm.pop_back()
                {
                    self.discard(number);
                }
                self.fill();
                self.publish();
                // A caller that has gone away needs no answer.
                let _gone = reply.send(());
            }
            PoolMessage::Close { reply } => {
                self.close();
                let _gone = reply.send(());
            }
        }
    }

    fn on_report(&mut self, number: u32, report: SlotReport) {
        match report {
            SlotReport::Ready => {
                (self.failure, self.refill_at) = (None, None);
                self.set_healthy(true);
                match self.phase(number) {
                    Some(MemberPhase::Booting | MemberPhase::Withdrawn) => self.hand_out(number),
                    Some(MemberPhase::Reserved { .. }) => {
                        let is_withdrawn = false;
                        self.set_phase(number, MemberPhase::Reserved { is_withdrawn });
                    }
                    Some(MemberPhase::Warm | MemberPhase::Taken | MemberPhase::Vacated) | None => {}
                }
            }
            SlotReport::Withdrawn => {
                self.warm.retain(|warm| *warm != number);
                match self.phase(number) {
                    Some(MemberPhase::Reserved { .. }) => {
                        let is_withdrawn = true;
                        self.set_phase(number, MemberPhase::Reserved { is_withdrawn });
                    }
                    Some(MemberPhase::Booting | MemberPhase::Warm) => {
                        self.set_phase(number, MemberPhase::Withdrawn);
                    }
                    Some(MemberPhase::Taken | MemberPhase::Withdrawn | MemberPhase::Vacated)
                    | None => {}
                }
                // A withdrawn slot ends or comes back; either way its next report refills.
                return;
            }
            SlotReport::BootFailed(error) => {
                self.on_boot_failed(number, &error);
                return;
            }
            SlotReport::Vacated => self.set_phase(number, MemberPhase::Vacated),
            SlotReport::Removed => {
                self.members.remove(&number);
                self.warm.retain(|warm| *warm != number);
            }
        }
        self.fill();
    }

    fn on_reservation_end(&mut self, end: &ReservationEnd) {
        let Some(MemberPhase::Reserved { is_withdrawn }) = self.phase(end.number) else {
            return;
        };
        if end.is_kept {
            self.set_phase(end.number, MemberPhase::Taken);
        } else if is_withdrawn {
            self.set_phase(end.number, MemberPhase::Withdrawn);
        } else {
            self.hand_out(end.number);
        }
        self.fill();
    }

    // === deadlines ===

    fn timer(&self) -> Option<Instant> {
        let queued = self.queue.front();
        let requesters = self
            .members
            .values()
            .filter_map(|member| member.requester.as_ref());
        let deadlines = requesters.chain(queued).map(|waiter| waiter.deadline);
        deadlines.chain(self.refill_at).min()
    }

    fn on_timer(&mut self) {
        let now = Instant::now();
        let timeout = self.pool.config.claim_timeout;
        // All requests wait equally long, so the queue is in the order of its deadlines.
        while let Some(waiter) = self.queue.pop_front_if(|waiter| waiter.deadline <= now) {
            let error = self.exhausted(&format!("none came within {timeout:?}"));
            waiter.answer(Err(error));
        }
        let requesters = self.members.values_mut().filter_map(|member| {
            let is_due = |waiter: &mut WaitingRequest| waiter.deadline <= now;
            member.requester.take_if(is_due)
        });
        for requester in requesters.collect::<Vec<_>>() {
            let error = self.exhausted(&format!("it took longer than {timeout:?}"));
            requester.answer(Err(error));
        }
        if self.refill_at.take_if(|at| *at <= now).is_some() {
            self.fill();
        }
    }

    // === state ===

    fn insert_member(
        &mut self,
        number: u32,
        phase: MemberPhase,
        is_common: bool,
        requester: Option<WaitingRequest>,
    ) {
        let member = PoolMember {
            phase,
            is_common,
            requester,
            holder: None,
        };
        self.members.insert(number, member);
    }

    fn phase(&self, number: u32) -> Option<MemberPhase> {
        self.members.get(&number).map(|member| member.phase)
    }

    fn set_phase(&mut self, number: u32, phase: MemberPhase) {
        if let Some(member) = self.members.get_mut(&number) {
            member.phase = phase;
        }
    }

    fn set_healthy(&self, is_healthy: bool) {
        self.is_healthy
            .send_if_modified(|known| std::mem::replace(known, is_healthy) != is_healthy);
    }

    fn count(&self, phase: MemberPhase) -> usize {
        let members = self.members.values();
        members.filter(|member| member.phase == phase).count()
    }

    /// Returns the number of slots that count against `max`: also failed and quarantined ones whose container exists.
    fn occupied(&self) -> usize {
        self.members.len() - self.count(MemberPhase::Vacated)
    }

    fn waiting(&self) -> usize {
        let is_present = |waiter: &&WaitingRequest| !waiter.reply.is_closed();
        self.queue.iter().filter(is_present).count()
    }

    fn publish(&self) {
        let (warm, booting) = (
            self.count(MemberPhase::Warm),
            self.count(MemberPhase::Booting),
        );
        let name = &self.pool.config.name;
        let failure = self.failure.as_ref().map(|failure| failure.problem(name));
        self.snapshot.send_replace(PoolSnapshot {
            warm_target: self.warm_target,
            warm,
            booting,
            claimed: self.members.len() - warm - booting,
            waiting: self.waiting(),
            problem: self.absent_image.clone().or(failure),
        });
    }
}

/// Completes when the caller of a waiting request has gone away.
async fn any_abandoned(queue: &mut VecDeque<WaitingRequest>) {
    std::future::poll_fn(|context| {
        // Every waiter is polled, so that each can wake the task.
        let abandoned = queue
            .iter_mut()
            .filter_map(|waiter| waiter.reply.poll_closed(context).is_ready().then_some(()))
            .count();
        if abandoned > 0 {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    })
    .await;
}

/// Waits until a time, or for ever without one.
async fn sleep_until(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time).await,
        None => std::future::pending().await,
    }
}
