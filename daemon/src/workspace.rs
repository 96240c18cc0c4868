//! Slots and the workspaces they become. One task owns one slot (`actor.rs`); everybody else has a handle
//! and sends it messages. What may happen when is the table in `state.rs`; what survives a crash is the
//! record in `record.rs`.
//!
//! Requests ask the task once, for a [`Grant`]; bytes then flow past it, from the guest to the client.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::{Mutex, OwnedMutexGuard, mpsc, oneshot, watch};

use crate::engine::ContainerState;
use crate::error::{Error, Result};
use crate::guest::GuestClient;
use crate::guest::fields::Fields;

pub mod actor;
pub mod adopt;
pub mod collects;
pub mod create;
pub mod directory;
pub mod lease;
pub mod problems;
pub mod reconcile;
pub mod record;
pub mod registry;
pub mod slot;
pub mod state;

use collects::Collects;
use lease::{Lease, Use};
use record::Record;
use state::{Cause, State};

/// Requests that may wait for one slot's task.
const COMMANDS_MAX: usize = 256;

/// Id of a workspace: `[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?`, checked in `rpc/convert.rs`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkspaceId(String);

impl WorkspaceId {
    /// Wraps an id that was checked.
    #[must_use]
    pub fn new(checked: String) -> Self {
        Self(checked)
    }

    /// Without `workspaces/`.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// `workspaces/{workspace}`.
    #[must_use]
    pub fn name(&self) -> String {
        format!("workspaces/{}", self.0)
    }
}

impl fmt::Display for WorkspaceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What is known of a slot without asking its task. A new one is published at every change.
#[derive(Debug, Clone)]
pub struct View {
    /// Where it is in its life.
    pub state: State,
    /// As on disk.
    pub record: Record,
    /// Set once it is a workspace.
    pub lease: Option<Lease>,
    /// Version that the guest said.
    pub guest_version: String,
    /// Set when it failed.
    pub failure: Option<Failure>,
    /// Time since which the reconciler tries to remove the container of this failed workspace, because the engine answered
    /// and did not remove it in time; `None` otherwise.
    pub removal_overdue: Option<SystemTime>,
}

/// Why and when a workspace was lost.
#[derive(Debug, Clone)]
pub struct Failure {
    /// For programs.
    pub cause: Cause,
    /// For people.
    pub message: String,
    /// When it was noticed.
    pub time: SystemTime,
}

/// Handle of a slot's task.
#[derive(Debug, Clone)]
pub struct Slot {
    number: u32,
    dir: Arc<PathBuf>,
    commands: mpsc::Sender<Command>,
    view: watch::Receiver<Arc<View>>,
    /// Held while skills are staged.
    staging: Arc<Mutex<()>>,
    /// Held while inputs are staged, which may have to be fetched.
    inputs: Arc<Mutex<()>>,
    collects: Arc<Collects>,
}

/// Handle of a claimed slot.
#[derive(Debug, Clone)]
pub struct Workspace {
    id: WorkspaceId,
    slot: Slot,
}

/// Leave to use a workspace. It is not idle while one is alive: streams keep theirs to their end.
#[derive(Debug)]
pub struct Grant {
    /// Calls to the guest.
    pub guest: GuestClient,
    /// Of the protocol that the guest speaks.
    pub generation: u32,
    /// The workspace as it was when the grant was given.
    pub view: Arc<View>,
    _use: Use,
}

/// What a slot's task can be asked.
#[derive(Debug)]
enum Command {
    /// Become a workspace.
    Claim {
        claim: Box<record::Claim>,
        reply: oneshot::Sender<Result<()>>,
    },
    /// Leave to use it.
    Grant {
        reply: oneshot::Sender<Result<Grant>>,
    },
    /// The same for what is to be collected, also while the workspace waits for that to end.
    GrantToCollect {
        reply: oneshot::Sender<Result<Grant>>,
    },
    /// The guest of a slot that is nobody's.
    Guest {
        reply: oneshot::Sender<Result<GuestClient>>,
    },
    /// New times, counted from now.
    Renew {
        idle: Option<Duration>,
        remaining: Option<Duration>,
        reply: oneshot::Sender<Result<()>>,
    },
    /// Skills were staged: name → digest.
    Skills {
        staged: BTreeMap<String, String>,
        reply: oneshot::Sender<Result<()>>,
    },
    /// Inputs were staged.
    Inputs {
        staged: Vec<record::Input>,
        reply: oneshot::Sender<Result<()>>,
    },
    /// End it; answered when nothing is left, or when that has to wait for the engine.
    Delete { reply: oneshot::Sender<Result<()>> },
    /// Its container has ended, as the engine says; `None` if it was removed.
    ContainerEnded(Option<ContainerState>),
    /// Somebody paused its container, or let it go on.
    Paused(bool),
}

