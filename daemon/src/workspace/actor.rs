//! Task that owns a slot. It alone changes the slot's state, record and container.
//!
//! One loop handles everything that can happen: a request from a handle, the loss of the guest's connection, a timer,
//! the stop of the daemon. Each becomes a [`SlotEvent`], and `slot_state_machine.rs` decides the transition. The task
//! never touches bytes of output or files.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;

use crate::error::{Chain, Error, Result};
use crate::fault;
use crate::guest::GuestLink;
use crate::pool::{Pool, SlotReport};
use crate::workspace::lease::{HoldError, WorkspaceLease};
use crate::workspace::record::{SlotPhase, SlotRecord, WorkspaceClaim};
use crate::workspace::shared_slot_context::SharedSlotContext;
use crate::workspace::slot_state_machine::{
    LossCause, SlotEffect, SlotEvent, SlotState, next_step,
};
use crate::workspace::{
    GrantedGuest, SLOT_REQUESTS_MAX, Slot, SlotRequest, SlotSnapshot, WorkspaceFailure,
    WorkspaceGrant,
};

mod container_lifecycle;
mod guest_link;
mod reconnect;
mod record_writes;
mod slot_timers;
#[cfg(test)]
mod tests;

pub use reconnect::RECONNECT_TIMEOUT;
use reconnect::{GuestReconnect, await_reconnect};
use slot_timers::sleep_until;

/// State of a slot's task.
#[derive(Debug)]
pub struct SlotActor {
    context: Arc<SharedSlotContext>,
    pool: Arc<Pool>,
    dir: Arc<PathBuf>,
    record: SlotRecord,
    state: SlotState,
    link: Option<GuestLink>,
    /// Set while the task waits for the guest to connect again.
    reconnect: Option<GuestReconnect>,
    /// Time at which a pause of the container ends the open calls; `None` while it is not paused.
    pause_over: Option<Instant>,
    /// The workspace ends because its lease expired, not by a delete.
    expired: bool,
    lease: Option<WorkspaceLease>,
    failure: Option<WorkspaceFailure>,
    requests: mpsc::Receiver<SlotRequest>,
    view: watch::Sender<Arc<SlotSnapshot>>,
    /// Callers that wait for the end of the slot.
    deleting: Vec<oneshot::Sender<Result<()>>>,
    /// Time of the next attempt to remove the container, and the wait after it.
    retry: Option<(Instant, Duration)>,
    /// Time of the first attempt to remove the container since the engine answers.
    removing_since: Option<Instant>,
    /// Time at which the task left the container of a failed workspace to the reconciler.
    removal_overdue: Option<SystemTime>,
    /// The engine did not answer at the last attempt to remove the container.
    engine_away: bool,
    /// Time at which a failed workspace is removed from listings.
    retention: Option<Instant>,
}

impl SlotActor {
    /// Creates the task of a slot in this state, and its handle. The task does nothing before a `run` function is
    /// called.
    pub fn new(
        context: Arc<SharedSlotContext>,
        pool: Arc<Pool>,
        record: SlotRecord,
        state: SlotState,
    ) -> (Self, Slot) {
        let (sender, requests) = mpsc::channel(SLOT_REQUESTS_MAX);
        let dir = Arc::new(context.slot_dir(record.number));
        let first = SlotSnapshot {
            state,
            record: record.clone(),
            lease: None,
            guest: None,
            guest_version: String::new(),
            failure: None,
            removal_overdue: None,
        };
        let (view, watcher) = watch::channel(Arc::new(first));
        let slot = Slot {
            number: record.number,
            dir: Arc::clone(&dir),
            requests: sender,
            view: watcher,
            staging: Arc::default(),
            running_execs: Arc::default(),
            inputs: Arc::default(),
            setup: Arc::default(),
        };
        let actor = Self {
            context,
            pool,
            dir,
            record,
            state,
            link: None,
            reconnect: None,
            pause_over: None,
            expired: false,
            lease: None,
            failure: None,
            requests,
            view,
            deleting: Vec::new(),
            retry: None,
            removing_since: None,
            removal_overdue: None,
            engine_away: false,
            retention: None,
        };
        (actor, slot)
    }

