//! Versions of skills that StageSkills replaced: removed once no command that began with one runs.

use std::time::SystemTime;

use skilld_proto::guest::v1 as wire;
use skilld_proto::v1 as pb;

use super::Shared;
use crate::error::Chain;
use crate::guest::GuestClient;
use crate::workspace::{Grant, Workspace};

/// Execs that are asked for at once; the guest's maximum.
const PAGE: u32 = 1000;

/// What cannot be removed yet stays until the next staging, or the workspace's end.
pub(super) async fn sweep(shared: &Shared, workspace: &Workspace, grant: &Grant) {
    let dir = workspace.skills_dir();
    if !matches!(shared.skills.has_replaced(&dir).await, Ok(true)) {
        return;
    }
    let asked = SystemTime::now();
    let starts = running(grant.guest.clone()).await;
    if let Err(error) = shared.skills.sweep(&dir, asked, starts).await {
        tracing::warn!(workspace_id = %workspace.id(), error = %Chain(&error), "replaced skills are left");
    }
}

/// When each exec started that has not ended; `None` if the guest does not say.
async fn running(mut guest: GuestClient) -> Option<Vec<SystemTime>> {
    let mut starts = Vec::new();
    let mut after = String::new();
    loop {
        let request = wire::ListExecsRequest {
            after,
            page_size: PAGE,
        };
        let page = guest.list_execs(request).await.ok()?.into_inner();
        let open = page.execs.iter();
        for exec in open.filter(|exec| exec.state() != pb::ExecState::Closed) {
            let start = exec
                .start_time
                .and_then(|time| SystemTime::try_from(time).ok());
            // One without a time is about to start.
            starts.push(start.unwrap_or_else(SystemTime::now));
        }
        let last = page.execs.last().filter(|_| page.more);
        let Some(last) = last else {
            return Some(starts);
        };
        after = last.name.rsplit('/').next()?.to_owned();
    }
}
