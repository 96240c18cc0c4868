//! ArtifactService of the fake: the newest version of each, in no scope.

use futures::StreamExt;
use futures::stream::{self, BoxStream};
use skilld_client::v1::artifact_service_server::ArtifactService;
use skilld_client::v1::load_artifact_response::Payload as Loaded;
use skilld_client::v1::save_artifact_request::Payload;
use skilld_client::v1::*;
use tonic::{Code, Request, Response, Status, Streaming};

use super::{FakeServices, refusal, unimplemented};

#[tonic::async_trait]
impl ArtifactService for FakeServices {
    type LoadArtifactStream = BoxStream<'static, Result<LoadArtifactResponse, Status>>;

    /// Saves a workspace's file, or the bytes of the stream.
    async fn save_artifact(
        &self,
        request: Request<Streaming<SaveArtifactRequest>>,
    ) -> Result<Response<Artifact>, Status> {
        let mut messages = request.into_inner();
        let first = messages.message().await?.expect("a message");
        let Some(Payload::Header(header)) = first.payload else {
            return unimplemented();
        };
        let mut sent = Vec::new();
        while let Some(message) = messages.message().await? {
            if let Some(Payload::Data(data)) = message.payload {
                sent.extend_from_slice(&data);
            }
        }
        let mut state = self.lock();
        let path = [("path", header.path.as_str())];
        let missing = || refusal(Code::NotFound, "FILE_NOT_FOUND", &path);
        let bytes = match header.workspace.as_str() {
            "" => sent,
            _ => state
                .staged
                .get(&header.path)
                .cloned()
                .ok_or_else(missing)?,
        };
        let next = state
            .artifacts
            .get(&header.name)
            .map_or(0, |(version, _)| version + 1);
        let artifact = described(&header.name, next, &bytes);
        state.artifacts.insert(header.name, (next, bytes));
        Ok(Response::new(artifact))
    }

    async fn load_artifact(
        &self,
        request: Request<LoadArtifactRequest>,
    ) -> Result<Response<Self::LoadArtifactStream>, Status> {
        let request = request.into_inner();
        let known = self.lock().artifacts.get(&request.name).cloned();
        let wanted =
            |(version, _): &(i64, Vec<u8>)| request.version.is_none_or(|wanted| wanted == *version);
        let missing = || refusal(Code::NotFound, "ARTIFACT_NOT_FOUND", &[]);
        let (version, bytes) = known.filter(wanted).ok_or_else(missing)?;
        let artifact = described(&request.name, version, &bytes);
        let payloads = [Loaded::Artifact(artifact), Loaded::Data(bytes.into())];
        let answers = payloads.map(|payload| {
            Ok(LoadArtifactResponse {
                payload: Some(payload),
            })
        });
        Ok(Response::new(stream::iter(answers).boxed()))
    }

    async fn list_artifacts(
        &self,
        _: Request<ListArtifactsRequest>,
    ) -> Result<Response<ListArtifactsResponse>, Status> {
        let state = self.lock();
        let artifacts = state
            .artifacts
            .iter()
            .map(|(name, (version, bytes))| described(name, *version, bytes))
            .collect();
        Ok(Response::new(ListArtifactsResponse {
            artifacts,
            ..Default::default()
        }))
    }

    async fn list_artifact_versions(
        &self,
        request: Request<ListArtifactVersionsRequest>,
    ) -> Result<Response<ListArtifactVersionsResponse>, Status> {
        let name = request.into_inner().parent;
        let state = self.lock();
        let newest = state.artifacts.get(&name).into_iter();
        let artifacts = newest.map(|(version, bytes)| described(&name, *version, bytes));
        Ok(Response::new(ListArtifactVersionsResponse {
            artifacts: artifacts.collect(),
            ..Default::default()
        }))
    }

    async fn delete_artifact(
        &self,
        request: Request<DeleteArtifactRequest>,
    ) -> Result<Response<()>, Status> {
        self.lock().artifacts.remove(&request.into_inner().name);
        Ok(Response::new(()))
    }
}

fn described(name: &str, version: i64, bytes: &[u8]) -> Artifact {
    Artifact {
        name: name.to_owned(),
        version,
        size_bytes: i64::try_from(bytes.len()).expect("small"),
        mime_type: "text/plain".into(),
        sha256: "5a".repeat(32),
        ..Default::default()
    }
}
