//! Outputs that are collected when an exec ends, whether or not anyone is there.
//!
//! ```text
//! StartExec ──note: PENDING──► guest starts it ──CLOSED──► note: begun ──files──► artifacts ──► note: DONE or FAILED
//! ```
//!
//! The note (`workspace/collects.rs`) is on the host's disk, so a daemon that dies goes on where it was. An exec counts as
//! ended when it is CLOSED: what its stragglers wrote within the leak grace is collected too.
//!
//! **Once.** A daemon that dies between the note that it began and the note of the result collects again. A file whose
//! newest version is of that time and has the same sha256 is not saved again: so no version comes twice, unless somebody
//! else saved another one under that name in between.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use skilld_proto::guest::v1 as guest;
use skilld_proto::v1 as pb;
use skilld_proto::v1::exec_collection::State;
use skilld_proto::v1::exec_result;
use tokio::sync::Semaphore;

use super::save::{Failure, SaveAs, Saver};
use crate::artifacts::Artifacts;
use crate::error::{Chain, Error, Result};
use crate::fault::{self, Point};
use crate::shutdown::Tasks;
use crate::workspace::collects::{Collects, Ticket};
use crate::workspace::{Grant, Workspace};

/// Collections at once, over all workspaces: more would only share the same disk.
const AT_ONCE: usize = 8;
/// Between tries to reach a guest that does not answer, unless it is heard of before.
const RETRY: Duration = Duration::from_secs(1);
/// Of every so many notes one looks for old ones.
const PRUNE_EVERY: u64 = 256;

/// Collects when execs end. Clones share it.
#[derive(Debug, Clone)]
pub struct OnExit(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    artifacts: Artifacts,
    tasks: Tasks,
    timeout: Duration,
    places: Semaphore,
    noted: std::sync::atomic::AtomicU64,
}

/// An exec whose outputs are to be collected.
#[derive(Debug)]
pub struct Noted {
    workspace: Workspace,
    exec: String,
    spec: pb::CollectSpec,
    /// Set when a daemon of before began with it.
    began: Option<SystemTime>,
    /// The workspace's end waits for it. `None` while somebody else sees to this exec: he may find that there is none,
    /// and it may start after that.
    ticket: Option<Ticket>,
}

/// What became of an exec.
enum Ended {
    Closed(Grant),
    /// There is none, or another one has its id.
    Never,
    /// Nobody will know.
    Lost(String),
}

// === impl OnExit ===

impl OnExit {
    /// `timeout` is what a collection may take.
    #[must_use]
    pub fn new(artifacts: Artifacts, tasks: Tasks, timeout: Duration) -> Self {
        Self(Arc::new(Inner {
            artifacts,
            tasks,
            timeout,
            places: Semaphore::new(AT_ONCE),
            noted: std::sync::atomic::AtomicU64::new(0),
        }))
    }

    /// Notes what is to be collected, before the exec starts. `None` if that is known already.
    ///
    /// # Errors
    /// When the host's disk fails or is full.
    pub async fn note(
        &self,
        workspace: &Workspace,
        exec: &str,
        spec: &pb::CollectSpec,
    ) -> Result<Option<Noted>> {
        let noted = Noted {
            workspace: workspace.clone(),
            exec: exec.to_owned(),
            spec: spec.clone(),
            began: None,
            ticket: workspace.collects().follow(exec),
        };
        if noted.ticket.is_none() {
            return Ok(Some(noted));
        }
        let counted = self
            .0
            .noted
            .fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let (collects, id) = (Arc::clone(workspace.collects()), exec.to_owned());
        let note = note(spec.clone(), None, State::Pending);
        let write = move || {
            if counted.is_multiple_of(PRUNE_EVERY) {
                collects.prune()?;
            }
            let known = collects.read(&id)?.is_some();
            if !known {
                collects.write(&id, &note)?;
            }
            Ok(known)
        };
        let known = self.0.tasks.blocking(write).await?;
        fault::reach(Point::CollectNoted);
        Ok((!known).then_some(noted))
    }

    /// Sees to it that it is collected, after the guest was asked to start it. It may have refused.
    pub fn follow(&self, noted: Noted) {
        let this = self.clone();
        self.0.tasks.spawn(async move {
            let stop = this.0.tasks.stop.clone();
            tokio::select! {
                // The next start goes on with it.
                () = stop.cancelled() => {}
                () = this.see_to_one(noted) => {}
            }
        });
    }

