//! Timers of a slot: the lease of its workspace, and the deadline of its container's removal.

use std::time::{Duration, SystemTime};

use skilld_common::unix_time::{from_unix_ms, unix_ms};
use tokio::time::Instant;

use super::SlotActor;
use crate::error::Result;
use crate::fault;
use crate::workspace::lease::{WorkspaceLease, users_max};
use crate::workspace::slot_state_machine::{SlotEvent, SlotState};

impl SlotActor {
    /// Returns the time of the next timer; `None` if none is set.
    pub(super) fn next_timer(&self) -> Option<Instant> {
        let lease = self
            .lease
            .as_ref()
            .filter(|_| self.state == SlotState::Claimed)
            .map(WorkspaceLease::deadline);
        let retention = self
            .retention
            .filter(|_| matches!(self.state, SlotState::Failed(_)));
        [lease, retention, self.retry.map(|(at, _)| at)]
            .into_iter()
            .chain(self.reconnect_timers())
            .flatten()
            .min()
    }

    /// Handles the timer that is due.
    pub(super) async fn on_timer(&mut self) {
        let now = Instant::now();
        if self.on_reconnect_timer(now).await {
            return;
        }
        if self.retry.is_some_and(|(at, _)| at <= now) {
            self.remove_container().await;
        } else if self.retention.is_some_and(|at| at <= now)
            && matches!(self.state, SlotState::Failed(_))
        {
            self.apply(SlotEvent::RetentionOver).await;
        } else if self.state == SlotState::Claimed {
            self.expire_if_due().await;
        }
    }

    /// Ends the workspace if its lease expired. A running exec counts as use. So does a guest that does not answer,
    /// since it may run one; but it has to connect again or the workspace is lost, because no other call would notice.
    async fn expire_if_due(&mut self) {
        let Some(lease) = self.lease.clone() else {
            return;
        };
        if lease.is_over() {
            tracing::info!("workspace reached its maximum lifetime");
            self.end(SlotEvent::Expire).await;
        } else if lease.is_idle() {
            match self.ask_idle_time().await {
                // An exec ran until then.
                Some(idle) if idle < lease.idle_timeout() => lease.touch_ago(idle),
                Some(_) if lease.close_if_idle() => {
                    tracing::info!("workspace was idle for its timeout");
                    self.end(SlotEvent::Expire).await;
                }
                // A request came while the guest answered.
                Some(_) => {}
                None => {
                    lease.touch();
                    self.cut_silent_guest().await;
                }
            }
        }
    }

    /// Creates the lease from the record, at a claim and after a restart of the daemon.
    pub(super) fn restore_lease(&mut self) {
        let Some(claim) = &self.record.claim else {
            return;
        };
        let remaining = from_unix_ms(claim.end_time_ms)
            .duration_since(SystemTime::now())
            .unwrap_or_default();
        self.lease = Some(WorkspaceLease::new(
            Duration::from_millis(claim.idle_timeout_ms),
            remaining,
            users_max(self.context.config.execs.execs_max),
        ));
    }

    /// Changes the idle timeout, the remaining lifetime or both, and records them.
    pub(super) async fn renew(
        &mut self,
        idle: Option<Duration>,
        remaining: Option<Duration>,
    ) -> Result<()> {
        let (SlotState::Claimed, Some(lease)) = (self.state, &self.lease) else {
            return Err(self.not_ready_error());
        };
        lease.renew(idle, remaining);
        if let Some(claim) = &mut self.record.claim {
            claim.idle_timeout_ms =
                u64::try_from(lease.idle_timeout().as_millis()).unwrap_or(u64::MAX);
            claim.end_time_ms = unix_ms(lease.lifetime_end_time());
        }
        self.publish();
        fault::reach("renew.begun");
        let written = self.persist().await;
        fault::reach("renew.recorded");
        written
    }
}

/// Waits until a time, or for ever without one.
pub(super) async fn sleep_until(timer: Option<Instant>) {
    match timer {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}