    /// Boots a new slot and owns it to its end.
    #[tracing::instrument(skip_all, fields(slot = self.record.number, pool = %self.record.pool))]
    pub async fn run_new(mut self) {
        let stop = self.context.tasks.stop.clone();
        let Some(booted) = stop.run_until_cancelled(self.boot()).await else {
            return;
        };
        match booted {
            Ok(link) => {
                self.link = Some(link);
                self.apply(SlotEvent::GuestAnswered).await;
            }
            Err(error) => {
                tracing::warn!(error = %Chain(&error), "slot did not start");
                // A creation whose answer did not come may have left a container.
                self.context.reconcile.notify_one();
                self.report(SlotReport::BootFailed(error)).await;
                self.apply(SlotEvent::Lost(LossCause::StartFailed)).await;
            }
        }
        self.run().await;
    }

    /// Adopts a slot of an earlier daemon and owns it to its end.
    #[tracing::instrument(skip_all, fields(slot = self.record.number, pool = %self.record.pool))]
    pub async fn run_adopted(mut self, adopted: AdoptedSlot) {
        match adopted {
            AdoptedSlot::Warm(link) => {
                self.link = Some(link);
                self.apply(SlotEvent::GuestAnswered).await;
            }
            AdoptedSlot::Workspace(link) => {
                self.restore_lease();
                self.rewrite_metadata().await;
                self.publish();
                self.start_reconnect(Some(link)).await;
            }
            AdoptedSlot::Awaited => {
                self.restore_lease();
                self.rewrite_metadata().await;
                self.publish();
                self.on_link_lost().await;
            }
            AdoptedSlot::Lost(cause, message, time) => {
                self.restore_lease();
                self.lose(cause, message, time).await;
            }
            AdoptedSlot::Garbage => {
                self.apply(SlotEvent::Delete).await;
            }
            // The reconciler reports when the container is gone.
            AdoptedSlot::Quarantined => self.publish(),
        }
        self.run().await;
    }

    async fn run(mut self) {
        let stop = self.context.tasks.stop.clone();
        while self.state != SlotState::Removed {
            self.publish_guest();
            let timer = self.next_timer();
            tokio::select! {
                () = stop.cancelled() => {
                    // Without its connection the guest stops the timeouts of its execs, and open calls end at once.
                    if let Some(link) = &self.link {
                        link.cut();
                    }
                    self.view.send_modify(|view| Arc::make_mut(view).guest = None);
                    return;
                }
                () = link_lost(self.link.as_ref()) => self.on_link_lost().await,
                connected = await_reconnect(self.reconnect.as_mut()) => self.on_reconnected(connected).await,
                // The slot table holds a handle until the slot is removed.
                Some(request) = self.requests.recv() => self.on_request(request).await,
                () = sleep_until(timer) => self.on_timer().await,
            }
        }
        self.publish();
        for waiter in self.deleting.drain(..) {
            answer(waiter, Ok(()));
        }
    }

    async fn on_request(&mut self, request: SlotRequest) {
        match request {
            SlotRequest::Claim { claim, reply } => {
                let claimed = self.claim(*claim).await;
                answer(reply, claimed);
            }
            SlotRequest::Grant { reply } => {
                if self
                    .link
                    .as_ref()
                    .is_some_and(|link| link.lost.is_cancelled())
                {
                    self.on_link_lost().await;
                }
                self.on_grant(reply);
            }
            SlotRequest::Guest { reply } => {
                let link = self
                    .link
                    .as_ref()
                    .filter(|_| self.state == SlotState::Ready);
                let guest = link.map(|link| link.client.clone());
                answer(reply, guest.ok_or_else(|| self.not_ready_error()));
            }
            SlotRequest::Renew {
                idle,
                remaining,
                reply,
            } => {
                let renewed = self.renew(idle, remaining).await;
                answer(reply, renewed);
            }
            SlotRequest::Labels { labels, reply } => {
                let recorded = self.update_claim(|claim| claim.labels = labels).await;
                answer(reply, recorded);
            }
            SlotRequest::Skills { staged, reply } => {
                let recorded = self.update_claim(|claim| claim.skills.extend(staged)).await;
                answer(reply, recorded);
            }
            SlotRequest::Inputs { staged, reply } => {
                let recorded = self.update_claim(|claim| claim.add_inputs(staged)).await;
                answer(reply, recorded);
            }
            SlotRequest::Setup { setup, reply } => {
                let recorded = self.update_claim(|claim| claim.setup = setup).await;
                answer(reply, recorded);
            }
            SlotRequest::Delete { reply } => {
                self.deleting.push(reply);
                fault::reach("delete.begun");
                self.end(SlotEvent::Delete).await;
            }
            SlotRequest::ContainerEnded(state) => self.on_container_ended(state).await,
            SlotRequest::Paused(paused) => self.on_paused(paused),
        }
    }

