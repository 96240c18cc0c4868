//! Room for a staging within the quota of the workspace's tenant. Copies of skills count, and so do the versions that
//! they replace, which stay while commands run there, or processes that these left.

use skilld_proto::guest::v1 as guest;

use super::SharedDependencies;
use crate::error::{Chain, Error, Result};
use crate::skills::{LeasedSkills, has_replaced_versions, measure_staged_bytes};
use crate::workspace::{Workspace, WorkspaceGrant};

/// Maximum number of replaced versions of skills that a workspace keeps while a process may use them.
const REPLACED_MAX: usize = 4;

/// Reserves the bytes of the copies that a staging makes; unchanged skills need none. The caller has the workspace's turn
/// to stage, and calls [`settle_staging`] after the staging.
///
/// # Errors
/// [`Error::QuotaExceeded`] if processes run in the workspace that may use too many replaced versions;
/// [`Error::TenantQuota`].
pub(super) async fn reserve_staging(
    shared: &SharedDependencies,
    (workspace, grant): (&Workspace, &WorkspaceGrant),
    skills: &LeasedSkills,
    is_writable: bool,
) -> Result<()> {
    remove_unused_versions(shared, workspace, grant).await;
    let target = workspace.skills_dir();
    let tenant = &workspace.key.tenant;
    let library = shared.skills.working_for(tenant);
    let effect = library
        .examine_staging(&target, skills, is_writable)
        .await?;
    if effect.copied_bytes == 0 {
        return Ok(());
    }
    if effect.replaced > REPLACED_MAX && may_use_replaced(workspace, grant).await {
        let name = workspace.id().name();
        let subject = format!(
            "the number of replaced versions of skills in {name}, which stay while commands, or processes that they \
             left, run there (kill these, or create another workspace)"
        );
        return Err(Error::quota_exceeded(subject, REPLACED_MAX as u64));
    }
    let limits = shared.access.limits(tenant);
    let limit = limits.and_then(|limits| limits.staged_bytes);
    let workspaces = &shared.registry.context.workspaces;
    let reserve = || workspaces.reserve_staged(workspace, effect.copied_bytes, limit);
    if reserve().is_ok() {
        return Ok(());
    }
    // The versions that were removed above still count.
    settle_staging(shared, workspace, grant).await;
    reserve()
}

/// Removes replaced versions that no process can use, and brings the count of the workspace's bytes up to date.
pub(super) async fn settle_staging(
    shared: &SharedDependencies,
    workspace: &Workspace,
    grant: &WorkspaceGrant,
) {
    remove_unused_versions(shared, workspace, grant).await;
    let target = workspace.skills_dir();
    let measure = move || Ok(measure_staged_bytes(&target));
    match shared.tasks.blocking(measure).await {
        Ok(bytes) => {
            let workspaces = &shared.registry.context.workspaces;
            workspaces.set_staged(workspace, bytes);
        }
        // The reserved bytes count until the next staging.
        Err(error) => {
            tracing::debug!(workspace_id = %workspace.id(), error = %Chain(&error), "staged skills were not measured");
        }
    }
}

/// Removes the replaced versions of a workspace if no process may use them: a command that starts now finds the latest
/// versions.
async fn remove_unused_versions(
    shared: &SharedDependencies,
    workspace: &Workspace,
    grant: &WorkspaceGrant,
) {
    let folder = workspace.skills_dir();
    let target = folder.clone();
    let find = move || Ok(has_replaced_versions(&target));
    let found = shared.tasks.blocking(find).await;
    // Mostly there are none, so the guest is seldom asked.
    if !found.unwrap_or_default() || may_use_replaced(workspace, grant).await {
        return;
    }
    let skills = shared.skills.of_daemon();
    if let Err(error) = skills.remove_replaced(&folder).await {
        tracing::warn!(workspace_id = %workspace.id(), error = %Chain(&error), "replaced skills could not be removed");
    }
}

/// Returns `true` if a process of the workspace may use a replaced version: that of a command that runs or is about to,
/// or one that a command left (`stragglers` KEEP). Only the guest knows the latter; without its answer they count.
async fn may_use_replaced(workspace: &Workspace, grant: &WorkspaceGrant) -> bool {
    // The order matters: a command that ends meanwhile may leave processes.
    if !workspace.running_execs().is_empty() {
        return true;
    }
    let request = guest::ListExecsRequest {
        page_size: 1,
        ..guest::ListExecsRequest::default()
    };
    let listed = grant.guest.clone().list_execs(request).await;
    !listed.is_ok_and(|listed| listed.get_ref().living == 0)
}
