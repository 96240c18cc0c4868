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

use prost::Message;
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
/// A collection may wait for its place so many times as long as it may take.
const WAIT_TIMES: u32 = 10;
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

/// An exec whose outputs are to be collected. It is seen to once this is dropped: after the guest was asked to start it,
/// or when whoever wanted to ask has gone away. The guest may have refused, or never have heard of it.
#[derive(Debug)]
pub struct Noted {
    on_exit: OnExit,
    /// `None` when that is known already.
    followed: Option<Followed>,
}

#[derive(Debug)]
struct Followed {
    workspace: Workspace,
    exec: String,
    spec: pb::CollectSpec,
    /// A daemon of before had to see to it.
    of_before: bool,
    /// Set when a daemon of before began with it.
    began: Option<SystemTime>,
    /// The workspace's end waits for it. `None` while somebody else sees to this exec: he may find that there is none,
    /// and it may start after that.
    ticket: Option<Ticket>,
}

/// What became of an exec.
enum Ended {
    Closed {
        grant: Grant,
        failed: bool,
    },
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

    /// Notes what is to be collected, before the exec starts.
    ///
    /// # Errors
    /// When the host's disk fails or is full.
    pub async fn note(
        &self,
        workspace: &Workspace,
        exec: &str,
        spec: &pb::CollectSpec,
    ) -> Result<Noted> {
        let mut noted = Noted {
            on_exit: self.clone(),
            followed: Some(Followed {
                workspace: workspace.clone(),
                exec: exec.to_owned(),
                spec: spec.clone(),
                of_before: false,
                began: None,
                ticket: workspace.collects().follow(exec),
            }),
        };
        let this = self.clone();
        // To its end, whoever waits: what sees to the exec then finds the note, and not one that is written after it.
        let task = async move {
            this.write_note(&mut noted.followed).await?;
            Ok(noted)
        };
        let noted = self.0.tasks.spawn(task).await;
        noted.map_err(|error| Error::Internal(format!("note of outputs: {error}")))?
    }

    /// Notes it, if it is to be followed here and is not known. Nothing is left of it when it has ended already.
    async fn write_note(&self, noted: &mut Option<Followed>) -> Result<()> {
        let Some(followed) = noted else {
            return Ok(());
        };
        if followed.ticket.is_none() {
            return Ok(());
        }
        let counted = self
            .0
            .noted
            .fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let (workspace, spec) = (&followed.workspace, &followed.spec);
        let (collects, id) = (Arc::clone(workspace.collects()), followed.exec.clone());
        let first = note(spec.clone(), None, State::Pending);
        let write = move || {
            if counted.is_multiple_of(PRUNE_EVERY) {
                collects.prune()?;
            }
            let known = collects.read(&id)?;
            if known.is_none() {
                collects.write(&id, &first)?;
            }
            Ok(known)
        };
        let known = self.0.tasks.blocking(write).await?;
        fault::reach(Point::CollectNoted);
        let Some(known) = known else {
            return Ok(());
        };
        let pending =
            known.collection.as_ref().map(pb::ExecCollection::state) == Some(State::Pending);
        if !pending {
            *noted = None;
            return Ok(());
        }
        // Who noted it went away and nobody sees to it, or this start has not come to it yet.
        let began = known.end_time.and_then(|time| time.try_into().ok());
        let before = known.effective_spec.and_then(|spec| spec.collect);
        if before.as_ref() == Some(&followed.spec) {
            followed.began = began;
        } else if let Some(spec) = before {
            // The exec is that one's, or there is none and it may become ours: that one is seen to first.
            let first = Followed {
                workspace: followed.workspace.clone(),
                exec: followed.exec.clone(),
                spec,
                of_before: false,
                began,
                ticket: followed.ticket.take(),
            };
            self.follow(first);
        }
        Ok(())
    }

    fn follow(&self, followed: Followed) {
        let this = self.clone();
        self.0.tasks.spawn(async move {
            let stop = this.0.tasks.stop.clone();
            tokio::select! {
                // The next start goes on with it.
                () = stop.cancelled() => {}
                () = this.see_to_one(followed) => {}
            }
        });
    }

