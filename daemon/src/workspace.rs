//! Slots, and the workspaces that they become. One task owns one slot (`actor.rs`); all others hold a handle and send
//! it messages. The table in `slot_state_machine.rs` decides which event is allowed in which state; the record in
//! `record.rs` survives a crash.
//!
//! A request takes a [`WorkspaceGrant`] once, from the task's latest snapshot or, while only the task can decide, from
//! the task. Bytes then flow from the guest to the client without the task.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::{Mutex, OwnedMutexGuard, mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;
use tonic::Status;

use crate::engine::ContainerState;
use crate::error::{Error, Result};
use crate::exec::StagedSkillRecord;
use crate::guest::GuestClient;

pub mod actor;
pub mod adopt;
pub mod creation;
pub mod exec_adoption;
pub mod host_problems;
pub mod image_check;
pub mod internal_pool;
pub mod launcher;
pub mod lease;
pub mod orphan_removals;
pub mod reconcile;
pub mod record;
pub mod registry;
pub mod run_table;
pub mod running_execs;
pub mod shared_slot_context;
pub mod slot_disk;
pub mod slot_provisioning;
pub mod slot_state_machine;
pub mod slot_table;
pub mod software_inventory_cache;
pub mod workspace_key;
pub mod workspace_table;

use lease::{HoldError, LeaseGuard, WorkspaceLease};
use record::SlotRecord;
use running_execs::RunningExecs;
use slot_state_machine::{LossCause, SlotState};
pub use workspace_key::{WorkspaceId, WorkspaceKey};

/// Maximum number of requests that wait for one slot's task.
const SLOT_REQUESTS_MAX: usize = 256;

/// State of a slot as its task published it last. Every change publishes a new snapshot.
#[derive(Debug, Clone)]
pub struct SlotSnapshot {
    /// State of the slot.
    pub state: SlotState,
    /// Record as on disk.
    pub record: SlotRecord,
    /// Lease of the workspace; `None` before the claim.
    pub lease: Option<WorkspaceLease>,
    /// Guest that requests may call without asking the task; `None` while only the task can decide.
    guest: Option<GrantedGuest>,
    /// Version that the guest reported; empty before that.
    pub guest_version: String,
    /// Loss of the workspace; `None` while it works.
    pub failure: Option<WorkspaceFailure>,
    /// Time since which the reconciler tries to remove the container of this failed workspace, because the engine did
    /// not remove it within `engine.remove_timeout`; `None` otherwise.
    pub removal_overdue: Option<SystemTime>,
}

/// Connected guest of a claimed workspace.
#[derive(Debug, Clone)]
struct GrantedGuest {
    client: GuestClient,
    /// Cancelled when the connection is lost.
    lost: CancellationToken,
}

/// Cause and time of the loss of a workspace.
#[derive(Debug, Clone)]
pub struct WorkspaceFailure {
    /// Cause, for programs.
    pub cause: LossCause,
    /// Message, for users.
    pub message: String,
    /// Time at which the daemon noticed the loss.
    pub time: SystemTime,
}

/// Handle of a slot's task.
#[derive(Debug, Clone)]
pub struct Slot {
    /// Number of the slot, counted from the configured first uid.
    number: u32,
    dir: Arc<PathBuf>,
    requests: mpsc::Sender<SlotRequest>,
    view: watch::Receiver<Arc<SlotSnapshot>>,
    /// Lock of calls that stage skills.
    staging: Arc<Mutex<()>>,
    /// Lock of calls that stage inputs, which may take as long as a download.
    inputs: Arc<Mutex<()>>,
    /// Lock of calls that prepare the workspace.
    setup: Arc<Mutex<()>>,
    running_execs: Arc<RunningExecs>,
}

/// Handle of a claimed slot.
#[derive(Debug, Clone)]
pub struct Workspace {
    pub(crate) key: WorkspaceKey,
    slot: Slot,
}

/// Permission to use a workspace. The workspace is not idle while a grant exists, so streams keep theirs to their end.
#[derive(Debug)]
pub struct WorkspaceGrant {
    /// Client of the guest.
    pub guest: GuestClient,
    /// Snapshot of the workspace when the grant was given.
    pub view: Arc<SlotSnapshot>,
    _use: LeaseGuard,
}

