//! Hand-out of a pool's slots: warm ones at once, others by a queue that is fair among tenants.

use std::collections::{HashMap, HashSet};

use super::{MemberPhase, PoolTask, TenantShare, WaitingRequest};
use crate::access::TenantName;
use crate::engine::ContainerLimits;
use crate::error::{Error, Result};
use crate::metrics::ClaimSource;
use crate::pool::SlotReservation;

impl PoolTask {
    pub(super) fn on_claim(&mut self, limits: ContainerLimits, mut waiter: WaitingRequest) {
        if limits != self.pool.config.limits() {
            self.claim_with_limits(limits, waiter);
        } else if let Some(number) = self.warm.pop_front() {
            self.reserve(number, waiter, ClaimSource::Warm);
        } else if let Err(error) = self.check_queue() {
            waiter.answer(Err(error));
        } else if self.waiting() < self.pool.config.queue_max || self.evict_for(&waiter.share) {
            let pool = &self.pool;
            waiter.in_queue = Some(pool.metrics.start_queue_wait(&pool.config.name));
            self.queue.push_back(waiter);
        } else {
            let error = self.exhausted("its queue is full");
            waiter.answer(Err(error));
        }
    }

    /// Makes room in a full queue for a tenant that has at least two waiting requests fewer than another one: the newest
    /// request of the tenant with the most is refused. Returns `false` if no tenant has more.
    fn evict_for(&mut self, share: &TenantShare) -> bool {
        let mut waiting: HashMap<&TenantName, usize> = HashMap::new();
        for waiter in &self.queue {
            if !waiter.reply.is_closed() {
                *waiting.entry(&waiter.share.tenant).or_default() += 1;
            }
        }
        let own = waiting.get(&share.tenant).copied().unwrap_or_default();
        let most = waiting.into_iter().max_by_key(|(_, count)| *count);
        let Some((tenant, _)) = most.filter(|(_, count)| *count > own + 1) else {
            return false;
        };
        let tenant = tenant.clone();
        let newest = self
            .queue
            .iter()
            .rposition(|waiter| waiter.share.tenant == tenant && !waiter.reply.is_closed());
        let Some(evicted) = newest.and_then(|index| self.queue.remove(index)) else {
            return false;
        };
        let error =
            self.exhausted("its queue is full, and other tenants have fewer requests in it");
        evicted.answer(Err(error));
        true
    }

    /// Takes the request out of the queue that is served next: of the tenant with the smallest (slots + 1) / weight, and
    /// of those with the same, the one that has waited longest.
    fn next_waiter(&mut self) -> Option<WaitingRequest> {
        self.queue.retain(|waiter| !waiter.reply.is_closed());
        let mut held: HashMap<&TenantName, u64> = HashMap::new();
        for holder in self.members.values().filter_map(|it| it.holder.as_ref()) {
            *held.entry(holder).or_default() += 1;
        }
        let mut best: Option<(usize, u64, u64)> = None;
        let mut seen = HashSet::new();
        for (index, waiter) in self.queue.iter().enumerate() {
            let share = &waiter.share;
            if !seen.insert(&share.tenant) {
                continue;
            }
            let claims = held.get(&share.tenant).copied().unwrap_or_default() + 1;
            let weight = u64::from(share.weight.max(1));
            // a / b < c / d, without a division.
            let is_better =
                best.is_none_or(|(_, other, other_weight)| claims * other_weight < other * weight);
            if is_better {
                best = Some((index, claims, weight));
            }
        }
        self.queue.remove(best?.0)
    }

    /// Boots a slot with limits other than the pool's, for one request. It takes no place that requests in the queue will
    /// need.
    fn claim_with_limits(&mut self, limits: ContainerLimits, waiter: WaitingRequest) {
        let checked = self.check_queue().and_then(|()| {
            if self.waiting() >= self.pool.config.queue_max {
                return Err(self.exhausted("its queue is full"));
            }
            let uncovered = self.waiting().saturating_sub(self.coming());
            if self.occupied() + uncovered >= self.pool.config.max {
                return Err(self.exhausted("it is at its maximum"));
            }
            self.launcher.launch(&self.pool, limits)
        });
        match checked {
            Ok(number) => {
                let holder = waiter.share.tenant.clone();
                self.insert_member(number, MemberPhase::Booting, false, Some(waiter));
                if let Some(member) = self.members.get_mut(&number) {
                    member.holder = Some(holder);
                }
            }
            Err(error) => waiter.answer(Err(error)),
        }
    }

    /// Gives a slot to the request that it was booted for, to the first one in the queue, or to the warm ones.
    pub(super) fn hand_out(&mut self, number: u32) {
        let Some(member) = self.members.get_mut(&number) else {
            return;
        };
        let is_common = member.is_common;
        if let Some(requester) = member.requester.take() {
            self.reserve(number, requester, ClaimSource::Booted);
            return;
        }
        member.holder = None;
        if is_common && let Some(waiter) = self.next_waiter() {
            self.reserve(number, waiter, ClaimSource::Queued);
            return;
        }
        if is_common && !self.is_closed && self.warm.len() < self.warm_target {
            self.set_phase(number, MemberPhase::Warm);
            self.warm.push_back(number);
        } else {
            self.discard(number);
        }
    }

    fn reserve(&mut self, number: u32, waiter: WaitingRequest, source: ClaimSource) {
        let is_withdrawn = false;
        self.set_phase(number, MemberPhase::Reserved { is_withdrawn });
        if let Some(member) = self.members.get_mut(&number) {
            member.holder = Some(waiter.share.tenant.clone());
        }
        let (reservation, end) = SlotReservation::new(number, source);
        self.reservation_ends.push(end);
        waiter.answer(Ok(reservation));
    }

    pub(super) fn discard(&mut self, number: u32) {
        self.set_phase(number, MemberPhase::Taken);
        self.launcher.discard(number);
    }

    /// Checks whether a request may wait for a slot.
    fn check_queue(&self) -> Result<()> {
        if self.is_closed {
            return Err(Error::Draining);
        }
        self.pool.require_image()?;
        if self
            .failure
            .as_ref()
            .is_some_and(|failure| failure.is_engine_away)
        {
            return Err(self.exhausted("none is warm"));
        }
        Ok(())
    }

    /// Error for a request that gets no slot. The cause of a failed boot is only for operators, in ListProblems and the
    /// log.
    pub(super) fn exhausted(&self, why: &str) -> Error {
        let config = &self.pool.config;
        let why = match &self.failure {
            Some(failure) if failure.is_engine_away => {
                let message =
                    "no container can be made until it is back; the server's problems say why"
                        .to_owned();
                return Error::EngineUnavailable { message };
            }
            Some(_) => {
                format!("{why}; the last one did not start, and the server's problems say why")
            }
            None if self.occupied() >= config.max => {
                format!(
                    "{why}; all {} that it may have are in use: delete a workspace, or try again",
                    config.max
                )
            }
            None => format!("{why}: try again"),
        };
        Error::PoolExhausted {
            pool: config.name.clone(),
            why,
        }
    }
}
