//! Refill of a pool, its back-off after failed boots, and its end.

use tokio::time::Instant;

use super::{MemberPhase, PoolMember, PoolTask};
use crate::error::Error;
use crate::pool::backoff::BootFailure;

impl PoolTask {
    /// Boots the slots that are missing: warm ones, and one for each waiting request, up to the maximum.
    pub(super) fn fill(&mut self) {
        let Some(missing) = self.missing() else {
            return;
        };
        let is_booting = self.count(MemberPhase::Booting) > 0;
        if missing == 0 && !is_booting && self.failure.take().is_some() {
            // No boot will show whether boots work again; the next request does.
            self.set_healthy(true);
        }
        for _ in 0..missing {
            match self.launcher.launch(&self.pool, self.pool.config.limits()) {
                Ok(number) => self.insert_member(number, MemberPhase::Booting, true, None),
                Err(error) => {
                    self.note_failure(&error);
                    return;
                }
            }
        }
    }

    /// Returns how many slots to boot now; `None` while the pool may not boot any.
    fn missing(&self) -> Option<usize> {
        let is_waiting_to_retry = self
            .failure
            .as_ref()
            .is_some_and(|failure| failure.retry_at > Instant::now());
        let has_image = self.pool.image().is_some();
        if !self.is_open || self.is_closed || !has_image || is_waiting_to_retry {
            return None;
        }
        // After a failure a single boot tests whether boots work again.
        let boots_max = match self.failure {
            Some(_) => 1,
            None => usize::MAX,
        };
        let room = self.pool.config.max.saturating_sub(self.occupied());
        let wanted = self.warm_target + self.waiting();
        Some(
            wanted
                .saturating_sub(self.coming())
                .min(room)
                .min(boots_max),
        )
    }

    /// Returns the number of slots that any request can use, and that are warm or boot.
    pub(super) fn coming(&self) -> usize {
        let is_coming = |member: &&PoolMember| {
            let is_free = matches!(member.phase, MemberPhase::Booting | MemberPhase::Warm);
            is_free && member.is_common
        };
        self.members.values().filter(is_coming).count()
    }

    pub(super) fn on_boot_failed(&mut self, number: u32, error: &Error) {
        let member = self.members.get_mut(&number);
        let (is_common, requester) = match member {
            Some(member) => (member.is_common, member.requester.take()),
            None => (true, None),
        };
        // A request's own limits may be the cause, which says nothing about the pool's.
        if is_common || matches!(error, Error::EngineUnavailable { .. }) {
            self.note_failure(error);
        }
        if let Some(requester) = requester {
            let error = self.exhausted("the container did not start");
            requester.answer(Err(error));
        }
    }

    pub(super) fn note_failure(&mut self, error: &Error) {
        let failure = BootFailure::after(self.failure.as_ref(), error);
        self.refill_at = Some(failure.retry_at);
        let is_engine_away = failure.is_engine_away;
        self.failure = Some(failure);
        if is_engine_away {
            // Requests that came before the failure get the same answer as those that come after it.
            for waiter in std::mem::take(&mut self.queue) {
                let error = self.exhausted("none can be made");
                waiter.answer(Err(error));
            }
        }
        if self.warm.is_empty() {
            self.set_healthy(false);
        }
    }

    pub(super) fn close(&mut self) {
        self.is_closed = true;
        for waiter in std::mem::take(&mut self.queue) {
            waiter.answer(Err(Error::Draining));
        }
        for number in std::mem::take(&mut self.warm) {
            self.set_phase(number, MemberPhase::Withdrawn);
        }
    }
}
