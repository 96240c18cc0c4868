//! The task that owns a slot: it alone changes the slot's state, record and container.
//!
//! One loop over everything that can happen: a command from a handle, the guest's connection gone, a
//! timer, the daemon's stop. Each becomes an [`Event`]; `state.rs` says what follows. The task never
//! touches a byte of output or of a file.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;

use crate::error::{Chain, Error, Result};
use crate::fault::{self, Point};
use crate::guest::Link;
use crate::pool::Pool;
use crate::workspace::collects::Collects;
use crate::workspace::lease::Lease;
use crate::workspace::record::{Claim, Phase, Record};
use crate::workspace::slot::Context;
use crate::workspace::state::{Cause, Effect, Event, State, step};
use crate::workspace::{COMMANDS_MAX, Command, Failure, Grant, Slot, View};

mod clock;
mod container;
mod link;
mod persist;
mod reconnect;
mod settle;
#[cfg(test)]
mod tests;

use clock::until;
pub use reconnect::RECONNECT_TIMEOUT;
use reconnect::{Reconnect, reconnected};
use settle::{Settling, settled};

/// Calls to one workspace at once. The guest takes 1,024, and queues the others without a word: this leaves room for
/// those of the daemon itself.
const USERS_MAX: u64 = 960;

/// The task's own data.
#[derive(Debug)]
pub struct Actor {
    context: Arc<Context>,
    pool: Arc<Pool>,
    dir: Arc<PathBuf>,
    record: Record,
    state: State,
    link: Option<Link>,
    /// Set while the guest of before is awaited.
    reconnect: Option<Reconnect>,
    /// When a pause of the container has lasted too long for the calls that are open.
    pause_over: Option<Instant>,
    /// Its time was over; nobody deleted it.
    expired: bool,
    lease: Option<Lease>,
    failure: Option<Failure>,
    commands: mpsc::Receiver<Command>,
    view: watch::Sender<Arc<View>>,
    /// Who waits for the end.
    deleting: Vec<oneshot::Sender<Result<()>>>,
    /// When to try again to remove the container, and how long to wait after that.
    retry: Option<(Instant, Duration)>,
    /// Begin of the tries to remove the container, those before the engine was away not counted.
    removing_since: Option<Instant>,
    /// Time at which the removal of a failed workspace's container was given up.
    removal_overdue: Option<SystemTime>,
    /// The engine did not answer when the container was to be removed.
    engine_away: bool,
    /// When a failed workspace is forgotten.
    retention: Option<Instant>,
    /// What is collected when execs end.
    collects: Arc<Collects>,
    /// Set while its end waits for that.
    settling: Option<Settling>,
}

impl Actor {
    /// A slot that is `state` now, and its handle. Nothing runs until one of the `run` functions does.
    #[must_use]
    pub fn new(
        context: Arc<Context>,
        pool: Arc<Pool>,
        record: Record,
        state: State,
    ) -> (Self, Slot) {
        let (sender, commands) = mpsc::channel(COMMANDS_MAX);
        let dir = Arc::new(context.slot_dir(record.number));
        let first = View {
            state,
            record: record.clone(),
            lease: None,
            guest_version: String::new(),
            failure: None,
            removal_overdue: None,
        };
        let (view, watcher) = watch::channel(Arc::new(first));
        let kept_max = context.config.execs.retained_max as usize * 2;
        let collects = Arc::new(Collects::new(&dir, record.claim.is_some(), kept_max));
        let slot = Slot {
            number: record.number,
            dir: Arc::clone(&dir),
            commands: sender,
            view: watcher,
            staging: Arc::default(),
            collects: Arc::clone(&collects),
            inputs: Arc::default(),
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
            commands,
            view,
            deleting: Vec::new(),
            retry: None,
            removing_since: None,
            removal_overdue: None,
            engine_away: false,
            retention: None,
            collects,
            settling: None,
        };
        (actor, slot)
    }

    /// Makes the container, then owns the slot to its end.
    #[tracing::instrument(skip_all, fields(slot = self.record.number, pool = %self.record.pool))]
    pub async fn run_new(mut self) {
        let stop = self.context.tasks.stop.clone();
        let booted = tokio::select! {
            () = stop.cancelled() => return,
            booted = self.boot() => booted,
        };
        match booted {
            Ok(link) => {
                self.link = Some(link);
                self.apply(Event::GuestAnswered).await;
            }
            Err(error) => {
                tracing::warn!(error = %Chain(&error), "slot did not start");
                self.pool.boot_failed(self.record.number, &error);
                self.apply(Event::Lost(Cause::StartFailed)).await;
            }
        }
        self.run().await;
    }

