//! FileService: stages and collects files. The daemon stages read-only skills on the host; the guest does everything
//! else, and bytes pass through unbuffered.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures::TryFutureExt;
use skilld_proto::guest::v1 as guest;
use skilld_proto::guest::v1::put_files_request::Payload;
use skilld_proto::v1 as pb;
use skilld_proto::v1::file_service_server::FileService;
use tokio::time::Instant;
use tonic::{Request, Response, Status, Streaming};

use super::convert::environment::mounted_environment;
use super::convert::{file as wire, input};
use super::relay::{RelayedStream, relay_guest_stream, relay_stream};
use super::upload::{self, UploadLimits, upload_stream};
use super::{AnswerDeadline, SharedDependencies, writable_skills};
use crate::collect;
use crate::engine::ImageInfo;
use crate::environments::{EnvironmentRequest, StagedEnvironment};
use crate::error::{Error, Result};
use crate::fault::{self, Point};
use crate::skills::{PluginFiles, Problem, SkillRef, StagedSkill};
use crate::workspace::record::{SlotRecord, StagedSkillRecord};
use crate::workspace::{Workspace, WorkspaceGrant, WorkspaceId};
use crate::workspace_paths;

/// Implementation of FileService.
#[derive(Debug, Clone)]
pub struct FileRpc(pub SharedDependencies);

impl FileRpc {
    async fn grant(&self, workspace: &WorkspaceId) -> Result<WorkspaceGrant> {
        self.0.registry.get(workspace)?.grant().await
    }
}

/// Fetches the exec that a collection names; `None` if it names none.
async fn get_named_exec(grant: &WorkspaceGrant, exec: &str) -> Result<Option<pb::Exec>, Status> {
    let Some((_, id)) = exec.rsplit_once('/') else {
        return Ok(None);
    };
    let exec_id = id.to_owned();
    let asked = guest::GetExecRequest { exec_id };
    let exec = grant.guest.clone().get_exec(asked).await?;
    Ok(Some(exec.into_inner()))
}

/// Skills of one request to stage, and the workspace for them.
struct SkillStaging {
    workspace: Workspace,
    grant: WorkspaceGrant,
    skills: Vec<SkillRef>,
    /// `true` to stage them as copies that commands can write.
    writable: bool,
    /// Time until which missing environments are waited for.
    wait_deadline: Instant,
}

impl SkillStaging {
    /// Finds or builds the environments of the skills, stages and records them, and removes the versions that they
    /// replaced.
    async fn run(
        self,
        shared: SharedDependencies,
    ) -> Result<Vec<(StagedSkill, StagedEnvironment)>> {
        let workspace = &self.workspace;
        let leased = shared.skills.lease_to_stage(self.skills).await?;
        let slot = &self.grant.view.record;
        // Until a build ends, the workspace keeps what it has, and other stagings get their turn.
        let environments =
            find_environments(&shared, slot, leased.skills(), self.wait_deadline).await?;
        // Stagings of one workspace run one after the other, so that its record matches its directory.
        let _turn = workspace.lock_skill_staging().await;
        let staged = if self.writable {
            writable_skills::stage_writable(&shared, workspace, &self.grant, leased).await
        } else {
            let target = workspace.skills_dir();
            let staged = shared.skills.stage(&target, leased).await;
            staged.map_err(Error::from)
        };
        let staged = match staged {
            Ok(staged) => staged,
            Err(error) => {
                // If the workspace is being removed, report that instead of the failed write.
                workspace.grant().await?;
                return Err(error);
            }
        };
        let is_changed = staged.iter().any(|skill| !skill.unchanged);
        let staged: Vec<_> = staged.into_iter().zip(environments).collect();
        link_node_packages(&shared, workspace, &staged).await?;
        record_staged_skills(workspace, &staged).await?;
        fault::reach(Point::StageRecorded);
        if is_changed {
            super::replaced_skills::remove_replaced_skills(&shared, workspace, &self.grant).await;
        }
        Ok(staged)
    }
}

