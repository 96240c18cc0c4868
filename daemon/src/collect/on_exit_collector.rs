//! Collects files when an exec ends, without a client.
//!
//! ```text
//! StartExec ── record: Pending ──► guest starts it ── CLOSED ──► record: Begun ── files ──► artifacts ──► record: Ended
//! ```
//!
//! Each exec has one [`CollectionJob`] at a time. Its record is on the host's disk, so the next daemon goes on where
//! this one stopped. An exec counts as ended when it is CLOSED: files that its remaining processes wrote within the
//! leak grace are collected too.
//!
//! **No version twice.** A daemon that dies between `Begun` and `Ended` collects again. It skips a file whose newest
//! version has the same sha256 and was created since then. So a version comes twice only if another client saved a
//! version under that name in between.

use std::sync::Arc;
use std::time::Duration;

use prost::Message;
use skilld_proto::v1 as pb;

use super::collection_job::{CollectionJob, CollectorContext};
use crate::access::TenantPermits;
use crate::artifacts::Artifacts;
use crate::error::{Chain, Error, Result};
use crate::fault::{self, Point};
use crate::shutdown::Tasks;
use crate::workspace::Workspace;
use crate::workspace::output_collection_tracker::{CollectionRecord, OutputCollectionTracker};

/// Maximum number of collections of all workspaces that run at the same time. More would only share the same disk.
const CONCURRENT_MAX: usize = 8;

/// Collector of files at the end of execs. Clones share it.
#[derive(Debug, Clone)]
pub struct OnExitCollector(pub(super) Arc<CollectorContext>);

/// Guard that starts the collection of an exec's files when it is dropped. Its job starts when the guard is dropped:
/// after the guest was asked to start the exec, or when the caller has gone away. The guest may have refused the exec,
/// or may not know it.
#[derive(Debug)]
pub struct CollectionGuard {
    collector: OnExitCollector,
    /// `None` when the collection has ended already.
    job: Option<CollectionJob>,
}

/// State of a job's record after [`OnExitCollector::record_job`].
enum JobRecordOutcome {
    Pending,
    Ended,
}

impl OnExitCollector {
    /// Creates a collector. `timeout` limits each collection; `is_shared` is `true` if there may be several tenants.
    #[must_use]
    pub fn new(artifacts: Artifacts, tasks: Tasks, (timeout, is_shared): (Duration, bool)) -> Self {
        Self(Arc::new(CollectorContext {
            artifacts,
            tasks,
            timeout,
            permits: TenantPermits::new(CONCURRENT_MAX, is_shared),
        }))
    }

    /// Records a collection before its exec starts.
    ///
    /// # Errors
    /// When the host's disk fails or is full; [`Error::QuotaExceeded`] when too many collections of the workspace have
    /// not ended.
    pub async fn prepare(
        &self,
        workspace: &Workspace,
        exec_id: &str,
        spec: &pb::CollectSpec,
    ) -> Result<CollectionGuard> {
        workspace.collections().check_room(exec_id)?;
        let job = CollectionJob {
            workspace: workspace.clone(),
            exec_id: exec_id.to_owned(),
            spec: spec.clone(),
            is_resumed: false,
            begin_time: None,
            in_flight: workspace.collections().begin(exec_id),
        };
        let collector = self.clone();
        let mut guard = CollectionGuard {
            collector: self.clone(),
            job: Some(job),
        };
        // A task of its own, so that a caller that goes away cannot leave a record that is written after its job ran.
        let task = async move {
            if let Some(job) = &mut guard.job
                && let JobRecordOutcome::Ended = collector.record_job(job).await?
            {
                guard.job = None;
            }
            Ok(guard)
        };
        let prepared = self.0.tasks.spawn(task).await;
        prepared.map_err(|error| Error::Internal(format!("record a collection: {error}")))?
    }

    /// Writes the record of a job, unless the exec has one. A job that is not in flight is left as it is.
    async fn record_job(&self, job: &mut CollectionJob) -> Result<JobRecordOutcome> {
        if job.in_flight.is_none() {
            return Ok(JobRecordOutcome::Pending);
        }
        let (collections, exec_id) = (Arc::clone(job.workspace.collections()), job.exec_id.clone());
        let record = CollectionRecord::pending(job.spec.clone());
        let write = move || {
            let known = collections.read_record(&exec_id)?;
            if known.is_none() {
                collections.add_record(&exec_id, &record)?;
            }
            Ok(known)
        };
        let known = self.0.tasks.blocking(write).await?;
        fault::reach(Point::CollectNoted);
        let Some(known) = known else {
            return Ok(JobRecordOutcome::Pending);
        };
        if known.has_ended() {
            return Ok(JobRecordOutcome::Ended);
        }
        // The record has no job: its caller went away, or this daemon has not resumed it yet.
        let begin_time = known.begin_time();
        if known.spec == job.spec {
            job.begin_time = begin_time;
        } else {
            // The exec id belongs to the recorded job, or to no exec and may become ours: the recorded job runs first.
            self.spawn(CollectionJob {
                workspace: job.workspace.clone(),
                exec_id: job.exec_id.clone(),
                spec: known.spec,
                is_resumed: false,
                begin_time,
                in_flight: job.in_flight.take(),
            });
        }
        Ok(JobRecordOutcome::Pending)
    }

