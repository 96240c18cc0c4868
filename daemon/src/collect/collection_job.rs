//! Job of one on-exit collection: waits for the exec, saves its files, records the result.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use skilld_proto::guest::v1 as guest;
use skilld_proto::v1 as pb;
use skilld_proto::v1::exec_collection::State;
use skilld_proto::v1::exec_result;
use tokio::time::Instant;

use super::collection_saver::{CollectionAbort, CollectionSaver, SaveAs};
use crate::access::TenantPermits;
use crate::artifacts::Artifacts;
use crate::error::{Chain, Error, Result};
use crate::fault::{self, Point};
use crate::shutdown::Tasks;
use crate::workspace::output_collection_tracker::{CollectionRecord, CollectionStatus, InFlight};
use crate::workspace::{Workspace, WorkspaceGrant};

/// Longest wait for a permit, as a multiple of the time limit of one collection.
const PERMIT_WAIT_TIMEOUTS: u32 = 10;
/// Pause between two attempts to reach a guest that does not answer, unless the workspace changes earlier.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Artifact store, tasks, time limit and permits that all on-exit collections share.
#[derive(Debug)]
pub(super) struct CollectorContext {
    /// Store of the collected files.
    pub(super) artifacts: Artifacts,
    pub(super) tasks: Tasks,
    /// Time limit of one collection.
    pub(super) timeout: Duration,
    /// Permits of running collections.
    pub(super) permits: TenantPermits,
}

/// Collection of one exec's files.
#[derive(Debug)]
pub(super) struct CollectionJob {
    pub(super) workspace: Workspace,
    pub(super) exec_id: String,
    pub(super) spec: pb::CollectSpec,
    /// An earlier daemon had promised this collection.
    pub(super) is_resumed: bool,
    /// Time since which an earlier attempt may have saved files.
    pub(super) begin_time: Option<SystemTime>,
    /// `None` while another job of the same exec runs. That job may find no exec, and one may start after that.
    pub(super) in_flight: Option<InFlight>,
}

/// Outcome of waiting for the end of an exec whose files are to be collected.
enum ExecEnd {
    Closed {
        grant: WorkspaceGrant,
        is_failed: bool,
    },
    /// The guest has no such exec, or another one under its id.
    NeverStarted,
    /// The workspace is lost, with this reason.
    Lost(String),
}

/// Reason of a failed collection, with the files that were saved before.
struct PartialCollection {
    reason: String,
    summary: pb::CollectSummary,
}

impl From<String> for PartialCollection {
    fn from(reason: String) -> Self {
        let summary = pb::CollectSummary::default();
        Self { reason, summary }
    }
}

impl CollectorContext {
    /// Waits for the exec of a job, collects its files and records the result.
    pub(super) async fn run_collection(&self, job: &CollectionJob) {
        let result = match job.wait_for_end().await {
            ExecEnd::Closed { grant, is_failed } => self.collect(job, grant, is_failed).await,
            ExecEnd::NeverStarted => {
                self.forget(job).await;
                return;
            }
            ExecEnd::Lost(reason) => Err(reason.into()),
        };
        let (state, summary, error) = match result {
            Ok(summary) => (State::Done, summary, String::new()),
            Err(partial) => (State::Failed, partial.summary, partial.reason),
        };
        tracing::info!(
            workspace_id = %job.workspace.id(), exec_id = %job.exec_id, ?state, error,
            artifacts = summary.artifacts.len(), "collected the files of an exec"
        );
        let collection = pb::ExecCollection {
            state: state.into(),
            summary: Some(summary),
            error,
        };
        let written = self.write(job, CollectionRecord::ended(collection)).await;
        if let Err(error) = written {
            tracing::error!(error = %Chain(&error), "result of a collection was not recorded");
        }
        fault::reach(Point::CollectDone);
    }

    /// Removes the record of a job whose exec never started.
    async fn forget(&self, job: &CollectionJob) {
        if job.is_resumed {
            tracing::warn!(
                workspace_id = %job.workspace.id(), exec_id = %job.exec_id,
                "an exec whose outputs were to be collected does not exist: nothing of it is saved"
            );
        }
        let (collections, exec_id) = (Arc::clone(job.workspace.collections()), job.exec_id.clone());
        let remove = move || collections.remove_record(&exec_id);
        if let Err(error) = self.tasks.blocking(remove).await {
            tracing::error!(error = %Chain(&error), "collection record is left");
        }
    }

    async fn write(&self, job: &CollectionJob, record: CollectionRecord) -> Result<()> {
        let (collections, exec_id) = (Arc::clone(job.workspace.collections()), job.exec_id.clone());
        let write = move || collections.write_record(&exec_id, &record);
        self.tasks.blocking(write).await
    }

