//! Finds scripts in writable copies of skills. A command can write there, so they are found and read through the guest.

use skilld_proto::guest::v1 as guest;
use skilld_proto::v1::read_file_response::Payload;
use skilld_proto::v1::{ErrorReason, FileType};

use crate::error::{Error, Result};
use crate::exec::script::{self, ScriptProgram};
use crate::workspace::WorkspaceGrant;

/// Finds a script in the writable copy of a skill, with its interpreter. `copy` is the copy's path in the workspace.
///
/// # Errors
/// The errors of [`script::find_script`]; errors of the guest.
pub(super) async fn find_writable_script(
    grant: &WorkspaceGrant,
    skill: &str,
    copy: &str,
    path: &str,
) -> Result<ScriptProgram> {
    let path = script::normalise_script_path(path)?;
    let request = guest::ReadFileRequest {
        path: format!("{copy}/{path}"),
        length: script::FIRST_LINE_BYTES_MAX,
        ..guest::ReadFileRequest::default()
    };
    let opened = grant.call(grant.guest.clone().read_file(request)).await;
    let mut stream = match opened {
        Ok(stream) => stream.into_inner(),
        Err(Error::Guest {
            reason: ErrorReason::FileNotFound,
            ..
        }) => {
            let files = list_files(grant, copy).await?;
            return Err(Error::ScriptNotFound {
                nearest: script::similar_paths(files, &path),
                skill: skill.to_owned(),
                path,
            });
        }
        Err(Error::Guest {
            reason: ErrorReason::WrongFileType,
            ..
        }) => {
            return Err(script::invalid_path(format!(
                "{path:?} is not a file, or lies beneath something that is not a folder"
            )));
        }
        Err(Error::Guest {
            reason: ErrorReason::PathEscapes,
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
        && let Some(message) = grant.call(stream.message()).await?
    {
        if let Some(Payload::Data(data)) = message.payload {
            head.extend_from_slice(&data);
        }
    }
    script::choose_interpreter(path, &script::first_line(&head))
}

/// Lists the files of a writable copy, relative to it; none if it is gone. One page is enough for a suggestion.
async fn list_files(grant: &WorkspaceGrant, copy: &str) -> Result<Vec<String>> {
    let request = guest::ListFilesRequest {
        path: copy.to_owned(),
        recursive: true,
        page_size: script::SEARCHED_FILES_MAX,
        ..guest::ListFilesRequest::default()
    };
    let listed = grant.call(grant.guest.clone().list_files(request)).await;
    let files = match listed {
        Ok(page) => page.into_inner().files,
        Err(Error::Guest { .. }) => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let beneath = files
        .iter()
        .take(script::SEARCHED_FILES_MAX as usize)
        .filter(|entry| entry.file_type() == FileType::File)
        .filter_map(|entry| entry.path.strip_prefix(copy)?.strip_prefix('/'));
    Ok(beneath.map(str::to_owned).collect())
}
