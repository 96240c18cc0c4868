//! Running execs of a workspace, as far as they count against the quota of its tenant.
//!
//! A unit of the quota is reserved before the guest is asked to start an exec, and given back once the exec is CLOSED or
//! its workspace has ended. The daemon learns the end from the stream of RunExec if it relays that to its end, and from
//! the guest's WaitExec otherwise: for detached execs, clients that leave or do not read, and execs of an earlier daemon.
//!
//! Requests with the same id share an entry, and one of them follows the exec. The entry lives until the last of them has
//! its answer, because any of them may be the one that started the exec.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use skilld_proto::guest::v1 as guest;
use skilld_proto::v1::{self as pb, ExitReason};
use tokio::sync::oneshot;

use crate::access::HeldUnit;
use crate::error::{Error, Result};
use crate::workspace::shared_slot_context::SharedSlotContext;
use crate::workspace::{Workspace, WorkspaceGrant};

/// Time for which the stream of RunExec alone reports the end. Most execs are shorter and need no further call.
const STREAM_ALONE: Duration = Duration::from_secs(1);
/// Pause before a guest is asked again that did not answer.
const RETRY_INTERVAL: Duration = Duration::from_millis(200);

/// Execs of one workspace that count, by their ids.
#[derive(Debug, Default)]
pub struct RunningExecs(Mutex<HashMap<String, RunningExec>>);

/// Exec that counts, or may start soon.
#[derive(Debug)]
struct RunningExec {
    _unit: HeldUnit,
    /// Number of [`ExecEntry`] values: one per unanswered request, and that of the follower.
    entries: usize,
    /// Time of the reservation. An exec that started earlier was counted when it ended; `None` for an exec of an earlier
    /// daemon, which was not.
    reserve_time: Option<SystemTime>,
    /// The guest has confirmed the start.
    has_started: bool,
    is_followed: bool,
    /// A further request has ended since the exec is followed, so an exec that the guest did not know may exist now.
    may_exist: bool,
}

/// Share of the entry of one exec. Dropping the last one removes the entry.
#[derive(Debug)]
pub(super) struct ExecEntry {
    execs: Arc<RunningExecs>,
    exec_id: String,
}

/// Exec that counts while it runs. If it is dropped before the end is known, a task waits for that.
#[derive(Debug)]
pub struct ExecReservation {
    context: Arc<SharedSlotContext>,
    job: Option<FollowJob>,
}

/// Start of an exec that the guest has confirmed.
#[derive(Debug)]
pub struct ConfirmedStart {
    /// `true` if no other request with the same id was confirmed since the exec counts.
    pub is_first: bool,
    /// Spares the guest a call if the end arrives soon; `None` if another request follows the exec.
    pub end_sender: Option<ExecEndSender>,
}

/// Sends the end of an exec to its follower. Dropping it without an end leaves the wait to the follower.
#[derive(Debug)]
pub struct ExecEndSender(oneshot::Sender<ExecEnd>);

/// End of an exec.
#[derive(Debug, Clone)]
pub struct ExecEnd {
    /// Time of the start; `None` if the workspace took the exec with it.
    pub start_time: Option<SystemTime>,
    /// Result of the exec.
    pub result: pb::ExecResult,
}

/// Wait for the end of one exec.
#[derive(Debug)]
pub(super) struct FollowJob {
    pub(super) workspace: Workspace,
    pub(super) entry: ExecEntry,
    /// The guest has confirmed the start.
    pub(super) has_started: bool,
}

// === impl RunningExecs ===

impl RunningExecs {
    /// Adds an exec with its unit, or a share of its entry if it has one.
    pub(super) fn add(
        self: &Arc<Self>,
        exec_id: &str,
        reserve_time: Option<SystemTime>,
        take: impl FnOnce() -> Result<HeldUnit>,
    ) -> Result<ExecEntry> {
        let mut execs = self.0.lock();
        if let Some(known) = execs.get_mut(exec_id) {
            known.entries += 1;
        } else {
            let exec = RunningExec {
                _unit: take()?,
                entries: 1,
                reserve_time,
                has_started: false,
                is_followed: false,
                may_exist: false,
            };
            execs.insert(exec_id.to_owned(), exec);
        }
        Ok(ExecEntry {
            execs: Arc::clone(self),
            exec_id: exec_id.to_owned(),
        })
    }

