//! Files of the conversation, into the session's workspace. Each turn may bring all of them: what is there already is
//! recognised by the daemon's record, large ones by their digest, and not sent again.

use data_encoding::HEXLOWER;
use sha2::{Digest, Sha256};
use skilld_proto::v1::input_spec::Source;
use skilld_proto::v1::{InputSpec, Reason, StageMode};
use tonic::Code;

use crate::prompt::{Upload, UploadContent};
use crate::tools::trpc::result::StagedFile;
use crate::tools::trpc::stage;
use crate::tools::{Inner, Session, StagedUpload, StagedUploads, ToolError};
use crate::{Error, StageTarget};

/// Bytes that one input can bring with the request, and all of one request together.
const DATA_BYTES_MAX: usize = 1024 * 1024;
const REQUEST_BYTES_MAX: usize = 3 * 1024 * 1024;
/// Inputs of one request.
const INPUTS_MAX: usize = 256;
/// Where large ones are, under their digests; `work/inputs/` has links to them.
const DIRECTORY: &str = "work/.skilld/uploads";

/// An upload on its way.
struct Item<'a> {
    upload: &'a Upload,
    spec: InputSpec,
    /// Bytes that its specification has.
    bytes: usize,
    /// Of a large one.
    data: Option<&'a [u8]>,
}

/// Brings them, in as few calls as their size permits. One that cannot be had costs no other one.
pub(crate) async fn uploads(
    tools: &Inner,
    session: &Session,
    uploads: &[Upload],
) -> Result<StagedUploads, ToolError> {
    let mut staged = StagedUploads::default();
    let mut items = Vec::new();
    for (index, upload) in uploads.iter().enumerate() {
        match item(upload, index + 1) {
            Ok(item) => items.push(item),
            Err(warning) => staged.warnings.push(warning),
        }
    }
    for batch in batches(&items) {
        match bring(tools, session, batch).await {
            Ok(files) => staged.add(batch, files),
            Err(error) if is_of_input(&error) => {
                for item in batch {
                    match alone(tools, session, item).await {
                        Ok(files) => staged.add(std::slice::from_ref(item), files),
                        Err(error) if is_of_input(&error) => {
                            let name = &item.spec.name;
                            staged.warnings.push(format!("{name}: {error}"));
                        }
                        Err(error) => return Err(error),
                    }
                }
            }
            Err(error) => return Err(error),
        }
    }
    Ok(staged)
}

/// What the daemon is asked for; else why it cannot be.
fn item(upload: &Upload, number: usize) -> Result<Item<'_>, String> {
    let name = match upload.name.trim() {
        "" => format!("upload_{number}"),
        name => name.to_owned(),
    };
    let mut item = Item {
        upload,
        spec: InputSpec {
            name,
            ..InputSpec::default()
        },
        bytes: 0,
        data: None,
    };
    item.spec.source = Some(match &upload.content {
        UploadContent::Reference(from) => Source::From(from.clone()),
        UploadContent::ProviderId(id) => {
            let name = item.spec.name;
            return Err(format!(
                "{name}: the provider has it as {id:?}; only the host can fetch it"
            ));
        }
        UploadContent::Bytes(data) if data.len() > DATA_BYTES_MAX => {
            let digest = HEXLOWER.encode(&Sha256::digest(data));
            let from = format!("workspace://{DIRECTORY}/{digest}");
            item.spec.sha256 = digest;
            item.spec.set_mode(StageMode::Link);
            item.data = Some(data);
            Source::From(from)
        }
        UploadContent::Bytes(data) => {
            item.bytes = data.len();
            Source::Data(data.clone().into())
        }
    });
    Ok(item)
}

/// What fits into one request each, in order.
fn batches<'a, 'b>(items: &'b [Item<'a>]) -> Vec<&'b [Item<'a>]> {
    let mut batches = Vec::new();
    let (mut start, mut bytes) = (0, 0);
    for (index, item) in items.iter().enumerate() {
        if bytes + item.bytes > REQUEST_BYTES_MAX || index - start == INPUTS_MAX {
            batches.extend(items.get(start..index));
            (start, bytes) = (index, 0);
        }
        bytes += item.bytes;
    }
    batches.extend(items.get(start..).filter(|rest| !rest.is_empty()));
    batches
}

async fn bring(
    tools: &Inner,
    session: &Session,
    items: &[Item<'_>],
) -> Result<Vec<StagedFile>, ToolError> {
    let specs: Vec<InputSpec> = items.iter().map(|item| item.spec.clone()).collect();
    let specs = &specs;
    let within = tools
        .workspaces
        .within(&tools.client, session, |workspace| async move {
            stage::bring(tools, session, &workspace, specs.clone()).await
        });
    within.await
}

/// One by itself; a large one is sent if it is not there, or not what it was.
async fn alone(
    tools: &Inner,
    session: &Session,
    item: &Item<'_>,
) -> Result<Vec<StagedFile>, ToolError> {
    let items = std::slice::from_ref(item);
    let brought = bring(tools, session, items).await;
    let Some(data) = item.data else {
        return brought;
    };
    match brought {
        Err(error) if is_missing(&error) => {}
        brought => return brought,
    }
    let path = format!("{DIRECTORY}/{}", item.spec.sha256);
    let path = path.as_str();
    let sent = tools
        .workspaces
        .within(&tools.client, session, |workspace| async move {
            let target = StageTarget::file(&workspace, path);
            let source = std::io::Cursor::new(data.to_vec());
            Ok(tools.client.stage(target, source).await?)
        });
    sent.await?;
    let mut files = bring(tools, session, items).await?;
    for file in &mut files {
        file.unchanged = false;
    }
    Ok(files)
}

/// A large one that was not sent, or that a command has changed.
fn is_missing(error: &ToolError) -> bool {
    if let ToolError::Daemon(error) = error {
        return error.reason() == Some(Reason::ChecksumMismatch);
    }
    matches!(error, ToolError::FileNotFound { .. })
}

/// What one input is at fault for, and not the workspace or the daemon.
fn is_of_input(error: &ToolError) -> bool {
    if let ToolError::Daemon(error) = error {
        return is_refused(error);
    }
    matches!(
        error,
        ToolError::FileNotFound { .. } | ToolError::UnknownSkill { .. }
    )
}

fn is_refused(error: &Error) -> bool {
    let of_workspace = [Reason::WorkspaceNotFound, Reason::WorkspaceNotReady].map(Some);
    let codes = [
        Code::InvalidArgument,
        Code::NotFound,
        Code::FailedPrecondition,
        Code::PermissionDenied,
    ];
    let is_limit = error.reason() == Some(Reason::LimitExceeded);
    let is_refused = error.code().is_some_and(|code| codes.contains(&code));
    (is_refused || is_limit) && !of_workspace.contains(&error.reason())
}

impl StagedUploads {
    fn add(&mut self, items: &[Item<'_>], files: Vec<StagedFile>) {
        let files = items.iter().zip(files).map(|(item, file)| StagedUpload {
            name: file.name,
            original_name: match item.upload.original_name.trim() {
                "" => item.spec.name.clone(),
                name => name.to_owned(),
            },
            size_bytes: item.data.map_or(file.size_bytes, |data| data.len() as u64),
            unchanged: file.unchanged,
        });
        self.files.extend(files);
    }
}