    fn spawn(&self, job: CollectionJob) {
        let collector = self.clone();
        self.0.tasks.spawn(async move {
            let stop = collector.0.tasks.stop.clone();
            tokio::select! {
                // The next daemon resumes it.
                () = stop.cancelled() => {}
                () = collector.collect_after_exit(job) => {}
            }
        });
    }

    /// Runs a job, after the exec's other job if there is one.
    async fn collect_after_exit(&self, mut job: CollectionJob) {
        while job.in_flight.is_none() {
            let collections = Arc::clone(job.workspace.collections());
            collections.wait_until_released(&job.exec_id).await;
            job.in_flight = collections.begin(&job.exec_id);
            match self.record_job(&mut job).await {
                Ok(JobRecordOutcome::Pending) => {}
                Ok(JobRecordOutcome::Ended) => return,
                Err(error) => {
                    tracing::error!(error = %Chain(&error), "an exec's outputs are not collected");
                    return;
                }
            }
        }
        self.0.run_collection(&job).await;
    }

    /// Resumes the collections that an earlier daemon left in a workspace.
    pub fn resume(&self, workspace: Workspace) {
        let collector = self.clone();
        self.0.tasks.spawn(async move {
            let collections = Arc::clone(workspace.collections());
            let read = Arc::clone(&collections);
            let tasks = &collector.0.tasks;
            let found = tasks.blocking(move || read.unfinished_records()).await;
            let found = found.unwrap_or_else(|error| {
                tracing::error!(error = %Chain(&error), "unfinished collections cannot be read");
                Vec::new()
            });
            for (exec_id, record) in found {
                if let Some(in_flight) = collections.begin(&exec_id) {
                    collector.spawn(CollectionJob {
                        workspace: workspace.clone(),
                        exec_id,
                        begin_time: record.begin_time(),
                        spec: record.spec,
                        is_resumed: true,
                        in_flight: Some(in_flight),
                    });
                }
            }
            collections.finish_adoption();
        });
    }

    /// Adds its collection to each ended exec. The execs are one message: summaries beyond `bytes_max` lose their
    /// lists.
    ///
    /// # Errors
    /// When the host's disk fails.
    pub async fn describe(
        &self,
        collections: &Arc<OutputCollectionTracker>,
        execs: &mut [pb::Exec],
        bytes_max: usize,
    ) -> Result<()> {
        let mut bytes = 0;
        for exec in execs {
            let spec = exec.effective_spec.as_ref();
            let is_collected = spec.is_some_and(|spec| spec.collect.is_some());
            let has_ended = matches!(exec.state(), pb::ExecState::Exited | pb::ExecState::Closed);
            if !is_collected || !has_ended {
                continue;
            }
            let exec_id = exec.name.rsplit('/').next().unwrap_or_default().to_owned();
            let collections = Arc::clone(collections);
            let read = move || collections.read_record(&exec_id);
            let record = self.0.tasks.blocking(read).await?;
            exec.collection = record.map(CollectionRecord::into_collection);
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
}

impl Drop for CollectionGuard {
    fn drop(&mut self) {
        // After a stop the next daemon resumes the job from its record.
        let job = self.job.take();
        if let Some(job) = job.filter(|_| !self.collector.0.tasks.stop.is_cancelled()) {
            self.collector.spawn(job);
        }
    }
}

#[cfg(test)]
mod tests {
    use skilld_proto::v1::exec_collection::State;

    use super::*;
    use crate::workspace::output_collection_tracker::CollectionStatus;

    #[tokio::test]
    async fn collections_of_many_execs_fit_into_one_message() {
        let dir = tempfile::tempdir().expect("temp dir");
        let tasks = Tasks::default();
        let config = crate::config::Config::from_toml("")
            .expect("defaults")
            .config;
        let wait = Duration::from_secs(60);
        let artifacts = Artifacts::open(&config.artifacts, dir.path(), wait, (None, &tasks)).await;
        let collector =
            OnExitCollector::new(artifacts.expect("a store"), tasks.clone(), (wait, false));
        let collections = Arc::new(OutputCollectionTracker::new(dir.path(), false, 10));
        let mut execs = Vec::new();
        for id in ["a", "b", "c"] {
            let summary = pb::CollectSummary {
                artifacts: vec!["x".repeat(1000); 100],
                returned: 100,
                ..pb::CollectSummary::default()
            };
            let spec = pb::CollectSpec::default();
            let done = CollectionRecord {
                spec: spec.clone(),
                status: CollectionStatus::Ended(pb::ExecCollection {
                    state: State::Done.into(),
                    summary: Some(summary),
                    ..pb::ExecCollection::default()
                }),
            };
            collections.write_record(id, &done).expect("written");
            let mut exec = pb::Exec {
                name: format!("workspaces/w/execs/{id}"),
                effective_spec: Some(pb::ExecSpec {
                    collect: Some(spec),
                    ..pb::ExecSpec::default()
                }),
                ..pb::Exec::default()
            };
            exec.set_state(pb::ExecState::Closed);
            execs.push(exec);
        }
        let described = collector.describe(&collections, &mut execs, 250_000).await;
        described.expect("described");
        let named = execs.iter().map(|exec| {
            let summary = exec
                .collection
                .as_ref()
                .and_then(|collection| collection.summary.as_ref());
            let summary = summary.expect("a summary");
            (summary.returned, summary.artifacts.len())
        });
        let named: Vec<_> = named.collect();
        assert_eq!(named, [(100, 100), (100, 100), (100, 0)]);
        tasks.stop.cancel();
        tasks.finished().await;
    }
}
