//! The clocks of a slot: the lease of its workspace, the deadlines of its end and of its container's removal.

use std::time::{Duration, SystemTime};

use tokio::time::Instant;

use super::Actor;
use super::settle::Settling;
use crate::error::Result;
use crate::fault::{self, Point};
use crate::workspace::lease::{Lease, from_unix_ms, unix_ms};
use crate::workspace::state::{Event, State};

impl Actor {
    /// Returns the time of the next thing that is due.
    pub(super) fn timer(&self) -> Option<Instant> {
        let lease = self
            .lease
            .as_ref()
            .filter(|_| self.state == State::Claimed && self.settling.is_none())
            .map(Lease::deadline);
        let settling = self.settling.as_ref().map(Settling::deadline);
        let retention = self
            .retention
            .filter(|_| matches!(self.state, State::Failed(_)));
        [lease, settling, retention, self.retry.map(|(at, _)| at)]
            .into_iter()
            .chain(self.reconnect_timers())
            .flatten()
            .min()
    }

    /// Does what is due.
    pub(super) async fn on_timer(&mut self) {
        let now = Instant::now();
        if self.on_reconnect_timer(now).await {
            return;
        }
        if self
            .settling
            .as_ref()
            .is_some_and(|settling| settling.deadline() <= now)
        {
            tracing::warn!("workspace ends before its outputs are collected");
            self.on_settled().await;
        } else if self.retry.is_some_and(|(at, _)| at <= now) {
            self.remove_container().await;
        } else if self.retention.is_some_and(|at| at <= now)
            && matches!(self.state, State::Failed(_))
        {
            self.apply(Event::RetentionOver).await;
        } else if self.state == State::Claimed && self.settling.is_none() {
            self.expire().await;
        }
    }

    /// Ends the workspace if its time is over. A running exec counts as use; so does a guest that does not answer, since
    /// it may run one. It has to connect again, or it is lost: nobody else would ever ask it.
    async fn expire(&mut self) {
        let Some(lease) = self.lease.clone() else {
            return;
        };
        if lease.is_over() {
            tracing::info!("workspace reached its maximum lifetime");
            self.expire_now().await;
        } else if lease.is_idle() {
            match self.idle_time().await {
                // It was in use until then.
                Some(idle) if idle < lease.idle_timeout() => lease.touch_ago(idle),
                Some(_) => {
                    tracing::info!("workspace was idle for its timeout");
                    self.expire_now().await;
                }
                None => {
                    lease.touch();
                    self.wait_again();
                }
            }
        }
    }

    /// Takes the lease from the record, after a restart of the daemon.
    pub(super) fn restore_lease(&mut self) {
        let Some(claim) = &self.record.claim else {
            return;
        };
        let remaining = from_unix_ms(claim.end_time_ms)
            .duration_since(SystemTime::now())
            .unwrap_or_default();
        self.lease = Some(Lease::new(
            Duration::from_millis(claim.idle_timeout_ms),
            remaining,
        ));
    }

    /// Changes the idle timeout, the remaining lifetime or both, and records them.
    pub(super) async fn renew(
        &mut self,
        idle: Option<Duration>,
        remaining: Option<Duration>,
    ) -> Result<()> {
        let (State::Claimed, Some(lease), None) = (self.state, &self.lease, &self.settling) else {
            return Err(self.not_ready());
        };
        lease.renew(idle, remaining);
        if let Some(claim) = &mut self.record.claim {
            claim.idle_timeout_ms =
                u64::try_from(lease.idle_timeout().as_millis()).unwrap_or(u64::MAX);
            claim.end_time_ms = unix_ms(lease.end_time());
        }
        self.publish();
        fault::reach(Point::RenewBegun);
        let written = self.persist().await;
        fault::reach(Point::RenewRecorded);
        written
    }
}

/// Waits until a time; for ever if there is none.
pub(super) async fn until(timer: Option<Instant>) {
    match timer {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}
