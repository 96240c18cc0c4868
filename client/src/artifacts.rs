//! Artifacts: named bytes with versions, kept beyond a workspace.

use std::path::PathBuf;

use bytes::Bytes;
use futures::{StreamExt, stream};
use skilld_proto::v1::load_artifact_response::Payload as Loaded;
use skilld_proto::v1::save_artifact_request::Payload;
use skilld_proto::v1::{
    Artifact, ArtifactScope, DeleteArtifactRequest, ListArtifactVersionsRequest,
    ListArtifactVersionsResponse, ListArtifactsRequest, ListArtifactsResponse, LoadArtifactRequest,
    LoadArtifactResponse, SaveArtifactHeader, SaveArtifactRequest,
};
use tokio::io::AsyncRead;
use tokio::sync::oneshot;
use tokio_util::io::ReaderStream;

use crate::files::stage::{CHUNK_BYTES, data_messages};
use crate::names::{artifact_name, workspace_name};
use crate::{Client, Error, Messages, Progress};

/// What is saved, and as what.
#[derive(Clone, Debug)]
pub struct SaveTarget {
    /// With `artifacts/` before it or not.
    pub name: String,
    /// Whose it is.
    pub scope: ArtifactScope,
    /// Empty: the server finds out.
    pub mime_type: String,
    /// Of all bytes, checked by the server; empty: not checked.
    pub sha256: String,
    /// How many bytes there are, if that is known: for the progress only.
    pub total: Option<u64>,
    /// Told as bytes go.
    pub progress: Progress,
}

/// An artifact as it comes.
#[derive(Debug)]
pub struct ArtifactReader {
    artifact: Artifact,
    messages: Messages<LoadArtifactResponse>,
}

impl SaveTarget {
    /// An artifact of a scope.
    #[must_use]
    pub fn new(name: &str, scope: ArtifactScope) -> Self {
        Self {
            name: name.to_owned(),
            scope,
            mime_type: String::new(),
            sha256: String::new(),
            total: None,
            progress: Progress::none(),
        }
    }

    fn header(&self, workspace: String, path: String) -> SaveArtifactRequest {
        SaveArtifactRequest {
            name: artifact_name(&self.name),
            payload: Some(Payload::Header(SaveArtifactHeader {
                scope: Some(self.scope.clone()),
                mime_type: self.mime_type.clone(),
                sha256: self.sha256.clone(),
                workspace,
                path,
            })),
        }
    }
}

impl ArtifactReader {
    /// Which version it is, and what is known of it.
    #[must_use]
    pub fn artifact(&self) -> &Artifact {
        &self.artifact
    }

    /// The next bytes, at most 256 KiB; none at the end, when all of them came. Cancel safe.
    pub async fn next(&mut self) -> Result<Option<Bytes>, Error> {
        match self.messages.next().await?.map(|message| message.payload) {
            Some(Some(Loaded::Data(data))) => Ok(Some(data)),
            Some(Some(Loaded::Artifact(_)) | None) => Err(Error::protocol(
                "it described an artifact in the middle of its bytes",
            )),
            None => Ok(None),
        }
    }
}

impl Client {
    /// Saves everything that `source` has as the next version. If reading fails the server is told nothing but a broken
    /// stream, and there is no new version.
    pub async fn save_artifact(
        &self,
        target: SaveTarget,
        source: impl AsyncRead + Send + Unpin + 'static,
    ) -> Result<Artifact, Error> {
        let chunks = ReaderStream::with_capacity(source, CHUNK_BYTES);
        let chunks = chunks.map(|chunk| {
            chunk.map_err(|source| Error::Io {
                path: PathBuf::from("-"),
                source,
            })
        });
        let (failed, failure) = oneshot::channel();
        let header = stream::iter([target.header(String::new(), String::new())]);
        let message = |data| SaveArtifactRequest {
            name: String::new(),
            payload: Some(Payload::Data(data)),
        };
        let data = data_messages(chunks, failed, target.progress, target.total, message);
        let mut stub = self.artifacts();
        tokio::select! {
            biased;
            // Leaving the call unfinished resets the stream: the server must not take half for all.
            Ok(error) = failure => Err(error),
            answer = stub.save_artifact(header.chain(data)) => Ok(answer?.into_inner()),
        }
    }

    /// Saves a file of a workspace as the next version; its bytes do not come here.
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

    /// Opens one version for reading; the newest if none is named.
    pub async fn load_artifact(
        &self,
        mut request: LoadArtifactRequest,
    ) -> Result<ArtifactReader, Error> {
        request.name = artifact_name(&request.name);
        let messages = self
            .retrying(|| {
                let (mut stub, request) = (self.artifacts(), request.clone());
                async move { stub.load_artifact(request).await }
            })
            .await?;
        let mut messages = Messages::new(messages);
        match messages.next().await?.and_then(|first| first.payload) {
            Some(Loaded::Artifact(artifact)) => Ok(ArtifactReader { artifact, messages }),
            Some(Loaded::Data(_)) | None => {
                Err(Error::protocol("it did not describe the artifact first"))
            }
        }
    }

    /// One page of the newest versions, in order of their names.
    pub async fn list_artifacts(
        &self,
        request: ListArtifactsRequest,
    ) -> Result<ListArtifactsResponse, Error> {
        self.retrying(|| {
            let (mut stub, request) = (self.artifacts(), request.clone());
            async move { stub.list_artifacts(request).await }
        })
        .await
    }

    /// One page of the versions of an artifact, oldest first.
    pub async fn list_artifact_versions(
        &self,
        mut request: ListArtifactVersionsRequest,
    ) -> Result<ListArtifactVersionsResponse, Error> {
        request.name = artifact_name(&request.name);
        self.retrying(|| {
            let (mut stub, request) = (self.artifacts(), request.clone());
            async move { stub.list_artifact_versions(request).await }
        })
        .await
    }

    /// Removes one version, or all.
    pub async fn delete_artifact(&self, mut request: DeleteArtifactRequest) -> Result<(), Error> {
        request.name = artifact_name(&request.name);
        self.retrying(|| {
            let (mut stub, request) = (self.artifacts(), request.clone());
            async move { stub.delete_artifact(request).await }
        })
        .await
    }
}