    async fn see_to_one(&self, mut noted: Noted) {
        while noted.ticket.is_none() {
            noted.workspace.collects().released(&noted.exec).await;
            match self.note(&noted.workspace, &noted.exec, &noted.spec).await {
                Ok(Some(again)) => noted = again,
                Ok(None) => return,
                Err(error) => {
                    tracing::error!(error = %Chain(&error), "an exec's outputs are not collected");
                    return;
                }
            }
        }
        self.see_to(&noted).await;
    }

    /// Goes on with what a daemon of before had to do.
    pub fn resume(&self, workspace: Workspace) {
        let this = self.clone();
        self.0.tasks.spawn(async move {
            let collects = Arc::clone(workspace.collects());
            let read = Arc::clone(&collects);
            let found = this.0.tasks.blocking(move || read.unfinished()).await;
            let found = found.unwrap_or_else(|error| {
                tracing::error!(error = %Chain(&error), "what execs were to leave is not known");
                Vec::new()
            });
            for (exec, note) in found {
                let spec = note.effective_spec.and_then(|spec| spec.collect);
                let began = note.end_time.and_then(|time| time.try_into().ok());
                let ticket = collects.follow(&exec);
                if let (true, Some(spec)) = (ticket.is_some(), spec) {
                    this.follow(Noted {
                        workspace: workspace.clone(),
                        exec,
                        spec,
                        began,
                        ticket,
                    });
                }
            }
            collects.known();
        });
    }

    /// Says of execs what was collected.
    ///
    /// # Errors
    /// When the host's disk fails.
    pub async fn tell(&self, collects: &Arc<Collects>, execs: &mut [pb::Exec]) -> Result<()> {
        for exec in execs {
            let asked = exec.effective_spec.as_ref();
            let asked = asked.is_some_and(|spec| spec.collect.is_some());
            let over = matches!(exec.state(), pb::ExecState::Exited | pb::ExecState::Closed);
            if !asked || !over {
                continue;
            }
            let id = exec.name.rsplit('/').next().unwrap_or_default().to_owned();
            let collects = Arc::clone(collects);
            let note = self.0.tasks.blocking(move || collects.read(&id)).await?;
            exec.collection = note.and_then(|note| note.collection);
        }
        Ok(())
    }

    async fn see_to(&self, noted: &Noted) {
        let result = match noted.ended().await {
            Ended::Closed(grant) => self.collect(noted, grant).await,
            Ended::Never => {
                let (collects, id) = (Arc::clone(noted.workspace.collects()), noted.exec.clone());
                let removed = self.0.tasks.blocking(move || collects.remove(&id)).await;
                if let Err(error) = removed {
                    tracing::error!(error = %Chain(&error), "note of a collection is left");
                }
                return;
            }
            Ended::Lost(why) => Err((why, pb::CollectSummary::default())),
        };
        let (state, summary, error) = match result {
            Ok(summary) => (State::Done, summary, String::new()),
            Err((why, summary)) => (State::Failed, summary, why),
        };
        tracing::info!(
            workspace_id = %noted.workspace.id(), exec_id = %noted.exec, ?state, error,
            artifacts = summary.artifacts.len(), "collected what an exec left"
        );
        let mut note = note(noted.spec.clone(), None, state);
        if let Some(collection) = &mut note.collection {
            (collection.summary, collection.error) = (Some(summary), error);
        }
        if let Err(error) = self.write(noted, note).await {
            tracing::error!(error = %Chain(&error), "what was collected is not on record");
        }
        fault::reach(Point::CollectDone);
    }

    async fn write(&self, noted: &Noted, note: pb::Exec) -> Result<()> {
        let (collects, id) = (Arc::clone(noted.workspace.collects()), noted.exec.clone());
        let write = move || collects.write(&id, &note);
        self.0.tasks.blocking(write).await
    }

    /// What was saved; or why not all, and what of it.
    async fn collect(
        &self,
        noted: &Noted,
        grant: Grant,
    ) -> Result<pb::CollectSummary, (String, pb::CollectSummary)> {
        let _place = self.0.places.acquire().await;
        let opened = self.open(noted, &grant).await;
        let mut saver = opened.map_err(|error| (error.to_string(), Default::default()))?;
        let why = match tokio::time::timeout(self.0.timeout, saver.run()).await {
            Ok(Ok(summary)) => return Ok(summary),
            Ok(Err(Failure::Guest(status))) => {
                Error::from_guest(&noted.workspace.id().name(), &status).to_string()
            }
            Ok(Err(Failure::Broken(why))) => format!("the guest sent {why}"),
            Ok(Err(Failure::Gone)) => "nobody read it".to_owned(),
            Err(_) => format!("it took longer than {:?}", self.0.timeout),
        };
        Err((why, saver.so_far()))
    }