    /// Turns a warm slot into a workspace. Writes the record and configures the guest at the same time, and returns
    /// after both.
    async fn claim(&mut self, claim: WorkspaceClaim) -> Result<()> {
        let Some(link) = self.link.clone().filter(|_| self.state == SlotState::Ready) else {
            return Err(self.not_ready_error());
        };
        let configure = self.configure(link, &claim);
        self.record.claim = Some(claim);
        self.restore_lease();
        if !self.apply(SlotEvent::Claim).await {
            return Err(self.not_ready_error());
        }
        self.record.phase = self.record_phase();
        fault::reach("claim.accepted");
        let only_tell = fault::will_kill_at(&["claim.configured"]);
        let only_write = fault::will_kill_at(&["claim.metadata", "claim.recorded"]);
        let write = fault::hold_if(only_tell, async {
            let written = self.persist().await;
            fault::reach("claim.recorded");
            written
        });
        let tell = fault::hold_if(only_write, async {
            let configured = configure.await;
            fault::reach("claim.configured");
            configured
        });
        let (written, configured) = tokio::join!(write, tell);
        fault::reach("claim.done");
        if written.is_err() && configured.is_ok() {
            // The record on disk still says Ready, and no command has run. Guest and metadata file have names and
            // limits of this claim, which the next claim replaces before any command can read them.
            (self.record.claim, self.lease) = (None, None);
            self.record.phase = SlotPhase::Ready;
            self.apply(SlotEvent::ClaimFailed).await;
        }
        written.and(configured)
    }

    fn grant(&self) -> Result<WorkspaceGrant> {
        let (SlotState::Claimed, Some(link), Some(lease)) = (self.state, &self.link, &self.lease)
        else {
            return Err(self.not_ready_error());
        };
        let held = lease.try_hold().map_err(|error| match error {
            HoldError::Full => lease.full_error(),
            HoldError::Closed => self.not_ready_error(),
        })?;
        Ok(WorkspaceGrant {
            guest: link.client.clone(),
            view: Arc::clone(&self.view.borrow()),
            _use: held,
        })
    }

    /// Changes the claim of the workspace and writes its record.
    async fn update_claim(&mut self, change: impl FnOnce(&mut WorkspaceClaim)) -> Result<()> {
        if self.state != SlotState::Claimed {
            return Err(self.not_ready_error());
        }
        if let Some(claim) = &mut self.record.claim {
            change(claim);
        }
        self.publish();
        self.persist().await
    }

    fn not_ready_error(&self) -> Error {
        super::not_ready_error(&self.record, self.state)
    }