impl Grant {
    /// Refuses what has a field that the guest would leave out without a word.
    ///
    /// # Errors
    /// [`Error::GuestTooOld`].
    pub fn check(&self, asked: &impl Fields) -> Result<()> {
        match asked.unknown_to(self.generation) {
            None => Ok(()),
            Some(field) => Err(Error::GuestTooOld {
                field,
                generation: self.generation,
            }),
        }
    }
}

impl Slot {
    /// Counted from the configured first uid.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.number
    }

    /// What is known of it now.
    #[must_use]
    pub fn view(&self) -> Arc<View> {
        Arc::clone(&self.view.borrow())
    }

    /// Turns a warm slot into a workspace.
    ///
    /// # Errors
    /// [`Error::WorkspaceNotReady`] when the slot was lost meanwhile: take another one.
    pub async fn claim(&self, claim: record::Claim) -> Result<Workspace> {
        let id = WorkspaceId::new(claim.workspace.clone());
        let claim = Box::new(claim);
        self.ask(|reply| Command::Claim { claim, reply }).await?;
        Ok(Workspace {
            id,
            slot: self.clone(),
        })
    }

    /// The guest of a warm slot, for questions about its image.
    ///
    /// # Errors
    /// [`Error::WorkspaceNotReady`] when the slot is a workspace, or was lost meanwhile.
    pub async fn guest(&self) -> Result<GuestClient> {
        self.ask(|reply| Command::Guest { reply }).await
    }

    /// Ends the slot and waits until nothing of it is left, or until its container is given up and quarantined.
    ///
    /// # Errors
    /// [`Error::EngineUnavailable`]: the container goes as soon as the engine is back.
    pub async fn delete(&self) -> Result<()> {
        match self.ask(|reply| Command::Delete { reply }).await {
            // The task ends when nothing is left.
            Err(Error::WorkspaceNotReady { .. }) => Ok(()),
            other => other,
        }
    }

    /// Tells the task that its container has ended. `None` if it was removed.
    pub async fn container_ended(&self, state: Option<ContainerState>) {
        self.tell(Command::ContainerEnded(state)).await;
    }

    /// Tells the task that somebody paused its container, or let it go on. In order, and without waiting: a task that
    /// has not heard of it because of too many requests looks for itself.
    pub fn container_paused(&self, paused: bool) {
        if self.commands.try_send(Command::Paused(paused)).is_err() {
            tracing::debug!(
                slot = self.number,
                paused,
                "slot is gone or does not listen"
            );
        }
    }

    async fn tell(&self, command: Command) {
        if self.commands.send(command).await.is_err() {
            tracing::trace!(slot = self.number, "slot is gone");
        }
    }

    async fn ask<T>(
        &self,
        command: impl FnOnce(oneshot::Sender<Result<T>>) -> Command,
    ) -> Result<T> {
        let (reply, answer) = oneshot::channel();
        self.commands
            .send(command(reply))
            .await
            .map_err(|_| self.unanswered())?;
        answer.await.map_err(|_| self.unanswered())?
    }

    /// The task has ended: with its slot, or with the daemon, which leaves the slot as it is.
    fn unanswered(&self) -> Error {
        let state = self.view.borrow().state;
        match state {
            State::Booting | State::Ready | State::Claimed => Error::Draining,
            State::Closing | State::Failed(_) | State::Quarantined | State::Removed => {
                self.not_ready()
            }
        }
    }

    fn not_ready(&self) -> Error {
        let view = self.view.borrow();
        not_ready(&view.record, view.state)
    }
}

impl Workspace {
    /// Its id.
    #[must_use]
    pub fn id(&self) -> &WorkspaceId {
        &self.id
    }

    /// What is known of it now.
    #[must_use]
    pub fn view(&self) -> Arc<View> {
        self.slot.view()
    }

    /// The slot's `skills/` on the host, which the container has read-only. Only the daemon writes there.
    #[must_use]
    pub fn skills_dir(&self) -> PathBuf {
        self.slot.dir.join("skills")
    }

