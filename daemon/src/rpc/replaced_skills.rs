//! Removes versions of skills that StageSkills replaced, once no command that started with one of them runs.

use std::time::{Duration, SystemTime};

use skilld_proto::guest::v1 as wire;
use skilld_proto::v1 as pb;

use super::SharedDependencies;
use crate::error::Chain;
use crate::workspace::{Workspace, WorkspaceGrant};

/// Number of execs per request to the guest; the guest's maximum.
const PAGE_SIZE: u32 = 1000;
/// Maximum number of pages to request. A guest keeps far fewer execs than fit into them.
const PAGES_MAX: usize = 100;
/// Deadline for all pages: the workspace's next staging waits for it.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Removes replaced skills that no running exec uses. Those in use stay until the next staging or the workspace's end.
pub(super) async fn remove_replaced_skills(
    shared: &SharedDependencies,
    workspace: &Workspace,
    grant: &WorkspaceGrant,
) {
    let dir = workspace.skills_dir();
    if !matches!(shared.skills.of_daemon().has_replaced(&dir).await, Ok(true)) {
        return;
    }
    let asked = SystemTime::now();
    let ask = |request| {
        let mut guest = grant.guest.clone();
        async move { Some(guest.list_execs(request).await.ok()?.into_inner()) }
    };
    let starts = tokio::select! {
        () = shared.tasks.stop.cancelled() => return,
        starts = tokio::time::timeout(TIMEOUT, running_exec_starts(ask)) => starts.unwrap_or_default(),
    };
    if let Err(error) = shared
        .skills
        .of_daemon()
        .remove_replaced(&dir, asked, starts)
        .await
    {
        tracing::warn!(workspace_id = %workspace.id(), error = %Chain(&error), "replaced skills could not be removed");
    }
}

/// Returns the start time of each exec that has not ended; `None` if the guest fails or its list never ends.
async fn running_exec_starts<F>(
    ask: impl Fn(wire::ListExecsRequest) -> F,
) -> Option<Vec<SystemTime>>
where
    F: Future<Output = Option<wire::ListExecsResponse>>,
{
    let mut starts = Vec::new();
    let mut after = String::new();
    for _ in 0..PAGES_MAX {
        let request = wire::ListExecsRequest {
            after: after.clone(),
            page_size: PAGE_SIZE,
        };
        let page = ask(request).await?;
        let open = page.execs.iter();
        for exec in open.filter(|exec| exec.state() != pb::ExecState::Closed) {
            let start = exec
                .start_time
                .and_then(|time| SystemTime::try_from(time).ok());
            // An exec without a start time is about to start.
            starts.push(start.unwrap_or_else(SystemTime::now));
        }
        if !page.more {
            return Some(starts);
        }
        let last = page.execs.last()?.name.rsplit('/').next()?;
        if last == after {
            return None;
        }
        last.clone_into(&mut after);
    }
    None
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::future::ready;

    use super::*;

    fn page(ids: &[u32], more: bool) -> Option<wire::ListExecsResponse> {
        let exec = |id: &u32| pb::Exec {
            name: format!("workspaces/w/execs/e{id}"),
            ..pb::Exec::default()
        };
        let execs = ids.iter().map(exec).collect();
        Some(wire::ListExecsResponse { execs, more })
    }

    #[tokio::test]
    async fn a_guest_cannot_keep_a_removal_going() {
        let asked = Cell::new(0);
        let next = || asked.replace(asked.get() + 1);
        // The guest always claims to have more: new execs, the same exec, none.
        assert_eq!(
            running_exec_starts(|_| ready(page(&[next()], true))).await,
            None
        );
        assert_eq!(asked.replace(0) as usize, PAGES_MAX);
        let same = |_| {
            next();
            ready(page(&[7], true))
        };
        assert_eq!(running_exec_starts(same).await, None);
        assert_eq!(asked.replace(0), 2);
        assert_eq!(running_exec_starts(|_| ready(page(&[], true))).await, None);
        assert_eq!(running_exec_starts(|_| ready(None)).await, None);
        // An honest guest is read to the end.
        let honest = |request: wire::ListExecsRequest| match request.after.as_str() {
            "" => ready(page(&[1, 2], true)),
            "e2" => ready(page(&[3], false)),
            other => panic!("{other}"),
        };
        assert_eq!(
            running_exec_starts(honest).await.map(|starts| starts.len()),
            Some(3)
        );
    }
}