    /// Returns `true` if no exec runs, and no request is about to start one.
    pub fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }

    /// Removes all execs: their workspace has ended.
    pub fn clear(&self) {
        self.0.lock().clear();
    }
}

// === impl ExecEntry ===

impl ExecEntry {
    /// Changes or reads the exec; `None` if its workspace has ended.
    fn with<T>(&self, change: impl FnOnce(&mut RunningExec) -> T) -> Option<T> {
        self.execs.0.lock().get_mut(&self.exec_id).map(change)
    }

    /// Records that the guest has confirmed the start. Returns `true` for the first time.
    fn confirm_start(&self) -> bool {
        self.with(|exec| !std::mem::replace(&mut exec.has_started, true))
            .unwrap_or_default()
    }

    /// Returns `true` if the caller has to follow the exec, and `false` if its follower was told to ask again.
    fn begin_following(&self) -> bool {
        let begin = |exec: &mut RunningExec| {
            let is_followed = std::mem::replace(&mut exec.is_followed, true);
            exec.may_exist |= is_followed;
            !is_followed
        };
        self.with(begin).unwrap_or(true)
    }

    /// Returns `true` if the follower of an exec that the guest does not know has to ask again. Otherwise the exec is
    /// followed no longer.
    fn may_exist_now(&self) -> bool {
        let ask = |exec: &mut RunningExec| {
            exec.is_followed = std::mem::take(&mut exec.may_exist);
            exec.is_followed
        };
        self.with(ask).unwrap_or_default()
    }
}

impl Drop for ExecEntry {
    fn drop(&mut self) {
        let mut execs = self.execs.0.lock();
        if let Some(exec) = execs.get_mut(&self.exec_id) {
            exec.entries = exec.entries.saturating_sub(1);
            if exec.entries == 0 {
                execs.remove(&self.exec_id);
            }
        }
    }
}

// === impl ExecReservation ===

impl ExecReservation {
    /// Reserves an exec before it starts, if the tenant runs fewer than `limit`. Returns `None` for a repeated request
    /// beyond the limit whose exec has ended. `grant` is set if the client chose the id, so that it may repeat one.
    ///
    /// # Errors
    /// [`Error::TenantQuota`].
    pub async fn reserve(
        context: &Arc<SharedSlotContext>,
        workspace: &Workspace,
        exec_id: &str,
        limit: Option<u64>,
        grant: Option<&WorkspaceGrant>,
    ) -> Result<Option<Self>> {
        let reserve_time = SystemTime::now();
        let take = || context.execs.take(&workspace.key.tenant, limit);
        let entry = match (
            workspace
                .running_execs()
                .add(exec_id, Some(reserve_time), take),
            grant,
        ) {
            (Err(refused), Some(grant)) => {
                // The guest attaches a repeated request to its exec, or refuses it; it starts nothing.
                let request = guest::GetExecRequest {
                    exec_id: exec_id.to_owned(),
                };
                let known = grant.guest.clone().get_exec(request).await;
                return known.map(|_| None).map_err(|_| refused);
            }
            (entry, _) => entry?,
        };
        Ok(Some(Self {
            context: Arc::clone(context),
            job: Some(FollowJob {
                workspace: workspace.clone(),
                entry,
                has_started: false,
            }),
        }))
    }

    /// Records that the guest has confirmed the start, and starts the task that follows the exec to its end, unless
    /// another request with its id did.
    pub fn follow(mut self) -> Option<ConfirmedStart> {
        let mut job = self.job.take()?;
        job.has_started = true;
        let is_first = job.entry.confirm_start();
        let (sender, end) = oneshot::channel();
        let is_followed = job.spawn(Arc::clone(&self.context), Some(end));
        let end_sender = is_followed.then_some(ExecEndSender(sender));
        Some(ConfirmedStart {
            is_first,
            end_sender,
        })
    }
}

impl Drop for ExecReservation {
    fn drop(&mut self) {
        if let Some(job) = self.job.take() {
            job.spawn(Arc::clone(&self.context), None);
        }
    }
}

