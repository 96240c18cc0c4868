//! FileService: stages and collects files. The daemon stages read-only skills on the host; the guest does everything
//! else, and bytes pass through unbuffered.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use skilld_proto::guest::v1 as guest;
use skilld_proto::guest::v1::put_files_request::Payload;
use skilld_proto::v1 as pb;
use skilld_proto::v1::file_service_server::FileService;
use tonic::{Request, Response, Status, Streaming};

use super::convert::{file as wire, input};
use super::relay::{RelayedStream, relay_guest_stream, relay_stream};
use super::skill_staging::SkillStaging;
use super::upload::{self, upload_stream};
use super::{AnswerDeadline, SharedDependencies};
use crate::access::Caller;
use crate::collect;
use crate::error::{Error, Result};
use crate::inputs::{InputSource, InputSpec};
use crate::telemetry::trace_span::in_child_span;
use crate::workspace::{WorkspaceGrant, WorkspaceId};

/// Implementation of FileService.
#[derive(Debug, Clone)]
pub struct FileRpc(pub SharedDependencies);

impl FileRpc {
    async fn grant(&self, caller: &Caller, workspace: &WorkspaceId) -> Result<WorkspaceGrant> {
        self.0.registry.get(caller, workspace)?.grant().await
    }
}

/// Fetches the exec that a collection names; `None` if it names none.
async fn get_named_exec(grant: &WorkspaceGrant, exec: &str) -> Result<Option<pb::Exec>> {
    let Some((_, id)) = exec.rsplit_once('/') else {
        return Ok(None);
    };
    let exec_id = id.to_owned();
    let asked = guest::GetExecRequest { exec_id };
    let exec = grant.call(grant.guest.clone().get_exec(asked)).await?;
    Ok(Some(exec.into_inner()))
}

#[tonic::async_trait]
impl FileService for FileRpc {
    type ReadFileStream = RelayedStream<pb::ReadFileResponse>;
    type CollectOutputsStream = RelayedStream<pb::CollectOutputsResponse>;

    async fn stage_skills(
        &self,
        request: Request<pb::StageSkillsRequest>,
    ) -> Result<Response<pb::StageSkillsResponse>, Status> {
        let caller = Caller::of(&request)?;
        let (id, skills) = wire::check_stage_skills(request.get_ref())?;
        let wait_deadline = AnswerDeadline::wait_deadline_of(&request);
        let workspace = self.0.registry.get(&caller, &id)?;
        let writable = request.get_ref().writable;
        let source = self.0.skills.of(&caller);
        let staging =
            SkillStaging::prepare(&self.0, &source, workspace, skills, writable, wait_deadline);
        let staging = in_child_span("find environments", staging).await?;
        let staged = in_child_span("stage skills", staging.run(&self.0)).await?;
        Ok(Response::new(wire::staged_skills_message(&staged)))
    }

    async fn stage_inputs(
        &self,
        request: Request<pb::StageInputsRequest>,
    ) -> Result<Response<pb::StageInputsResponse>, Status> {
        let caller = Caller::of(&request)?;
        let (id, inputs, scope) = input::check_stage_inputs(request.into_inner())?;
        let is_artifact = |input: &InputSpec| matches!(input.source, InputSource::Artifact(_));
        if inputs.iter().any(is_artifact) {
            caller.require_whole_tenant()?;
        }
        let scope = scope.of_tenant(caller.tenant());
        let workspace = self.0.registry.get(&caller, &id)?;
        let grant = workspace.grant().await?;
        let inputs: Arc<[_]> = inputs.into();
        let stage = self
            .0
            .inputs
            .stage(workspace, grant, Arc::clone(&inputs), scope);
        let staged = stage.await?;
        Ok(Response::new(input::staged_inputs_message(&inputs, staged)))
    }