    /// Takes over a slot that was there before this start: `link` is its guest, if it answered.
    #[tracing::instrument(skip_all, fields(slot = self.record.number, pool = %self.record.pool))]
    pub async fn run_adopted(mut self, adopted: Adopted) {
        match adopted {
            Adopted::Warm(link) => {
                self.link = Some(link);
                self.apply(Event::GuestAnswered).await;
            }
            Adopted::Workspace(link) => {
                self.restore_lease();
                self.mend_metadata().await;
                self.publish();
                self.wait_for_guest(Some(link));
            }
            Adopted::Paused => {
                self.restore_lease();
                self.mend_metadata().await;
                self.publish();
                self.on_link_lost();
            }
            Adopted::Lost(cause, message, time) => {
                self.restore_lease();
                self.lose(cause, message, time).await;
            }
            Adopted::Garbage => {
                self.apply(Event::Delete).await;
            }
            // The reconciler says when its container is gone.
            Adopted::Quarantined => self.publish(),
        }
        self.run().await;
    }

    async fn run(mut self) {
        let stop = self.context.tasks.stop.clone();
        while self.state != State::Removed {
            let timer = self.timer();
            tokio::select! {
                () = stop.cancelled() => {
                    // The guest's clocks stand still from now on. What still waits for it hears so at once.
                    if let Some(link) = &self.link {
                        link.cut();
                    }
                    return;
                }
                () = lost(self.link.as_ref()) => self.on_link_lost(),
                () = settled(self.settling.as_ref(), &self.collects) => self.on_settled().await,
                connected = reconnected(self.reconnect.as_mut()) => self.on_reconnected(connected).await,
                // The pool and the directory hold handles for as long as the slot is theirs.
                Some(command) = self.commands.recv() => self.on_command(command).await,
                () = until(timer) => self.on_timer().await,
            }
        }
        self.publish();
        for waiter in self.deleting.drain(..) {
            answer(waiter, Ok(()));
        }
    }

    async fn on_command(&mut self, command: Command) {
        match command {
            Command::Claim { claim, reply } => {
                let claimed = self.claim(*claim).await;
                answer(reply, claimed);
            }
            Command::Grant { reply } if self.settling.is_some() => {
                answer(reply, Err(self.not_ready()));
            }
            Command::Grant { reply } | Command::GrantToCollect { reply } => self.on_grant(reply),
            Command::Guest { reply } => {
                let link = self.link.as_ref().filter(|_| self.state == State::Ready);
                let guest = link.map(|link| link.client.clone());
                answer(reply, guest.ok_or_else(|| self.not_ready()));
            }
            Command::Renew {
                idle,
                remaining,
                reply,
            } => {
                let renewed = self.renew(idle, remaining).await;
                answer(reply, renewed);
            }
            Command::Skills { staged, reply } => {
                let recorded = self.record(|claim| claim.skills.extend(staged)).await;
                answer(reply, recorded);
            }
            Command::Inputs { staged, reply } => {
                let recorded = self.record(|claim| claim.remember(staged)).await;
                answer(reply, recorded);
            }
            Command::Delete { reply } => {
                self.deleting.push(reply);
                fault::reach(Point::DeleteBegun);
                if !self.settle(Event::Delete) {
                    self.end(Event::Delete).await;
                }
            }
            Command::ContainerEnded(state) => self.on_container_ended(state).await,
            Command::Paused(paused) => self.on_paused(paused),
        }
    }

    /// Ready → Claimed. The record and the guest learn it at the same time; the request is answered when both have.
    async fn claim(&mut self, claim: Claim) -> Result<()> {
        let Some(link) = self.link.clone().filter(|_| self.state == State::Ready) else {
            return Err(self.not_ready());
        };
        let configure = self.configure(link, &claim);
        self.record.claim = Some(claim);
        self.restore_lease();
        if !self.apply(Event::Claim).await {
            return Err(self.not_ready());
        }
        self.record.phase = self.phase();
        fault::reach(Point::ClaimAccepted);
        let only_tell = fault::is_near(&[Point::ClaimConfigured]);
        let only_write = fault::is_near(&[Point::ClaimMetadata, Point::ClaimRecorded]);
        let write = fault::unless_near(only_tell, async {
            let written = self.persist().await;
            fault::reach(Point::ClaimRecorded);
            written
        });
        let tell = fault::unless_near(only_write, async {
            let configured = configure.await;
            fault::reach(Point::ClaimConfigured);
            configured
        });
        let (written, configured) = tokio::join!(write, tell);
        fault::reach(Point::ClaimDone);
        if written.is_err() && configured.is_ok() {
            // The record on disk still says Ready, and nothing has run. What the claim told the guest and wrote into the
            // metadata file are names and limits, and the next claim replaces all of them before anybody can look.
            (self.record.claim, self.lease) = (None, None);
            self.record.phase = Phase::Ready;
            self.apply(Event::ClaimFailed).await;
        }
        written.and(configured)
    }