    async fn collect(
        &self,
        job: &CollectionJob,
        grant: WorkspaceGrant,
        is_failed: bool,
    ) -> Result<pb::CollectSummary, PartialCollection> {
        // Every holder of a turn or a permit ends within its own deadline, so both waits are bounded.
        let _turn = job.workspace.collections().acquire_turn().await;
        let tenant = job.workspace.key().tenant();
        let wait_max = self.timeout * PERMIT_WAIT_TIMEOUTS;
        self.artifacts.wait_until_counted(tenant, wait_max).await;
        let permit = tokio::time::timeout(wait_max, self.permits.acquire(tenant.as_str())).await;
        let _permit = permit.map_err(|_| "too much else is being collected".to_owned())?;
        let deadline = Instant::now() + self.timeout;
        let late = || format!("it took longer than {:?}", self.timeout);
        let opened = tokio::time::timeout_at(deadline, self.open(job, &grant, is_failed)).await;
        let opened = opened.map_err(|_| late())?;
        let mut saver = opened.map_err(|error| error.to_string())?;
        let reason = match tokio::time::timeout_at(deadline, saver.run()).await {
            Ok(Ok(summary)) => match saver.quota_refusal() {
                None => return Ok(summary),
                // A client that waits for its files must not take this for success.
                Some(reason) => return Err(PartialCollection { reason, summary }),
            },
            Ok(Err(CollectionAbort::Guest(status))) => {
                Error::from_guest(&job.workspace.id().name(), &status).to_string()
            }
            Ok(Err(CollectionAbort::Protocol(why))) => format!("the guest sent {why}"),
            Ok(Err(CollectionAbort::ClientGone)) => "the client closed the stream".to_owned(),
            Err(_) => late(),
        };
        Err(PartialCollection {
            reason,
            summary: saver.partial_summary(),
        })
    }

    /// Records the begin of a collection and asks the guest for the files.
    async fn open(
        &self,
        job: &CollectionJob,
        grant: &WorkspaceGrant,
        is_failed: bool,
    ) -> Result<CollectionSaver> {
        let requested = job.spec.save_as_artifacts.clone().unwrap_or_default();
        let save_as = SaveAs::parse("spec.collect.save_as_artifacts", &requested)?
            .skip_empty(is_failed && job.spec.skip_empty_after_failure);
        if job.begin_time.is_none() {
            let begun = CollectionRecord {
                spec: job.spec.clone(),
                status: CollectionStatus::Begun(SystemTime::now()),
            };
            self.write(job, begun).await?;
        }
        fault::reach(Point::CollectBegun);
        let spec = pb::CollectSpec {
            save_as_artifacts: None,
            ..job.spec.clone()
        };
        let request = guest::CollectRequest { spec: Some(spec) };
        let files = grant.guest.clone().collect(request).await;
        let files =
            files.map_err(|status| Error::from_guest(&job.workspace.id().name(), &status))?;
        let save_as = match job.begin_time {
            Some(time) => save_as.skip_saved_since(time),
            None => save_as,
        };
        Ok(CollectionSaver::new(
            files.into_inner(),
            &job.spec,
            save_as,
            self.artifacts.clone(),
            job.workspace.key().tenant(),
        ))
    }
}

impl CollectionJob {
    /// Waits for the end of the exec. Kills it if its workspace is about to end.
    async fn wait_for_end(&self) -> ExecEnd {
        let mut is_killed = false;
        loop {
            let grant = match self.workspace.grant_to_collect().await {
                Ok(grant) => grant,
                Err(error @ Error::WorkspaceNotReady { .. }) => {
                    let view = self.workspace.snapshot();
                    let why = view.failure.as_ref().map(|failure| failure.message.clone());
                    return ExecEnd::Lost(why.unwrap_or_else(|| error.to_string()));
                }
                Err(_) => {
                    self.wait_before_retry().await;
                    continue;
                }
            };
            match self.wait_until_closed(&grant, &mut is_killed).await {
                Ok(exec) => {
                    let running = self.workspace.running_execs();
                    running.report_end(&self.exec_id, &exec);
                    let is_failed = super::is_failed(&exec);
                    let spec = exec.effective_spec.and_then(|spec| spec.collect);
                    return if spec.as_ref() == Some(&self.spec) {
                        ExecEnd::Closed { grant, is_failed }
                    } else {
                        ExecEnd::NeverStarted
                    };
                }
                Err(Error::Guest { .. }) => return ExecEnd::NeverStarted,
                Err(_) => {
                    drop(grant);
                    self.wait_before_retry().await;
                }
            }
        }
    }

    async fn wait_before_retry(&self) {
        tokio::select! {
            () = self.workspace.wait_for_change() => {}
            () = tokio::time::sleep(RETRY_INTERVAL) => {}
        }
    }

    async fn wait_until_closed(
        &self,
        grant: &WorkspaceGrant,
        is_killed: &mut bool,
    ) -> Result<pb::Exec> {
        let failed = |status| Error::from_guest(&self.workspace.id().name(), &status);
        let mut client = grant.guest.clone();
        let exec_id = self.exec_id.clone();
        let waiting = client.wait_exec(guest::WaitExecRequest { exec_id });
        tokio::pin!(waiting);
        if !*is_killed {
            let collections = self.workspace.collections();
            tokio::select! {
                exec = &mut waiting => return Ok(exec.map_err(failed)?.into_inner()),
                () = collections.flush_requested() => {}
            }
            let reason = match collections.is_expired() {
                true => exec_result::Reason::WorkspaceExpired,
                false => exec_result::Reason::KilledByClient,
            };
            let request = guest::KillExecRequest {
                exec_id: self.exec_id.clone(),
                grace: None,
                reason: reason.into(),
            };
            let killed = grant.guest.clone().kill_exec(request).await;
            killed.map_err(failed)?;
            *is_killed = true;
        }
        Ok(waiting.await.map_err(failed)?.into_inner())
    }
}