    /// Applies an event. Returns `false` if the state does not allow it.
    ///
    /// A failed effect does not stop the others: a slot whose record cannot be written still has to be removed. The
    /// record on disk is older then, and the next start removes the rest.
    async fn apply(&mut self, event: SlotEvent) -> bool {
        let Ok(step) = next_step(self.state, event) else {
            tracing::debug!(?event, state = ?self.state, "event is not allowed in this state");
            return false;
        };
        if step.next != self.state {
            tracing::debug!(from = ?self.state, to = ?step.next, ?event, "slot changes state");
        }
        self.state = step.next;
        if step.effects.contains(&SlotEffect::RemoveContainer) {
            // A failed workspace may have tried before; its delete gets the full time again. Until that is over the
            // snapshot says that the container is not left to the reconciler.
            (self.retry, self.removing_since, self.removal_overdue) = (None, None, None);
        }
        if !matches!(self.state, SlotState::Quarantined | SlotState::Removed) {
            // The removal is published after its effects, when nothing of the workspace is left.
            self.publish();
        }
        for effect in step.effects {
            self.carry_out(*effect, event).await;
        }
        self.publish();
        true
    }

    async fn carry_out(&mut self, effect: SlotEffect, event: SlotEvent) {
        match effect {
            SlotEffect::Persist => {
                self.record.phase = self.record_phase();
                if let Err(error) = self.persist().await {
                    tracing::error!(error = %Chain(&error), ?event, "slot record was not written");
                }
                match self.state {
                    SlotState::Ready => fault::reach("boot.ready_recorded"),
                    SlotState::Closing => fault::reach("delete.recorded"),
                    SlotState::Failed(_) => fault::reach("loss.recorded"),
                    SlotState::Booting
                    | SlotState::Claimed
                    | SlotState::Quarantined
                    | SlotState::Removed => {}
                }
            }
            SlotEffect::Offer => {
                self.report(SlotReport::Ready).await;
                fault::reach("boot.offered");
            }
            SlotEffect::Withdraw => self.report(SlotReport::Withdrawn).await,
            SlotEffect::RemoveContainer => self.remove_container().await,
            SlotEffect::Release => self.release(),
            SlotEffect::Forget => self.forget().await,
        }
    }

    async fn report(&self, report: SlotReport) {
        self.pool.report(self.record.number, report).await;
    }

    /// Publishes the guest if requests may call it without asking this task, and withdraws it otherwise. Its connection
    /// may break at any time, as it may after a grant.
    fn publish_guest(&self) {
        let is_usable = self.state == SlotState::Claimed && self.reconnect.is_none();
        let link = self.link.as_ref().filter(|_| is_usable);
        self.view.send_if_modified(|view| {
            let is_modified = view.guest.is_some() != link.is_some();
            if is_modified {
                Arc::make_mut(view).guest = link.map(|link| GrantedGuest {
                    client: link.client.clone(),
                    lost: link.lost.clone(),
                });
            }
            is_modified
        });
    }

    /// Publishes a snapshot. Requests ask this task from then on, until it waits for events again.
    fn publish(&self) {
        self.view.send_replace(Arc::new(SlotSnapshot {
            state: self.state,
            record: self.record.clone(),
            lease: self.lease.clone(),
            guest: None,
            guest_version: self
                .link
                .as_ref()
                .map(|link| link.version.clone())
                .unwrap_or_default(),
            failure: self.failure.clone(),
            removal_overdue: self.removal_overdue,
        }));
    }
}

/// Condition of a slot of an earlier daemon.
#[derive(Debug)]
pub enum AdoptedSlot {
    /// Unclaimed slot whose guest answers.
    Warm(GuestLink),
    /// Workspace whose guest answers. It is configured again, since it may have missed that.
    Workspace(GuestLink),
    /// Workspace whose guest cannot answer now: its container is paused, or its socket cannot be bound.
    Awaited,
    /// Lost workspace: cause, message and time.
    Lost(LossCause, String, SystemTime),
    /// Slot in the middle of its boot or removal.
    Garbage,
    /// Quarantined slot, whose container could not be removed.
    Quarantined,
}

/// Completes when the guest's connection is lost; never without one.
async fn link_lost(link: Option<&GuestLink>) {
    match link {
        Some(link) => link.lost.cancelled().await,
        None => std::future::pending().await,
    }
}

/// Answers a request. A caller that has gone away makes no difference.
fn answer<T>(reply: oneshot::Sender<Result<T>>, result: Result<T>) {
    if reply.send(result).is_err() {
        tracing::trace!("caller has gone away");
    }
}
