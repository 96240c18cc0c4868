//! Writable copies of skills, which StageSkills sends to the guest. A command can write there, so the daemon never
//! opens such a path on the host.

use std::collections::BTreeMap;
use std::time::SystemTime;

use skilld_proto::guest::v1 as guest;
use skilld_proto::v1::{FileEntry, FileType};

use super::SharedDependencies;
use crate::error::{Error, Result};
use crate::skills::{LeasedSkills, StagedSkill};
use crate::workspace::{Workspace, WorkspaceGrant};

/// Stages skills as writable copies: sends those that the workspace does not have, then makes `skills/` lead to them.
///
/// # Errors
/// The errors of a read-only staging, and those of the guest that writes the files.
pub(super) async fn stage_writable(
    shared: &SharedDependencies,
    workspace: &Workspace,
    grant: &WorkspaceGrant,
    skills: LeasedSkills,
) -> Result<Vec<StagedSkill>> {
    let intact = find_intact_copies(workspace, grant, skills.skills()).await?;
    let target = workspace.skills_dir();
    let library = shared.skills.working_for(&workspace.key.tenant);
    let prepared = library.prepare_writable(&target, skills, intact).await?;
    if let Some(copies) = prepared.copies() {
        let (to, links) = (&prepared.directory, &prepared.links);
        let send = shared.inputs.send_folder(grant, copies, to, links);
        send.await?;
    }
    Ok(library.publish_writable(&target, prepared).await?)
}

/// Returns the recorded writable copies of skills that are still folders, with the times of their latest modification.
/// A command may have removed one, or replaced it by a link out of the workspace.
async fn find_intact_copies(
    workspace: &Workspace,
    grant: &WorkspaceGrant,
    skills: &[StagedSkill],
) -> Result<BTreeMap<String, SystemTime>> {
    let view = workspace.snapshot();
    let claim = view.record.claim.as_ref();
    let mut intact = BTreeMap::new();
    for skill in skills {
        let recorded = claim.and_then(|claim| claim.skills.get(&skill.name));
        let Some(path) = recorded.and_then(|skill| skill.writable_path.as_ref()) else {
            continue;
        };
        match modification_time(grant, path).await {
            Ok(Some(time)) => {
                intact.insert(path.clone(), time);
            }
            // No folder, or a path that is gone or leads out.
            Ok(None) | Err(Error::Guest { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(intact)
}

/// Returns the time of the latest modification in a folder; `None` for anything else.
async fn modification_time(grant: &WorkspaceGrant, path: &str) -> Result<Option<SystemTime>> {
    let mut client = grant.guest.clone();
    let (parent, _) = path.rsplit_once('/').unwrap_or_default();
    let request = guest::ListFilesRequest {
        path: parent.to_owned(),
        ..guest::ListFilesRequest::default()
    };
    let listed = grant.call(client.list_files(request)).await?;
    let siblings = listed.into_inner().files;
    let folder = siblings.iter().find(|entry| entry.path == path);
    let Some(folder) = folder.filter(|entry| entry.file_type() == FileType::Directory) else {
        return Ok(None);
    };
    let time = |entry: &FileEntry| SystemTime::try_from(entry.modify_time?).ok();
    let mut latest = time(folder);
    let mut request = guest::ListFilesRequest {
        path: path.to_owned(),
        recursive: true,
        ..guest::ListFilesRequest::default()
    };
    // The workspace's limit of files bounds the number of pages.
    loop {
        let listed = grant.call(client.list_files(request.clone())).await?;
        let page = listed.into_inner();
        latest = latest.max(page.files.iter().filter_map(time).max());
        if page.next_page_token.is_empty() {
            return Ok(latest);
        }
        request.page_token = page.next_page_token;
    }
}
