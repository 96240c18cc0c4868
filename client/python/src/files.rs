//! `FileTransfers`: files of workspaces, artifacts and skills, in both directions.

use std::io::Cursor;
use std::path::PathBuf;
use std::sync::Arc;

use futures::StreamExt;
use futures::stream::BoxStream;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use skilld_client::v1::collect_outputs_response::Payload;
use skilld_client::v1::{
    ArtifactScope, CollectOutputsRequest, DeleteArtifactRequest, InputSpec,
    ListArtifactVersionsRequest, ListArtifactsRequest, ListFilesRequest, ListSkillsRequest,
    LoadArtifactRequest, ReadFileRequest, Skill, StageFilesResponse, StageInputsRequest,
    StageSkillsRequest,
};
use skilld_client::{
    Download, Error, PackLimits, SaveTarget, SkillArchive, TransferProgress, UploadTarget,
    count_from_int64,
};
use tokio::runtime::Handle;
use tokio::sync::Mutex;

use crate::arguments::{
    CheckedArguments, InputArguments, OutputArguments, ScopeArguments, ValidText, shared_bytes,
    text_list,
};
use crate::client::Client;
use crate::connection::Connection;
use crate::errors::{CallError, was_found};
use crate::progress::terminal_progress;
use crate::results::{
    ArtifactAnswer, EntryAnswer, OutputAnswer, SkillAnswer, StagedInputAnswer, StagedSkillAnswer,
    SummaryAnswer,
};
use crate::run::{HandedPieces, PieceData};

/// Transfers of a daemon's files.
#[pyclass(frozen, module = "skilld._skilld")]
pub(crate) struct FileTransfers {
    connection: Connection,
}

/// Reads a download to its end.
async fn read_whole<H>(
    mut download: Download<H>,
    size: Option<u64>,
    progress: TransferProgress,
) -> Result<Vec<u8>, CallError> {
    let mut all = Vec::new();
    while let Some(data) = download.next().await? {
        all.extend_from_slice(&data);
        progress.tell(all.len() as u64, size);
    }
    Ok(all)
}

/// Returns the request for a whole file.
fn read_request(workspace: ValidText, path: ValidText) -> ReadFileRequest {
    ReadFileRequest {
        workspace: workspace.0,
        path: path.0,
        ..ReadFileRequest::default()
    }
}

/// Returns the request for the files that match.
fn collect_request(
    workspace: ValidText,
    outputs: CheckedArguments<OutputArguments>,
) -> CollectOutputsRequest {
    CollectOutputsRequest {
        workspace: workspace.0,
        spec: Some(outputs.0.into_spec(&skilld_client::new_exec_id())),
    }
}

/// Returns the path of the first file that was written, and the size of all.
fn upload_answer(staged: StageFilesResponse) -> (Option<String>, i64) {
    let first = staged.files.into_iter().next();
    (first.map(|file| file.path), staged.size_bytes)
}

#[pymethods]
impl FileTransfers {
    #[new]
    fn new(client: &Client) -> Self {
        Self {
            connection: client.connection.clone(),
        }
    }

    fn stage_skills(
        &self,
        py: Python<'_>,
        workspace: ValidText,
        skills: Vec<ValidText>,
        writable: bool,
    ) -> PyResult<Py<PyAny>> {
        self.connection.call(py, move |client| async move {
            let request = StageSkillsRequest {
                workspace: workspace.0,
                skills: text_list(skills),
                writable,
            };
            let staged = client.stage_skills_with(request).await?.into_iter();
            Ok(staged.map(StagedSkillAnswer::from).collect::<Vec<_>>())
        })
    }

    fn stage_inputs(
        &self,
        py: Python<'_>,
        workspace: ValidText,
        inputs: CheckedArguments<Vec<InputArguments>>,
        scope: Option<ScopeArguments>,
    ) -> PyResult<Py<PyAny>> {
        self.connection.call(py, |client| async move {
            let request = StageInputsRequest {
                workspace: workspace.0,
                inputs: inputs.0.into_iter().map(InputSpec::from).collect(),
                scope: scope.map(ArtifactScope::from),
            };
            let staged = client.stage_inputs(request).await?.into_iter();
            Ok(staged.map(StagedInputAnswer::from).collect::<Vec<_>>())
        })
    }

    /// Writes bytes into a workspace as one file. Returns its path and size.
    fn upload_bytes(
        &self,
        py: Python<'_>,
        workspace: ValidText,
        path: ValidText,
        data: PyBackedBytes,
    ) -> PyResult<Py<PyAny>> {
        self.connection.call(py, |client| async move {
            let mut target = UploadTarget::file(&workspace.0, &path.0);
            let total = data.len() as u64;
            let bar = terminal_progress(&path.0);
            target.progress = TransferProgress::new(move |done, _| bar.tell(done, Some(total)));
            let staged = client
                .upload(target, Cursor::new(shared_bytes(data)))
                .await?;
            Ok(upload_answer(staged))
        })
    }

