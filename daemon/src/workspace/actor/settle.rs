//! The part of a slot's task that lets a workspace end: what is collected when execs end comes first, for a while.

use tokio::time::Instant;

use super::Actor;
use crate::workspace::collects::Collects;
use crate::workspace::state::{Event, State};

/// A workspace whose end waits.
#[derive(Debug)]
pub(super) struct Settling {
    event: Event,
    deadline: Instant,
}

impl Settling {
    pub(super) fn deadline(&self) -> Instant {
        self.deadline
    }
}

impl Actor {
    /// Whether the workspace's end has to wait. What still runs and is to be collected is killed now; nothing new starts.
    pub(super) fn settle(&mut self, event: Event) -> bool {
        if let Some(settling) = &mut self.settling {
            // Who deletes it wants an answer, whatever else had ended it.
            settling.event = event;
            return true;
        }
        if self.state != State::Claimed || !self.collects.are_pending() {
            return false;
        }
        tracing::info!("workspace waits for its outputs to be collected");
        self.collects.settle(event == Event::Expire);
        let timeout = self.context.config.files.collect_on_exit_timeout;
        self.settling = Some(Settling {
            event,
            deadline: Instant::now() + timeout,
        });
        true
    }

    /// Its time is over.
    pub(super) async fn expire_now(&mut self) {
        self.expired = true;
        if !self.settle(Event::Expire) {
            self.end(Event::Expire).await;
        }
    }

    /// Everything is collected, or the time for it is over.
    pub(super) async fn on_settled(&mut self) {
        if let Some(settling) = self.settling.take() {
            self.end(settling.event).await;
        }
    }

    pub(super) async fn end(&mut self, event: Event) {
        self.apply(event).await;
        if event == Event::Delete && self.retry.is_some() && self.engine_away {
            self.refuse_deletes();
        }
        if self.state == State::Quarantined {
            self.answer_deletes();
        }
    }
}

/// Completes when the end of a workspace need not wait any longer; never while it does not.
pub(super) async fn settled(settling: Option<&Settling>, collects: &Collects) {
    match settling {
        Some(_) => collects.none_pending().await,
        None => std::future::pending().await,
    }
}