    async fn see_to_one(&self, followed: Followed) {
        let mut noted = Some(followed);
        while let Some(followed) = &mut noted
            && followed.ticket.is_none()
        {
            let collects = Arc::clone(followed.workspace.collects());
            collects.released(&followed.exec).await;
            followed.ticket = collects.follow(&followed.exec);
            if let Err(error) = self.write_note(&mut noted).await {
                tracing::error!(error = %Chain(&error), "an exec's outputs are not collected");
                return;
            }
        }
        if let Some(followed) = noted {
            self.see_to(&followed).await;
        }
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
                    this.follow(Followed {
                        workspace: workspace.clone(),
                        exec,
                        spec,
                        of_before: true,
                        began,
                        ticket,
                    });
                }
            }
            collects.known();
        });
    }

    /// Says of execs what was collected. A list is one message: where the summaries are too long for it, they lose their
    /// lists.
    ///
    /// # Errors
    /// When the host's disk fails.
    pub async fn tell(
        &self,
        collects: &Arc<Collects>,
        execs: &mut [pb::Exec],
        bytes_max: usize,
    ) -> Result<()> {
        let mut bytes = 0;
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
            let collection = exec.collection.as_mut();
            if let Some(summary) = collection.and_then(|collection| collection.summary.as_mut()) {
                bytes += summary.encoded_len();
                if bytes > bytes_max {
                    (summary.truncated, summary.skipped) = (Vec::new(), Vec::new());
                    summary.artifacts = Vec::new();
                }
            }
        }
        Ok(())
    }

    async fn see_to(&self, noted: &Followed) {
        let result = match noted.ended().await {
            Ended::Closed { grant, failed } => self.collect(noted, grant, failed).await,
            Ended::Never => {
                if noted.of_before {
                    tracing::warn!(
                        workspace_id = %noted.workspace.id(), exec_id = %noted.exec,
                        "an exec whose outputs were to be collected is not there: nothing of it is saved"
                    );
                }
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

    async fn write(&self, noted: &Followed, note: pb::Exec) -> Result<()> {
        let (collects, id) = (Arc::clone(noted.workspace.collects()), noted.exec.clone());
        let write = move || collects.write(&id, &note);
        self.0.tasks.blocking(write).await
    }

    /// What was saved; or why not all, and what of it.
    async fn collect(
        &self,
        noted: &Followed,
        grant: Grant,
        failed: bool,
    ) -> Result<pb::CollectSummary, (String, pb::CollectSummary)> {
        let nothing = |why: String| (why, pb::CollectSummary::default());
        let collects = noted.workspace.collects();
        // Each of them ends in time, and so does whatever waits for one.
        let _turn = collects.turn().await;
        let waited = tokio::time::timeout(self.0.timeout * WAIT_TIMES, self.0.places.acquire());
        let _place = waited
            .await
            .map_err(|_| nothing("too much else is being collected".to_owned()))?;
        let deadline = tokio::time::Instant::now() + self.0.timeout;
        let late = || format!("it took longer than {:?}", self.0.timeout);
        let opened = tokio::time::timeout_at(deadline, self.open(noted, &grant, failed)).await;
        let opened = opened.map_err(|_| nothing(late()))?;
        let mut saver = opened.map_err(|error| nothing(error.to_string()))?;
        let why = match tokio::time::timeout_at(deadline, saver.run()).await {
            Ok(Ok(summary)) => return Ok(summary),
            Ok(Err(Failure::Guest(status))) => {
                Error::from_guest(&noted.workspace.id().name(), &status).to_string()
            }
            Ok(Err(Failure::Broken(why))) => format!("the guest sent {why}"),
            Ok(Err(Failure::Gone)) => "nobody read it".to_owned(),
            Err(_) => late(),
        };
        Err((why, saver.so_far()))
    }

    async fn open(&self, noted: &Followed, grant: &Grant, failed: bool) -> Result<Saver> {
        let asked = noted.spec.save_as_artifacts.clone().unwrap_or_default();
        let save_as = SaveAs::parse("spec.collect.save_as_artifacts", &asked)?
            .skip_empty(failed && noted.spec.skip_empty_after_failure);
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
        let save_as = match noted.began {
            Some(time) => save_as.tried_since(time),
            None => save_as,
        };
        Ok(Saver::new(
            files.into_inner(),
            &noted.spec,
            save_as,
            self.0.artifacts.clone(),
        ))
    }
}

// === impl Noted ===

impl Drop for Noted {
    fn drop(&mut self) {
        // The next start goes on with what is left at a stop.
        let followed = self.followed.take();
        if let Some(followed) = followed.filter(|_| !self.on_exit.0.tasks.stop.is_cancelled()) {
            self.on_exit.follow(followed);
        }
    }
}

// === impl Followed ===

impl Followed {
    /// Waits for the exec's end, and kills it if its workspace is about to end.
    async fn ended(&self) -> Ended {
        let mut killed = false;
        loop {
            let grant = match self.workspace.grant_to_collect().await {
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
                    let failed = super::failed(&exec);
                    let spec = exec.effective_spec.and_then(|spec| spec.collect);
                    return if spec.as_ref() == Some(&self.spec) {
                        Ended::Closed { grant, failed }
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
                () = self.workspace.collects().settling() => {}
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
            *killed = true;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_told_of_many_execs_fits_into_a_message() {
        let dir = tempfile::tempdir().expect("temp dir");
        let tasks = Tasks::default();
        let config = crate::config::Config::from_toml("")
            .expect("defaults")
            .config;
        let wait = Duration::from_secs(5);
        let artifacts = Artifacts::open(&config.artifacts, dir.path(), wait, &tasks).await;
        let on_exit = OnExit::new(artifacts.expect("a store"), tasks.clone(), wait);
        let collects = Arc::new(Collects::new(dir.path(), false, 10));
        let mut execs = Vec::new();
        for id in ["a", "b", "c"] {
            let mut done = note(pb::CollectSpec::default(), None, State::Done);
            let summary = pb::CollectSummary {
                artifacts: vec!["x".repeat(1000); 100],
                returned: 100,
                ..pb::CollectSummary::default()
            };
            done.collection.as_mut().expect("one").summary = Some(summary);
            collects.write(id, &done).expect("written");
            let mut exec = pb::Exec {
                name: format!("workspaces/w/execs/{id}"),
                effective_spec: done.effective_spec,
                ..pb::Exec::default()
            };
            exec.set_state(pb::ExecState::Closed);
            execs.push(exec);
        }
        let told = on_exit.tell(&collects, &mut execs, 250_000).await;
        told.expect("told");
        let named = execs.iter().map(|exec| {
            let summary = exec
                .collection
                .as_ref()
                .and_then(|told| told.summary.as_ref());
            let summary = summary.expect("a summary");
            (summary.returned, summary.artifacts.len())
        });
        let named: Vec<_> = named.collect();
        assert_eq!(named, [(100, 100), (100, 100), (100, 0)]);
        tasks.stop.cancel();
        tasks.finished().await;
    }
}
