//! Counting of the execs that run in an adopted workspace. Its guest may be hostile, so the daemon reads a bounded part of
//! the guest's list, and keeps a few fields of each exec.

use std::sync::Arc;
use std::time::Duration;

use skilld_common::names::{base_name, is_resource_id};
use skilld_proto::guest::v1 as guest;
use skilld_proto::v1 as pb;

use crate::config::EXECS_MAX;
use crate::error::{Chain, Error, Result};
use crate::guest::GuestClient;
use crate::workspace::Workspace;
use crate::workspace::running_execs::FollowJob;
use crate::workspace::shared_slot_context::SharedSlotContext;

/// Longest wait of the daemon's start for the list of a workspace's execs.
const START_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest wait for the list after the start.
const LIST_TIMEOUT: Duration = Duration::from_secs(60);
/// Pause before a guest is asked again that did not answer.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// Number of execs in one page of the guest's list.
const PAGE_SIZE: u32 = 200;
/// Maximum number of pages that are read of a guest's list, which has fewer unless the guest is broken.
const PAGES_MAX: usize = 100;
/// Maximum number of execs that are kept of a guest's list, whose pages may be larger than requested.
const LISTED_MAX: usize = PAGES_MAX * PAGE_SIZE as usize;

/// Execs of a guest's list, as far as they count.
#[derive(Debug, Default)]
struct ListedExecs {
    /// Ids of running execs.
    running: Vec<String>,
    /// Ended execs with their times and what their tenant's usage needs of their results.
    ended: Vec<pb::Exec>,
}

/// Counts the execs that run in an adopted workspace. If its guest does not answer now, a task does it as soon as it
/// does.
pub async fn adopt_execs(
    context: &Arc<SharedSlotContext>,
    workspace: &Workspace,
    guest: Option<GuestClient>,
) {
    if let Some(guest) = guest {
        match list_execs(guest, workspace, START_TIMEOUT).await {
            Ok(execs) => return adopt_listed(context, workspace, execs),
            Err(error) => {
                tracing::warn!(workspace_id = %workspace.id(), error = %Chain(&error), "execs are counted later");
            }
        }
    }
    let (context, workspace) = (Arc::clone(context), workspace.clone());
    let (tasks, stop) = (context.tasks.clone(), context.tasks.stop.clone());
    let adopt = async move {
        while let Some(guest) = workspace.wait_for_guest().await {
            match list_execs(guest, &workspace, LIST_TIMEOUT).await {
                Ok(execs) => return adopt_listed(&context, &workspace, execs),
                Err(_) => tokio::time::sleep(RETRY_INTERVAL).await,
            }
        }
    };
    tasks.spawn(stop.run_until_cancelled_owned(adopt));
}

/// Lists the execs that a guest knows.
async fn list_execs(
    guest: GuestClient,
    workspace: &Workspace,
    timeout: Duration,
) -> Result<ListedExecs> {
    let name = workspace.id().name();
    let ask = |request| {
        let (mut guest, name) = (guest.clone(), &name);
        async move {
            let page = guest
                .list_execs(request)
                .await
                .map_err(|status| Error::from_guest(name, &status))?;
            Ok(page.into_inner())
        }
    };
    let listed = tokio::time::timeout(timeout, read_pages(ask)).await;
    listed.unwrap_or(Err(Error::deadline("listing execs")))
}

/// Reads the pages of a guest's list, up to the limits.
async fn read_pages<F>(mut ask: impl FnMut(guest::ListExecsRequest) -> F) -> Result<ListedExecs>
where
    F: Future<Output = Result<guest::ListExecsResponse>>,
{
    let (mut execs, mut after) = (ListedExecs::default(), 0);
    for _ in 0..PAGES_MAX {
        let request = guest::ListExecsRequest {
            after,
            page_size: PAGE_SIZE,
        };
        let page = ask(request).await?;
        page.execs.iter().for_each(|exec| execs.add(exec));
        if page.next <= after {
            break;
        }
        after = page.next;
    }
    Ok(execs)
}