    async fn stage_files(
        &self,
        request: Request<Streaming<pb::StageFilesRequest>>,
    ) -> Result<Response<pb::StageFilesResponse>, Status> {
        let caller = Caller::of(&request)?;
        let mut client = request.into_inner();
        let patience = self.0.config.server.upload_timeout;
        let first = upload::first_message(&mut client, &self.0, "header").await?;
        let (id, header) = wire::check_stage_files(first, &self.0.config.files)?;
        let grant = self.grant(&caller, &id).await?;
        let payload = Some(Payload::Header(header));
        let first = guest::PutFilesRequest { payload };
        let check = wire::check_stage_data;
        let (stream, failure) = upload_stream(first, client, Some(patience), check);
        let (ended, stop) = (Arc::clone(&stream.ended), &self.0.tasks.stop);
        let mut client = grant.guest.clone();
        let mut put = std::pin::pin!(grant.call(client.put_files(stream)));
        // Dropping `put` before the stream's end resets the guest's stream, and the guest discards the files.
        let put = tokio::select! {
            put = &mut put => put,
            Ok(error) = failure => return Err(error.into()),
            // After the stream's end the files may be in place, so wait for the guest's answer.
            () = stop.cancelled() => {
                if !ended.load(Ordering::Acquire) {
                    return Err(Error::Draining.into());
                }
                put.await
            }
        };
        let has_ended = ended.load(Ordering::Acquire);
        match put {
            // The connection to the guest ended before the stream did: nothing is in place.
            Err(Error::GuestLost { .. }) if stop.is_cancelled() && !has_ended => {
                Err(Error::Draining.into())
            }
            put => Ok(put?),
        }
    }

    async fn list_files(
        &self,
        request: Request<pb::ListFilesRequest>,
    ) -> Result<Response<pb::ListFilesResponse>, Status> {
        let caller = Caller::of(&request)?;
        let (id, request) = wire::check_list_files(request.get_ref())?;
        let grant = self.grant(&caller, &id).await?;
        Ok(grant.call(grant.guest.clone().list_files(request)).await?)
    }

    async fn read_file(
        &self,
        request: Request<pb::ReadFileRequest>,
    ) -> Result<Response<Self::ReadFileStream>, Status> {
        let caller = Caller::of(&request)?;
        let (id, request) = wire::check_read_file(request.get_ref())?;
        let grant = self.grant(&caller, &id).await?;
        let opened = grant.call(grant.guest.clone().read_file(request)).await?;
        let stream = opened.into_inner();
        Ok(Response::new(relay_guest_stream(stream, grant)))
    }

    async fn collect_outputs(
        &self,
        request: Request<pb::CollectOutputsRequest>,
    ) -> Result<Response<Self::CollectOutputsStream>, Status> {
        let caller = Caller::of(&request)?;
        let (id, request, save_as) = wire::check_collect_outputs(request.into_inner())?;
        if save_as.is_some() {
            caller.require_whole_tenant()?;
        }
        let grant = self.grant(&caller, &id).await?;
        let spec = request.spec.clone().unwrap_or_default();
        let exec = match &save_as {
            Some(_) => get_named_exec(&grant, &spec.changed_since_exec).await?,
            None => None,
        };
        let collected = grant.call(grant.guest.clone().collect(request)).await?;
        let stream = collected.into_inner();
        let Some(mut save_as) = save_as else {
            return Ok(Response::new(relay_guest_stream(stream, grant)));
        };
        if let Some(exec) = exec {
            let (result, skip_empty) = (exec.result.as_ref(), spec.skip_empty_after_failure);
            save_as = save_as.after_exec(exec.start_time, result, skip_empty);
        }
        let (artifacts, tasks) = (&self.0.artifacts, &self.0.tasks);
        let saved = collect::save_collected_files(
            stream,
            &spec,
            save_as,
            artifacts,
            tasks,
            &id.of_tenant(caller.tenant()),
        );
        let mut answer = Response::new(relay_stream(saved, grant));
        answer.extensions_mut().insert(collect::SavesArtifacts);
        Ok(answer)
    }
}
