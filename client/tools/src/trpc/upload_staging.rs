//! Stages files of the conversation into the session's workspace. Each turn may bring all of them: the daemon
//! recognises those that are there already, large ones by their digest, and they are not sent again.

use data_encoding::HEXLOWER;
use sha2::{Digest, Sha256};
use skilld_client::UploadTarget;
use skilld_client::v1::input_spec::Content;
use skilld_client::v1::{ErrorReason, InputSpec, StageMode};
use tonic::Code;

use super::input_staging::stage_inputs;
use super::run_result::StagedFile;
use crate::call_context::SessionContext;
use crate::prompt::{Upload, UploadContent};
use crate::staged_uploads::{StagedUpload, StagedUploads};
use crate::tool_error::{ToolError, ToolResult};

/// Maximum size of an input within a request, in bytes; the daemon's maximum.
const DATA_BYTES_MAX: usize = 1024 * 1024;
/// Maximum size of all inputs within one request, in bytes: the daemon takes messages of at most 4 MiB.
const REQUEST_BYTES_MAX: usize = 3 * 1024 * 1024;
/// Maximum number of inputs of one request; the daemon's maximum.
const INPUTS_MAX: usize = 256;
/// Directory of large files, under their digests; `work/inputs/` has links to them.
const DIRECTORY: &str = "work/.skilld/uploads";

/// Upload with the input that stages it.
struct UploadInput<'a> {
    upload: &'a Upload,
    spec: InputSpec,
    /// Bytes that the input holds itself.
    bytes: usize,
    /// Bytes of a large file; `None` for others.
    data: Option<&'a [u8]>,
}

/// Stages uploads, in as few calls as their size permits. One that cannot be staged is a warning and costs no other
/// one.
pub(crate) async fn stage_uploads(
    context: SessionContext<'_>,
    uploads: &[Upload],
) -> ToolResult<StagedUploads> {
    let mut staged = StagedUploads::default();
    let mut items = Vec::new();
    for (index, upload) in uploads.iter().enumerate() {
        match UploadInput::new(upload, index + 1) {
            Ok(item) => items.push(item),
            Err(warning) => staged.warnings.push(warning),
        }
    }
    for batch in split_batches(&items) {
        match stage_batch(context, batch).await {
            Ok(files) => staged.add(batch, files),
            Err(error) if is_of_input(&error) => {
                for item in batch.chunks(1) {
                    stage_alone(context, item, &mut staged).await?;
                }
            }
            Err(error) => return Err(error),
        }
    }
    Ok(staged)
}

impl<'a> UploadInput<'a> {
    /// Converts an upload to an input for the daemon, or to a warning.
    fn new(upload: &'a Upload, number: usize) -> Result<Self, String> {
        let name = match upload.name.trim() {
            "" => format!("upload_{number}"),
            name => name.to_owned(),
        };
        let mut item = Self {
            upload,
            spec: InputSpec::default(),
            bytes: 0,
            data: None,
        };
        item.spec.content = Some(match &upload.content {
            UploadContent::Reference(from) => Content::Source(from.clone()),
            UploadContent::ProviderId(id) => {
                return Err(format!(
                    "{name}: the provider has it as {id:?}; only the host can fetch it"
                ));
            }
            UploadContent::Bytes(data) if data.len() > DATA_BYTES_MAX => {
                item.spec.sha256 = HEXLOWER.encode(&Sha256::digest(data));
                item.spec.set_mode(StageMode::Link);
                item.data = Some(data);
                Content::Source(format!("workspace://{}", item.large_path()))
            }
            UploadContent::Bytes(data) => {
                item.bytes = data.len();
                Content::Data(data.clone().into())
            }
        });
        item.spec.name = name;
        Ok(item)
    }

    /// Returns the path of a large file in the workspace.
    fn large_path(&self) -> String {
        format!("{DIRECTORY}/{}", self.spec.sha256)
    }
}

/// Splits inputs into requests of permitted size, in their order.
fn split_batches<'a, 'b>(items: &'b [UploadInput<'a>]) -> Vec<&'b [UploadInput<'a>]> {
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

async fn stage_batch(
    context: SessionContext<'_>,
    items: &[UploadInput<'_>],
) -> ToolResult<Vec<StagedFile>> {
    let specs: Vec<InputSpec> = items.iter().map(|item| item.spec.clone()).collect();
    let specs = &specs;
    let staged = context.in_workspace(|workspace| async move {
        stage_inputs(context, &workspace, specs.clone()).await
    });
    staged.await
}

/// Stages a batch of one upload. A large file is sent if it is missing or differs. A fault of the upload becomes a
/// warning.
async fn stage_alone(
    context: SessionContext<'_>,
    item: &[UploadInput<'_>],
    staged: &mut StagedUploads,
) -> ToolResult<()> {
    let mut files = stage_batch(context, item).await;
    if let [only] = item
        && let Some(data) = only.data
        && files.as_ref().is_err_and(is_missing)
    {
        files = match send_large(context, &only.large_path(), data).await {
            Ok(()) => stage_batch(context, item).await,
            Err(error) => Err(error),
        };
        for file in files.iter_mut().flatten() {
            file.unchanged = false;
        }
    }
    match files {
        Ok(files) => staged.add(item, files),
        Err(error) if is_of_input(&error) => {
            let names = item.iter().map(|item| &item.spec.name);
            let warnings = names.map(|name| format!("{name}: {error}"));
            staged.warnings.extend(warnings);
        }
        Err(error) => return Err(error),
    }
    Ok(())
}

async fn send_large(context: SessionContext<'_>, path: &str, data: &[u8]) -> ToolResult<()> {
    let sent = context.in_workspace(|workspace| async move {
        let target = UploadTarget::file(&workspace, path);
        let source = std::io::Cursor::new(data.to_vec());
        context.tools.client.upload(target, source).await?;
        Ok(())
    });
    sent.await
}

/// Returns `true` for a large file that was not sent, or that a command has changed.
fn is_missing(error: &ToolError) -> bool {
    if let ToolError::Daemon(error) = error {
        return error.reason() == Some(ErrorReason::ChecksumMismatch);
    }
    matches!(error, ToolError::FileNotFound { .. })
}

/// Returns `true` if an error is the fault of one input, and not of the workspace or the daemon.
fn is_of_input(error: &ToolError) -> bool {
    let ToolError::Daemon(error) = error else {
        return matches!(
            error,
            ToolError::FileNotFound { .. } | ToolError::UnknownSkill { .. }
        );
    };
    let codes = [
        Code::InvalidArgument,
        Code::NotFound,
        Code::FailedPrecondition,
        Code::PermissionDenied,
    ];
    match error.reason() {
        Some(ErrorReason::WorkspaceNotFound | ErrorReason::WorkspaceNotReady) => false,
        Some(ErrorReason::LimitExceeded) => true,
        _ => error.code().is_some_and(|code| codes.contains(&code)),
    }
}

impl StagedUploads {
    fn add(&mut self, items: &[UploadInput<'_>], files: Vec<StagedFile>) {
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
