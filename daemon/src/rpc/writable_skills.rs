//! Writable copies of skills: StageSkills sends them to the guest, and their scripts are found through the guest. A
//! command can write there, so the daemon never opens such a path on the host.

use std::collections::BTreeMap;
use std::time::SystemTime;

use skilld_proto::guest::v1 as guest;
use skilld_proto::v1::read_file_response::Payload;
use skilld_proto::v1::{FileEntry, FileType, Reason};
use tonic::Status;

use super::SharedDependencies;
use crate::error::{Error, Result};
use crate::exec::script::{self, ScriptProgram};
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
    let library = shared.skills.working_for(workspace.key().tenant());
    let prepared = library.prepare_writable(&target, skills, intact).await?;
    if let Some(copies) = prepared.copies() {
        let name = workspace.id().name();
        let (to, links) = (&prepared.directory, &prepared.links);
        let send = shared.inputs.send_folder(&name, grant, copies, to, links);
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
    let recorded = view.record.claim.as_ref();
    let recorded = recorded.map(|claim| &claim.writable_skills);
    let mut intact = BTreeMap::new();
    for path in skills.iter().filter_map(|skill| recorded?.get(&skill.name)) {
        let found = modification_time(grant, path).await;
        let found = found.map_err(|status| Error::from_guest(&workspace.id().name(), &status));
        match found {
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
async fn modification_time(
    grant: &WorkspaceGrant,
    path: &str,
) -> Result<Option<SystemTime>, Status> {
    let mut client = grant.guest.clone();
    let (parent, _) = path.rsplit_once('/').unwrap_or_default();
    let request = guest::ListFilesRequest {
        path: parent.to_owned(),
        ..guest::ListFilesRequest::default()
    };
    let siblings = client.list_files(request).await?.into_inner().files;
    let folder = siblings.iter().find(|entry| entry.path == path);
    let Some(folder) = folder.filter(|entry| entry.r#type() == FileType::Directory) else {
        return Ok(None);
    };
    let time = |entry: &FileEntry| SystemTime::try_from(entry.mtime?).ok();
    let mut latest = time(folder);
    let mut request = guest::ListFilesRequest {
        path: path.to_owned(),
        recursive: true,
        ..guest::ListFilesRequest::default()
    };
    // The workspace's limit of files bounds the number of pages.
    loop {
        let page = client.list_files(request.clone()).await?.into_inner();
        latest = latest.max(page.files.iter().filter_map(time).max());
        if page.next_page_token.is_empty() {
            return Ok(latest);
        }
        request.page_token = page.next_page_token;
    }
}

/// Finds a script in the writable copy of a skill, with its interpreter. `copy` is the copy's path in the workspace.
///
/// # Errors
/// The errors of [`script::find_script`]; errors of the guest.
pub(super) async fn find_writable_script(
    workspace: &str,
    grant: &WorkspaceGrant,
    skill: &str,
    copy: &str,
    path: &str,
) -> Result<ScriptProgram> {
    let path = script::normalise_script_path(path)?;
    let lost = |status| Error::from_guest(workspace, &status);
    let request = guest::ReadFileRequest {
        path: format!("{copy}/{path}"),
        length: script::FIRST_LINE_BYTES_MAX,
        ..guest::ReadFileRequest::default()
    };
    let opened = grant.guest.clone().read_file(request).await;
    let mut stream = match opened.map_err(lost) {
        Ok(stream) => stream.into_inner(),
        Err(Error::Guest {
            reason: Reason::FileNotFound,
            ..
        }) => {
            let files = list_files(workspace, grant, copy).await?;
            return Err(Error::ScriptNotFound {
                nearest: script::similar_paths(files, &path),
                skill: skill.to_owned(),
                path,
            });
        }
        Err(Error::Guest {
            reason: Reason::WrongFileType,
            ..
        }) => {
            return Err(script::invalid_path(format!(
                "{path:?} is not a file, or lies beneath something that is not a folder"
            )));
        }
        Err(Error::Guest {
            reason: Reason::PathEscapes,
            ..
        }) => {
            return Err(script::invalid_path(format!(
                "{path:?} leads out of the workspace: a command replaced a file or folder of the writable copy by a \
                 link; stage the skill read-only and then writable for a new copy"
            )));
        }
        Err(error) => return Err(error),
    };
    let mut head = Vec::new();
    while (head.len() as u64) < script::FIRST_LINE_BYTES_MAX
        && let Some(message) = stream.message().await.map_err(lost)?
    {
        if let Some(Payload::Data(data)) = message.payload {
            head.extend_from_slice(&data);
        }
    }
    script::choose_interpreter(path, &script::first_line(&head))
}

/// Lists the files of a writable copy, relative to it; none if it is gone. One page is enough for a suggestion.
async fn list_files(workspace: &str, grant: &WorkspaceGrant, copy: &str) -> Result<Vec<String>> {
    let request = guest::ListFilesRequest {
        path: copy.to_owned(),
        recursive: true,
        page_size: script::SEARCHED_FILES_MAX,
        ..guest::ListFilesRequest::default()
    };
    let listed = grant.guest.clone().list_files(request).await;
    let files = match listed.map_err(|status| Error::from_guest(workspace, &status)) {
        Ok(page) => page.into_inner().files,
        Err(Error::Guest { .. }) => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let files = files.iter().take(script::SEARCHED_FILES_MAX as usize);
    let files = files.filter(|entry| entry.r#type() == FileType::File);
    let beneath = files.filter_map(|entry| entry.path.strip_prefix(copy)?.strip_prefix('/'));
    Ok(beneath.map(str::to_owned).collect())
}