    fn grant(&self) -> Result<Grant> {
        let (State::Claimed, Some(link), Some(lease)) = (self.state, &self.link, &self.lease)
        else {
            return Err(self.not_ready());
        };
        if lease.users() >= USERS_MAX {
            return Err(Error::QuotaExceeded {
                subject: "the number of calls to a workspace at once".to_owned(),
                limit: USERS_MAX,
            });
        }
        Ok(Grant {
            guest: link.client.clone(),
            generation: link.generation,
            view: Arc::clone(&self.view.borrow()),
            _use: lease.hold(),
        })
    }

    /// Notes something about the workspace.
    async fn record(&mut self, note: impl FnOnce(&mut Claim)) -> Result<()> {
        if self.state != State::Claimed {
            return Err(self.not_ready());
        }
        if let Some(claim) = &mut self.record.claim {
            note(claim);
        }
        self.publish();
        self.persist().await
    }

    fn not_ready(&self) -> Error {
        let ending = self.state == State::Claimed && self.settling.is_some();
        super::not_ready(
            &self.record,
            if ending { State::Closing } else { self.state },
        )
    }

    /// Applies an event. False if it has no place in this state.
    ///
    /// An effect that fails does not keep the others from happening: a slot that cannot be written down still has to
    /// be removed. What the record then says is older, and the next start removes what it finds.
    async fn apply(&mut self, event: Event) -> bool {
        let Ok(step) = step(self.state, event) else {
            tracing::debug!(?event, state = ?self.state, "event has no place in this state");
            return false;
        };
        if step.next != self.state {
            tracing::debug!(from = ?self.state, to = ?step.next, ?event, "slot changes state");
        }
        self.state = step.next;
        if step.effects.contains(&Effect::RemoveContainer) {
            // A failed workspace may have tried before; its delete gets a time of its own. Until that is over the container
            // is not the reconciler's, which the view says.
            (self.retry, self.removing_since, self.removal_overdue) = (None, None, None);
        }
        if !matches!(self.state, State::Quarantined | State::Removed) {
            // That nothing of the workspace is left is said when it is true.
            self.publish();
        }
        for effect in step.effects {
            self.carry_out(*effect, event).await;
        }
        self.publish();
        true
    }

    async fn carry_out(&mut self, effect: Effect, event: Event) {
        match effect {
            Effect::Persist => {
                self.record.phase = self.phase();
                if let Err(error) = self.persist().await {
                    tracing::error!(error = %Chain(&error), ?event, "slot record was not written");
                }
                match self.state {
                    State::Ready => fault::reach(Point::BootReadyRecorded),
                    State::Closing => fault::reach(Point::DeleteRecorded),
                    State::Failed(_) => fault::reach(Point::LossRecorded),
                    State::Booting | State::Claimed | State::Quarantined | State::Removed => {}
                }
            }
            Effect::Offer => {
                self.pool.offer(self.record.number);
                fault::reach(Point::BootOffered);
            }
            Effect::Withdraw => {
                self.pool.withdraw(self.record.number);
            }
            Effect::RemoveContainer => self.remove_container().await,
            Effect::Release => self.release(),
            Effect::Forget => self.forget().await,
        }
    }

    fn publish(&self) {
        self.view.send_replace(Arc::new(View {
            state: self.state,
            record: self.record.clone(),
            lease: self.lease.clone(),
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

/// What was found of a slot at start.
#[derive(Debug)]
pub enum Adopted {
    /// Never claimed, its guest answers.
    Warm(Link),
    /// A workspace whose guest answers. It is told again what it is: that may have been missed.
    Workspace(Link),
    /// A workspace whose container somebody has paused.
    Paused,
    /// A workspace that was lost, and when.
    Lost(Cause, String, SystemTime),
    /// Half made or half removed.
    Garbage,
    /// Its container could not be removed.
    Quarantined,
}

/// Completes when the guest's connection is gone; never without one.
async fn lost(link: Option<&Link>) {
    match link {
        Some(link) => link.lost.cancelled().await,
        None => std::future::pending().await,
    }
}

/// Answers a request. Its caller may have gone away, which changes nothing.
fn answer<T>(reply: oneshot::Sender<Result<T>>, result: Result<T>) {
    if reply.send(result).is_err() {
        tracing::trace!("caller has gone away");
    }
}