/// Sender of the answer to a request for permission to use a workspace.
type GrantReply = oneshot::Sender<Result<WorkspaceGrant>>;

/// Request to a slot's task.
#[derive(Debug)]
enum SlotRequest {
    /// Turns the slot into a workspace.
    Claim {
        claim: Box<record::WorkspaceClaim>,
        reply: oneshot::Sender<Result<()>>,
    },
    /// Asks for permission to use the workspace.
    Grant { reply: GrantReply },
    /// Asks for the guest of a slot that is not claimed.
    Guest {
        reply: oneshot::Sender<Result<GuestClient>>,
    },
    /// Changes idle timeout and remaining lifetime, counted from now.
    Renew {
        idle: Option<Duration>,
        remaining: Option<Duration>,
        reply: oneshot::Sender<Result<()>>,
    },
    /// Replaces the labels.
    Labels {
        labels: BTreeMap<String, String>,
        reply: oneshot::Sender<Result<()>>,
    },
    /// Records staged skills.
    Skills {
        staged: BTreeMap<String, StagedSkillRecord>,
        reply: oneshot::Sender<Result<()>>,
    },
    /// Records staged inputs.
    Inputs {
        staged: Vec<record::InputRecord>,
        reply: oneshot::Sender<Result<()>>,
    },
    /// Records the last setup.
    Setup {
        setup: record::SetupRecord,
        reply: oneshot::Sender<Result<()>>,
    },
    /// Ends the slot. Answered when nothing of it is left, or when its removal has to wait for the engine.
    Delete { reply: oneshot::Sender<Result<()>> },
    /// Reports that the container has ended; `None` if it was removed.
    ContainerEnded(Option<ContainerState>),
    /// Reports that the container was paused (`true`) or resumed.
    Paused(bool),
}

impl WorkspaceGrant {
    /// Returns the resource name of the workspace.
    pub fn name(&self) -> String {
        // Only a claimed slot gives grants.
        let claim = self.view.record.claim.as_ref();
        claim.map(|claim| claim.key().id.name()).unwrap_or_default()
    }

    /// Waits for the guest's answer to a call.
    ///
    /// # Errors
    /// The guest's error, or the loss of the guest; both name the workspace.
    pub async fn call<T>(&self, answer: impl Future<Output = Result<T, Status>>) -> Result<T> {
        let answer = answer.await;
        answer.map_err(|status| Error::from_guest(&self.name(), &status))
    }
}

impl Slot {
    /// Returns the latest snapshot.
    pub fn snapshot(&self) -> Arc<SlotSnapshot> {
        Arc::clone(&self.view.borrow())
    }

    /// Turns a warm slot into a workspace.
    ///
    /// # Errors
    /// [`Error::WorkspaceNotReady`] when the slot was lost meanwhile: reserve another one.
    pub async fn claim(&self, claim: record::WorkspaceClaim) -> Result<Workspace> {
        let key = claim.key();
        let claim = Box::new(claim);
        self.ask(|reply| SlotRequest::Claim { claim, reply })
            .await?;
        Ok(Workspace {
            key,
            slot: self.clone(),
        })
    }

    /// Returns the guest of a warm slot, for questions about its image.
    ///
    /// # Errors
    /// [`Error::WorkspaceNotReady`] when the slot is a workspace, or was lost meanwhile.
    pub async fn guest(&self) -> Result<GuestClient> {
        self.ask(|reply| SlotRequest::Guest { reply }).await
    }

    /// Ends the slot and waits until nothing of it is left, or until its container is quarantined.
    ///
    /// # Errors
    /// [`Error::EngineUnavailable`]: the container goes as soon as the engine is back.
    pub async fn delete(&self) -> Result<()> {
        match self.ask(|reply| SlotRequest::Delete { reply }).await {
            // The task has ended, so nothing of the slot is left.
            Err(Error::WorkspaceNotReady { .. }) => Ok(()),
            other => other,
        }
    }

