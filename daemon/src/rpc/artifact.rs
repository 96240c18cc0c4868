//! ArtifactService: saves, loads, lists and deletes artifacts. A workspace's file goes from the guest to the store
//! without passing through the client.

use bytes::Bytes;
use futures::{Stream, StreamExt, stream};
use skilld_proto::guest::v1 as guest;
use skilld_proto::v1 as pb;
use skilld_proto::v1::artifact_service_server::ArtifactService;
use skilld_proto::v1::load_artifact_response::Payload;
use skilld_proto::v1::read_file_response::Payload as FilePayload;
use tonic::{Request, Response, Status, Streaming};

use super::convert::artifact as wire;
use super::relay::{RelayedStream, relay_stream};
use super::upload;
use super::{SharedDependencies, allow_missing};
use crate::access::Caller;
use crate::error::Result;
use crate::workspace::WorkspaceId;

/// Implementation of ArtifactService.
#[derive(Debug, Clone)]
pub struct ArtifactRpc(pub SharedDependencies);

impl ArtifactRpc {
    /// Reads a workspace's file as a stream of bytes, which keeps the workspace in use until its end.
    async fn file(
        &self,
        caller: &Caller,
        workspace: WorkspaceId,
        request: guest::ReadFileRequest,
    ) -> Result<impl Stream<Item = Result<Bytes>> + Send + 'static> {
        let grant = self.0.registry.get(caller, &workspace)?.grant().await?;
        let opened = grant.call(grant.guest.clone().read_file(request)).await?;
        let state = (opened.into_inner(), grant);
        let read = stream::try_unfold(state, |(mut guest, grant)| async move {
            loop {
                let message = grant.call(guest.message()).await?;
                match message.map(|message| message.payload) {
                    None => return Ok(None),
                    Some(Some(FilePayload::Data(data))) => {
                        return Ok(Some((data, (guest, grant))));
                    }
                    Some(Some(FilePayload::File(_)) | None) => {}
                }
            }
        });
        Ok(read)
    }
}

#[tonic::async_trait]
impl ArtifactService for ArtifactRpc {
    type LoadArtifactStream = RelayedStream<pb::LoadArtifactResponse>;

    async fn save_artifact(
        &self,
        request: Request<Streaming<pb::SaveArtifactRequest>>,
    ) -> Result<Response<pb::Artifact>, Status> {
        let caller = Caller::of(&request)?;
        caller.require_whole_tenant()?;
        let mut client = request.into_inner();
        let first = upload::first_message(&mut client, &self.0, "header").await?;
        let wire::SaveRequest {
            scope,
            name,
            save,
            file,
        } = wire::check_save_header(first)?;
        let scope = scope.of_tenant(caller.tenant());
        let artifacts = &self.0.artifacts;
        let saved = match file {
            Some((workspace, request)) => {
                let data = self.file(&caller, workspace, request).await?;
                artifacts.save(&scope, &name, save, data).await?
            }
            None => {
                let data =
                    upload::byte_stream(client, &self.0.config.server, wire::check_save_data);
                artifacts.save(&scope, &name, save, data).await?
            }
        };
        Ok(Response::new(wire::artifact_message(&saved)))
    }

    async fn load_artifact(
        &self,
        request: Request<pb::LoadArtifactRequest>,
    ) -> Result<Response<Self::LoadArtifactStream>, Status> {
        let caller = Caller::of(&request)?;
        caller.require_whole_tenant()?;
        let request = request.into_inner();
        let wire::ArtifactSelector {
            scope,
            name,
            version,
        } = wire::check_selector(&request.name, request.scope.as_ref(), request.version)?;
        let scope = scope.of_tenant(caller.tenant());
        let (artifact, chunks) = self.0.artifacts.load(&scope, &name, version).await?;
        let message = |payload| pb::LoadArtifactResponse {
            payload: Some(payload),
        };
        let first = message(Payload::Artifact(wire::artifact_message(&artifact)));
        let data = chunks.map(move |chunk| chunk.map(|data| message(Payload::Data(data))));
        let messages = stream::iter([Ok(first)]).chain(data);
        Ok(Response::new(relay_stream(messages, ())))
    }

    async fn list_artifacts(
        &self,
        request: Request<pb::ListArtifactsRequest>,
    ) -> Result<Response<pb::ListArtifactsResponse>, Status> {
        let caller = Caller::of(&request)?;
        caller.require_whole_tenant()?;
        let (scope, after, size) = wire::check_list_artifacts(request.get_ref())?;
        let scope = scope.of_tenant(caller.tenant());
        let page = self.0.artifacts.list(&scope, after.as_ref(), size).await?;
        let (artifacts, next_page_token) = wire::artifact_page_message(&page);
        Ok(Response::new(pb::ListArtifactsResponse {
            artifacts,
            next_page_token,
        }))
    }

    async fn list_artifact_versions(
        &self,
        request: Request<pb::ListArtifactVersionsRequest>,
    ) -> Result<Response<pb::ListArtifactVersionsResponse>, Status> {
        let caller = Caller::of(&request)?;
        caller.require_whole_tenant()?;
        let (wire::ArtifactSelector { scope, name, .. }, after, size) =
            wire::check_list_artifact_versions(request.get_ref())?;
        let scope = scope.of_tenant(caller.tenant());
        let page = self
            .0
            .artifacts
            .versions(&scope, &name, after, size)
            .await?;
        let (artifacts, next_page_token) = wire::artifact_page_message(&page);
        Ok(Response::new(pb::ListArtifactVersionsResponse {
            artifacts,
            next_page_token,
        }))
    }

    async fn delete_artifact(
        &self,
        request: Request<pb::DeleteArtifactRequest>,
    ) -> Result<Response<()>, Status> {
        let caller = Caller::of(&request)?;
        caller.require_whole_tenant()?;
        let request = request.into_inner();
        let wire::ArtifactSelector {
            scope,
            name,
            version,
        } = wire::check_selector(&request.name, request.scope.as_ref(), request.version)?;
        let scope = scope.of_tenant(caller.tenant());
        let deleted = self.0.artifacts.delete(&scope, &name, version).await;
        Ok(Response::new(allow_missing(
            deleted,
            request.allow_missing,
        )?))
    }
}
