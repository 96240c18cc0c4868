//! Flush of pending on-exit collections before a workspace ends, up to a deadline.

use tokio::time::Instant;

use super::SlotActor;
use crate::workspace::output_collection_tracker::OutputCollectionTracker;
use crate::workspace::slot_state_machine::{SlotEvent, SlotState};

/// End of a workspace that waits for its collections.
#[derive(Debug)]
pub(super) struct PendingWorkspaceEnd {
    event: SlotEvent,
    deadline: Instant,
}

impl PendingWorkspaceEnd {
    pub(super) fn deadline(&self) -> Instant {
        self.deadline
    }
}

impl SlotActor {
    /// Closes the lease, so that nothing new starts, and returns `true` if the end of the workspace has to wait for
    /// collections; execs whose files are to be collected are killed now. After `false` the caller must end the
    /// workspace.
    pub(super) fn start_flush(&mut self, event: SlotEvent) -> bool {
        if let Some(end) = &mut self.pending_end {
            // A caller that deletes the workspace waits for an answer, also while an expiry is under way.
            end.event = event;
            return true;
        }
        if self.state != SlotState::Claimed {
            return false;
        }
        // Before the look for collections, so that no request with an earlier snapshot starts another one.
        if let Some(lease) = &self.lease {
            lease.close();
        }
        if !self.collections.has_pending() {
            return false;
        }
        tracing::info!("workspace waits for its outputs to be collected");
        self.collections.request_flush(event == SlotEvent::Expire);
        let timeout = self.context.config.files.collect_on_exit_timeout;
        self.pending_end = Some(PendingWorkspaceEnd {
            event,
            deadline: Instant::now() + timeout,
        });
        self.retry_waiting_requests();
        true
    }

    /// Ends the workspace because its lease expired.
    pub(super) async fn expire_now(&mut self) {
        self.expired = true;
        if !self.start_flush(SlotEvent::Expire) {
            self.end(SlotEvent::Expire).await;
        }
    }

    /// Ends the workspace after its flush, or after the deadline.
    pub(super) async fn on_flushed(&mut self) {
        if let Some(end) = self.pending_end.take() {
            self.end(end.event).await;
        }
    }

    pub(super) async fn end(&mut self, event: SlotEvent) {
        self.apply(event).await;
        if event == SlotEvent::Delete && self.retry.is_some() && self.engine_away {
            self.refuse_deletes();
        }
        if self.state == SlotState::Quarantined {
            self.answer_deletes();
        }
    }
}

/// Completes when a pending end has nothing to wait for; never without a pending end.
pub(super) async fn await_flush(
    end: Option<&PendingWorkspaceEnd>,
    collections: &OutputCollectionTracker,
) {
    match end {
        Some(_) => collections.flush().await,
        None => std::future::pending().await,
    }
}