    async fn open(&self, noted: &Noted, grant: &Grant) -> Result<Saver> {
        let asked = noted.spec.save_as_artifacts.clone().unwrap_or_default();
        let save_as = SaveAs::parse("spec.collect.save_as_artifacts", &asked)?;
        if noted.began.is_none() {
            let begun = note(noted.spec.clone(), Some(SystemTime::now()), State::Pending);
            self.write(noted, begun).await?;
        }
        fault::reach(Point::CollectBegun);
        let spec = pb::CollectSpec {
            save_as_artifacts: None,
            ..noted.spec.clone()
        };
        let request = guest::CollectRequest { spec: Some(spec) };
        let files = grant.guest.clone().collect(request).await;
        let files =
            files.map_err(|status| Error::from_guest(&noted.workspace.id().name(), &status))?;
        let saver = Saver::new(
            files.into_inner(),
            &noted.spec,
            save_as,
            self.0.artifacts.clone(),
        );
        Ok(match noted.began {
            Some(time) => saver.tried_since(time),
            None => saver,
        })
    }
}

// === impl Noted ===

impl Noted {
    /// Waits for the exec's end, and kills it if its workspace is about to end.
    async fn ended(&self) -> Ended {
        let mut killed = false;
        loop {
            let grant = match self.workspace.grant().await {
                Ok(grant) => grant,
                Err(error @ Error::WorkspaceNotReady { .. }) => {
                    let view = self.workspace.view();
                    let why = view.failure.as_ref().map(|failure| failure.message.clone());
                    return Ended::Lost(why.unwrap_or_else(|| error.to_string()));
                }
                Err(_) => {
                    self.until_it_may_answer().await;
                    continue;
                }
            };
            match self.closed(&grant, &mut killed).await {
                Ok(exec) => {
                    let spec = exec.effective_spec.and_then(|spec| spec.collect);
                    return if spec.as_ref() == Some(&self.spec) {
                        Ended::Closed(grant)
                    } else {
                        Ended::Never
                    };
                }
                Err(Error::Guest { .. }) => return Ended::Never,
                Err(_) => {
                    drop(grant);
                    self.until_it_may_answer().await;
                }
            }
        }
    }

    async fn until_it_may_answer(&self) {
        tokio::select! {
            () = self.workspace.changed() => {}
            () = tokio::time::sleep(RETRY) => {}
        }
    }

    async fn closed(&self, grant: &Grant, killed: &mut bool) -> Result<pb::Exec> {
        let failed = |status| Error::from_guest(&self.workspace.id().name(), &status);
        let mut client = grant.guest.clone();
        let exec_id = self.exec.clone();
        let waiting = client.wait_exec(guest::WaitExecRequest { exec_id });
        tokio::pin!(waiting);
        if !*killed {
            tokio::select! {
                exec = &mut waiting => return Ok(exec.map_err(failed)?.into_inner()),
                () = self.workspace.collects().settling() => *killed = true,
            }
            let reason = if self.workspace.collects().expired() {
                exec_result::Reason::WorkspaceExpired
            } else {
                exec_result::Reason::KilledByClient
            };
            let request = guest::KillExecRequest {
                exec_id: self.exec.clone(),
                grace: None,
                reason: reason.into(),
            };
            grant
                .guest
                .clone()
                .kill_exec(request)
                .await
                .map_err(failed)?;
        }
        Ok(waiting.await.map_err(failed)?.into_inner())
    }
}

fn note(spec: pb::CollectSpec, began: Option<SystemTime>, state: State) -> pb::Exec {
    pb::Exec {
        effective_spec: Some(pb::ExecSpec {
            collect: Some(spec),
            ..pb::ExecSpec::default()
        }),
        end_time: began.map(Into::into),
        collection: Some(pb::ExecCollection {
            state: state.into(),
            ..pb::ExecCollection::default()
        }),
        ..pb::Exec::default()
    }
}