    /// Sends a local file or directory into a workspace. Returns the path of a file, and the size of all.
    fn upload_path(
        &self,
        py: Python<'_>,
        workspace: ValidText,
        local: PathBuf,
        path: ValidText,
    ) -> PyResult<Py<PyAny>> {
        self.connection.call(py, |client| async move {
            let bar = terminal_progress(&path.0);
            let staged = client
                .upload_path(&workspace.0, &local, &path.0, bar)
                .await?;
            Ok(upload_answer(staged))
        })
    }

    /// Describes a file, or lists a directory.
    fn list(
        &self,
        py: Python<'_>,
        workspace: ValidText,
        path: ValidText,
        recursive: bool,
    ) -> PyResult<Py<PyAny>> {
        self.connection.call(py, move |client| async move {
            let request = ListFilesRequest {
                parent: workspace.0,
                path: path.0,
                recursive,
                ..ListFilesRequest::default()
            };
            let all = client.read_all_pages(request).await?.files.into_iter();
            Ok(all.map(EntryAnswer::from).collect::<Vec<_>>())
        })
    }

    fn read(&self, py: Python<'_>, workspace: ValidText, path: ValidText) -> PyResult<Py<PyAny>> {
        self.connection.call(py, |client| async move {
            let bar = terminal_progress(&path.0);
            let download = client.read_file(read_request(workspace, path)).await?;
            let size = count_from_int64(download.header().size_bytes);
            read_whole(download, Some(size), bar).await
        })
    }

    /// Opens a file for reading piece by piece.
    fn open(&self, py: Python<'_>, workspace: ValidText, path: ValidText) -> PyResult<Py<PyAny>> {
        let connection = self.connection.clone();
        self.connection.call(py, move |client| async move {
            let file = client.read_file(read_request(workspace, path)).await?;
            let (_, data) = file.into_parts();
            let state = FileState {
                data: Some(data),
                pieces: HandedPieces::new(),
            };
            let state = Arc::new(Mutex::new(state));
            Ok(FileStream { connection, state })
        })
    }

    /// Returns the files that match, and the summary.
    fn collect(
        &self,
        py: Python<'_>,
        workspace: ValidText,
        outputs: CheckedArguments<OutputArguments>,
    ) -> PyResult<Py<PyAny>> {
        self.connection.call(py, |client| async move {
            let mut messages = client.collect(collect_request(workspace, outputs)).await?;
            let (bar, mut received) = (terminal_progress("outputs"), 0);
            let (mut files, mut summary) = (Vec::<OutputAnswer>::new(), SummaryAnswer::default());
            while let Some(message) = messages.next().await? {
                match (message.payload, files.last_mut()) {
                    (Some(Payload::File(file)), _) => files.push(file.into()),
                    (Some(Payload::Data(data)), Some(file)) => {
                        file.data.extend_from_slice(&data);
                        received += data.len() as u64;
                        bar.tell(received, None);
                    }
                    (Some(Payload::FileEnd(end)), Some(file)) => file.finish(end),
                    (Some(Payload::Summary(all)), _) => summary = all.into(),
                    (Some(Payload::Data(_) | Payload::FileEnd(_)), None) | (None, _) => {}
                }
            }
            Ok((files, summary))
        })
    }

    /// Writes the files that match beneath a local directory. Returns their paths, and the files that were left out.
    fn collect_to(
        &self,
        py: Python<'_>,
        workspace: ValidText,
        outputs: CheckedArguments<OutputArguments>,
        directory: PathBuf,
    ) -> PyResult<Py<PyAny>> {
        self.connection.call(py, |client| async move {
            let request = collect_request(workspace, outputs);
            let bar = terminal_progress("outputs");
            let written = client.collect_to_dir(request, &directory, bar).await?;
            let skipped = written.skipped.into_iter();
            let skipped: Vec<_> = skipped.map(|file| (file.path, file.skip_reason)).collect();
            Ok((written.files, skipped, SummaryAnswer::from(written.summary)))
        })
    }

    fn save_artifact(
        &self,
        py: Python<'_>,
        name: ValidText,
        scope: CheckedArguments<ScopeArguments>,
        data: PyBackedBytes,
        mime_type: ValidText,
    ) -> PyResult<Py<PyAny>> {
        self.connection.call(py, |client| async move {
            let mut target = SaveTarget::new(&name.0, scope.0.into());
            target.mime_type = mime_type.0;
            target.total = Some(data.len() as u64);
            target.progress = terminal_progress(&name.0);
            let saved = client
                .save_artifact(target, Cursor::new(shared_bytes(data)))
                .await?;
            Ok(ArtifactAnswer::from(saved))
        })
    }

    /// Saves a file of a workspace as an artifact; its bytes do not come here.
    fn save_artifact_from(
        &self,
        py: Python<'_>,
        name: ValidText,
        scope: CheckedArguments<ScopeArguments>,
        workspace: ValidText,
        path: ValidText,
    ) -> PyResult<Py<PyAny>> {
        self.connection.call(py, |client| async move {
            let target = SaveTarget::new(&name.0, scope.0.into());
            let saved = client
                .save_artifact_from(target, &workspace.0, &path.0)
                .await?;
            Ok(ArtifactAnswer::from(saved))
        })
    }