    /// Reports to the task that its container has ended; `None` if it was removed.
    pub async fn container_ended(&self, state: Option<ContainerState>) {
        self.send(SlotRequest::ContainerEnded(state)).await;
    }

    /// Reports to the task that its container was paused or resumed. Reports stay in order and never wait; a task that
    /// misses one because its queue is full asks the engine itself.
    pub fn container_paused(&self, paused: bool) {
        if self.requests.try_send(SlotRequest::Paused(paused)).is_err() {
            tracing::debug!(
                slot = self.number,
                paused,
                "slot is gone or does not listen"
            );
        }
    }

    async fn send(&self, request: SlotRequest) {
        if self.requests.send(request).await.is_err() {
            tracing::trace!(slot = self.number, "slot is gone");
        }
    }

    async fn ask<T>(
        &self,
        request: impl FnOnce(oneshot::Sender<Result<T>>) -> SlotRequest,
    ) -> Result<T> {
        let (reply, answer) = oneshot::channel();
        self.requests
            .send(request(reply))
            .await
            .map_err(|_| self.ended_task_error())?;
        answer.await.map_err(|_| self.ended_task_error())?
    }

    /// Error for a task that has ended: with its slot, or with the daemon, which leaves the slot as it is.
    fn ended_task_error(&self) -> Error {
        let state = self.view.borrow().state;
        match state {
            SlotState::Booting | SlotState::Ready | SlotState::Claimed => Error::Draining,
            SlotState::Closing
            | SlotState::Failed(_)
            | SlotState::Quarantined
            | SlotState::Removed => self.not_ready_error(),
        }
    }

    fn not_ready_error(&self) -> Error {
        let view = self.view.borrow();
        not_ready_error(&view.record, view.state)
    }
}

impl Workspace {
    /// Returns the workspace's id.
    pub fn id(&self) -> &WorkspaceId {
        &self.key.id
    }

    /// Returns the latest snapshot.
    pub fn snapshot(&self) -> Arc<SlotSnapshot> {
        self.slot.snapshot()
    }

    /// Returns the slot's `skills/` on the host. The container mounts it read-only; only the daemon writes there.
    pub fn skills_dir(&self) -> PathBuf {
        self.slot.dir.join("skills")
    }

    /// Waits for the turn to stage skills. One call at a time stages, from its first file to its record.
    pub async fn lock_skill_staging(&self) -> OwnedMutexGuard<()> {
        Arc::clone(&self.slot.staging).lock_owned().await
    }

    /// Asks for permission to use the workspace. Extends the lease. The task is asked only if the latest snapshot does
    /// not permit it: while the guest is awaited, and when the workspace ends.
    ///
    /// # Errors
    /// [`Error::WorkspaceNotReady`] when it is closing or has failed; [`Error::QuotaExceeded`] when too many requests
    /// use it.
    pub async fn grant(&self) -> Result<WorkspaceGrant> {
        let view = self.slot.snapshot();
        if view.state != SlotState::Claimed {
            return Err(self.slot.not_ready_error());
        }
        // The connection may have been lost since the task published it.
        let guest = view
            .guest
            .as_ref()
            .filter(|guest| !guest.lost.is_cancelled());
        if let (Some(guest), Some(lease)) = (guest, &view.lease) {
            match lease.try_hold() {
                Ok(held) => {
                    return Ok(WorkspaceGrant {
                        guest: guest.client.clone(),
                        view,
                        _use: held,
                    });
                }
                Err(HoldError::Full) => return Err(lease.full_error()),
                Err(HoldError::Closed) => {}
            }
        }
        self.slot.ask(|reply| SlotRequest::Grant { reply }).await
    }

    /// Restarts the idle timeout. Changes it and the remaining lifetime if given, counted from now.
    ///
    /// # Errors
    /// [`Error::WorkspaceNotReady`].
    pub async fn renew(&self, idle: Option<Duration>, remaining: Option<Duration>) -> Result<()> {
        self.slot
            .ask(|reply| SlotRequest::Renew {
                idle,
                remaining,
                reply,
            })
            .await
    }

