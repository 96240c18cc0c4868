//! Artifacts: named bytes with versions, kept beyond a workspace.

use futures::stream;
use skilld_proto::v1::artifact_service_client::ArtifactServiceClient;
use skilld_proto::v1::save_artifact_request::Payload;
use skilld_proto::v1::{
    Artifact, ArtifactScope, DeleteArtifactRequest, ListArtifactVersionsRequest,
    ListArtifactVersionsResponse, ListArtifactsRequest, ListArtifactsResponse, LoadArtifactRequest,
    LoadArtifactResponse, SaveArtifactHeader, SaveArtifactRequest, load_artifact_response,
};
use tokio::io::AsyncRead;

use crate::client::retried_calls;
use crate::download::DownloadPart;
use crate::files::upload::{Upload, finish_upload, read_chunks};
use crate::resource_names::{artifact_name, workspace_name};
use crate::{Client, Download, Error, TransferProgress};

/// Destination of a saved artifact.
#[derive(Clone, Debug)]
pub struct SaveTarget {
    /// Name, with or without `artifacts/` before it.
    pub name: String,
    /// Owner of the artifact.
    pub scope: ArtifactScope,
    /// MIME type; if empty, the server finds it out.
    pub mime_type: String,
    /// SHA-256 of all bytes, which the server checks; empty if it should not.
    pub sha256: String,
    /// Size in bytes if it is known; used for the progress only.
    pub total: Option<u64>,
    /// Reports the bytes that were sent.
    pub progress: TransferProgress,
}

impl SaveTarget {
    /// Returns the target that saves an artifact of a scope, with everything else left to the server.
    #[must_use]
    pub fn new(name: &str, scope: ArtifactScope) -> Self {
        Self {
            name: name.to_owned(),
            scope,
            mime_type: String::new(),
            sha256: String::new(),
            total: None,
            progress: TransferProgress::none(),
        }
    }

    fn header(&self, workspace: String, path: String) -> SaveArtifactRequest {
        SaveArtifactRequest {
            payload: Some(Payload::Header(SaveArtifactHeader {
                name: artifact_name(&self.name),
                scope: Some(self.scope.clone()),
                mime_type: self.mime_type.clone(),
                sha256: self.sha256.clone(),
                workspace,
                path,
                ..SaveArtifactHeader::default()
            })),
        }
    }
}

retried_calls! { ArtifactServiceClient:
    /// Returns one page of the newest versions, in the order of their names.
    list_artifacts(request: ListArtifactsRequest) -> ListArtifactsResponse = request;

    /// Returns one page of the versions of an artifact, oldest first.
    list_artifact_versions(request: ListArtifactVersionsRequest) -> ListArtifactVersionsResponse = ListArtifactVersionsRequest { parent: artifact_name(&request.parent), ..request };

    /// Deletes one version of an artifact, or all of them if none is named.
    delete_artifact(request: DeleteArtifactRequest) -> () = DeleteArtifactRequest { name: artifact_name(&request.name), ..request };
}

impl Client {
    /// Saves everything that `source` has as the next version. If reading fails, the server sees a broken stream and
    /// makes no version.
    ///
    /// # Errors
    ///
    /// [`Error::Status`] if the daemon refuses the call or cannot be reached.
    pub async fn save_artifact(
        &self,
        target: SaveTarget,
        source: impl AsyncRead + Send + Unpin + 'static,
    ) -> Result<Artifact, Error> {
        let header = target.header(String::new(), String::new());
        let message = |data| SaveArtifactRequest {
            payload: Some(Payload::Data(data)),
        };
        let upload = Upload {
            header,
            message,
            progress: target.progress,
            total: target.total,
        };
        let (messages, failure) = upload.into_messages(read_chunks(source));
        let mut stub = self.artifacts();
        finish_upload(stub.save_artifact(messages), failure).await
    }

    /// Saves a file of a workspace as the next version; its bytes do not come here.
    ///
    /// # Errors
    ///
    /// [`Error::Status`] if the daemon refuses the call or cannot be reached.
    pub async fn save_artifact_from(
        &self,
        target: SaveTarget,
        workspace: &str,
        path: &str,
    ) -> Result<Artifact, Error> {
        let header = target.header(workspace_name(workspace), path.to_owned());
        let mut stub = self.artifacts();
        let answer = stub.save_artifact(stream::iter([header])).await?;
        Ok(answer.into_inner())
    }

    /// Opens a version of an artifact for reading; the newest if none is named.
    ///
    /// # Errors
    ///
    /// [`Error::Status`] if the daemon refuses the call or cannot be reached.
    pub async fn load_artifact(
        &self,
        mut request: LoadArtifactRequest,
    ) -> Result<Download<Artifact>, Error> {
        request.name = artifact_name(&request.name);
        let messages = self
            .retry_call(request, ArtifactServiceClient::load_artifact)
            .await?;
        let part = |message: LoadArtifactResponse| match message.payload? {
            load_artifact_response::Payload::Artifact(artifact) => {
                Some(DownloadPart::Header(artifact))
            }
            load_artifact_response::Payload::Data(data) => Some(DownloadPart::Data(data)),
        };
        Download::open(messages, part).await
    }
}