impl ListedExecs {
    /// Adds an exec, unless its id is invalid or there are too many.
    fn add(&mut self, exec: &pb::Exec) {
        let Some(id) = exec_id(exec) else {
            return;
        };
        if exec.state() != pb::ExecState::Closed {
            if self.running.len() < EXECS_MAX as usize {
                self.running.push(id);
            }
        } else if self.ended.len() < LISTED_MAX {
            let result = exec.result.as_ref().map(|result| pb::ExecResult {
                reason: result.reason,
                user_duration: result.user_duration,
                system_duration: result.system_duration,
                ..pb::ExecResult::default()
            });
            self.ended.push(pb::Exec {
                start_time: exec.start_time,
                end_time: exec.end_time,
                result,
                ..pb::Exec::default()
            });
        }
    }
}

fn adopt_listed(context: &Arc<SharedSlotContext>, workspace: &Workspace, execs: ListedExecs) {
    let tenant = &workspace.key.tenant;
    for exec in execs.ended {
        context.usage.add_earlier_exec(tenant, &exec);
    }
    for exec_id in execs.running {
        let take = || Ok(context.execs.adopt(tenant));
        if let Ok(entry) = workspace.running_execs().add(&exec_id, None, take) {
            let job = FollowJob {
                workspace: workspace.clone(),
                entry,
                has_started: true,
            };
            job.spawn(Arc::clone(context), None);
        }
    }
}

/// Returns the id of an exec, without the name of its workspace; `None` if no daemon gave it.
fn exec_id(exec: &pb::Exec) -> Option<String> {
    let id = base_name(&exec.name);
    is_resource_id(id).then(|| id.to_owned())
}

#[cfg(test)]
mod tests {
    use std::future::ready;

    use skilld_common::names::RESOURCE_ID_BYTES_MAX;

    use super::*;

    fn exec(id: &str, state: pb::ExecState) -> pb::Exec {
        let mut exec = pb::Exec {
            name: format!("workspaces/w/execs/{id}"),
            ..pb::Exec::default()
        };
        exec.set_state(state);
        exec
    }

    fn page(execs: Vec<pb::Exec>, next: u64) -> guest::ListExecsResponse {
        guest::ListExecsResponse {
            execs,
            next,
            ..guest::ListExecsResponse::default()
        }
    }

    #[tokio::test]
    async fn an_endless_exec_list_is_read_in_bounded_pages_and_memory() {
        let mut pages = 0;
        let many = |_| {
            pages += 1;
            let ended = (0..1000).map(|index| {
                let mut exec = exec(&format!("e{pages}-{index}"), pb::ExecState::Closed);
                exec.result = Some(pb::ExecResult::default());
                exec.effective_spec = Some(pb::ExecSpec::default());
                exec
            });
            let running =
                (0..100).map(|index| exec(&format!("r{pages}-{index}"), pb::ExecState::Running));
            ready(Ok(page(running.chain(ended).collect(), pages as u64)))
        };
        let listed = read_pages(many).await.expect("listed");
        assert_eq!(pages, PAGES_MAX);
        assert_eq!(listed.running.len(), EXECS_MAX as usize);
        assert_eq!(listed.ended.len(), LISTED_MAX);
        let is_slim = |exec: &pb::Exec| {
            exec.name.is_empty() && exec.effective_spec.is_none() && exec.result.is_some()
        };
        assert!(listed.ended.iter().all(is_slim));
    }

    #[tokio::test]
    async fn invalid_ids_and_repeated_positions_of_a_guest_are_ignored() {
        let long = "x".repeat(RESOURCE_ID_BYTES_MAX + 1);
        for (id, valid) in [(long.as_str(), 0), ("", 0), ("a b", 0), ("good", 1)] {
            let mut asked = 0;
            let ask = |_| {
                asked += 1;
                ready(Ok(page(vec![exec(id, pb::ExecState::Running)], 7)))
            };
            let listed = read_pages(ask).await.expect("listed");
            assert_eq!((asked, listed.running.len()), (2, 2 * valid), "{id}");
        }
    }
}