/// Finds or builds the environments of skills, in their order.
async fn find_environments(
    shared: &SharedDependencies,
    slot: &SlotRecord,
    skills: &[StagedSkill],
    wait_deadline: Instant,
) -> Result<Vec<StagedEnvironment>> {
    if skills.iter().all(|skill| skill.environment_need.is_empty()) {
        return Ok(vec![StagedEnvironment::default(); skills.len()]);
    }
    let is_enabled = shared.config.skills.environments.is_enabled();
    if is_enabled && !slot.has_shared_dir(workspace_paths::ENVIRONMENTS_DIR) {
        return Ok(skills.iter().map(environment_without_mount).collect());
    }
    let registry = &shared.registry;
    // A workspace of a pool that is no longer configured belongs to the default pool.
    let pool = registry.pool(Some(&slot.pool));
    let pool = pool.or_else(|_| registry.pool(None))?;
    let finds = skills.iter().map(|skill| {
        let request = EnvironmentRequest {
            skill: skill.name.clone(),
            need: Arc::clone(&skill.environment_need),
            pool: Arc::clone(pool),
            image: ImageInfo {
                reference: slot.image.clone(),
                id: slot.image_id.clone(),
                // The build has to find the same Python as the commands.
                env: slot.image_env.pairs(),
                ..ImageInfo::default()
            },
        };
        async move {
            shared
                .environments
                .find_for_staging(&request, wait_deadline)
                .await
        }
    });
    Ok(futures::future::join_all(finds).await)
}

/// Makes the Node.js packages of environments available to `import` in the staged skills.
async fn link_node_packages(
    shared: &SharedDependencies,
    workspace: &Workspace,
    staged: &[(StagedSkill, StagedEnvironment)],
) -> Result<()> {
    let records = staged
        .iter()
        .filter_map(|(_, environment)| environment.record.as_deref());
    let packages: Vec<_> = records
        .filter_map(|record| {
            let path = mounted_environment(record).node_packages_path()?;
            Some((record.key.need.clone(), path))
        })
        .collect();
    if packages.is_empty() {
        return Ok(());
    }
    let target = workspace.skills_dir();
    Ok(shared.skills.link_node_packages(&target, packages).await?)
}

/// Returns the result for a skill in a container that an earlier configuration made, without a mount for environments.
fn environment_without_mount(skill: &StagedSkill) -> StagedEnvironment {
    if skill.environment_need.is_empty() {
        return StagedEnvironment::default();
    }
    let name = &skill.name;
    let message = format!(
        "the packages of skill {name} cannot be used in this workspace, which was created before the daemon built \
         environments: create a new workspace"
    );
    StagedEnvironment {
        record: None,
        problems: vec![Problem::warning("environment.not_mounted", message)],
    }
}

/// Records the staged skills of a workspace, unless the record has them already: a record costs a write to disk.
async fn record_staged_skills(
    workspace: &Workspace,
    staged: &[(StagedSkill, StagedEnvironment)],
) -> Result<()> {
    let record = |(skill, environment): &(StagedSkill, StagedEnvironment)| StagedSkillRecord {
        name: skill.name.clone(),
        digest: format!("sha256:{}", skill.digest),
        environment: environment.record.as_deref().map(mounted_environment),
        path_in_plugin: skill.plugin.as_ref().map(PluginFiles::skill_path_text),
        writable_path: skill.writable_path.clone(),
    };
    let staged: Vec<StagedSkillRecord> = staged.iter().map(record).collect();
    let view = workspace.snapshot();
    let recorded = view.record.claim.as_ref();
    if recorded.is_some_and(|claim| staged.iter().all(|skill| claim.has_skill(skill))) {
        return Ok(());
    }
    workspace.record_skills(staged).await
}

#[tonic::async_trait]
impl FileService for FileRpc {
    type ReadFileStream = RelayedStream<pb::ReadFileResponse>;
    type CollectOutputsStream = RelayedStream<pb::CollectOutputsResponse>;

    async fn stage_skills(
        &self,
        request: Request<pb::StageSkillsRequest>,
    ) -> Result<Response<pb::StageSkillsResponse>, Status> {
        let (id, skills) = wire::check_stage_skills(request.get_ref())?;
        let wait_deadline = AnswerDeadline::wait_deadline_of(&request);
        let workspace = self.0.registry.get(&id)?;
        let staging = SkillStaging {
            grant: workspace.grant().await?,
            workspace,
            skills,
            writable: request.get_ref().writable,
            wait_deadline,
        };
        // A staging that has begun runs to its end, even if the client goes away.
        let staged = self.0.tasks.spawn(staging.run(Arc::clone(&self.0))).await;
        let staged = staged.map_err(|error| Error::Internal(format!("staging: {error}")))??;
        Ok(Response::new(wire::staged_skills_message(&staged)))
    }