impl ExecEndSender {
    /// Sends the end.
    pub fn send(self, end: ExecEnd) {
        if self.0.send(end).is_err() {
            tracing::trace!("the guest has reported the end already");
        }
    }
}

// === impl FollowJob ===

impl FollowJob {
    /// Starts the task that waits for the end, unless the exec has one. Returns `true` if it did. After a stop of the
    /// daemon the next one finds the exec in its guest.
    pub(super) fn spawn(
        self,
        context: Arc<SharedSlotContext>,
        end: Option<oneshot::Receiver<ExecEnd>>,
    ) -> bool {
        let stop = context.tasks.stop.clone();
        if stop.is_cancelled() || !self.entry.begin_following() {
            return false;
        }
        let tasks = context.tasks.clone();
        tasks.spawn(async move {
            tokio::select! {
                // The stop counts first: the slot's task ends by it too, which looks like the loss of the exec.
                biased;
                () = stop.cancelled() => {}
                end = self.wait_for_end(end) => self.add_usage(&context, end),
            }
        });
        true
    }

    /// Waits for the end of the exec; `None` if the guest does not know it, or ended without a result.
    async fn wait_for_end(&self, end: Option<oneshot::Receiver<ExecEnd>>) -> Option<ExecEnd> {
        if let Some(end) = end
            && let Ok(Ok(end)) = tokio::time::timeout(STREAM_ALONE, end).await
        {
            return Some(end);
        }
        loop {
            let Some(mut guest) = self.workspace.wait_for_guest().await else {
                return self.has_started.then(lost_end);
            };
            let exec_id = self.entry.exec_id.clone();
            let waited = guest.wait_exec(guest::WaitExecRequest { exec_id }).await;
            let status = match waited {
                Ok(exec) => return Some(ExecEnd::of(exec.get_ref())),
                Err(status) => status,
            };
            let error = Error::from_guest(&self.workspace.id().name(), &status);
            if matches!(error, Error::Guest { .. }) && !self.entry.may_exist_now() {
                return None;
            }
            // The connection broke, or another request may have started the exec meanwhile.
            tokio::time::sleep(RETRY_INTERVAL).await;
        }
    }

    fn add_usage(&self, context: &SharedSlotContext, end: Option<ExecEnd>) {
        let Some(end) = end else {
            return;
        };
        let reserve_time = self.entry.with(|exec| exec.reserve_time).flatten();
        let is_repeated = match (reserve_time, end.start_time) {
            (Some(reserved), Some(started)) => started < reserved,
            _ => false,
        };
        if !is_repeated {
            context
                .usage
                .add_exec(&self.workspace.key.tenant, &end.result);
        }
    }
}

impl ExecEnd {
    fn of(exec: &pb::Exec) -> Self {
        let start = exec.start_time.and_then(|time| time.try_into().ok());
        Self {
            start_time: start,
            result: exec.result.clone().unwrap_or_default(),
        }
    }
}

/// End of an exec whose workspace ended before it.
fn lost_end() -> ExecEnd {
    let reason = ExitReason::WorkspaceLost.into();
    ExecEnd {
        start_time: None,
        result: pb::ExecResult {
            reason,
            ..pb::ExecResult::default()
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::{HeldCounter, TenantName};

    #[test]
    fn requests_with_one_id_share_a_unit_until_the_last_answer() {
        let (execs, counter) = (Arc::<RunningExecs>::default(), HeldCounter::new("execs"));
        let tenant = TenantName::default();
        let add = || execs.add("x", None, || counter.take(&tenant, Some(1)));
        let refused = add().expect("a unit");
        assert!(refused.begin_following(), "it may have started the exec");
        let started = add().expect("the same unit");
        // The guest does not know the exec, and the second request has no answer yet.
        assert!(!refused.may_exist_now());
        drop(refused);
        assert_eq!(counter.count(&tenant), 1);
        assert!(started.confirm_start());
        assert!(started.begin_following());
        // A request that ends while the exec is followed makes the follower ask again, once.
        let repeated = add().expect("the same unit");
        assert!(!repeated.confirm_start());
        assert!(!repeated.begin_following());
        drop(repeated);
        assert!(started.may_exist_now());
        assert!(!started.may_exist_now());
        drop(started);
        assert_eq!(counter.count(&tenant), 0);
    }
}