    fn load_artifact(
        &self,
        py: Python<'_>,
        name: ValidText,
        scope: CheckedArguments<ScopeArguments>,
        version: Option<i64>,
    ) -> PyResult<Py<PyAny>> {
        self.connection.call(py, move |client| async move {
            let bar = terminal_progress(&name.0);
            let request = LoadArtifactRequest {
                name: name.0,
                scope: Some(scope.0.into()),
                version,
            };
            let download = client.load_artifact(request).await?;
            let size = count_from_int64(download.header().size_bytes);
            read_whole(download, Some(size), bar).await
        })
    }

    /// Lists the newest versions of all artifacts, or all versions of one.
    fn list_artifacts(
        &self,
        py: Python<'_>,
        scope: CheckedArguments<ScopeArguments>,
        name: Option<ValidText>,
    ) -> PyResult<Py<PyAny>> {
        self.connection.call(py, |client| async move {
            let scope = Some(scope.0.into());
            let artifacts = match name {
                Some(ValidText(parent)) => {
                    let request = ListArtifactVersionsRequest {
                        parent,
                        scope,
                        ..ListArtifactVersionsRequest::default()
                    };
                    client.read_all_pages(request).await?.artifacts
                }
                None => {
                    let request = ListArtifactsRequest {
                        scope,
                        ..ListArtifactsRequest::default()
                    };
                    client.read_all_pages(request).await?.artifacts
                }
            };
            Ok(artifacts
                .into_iter()
                .map(ArtifactAnswer::from)
                .collect::<Vec<_>>())
        })
    }

    /// Deletes a version of an artifact, or all; returns False if it does not exist.
    fn delete_artifact(
        &self,
        py: Python<'_>,
        name: ValidText,
        scope: CheckedArguments<ScopeArguments>,
        version: Option<i64>,
    ) -> PyResult<Py<PyAny>> {
        self.connection.call(py, move |client| async move {
            let request = DeleteArtifactRequest {
                name: name.0,
                scope: Some(scope.0.into()),
                version,
                allow_missing: false,
            };
            was_found(client.delete_artifact(request).await)
        })
    }

    fn list_skills(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        self.connection.call(py, |client| async move {
            let all = client.read_all_pages(ListSkillsRequest::default()).await?;
            Ok(all
                .skills
                .into_iter()
                .map(SkillAnswer::from)
                .collect::<Vec<_>>())
        })
    }

    fn get_skill(&self, py: Python<'_>, name: ValidText) -> PyResult<Py<PyAny>> {
        self.connection.call(py, |client| async move {
            let skill = client.get_skill(&name.0).await?;
            Ok(SkillAnswer::from(skill))
        })
    }

    /// Publishes a local folder or archive as a version of a skill.
    fn publish_skill(&self, py: Python<'_>, path: PathBuf, name: ValidText) -> PyResult<Py<PyAny>> {
        self.connection.call(py, |client| async move {
            let runtime = Handle::current();
            // Packing blocks, and the future of the upload cannot move between threads.
            let publish = move || -> Result<Skill, Error> {
                let archive = match path.is_dir() {
                    true => SkillArchive::pack(&path, PackLimits::default())?,
                    false => SkillArchive::open(&path)?,
                };
                let bar = terminal_progress(&path.display().to_string());
                Handle::current().block_on(client.publish_skill(&name.0, &archive, bar))
            };
            let published = runtime.spawn_blocking(publish).await;
            let ended = |error| CallError::Refused("LOCAL_FILE", format!("{error}"));
            Ok(SkillAnswer::from(published.map_err(ended)??))
        })
    }
}

/// File that is read piece by piece.
#[pyclass(frozen, module = "skilld._skilld")]
pub(crate) struct FileStream {
    connection: Connection,
    state: Arc<Mutex<FileState>>,
}

struct FileState {
    /// `None` once the stream was closed.
    data: Option<BoxStream<'static, Result<bytes::Bytes, Error>>>,
    pieces: HandedPieces<PieceData>,
}

#[pymethods]
impl FileStream {
    /// Returns the next piece, or None at the end. `received` is the number of pieces that the caller has.
    fn next(&self, py: Python<'_>, received: u64) -> PyResult<Py<PyAny>> {
        let state = Arc::clone(&self.state);
        self.connection.call(py, move |_| async move {
            let FileState { data, pieces } = &mut *state.lock().await;
            if let Some(piece) = pieces.unreceived(received) {
                return Ok(Some(piece));
            }
            let piece = match data {
                Some(data) => data.next().await.transpose()?,
                None => None,
            };
            Ok(piece.map(|piece| pieces.hand_out(PieceData(piece))))
        })
    }

    /// Ends the transfer.
    fn close(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let state = Arc::clone(&self.state);
        self.connection.call(py, |_| async move {
            let mut state = state.lock().await;
            (state.data, state.pieces) = (None, HandedPieces::new());
            Ok(())
        })
    }
}