    async fn stage_inputs(
        &self,
        request: Request<pb::StageInputsRequest>,
    ) -> Result<Response<pb::StageInputsResponse>, Status> {
        let (id, inputs, scope) = input::check_stage_inputs(request.into_inner())?;
        let workspace = self.0.registry.get(&id)?;
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
        let mut client = request.into_inner();
        let limit = self.0.config.server.message_bytes_max as u64;
        let patience = self.0.config.server.upload_timeout;
        let first = upload::first_message(&mut client, &self.0, "header").await?;
        let (id, header) = wire::check_stage_files(first, &self.0.config.files)?;
        let grant = self.grant(&id).await?;
        let payload = Some(Payload::Header(header));
        let first = guest::PutFilesRequest { payload };
        let bounds = UploadLimits {
            message_bytes_max: limit,
            silence_max: Some(patience),
        };
        let (stream, failure) = upload_stream(first, client, bounds, wire::check_stage_data);
        let (ended, stop) = (stream.ended(), &self.0.tasks.stop);
        let mut client = grant.guest.clone();
        let put = std::pin::pin!(client.put_files(stream));
        let mut put = put.map_err(|status| Error::from_guest(&id.name(), &status));
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
        let ended = ended.load(Ordering::Acquire);
        match put {
            // The connection to the guest ended before the stream did: nothing is in place.
            Err(Error::GuestLost { .. }) if stop.is_cancelled() && !ended => {
                Err(Error::Draining.into())
            }
            put => Ok(put?),
        }
    }

    async fn list_files(
        &self,
        request: Request<pb::ListFilesRequest>,
    ) -> Result<Response<pb::ListFilesResponse>, Status> {
        let (id, request) = wire::check_list_files(request.get_ref())?;
        let grant = self.grant(&id).await?;
        let listed = grant.guest.clone().list_files(request).await;
        Ok(listed.map_err(|status| Error::from_guest(&id.name(), &status))?)
    }

    async fn read_file(
        &self,
        request: Request<pb::ReadFileRequest>,
    ) -> Result<Response<Self::ReadFileStream>, Status> {
        let (id, request) = wire::check_read_file(request.get_ref())?;
        let grant = self.grant(&id).await?;
        let stream = grant.guest.clone().read_file(request).await;
        let stream = stream.map_err(|status| Error::from_guest(&id.name(), &status))?;
        Ok(Response::new(relay_guest_stream(
            stream.into_inner(),
            grant,
            id.name(),
            &self.0.relays,
        )))
    }

    async fn collect_outputs(
        &self,
        request: Request<pb::CollectOutputsRequest>,
    ) -> Result<Response<Self::CollectOutputsStream>, Status> {
        let (id, request, save_as) =
            wire::check_collect_outputs(request.into_inner(), &self.0.config.files)?;
        let grant = self.grant(&id).await?;
        grant.check_fields(&request)?;
        let spec = request.spec.clone().unwrap_or_default();
        let failed = |status| Error::from_guest(&id.name(), &status);
        let exec = match &save_as {
            Some(_) => get_named_exec(&grant, &spec.changed_since_exec).await,
            None => Ok(None),
        };
        let exec = exec.map_err(failed)?;
        let stream = grant.guest.clone().collect(request).await.map_err(failed)?;
        let (stream, relays) = (stream.into_inner(), &self.0.relays);
        let Some(mut save_as) = save_as else {
            return Ok(Response::new(relay_guest_stream(
                stream,
                grant,
                id.name(),
                relays,
            )));
        };
        if let Some(exec) = exec {
            if let Some(start) = exec.start_time.and_then(|time| time.try_into().ok()) {
                save_as = save_as.skip_saved_since(start);
            }
            save_as =
                save_as.skip_empty(spec.skip_empty_after_failure && collect::is_failed(&exec));
        }
        let (artifacts, tasks) = (&self.0.artifacts, &self.0.tasks);
        let saved =
            collect::save_collected_files(stream, &spec, save_as, artifacts, tasks, id.name());
        Ok(Response::new(relay_stream(saved, grant, relays)))
    }
}