    /// Replaces the labels.
    ///
    /// # Errors
    /// [`Error::WorkspaceNotReady`], or the record could not be written.
    pub async fn set_labels(&self, labels: BTreeMap<String, String>) -> Result<()> {
        self.slot
            .ask(|reply| SlotRequest::Labels { labels, reply })
            .await
    }

    /// Records staged skills, which replace those of the same names.
    ///
    /// # Errors
    /// [`Error::WorkspaceNotReady`], or the record could not be written.
    pub async fn record_skills(&self, staged: BTreeMap<String, StagedSkillRecord>) -> Result<()> {
        self.slot
            .ask(|reply| SlotRequest::Skills { staged, reply })
            .await
    }

    /// Waits for the turn to stage inputs. Its holder may read the record and then add to it.
    pub async fn lock_input_staging(&self) -> OwnedMutexGuard<()> {
        Arc::clone(&self.slot.inputs).lock_owned().await
    }

    /// Records staged inputs.
    ///
    /// # Errors
    /// [`Error::WorkspaceNotReady`], or the record could not be written.
    pub async fn record_inputs(&self, staged: Vec<record::InputRecord>) -> Result<()> {
        self.slot
            .ask(|reply| SlotRequest::Inputs { staged, reply })
            .await
    }

    /// Waits for the turn to prepare the workspace. Its holder may read the record of setups and then replace it.
    pub async fn lock_setup(&self) -> OwnedMutexGuard<()> {
        Arc::clone(&self.slot.setup).lock_owned().await
    }

    /// Records the last setup.
    ///
    /// # Errors
    /// [`Error::WorkspaceNotReady`], or the record could not be written.
    pub async fn record_setup(&self, setup: record::SetupRecord) -> Result<()> {
        self.slot
            .ask(|reply| SlotRequest::Setup { setup, reply })
            .await
    }

    /// Ends the workspace and waits until nothing is left but, at worst, a quarantined container.
    ///
    /// # Errors
    /// [`Error::EngineUnavailable`]: the container goes as soon as the engine is back.
    pub async fn delete(&self) -> Result<()> {
        self.slot.delete().await
    }

    /// Returns the running execs of the workspace that count against its tenant's quota.
    pub fn running_execs(&self) -> &Arc<RunningExecs> {
        &self.slot.running_execs
    }

    /// Waits for the workspace's guest, without using the workspace: it may become idle. Returns `None` if the workspace
    /// has failed or ends.
    pub async fn wait_for_guest(&self) -> Option<GuestClient> {
        let mut view = self.slot.view.clone();
        let connected = |view: &SlotSnapshot| {
            let guest = view.guest.as_ref()?;
            (!guest.lost.is_cancelled()).then(|| guest.client.clone())
        };
        let found = view
            .wait_for(|view| view.state != SlotState::Claimed || connected(view).is_some())
            .await;
        let view = found.ok()?;
        (view.state == SlotState::Claimed)
            .then(|| connected(&view))
            .flatten()
    }

    /// Waits until the workspace is gone: nothing of it is left, or its container is quarantined.
    pub async fn wait_until_removed(&self) {
        let mut view = self.slot.view.clone();
        // An error means that the task has ended, and with it the slot.
        let gone = view
            .wait_for(|view| matches!(view.state, SlotState::Quarantined | SlotState::Removed))
            .await;
        tracing::trace!(workspace_id = %self.id(), watched = gone.is_ok(), "workspace is gone");
    }
}

/// Error for a slot that cannot be used in its state.
fn not_ready_error(record: &SlotRecord, state: SlotState) -> Error {
    let name = record.claim.as_ref().map_or_else(
        || format!("slot {}", record.number),
        |claim| format!("workspaces/{}", claim.workspace),
    );
    Error::WorkspaceNotReady {
        name,
        state: state_name(state).to_owned(),
    }
}

/// Returns the name of a state for users.
pub fn state_name(state: SlotState) -> &'static str {
    match state {
        SlotState::Booting => "booting",
        SlotState::Ready | SlotState::Claimed => "ready",
        SlotState::Closing | SlotState::Quarantined => "closing",
        SlotState::Failed(_) => "failed",
        SlotState::Removed => "gone",
    }
}