    /// Waits for its turn to stage skills: from the first file to the record, one call does it at a time.
    pub async fn staging(&self) -> OwnedMutexGuard<()> {
        Arc::clone(&self.slot.staging).lock_owned().await
    }

    /// Leave to use it. Extends the lease.
    ///
    /// # Errors
    /// [`Error::WorkspaceNotReady`] when it is closing or has failed.
    pub async fn grant(&self) -> Result<Grant> {
        if self.slot.view.borrow().state != State::Claimed {
            return Err(self.slot.not_ready());
        }
        self.slot.ask(|reply| Command::Grant { reply }).await
    }

    /// Leave to collect what an exec left; the workspace's end waits for that, and gives it until its last moment.
    ///
    /// # Errors
    /// [`Error::WorkspaceNotReady`] when it is closing or has failed.
    pub async fn grant_to_collect(&self) -> Result<Grant> {
        if self.slot.view.borrow().state != State::Claimed {
            return Err(self.slot.not_ready());
        }
        let ask = |reply| Command::GrantToCollect { reply };
        self.slot.ask(ask).await
    }

    /// Restarts the idle timeout, and sets a new one and a new end, counted from now.
    ///
    /// # Errors
    /// [`Error::WorkspaceNotReady`].
    pub async fn renew(&self, idle: Option<Duration>, remaining: Option<Duration>) -> Result<()> {
        self.slot
            .ask(|reply| Command::Renew {
                idle,
                remaining,
                reply,
            })
            .await
    }

    /// Notes which skills were staged: name → digest.
    ///
    /// # Errors
    /// [`Error::WorkspaceNotReady`], or the record could not be written.
    pub async fn record_skills(&self, staged: BTreeMap<String, String>) -> Result<()> {
        self.slot
            .ask(|reply| Command::Skills { staged, reply })
            .await
    }

    /// The turn to stage inputs: whoever has it may read what is on record and then add to it.
    pub async fn staging_inputs(&self) -> OwnedMutexGuard<()> {
        Arc::clone(&self.slot.inputs).lock_owned().await
    }

    /// Notes which inputs were staged.
    ///
    /// # Errors
    /// [`Error::WorkspaceNotReady`], or the record could not be written.
    pub async fn record_inputs(&self, staged: Vec<record::Input>) -> Result<()> {
        self.slot
            .ask(|reply| Command::Inputs { staged, reply })
            .await
    }

    /// Ends it and waits until nothing is left but, at worst, a quarantined container.
    ///
    /// # Errors
    /// [`Error::EngineUnavailable`]: the container goes as soon as the engine is back.
    pub async fn delete(&self) -> Result<()> {
        self.slot.delete().await
    }

    /// What is collected when its execs end.
    #[must_use]
    pub fn collects(&self) -> &Arc<Collects> {
        &self.slot.collects
    }

    /// Waits until something of it has changed: its state, its guest.
    pub async fn changed(&self) {
        let mut view = self.slot.view.clone();
        view.mark_unchanged();
        if view.changed().await.is_err() {
            // Its task has ended.
            tracing::trace!(workspace_id = %self.id, "workspace is gone");
        }
    }

    /// Waits until nothing of it is left, or its container was given up: either way it is no workspace any more.
    pub async fn removed(&self) {
        let mut view = self.slot.view.clone();
        // An error means that the task has ended, and with it the slot.
        let gone = view.wait_for(|view| matches!(view.state, State::Quarantined | State::Removed));
        let gone = gone.await;
        tracing::trace!(workspace_id = %self.id, watched = gone.is_ok(), "workspace is gone");
    }
}

/// The error about a slot that cannot be used in its state.
fn not_ready(record: &Record, state: State) -> Error {
    let name = record.claim.as_ref().map_or_else(
        || format!("slot {}", record.number),
        |claim| format!("workspaces/{}", claim.workspace),
    );
    Error::WorkspaceNotReady {
        name,
        state: word(state).to_owned(),
    }
}

/// A state as users read it.
#[must_use]
pub fn word(state: State) -> &'static str {
    match state {
        State::Booting => "booting",
        State::Ready | State::Claimed => "ready",
        State::Closing | State::Quarantined => "closing",
        State::Failed(_) => "failed",
        State::Removed => "gone",
    }
}
