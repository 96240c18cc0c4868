//! Hand-out of a pool's slots: warm ones at once, others in the order of the queue.

use super::{MemberPhase, PoolTask, WaitingRequest};
use crate::engine::ContainerLimits;
use crate::error::{Error, Result};
use crate::pool::SlotReservation;

impl PoolTask {
    pub(super) fn on_claim(&mut self, limits: ContainerLimits, waiter: WaitingRequest) {
        if limits != self.pool.config.limits() {
            self.claim_with_limits(limits, waiter);
        } else if let Some(number) = self.warm.pop_front() {
            self.reserve(number, waiter);
        } else if let Err(error) = self.check_queue() {
            waiter.answer(Err(error));
        } else {
            self.queue.push_back(waiter);
        }
    }

    /// Boots a slot with limits other than the pool's, for one request.
    fn claim_with_limits(&mut self, limits: ContainerLimits, waiter: WaitingRequest) {
        let checked = self.check_queue().and_then(|()| {
            if self.occupied() >= self.pool.config.max {
                return Err(self.exhausted("it is at its maximum"));
            }
            self.launcher.launch(&self.pool, limits)
        });
        match checked {
            Ok(number) => self.insert_member(number, MemberPhase::Booting, false, Some(waiter)),
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
            self.reserve(number, requester);
            return;
        }
        while is_common && let Some(waiter) = self.queue.pop_front() {
            if !waiter.reply.is_closed() {
                self.reserve(number, waiter);
                return;
            }
        }
        if is_common && !self.is_closed && self.warm.len() < self.warm_target {
            self.set_phase(number, MemberPhase::Warm);
            self.warm.push_back(number);
        } else {
            self.discard(number);
        }
    }

    fn reserve(&mut self, number: u32, waiter: WaitingRequest) {
        let is_withdrawn = false;
        self.set_phase(number, MemberPhase::Reserved { is_withdrawn });
        let (reservation, end) = SlotReservation::new(number);
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
        if self.waiting() >= self.pool.config.queue_max {
            return Err(self.exhausted("its queue is full"));
        }
        Ok(())
    }

    /// Error for a request that gets no slot. The cause of a failed boot is only for operators, in GetProblems and the
    /// log.
    pub(super) fn exhausted(&self, why: &str) -> Error {
        let config = &self.pool.config;
        let why = match &self.failure {
            Some(failure) if failure.is_engine_away => {
                let message = "no container can be made until it is back".to_owned();
                return Error::EngineUnavailable { message };
            }
            Some(_) => {
                format!("{why}; the last one did not start, and the server's problems say why")
            }
            None if self.occupied() >= config.max => {
                format!("{why}; all {} that it may have are in use", config.max)
            }
            None => why.to_owned(),
        };
        Error::PoolExhausted {
            pool: config.name.clone(),
            why,
        }
    }
}
