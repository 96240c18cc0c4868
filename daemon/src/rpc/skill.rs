//! SkillService: lists, searches, reads, publishes and deletes skills.

use std::collections::HashSet;
use std::sync::Arc;

use futures::StreamExt;
use skilld_proto::v1 as pb;
use skilld_proto::v1::read_skill_file_response::Payload;
use skilld_proto::v1::skill_service_server::SkillService;
use tonic::{Request, Response, Status, Streaming};

use super::convert::skill_publish as changes;
use super::convert::{self, skill as wire, skill_content, skill_material};
use super::missing_packages::find_missing_packages;
use super::relay::{RelayedStream, relay_stream};
use super::{
    AnswerDeadline, SharedDependencies, added_needs, allow_missing, prepare_skill, skill_publish,
};
use crate::access::{Caller, TenantName};
use crate::environments::EnvironmentRequest;
use crate::error::{Error, Result};
use crate::exec::ImageEnvironment;
use crate::pool::Pool;
use crate::shutdown::Tasks;
use crate::skills::environments::environment_record::BuiltPackage;
use crate::skills::preflight::{self, ImageInventory};
use crate::skills::skill_files::FileRangeReader;
use crate::skills::{SkillState, StagedSkill};

/// Implementation of SkillService.
#[derive(Debug, Clone)]
pub struct SkillRpc(pub SharedDependencies);

impl SkillRpc {
    /// Returns the packages of a skill's environment; `None` if it has none yet.
    async fn built_packages(
        &self,
        tenant: &TenantName,
        skill: StagedSkill,
        pool: &Arc<Pool>,
    ) -> Result<Option<ImageInventory>> {
        let request = EnvironmentRequest::for_pool(tenant, skill, pool)?;
        let record = self.0.environments.find(&request).await;
        let names = |packages: &[BuiltPackage]| -> HashSet<String> {
            let names = packages.iter().map(|package| package.name.clone());
            names.collect()
        };
        Ok(record.map(|record| ImageInventory {
            programs: HashSet::new(),
            python_packages: names(&record.report.packages),
            python_modules: record.report.python_modules.iter().cloned().collect(),
            node_packages: names(&record.report.node_packages),
        }))
    }
}

/// Reads a file as a stream of chunks; each chunk is read when the client asks for it.
fn chunks(
    range: FileRangeReader,
    tasks: Tasks,
) -> impl futures::Stream<Item = Result<pb::ReadSkillFileResponse>> + Send {
    futures::stream::try_unfold((range, tasks), |(mut range, tasks)| async move {
        let (range, data) = tasks
            .blocking(move || Ok(range.next_chunk().map(|data| (range, data))?))
            .await?;
        let message = |data: Vec<u8>| pb::ReadSkillFileResponse {
            payload: Some(Payload::Data(data.into())),
        };
        Ok(data.map(|data| (message(data), (range, tasks))))
    })
}

#[tonic::async_trait]
impl SkillService for SkillRpc {
    type ReadSkillFileStream = RelayedStream<pb::ReadSkillFileResponse>;
    type PrepareSkillStream = RelayedStream<pb::PrepareSkillResponse>;

    async fn list_skills(
        &self,
        request: Request<pb::ListSkillsRequest>,
    ) -> Result<Response<pb::ListSkillsResponse>, Status> {
        let caller = Caller::of(&request)?;
        let (after, size, profile) = wire::check_list_skills(request.get_ref())?;
        let page = self
            .0
            .skills
            .of(&caller)
            .list_page(after, size, profile)
            .await
            .map_err(Error::from)?;
        Ok(Response::new(wire::skills_message(&page)))
    }

    async fn get_skill(
        &self,
        request: Request<pb::GetSkillRequest>,
    ) -> Result<Response<pb::Skill>, Status> {
        let caller = Caller::of(&request)?;
        let (wanted, profile, pool) = wire::check_get_skill(request.get_ref())?;
        let request = request.into_inner();
        let skills = self.0.skills.of(&caller);
        let read = skills.get(wanted.clone(), profile).await;
        let (skill, body) = read.map_err(Error::from)?;
        let mut message = wire::skill_message(&skill, body);
        if request.check_packages {
            let pool = self.0.registry.granted_pool(&caller, pool.as_deref())?;
            if skill.state != SkillState::Rejected {
                let own = (&caller, &skills);
                let wanted = (wanted, skill.plugin.is_some());
                message.missing_packages =
                    find_missing_packages(&self.0, own, wanted, pool).await?;
            }
        }
        Ok(Response::new(message))
    }

    async fn get_skill_material(
        &self,
        request: Request<pb::GetSkillMaterialRequest>,
    ) -> Result<Response<pb::SkillMaterial>, Status> {
        let caller = Caller::of(&request)?;
        let request = skill_material::check_material(request.get_ref())?;
        let skills = self.0.skills.of(&caller);
        let reading = skills.read_material(request.skill, request.choice, request.bytes_max);
        let material = reading.await.map_err(Error::from)?;
        Ok(Response::new(skill_material::material_message(material)))
    }

    async fn search_skills(
        &self,
        request: Request<pb::SearchSkillsRequest>,
    ) -> Result<Response<pb::SearchSkillsResponse>, Status> {
        let caller = Caller::of(&request)?;
        let page = skill_content::check_search_skills(request.get_ref())?;
        let request = request.into_inner();
        let skills = self.0.skills.of(&caller);
        // One more than the page has says whether there is another one.
        let most = page.start.saturating_add(page.size).saturating_add(1);
        let of_agent_zero = request.scoring() == pb::SkillScoring::AgentZero;
        let search = skills.search(request.query, most, of_agent_zero, request.for_model);
        let found = search.await.map_err(Error::from)?;
        Ok(Response::new(skill_content::matches_message(&found, page)))
    }

    async fn list_skill_files(
        &self,
        request: Request<pb::ListSkillFilesRequest>,
    ) -> Result<Response<pb::ListSkillFilesResponse>, Status> {
        let caller = Caller::of(&request)?;
        let wanted = skill_content::check_list_skill_files(request.get_ref())?;
        let manifest = self
            .0
            .skills
            .of(&caller)
            .list_files(wanted.skill.clone())
            .await
            .map_err(Error::from)?;
        Ok(Response::new(skill_content::files_message(
            &manifest, &wanted,
        )))
    }

    async fn read_skill_file(
        &self,
        request: Request<pb::ReadSkillFileRequest>,
    ) -> Result<Response<Self::ReadSkillFileStream>, Status> {
        let caller = Caller::of(&request)?;
        let wanted = skill_content::check_read_skill_file(request.get_ref())?;
        let skills = self.0.skills.of(&caller);
        let opening = skills.open_file(
            wanted.skill,
            wanted.path,
            wanted.in_plugin,
            wanted.workspace_paths,
        );
        let (file, opened) = opening.await.map_err(Error::from)?;
        let described = pb::ReadSkillFileResponse {
            payload: Some(Payload::File(skill_content::file_message(&file))),
        };
        let range =
            FileRangeReader::new(opened, wanted.offset, wanted.length).map_err(Error::from)?;
        let first = futures::stream::once(std::future::ready(Ok(described)));
        let messages = first.chain(chunks(range, self.0.tasks.clone()));
        Ok(Response::new(relay_stream(messages, ())))
    }

    async fn publish_skill(
        &self,
        request: Request<Streaming<pb::PublishSkillRequest>>,
    ) -> Result<Response<pb::Skill>, Status> {
        let caller = Caller::of(&request)?;
        caller.require_whole_tenant()?;
        let archive = request.into_inner();
        let skill = skill_publish::receive_archive(&self.0, &caller, archive).await?;
        Ok(Response::new(wire::skill_message(&skill, String::new())))
    }

    async fn delete_skill(
        &self,
        request: Request<pb::DeleteSkillRequest>,
    ) -> Result<Response<()>, Status> {
        let caller = Caller::of(&request)?;
        caller.require_whole_tenant()?;
        let (name, which) = changes::delete(request.get_ref())?;
        let deleted = self
            .0
            .skills
            .of(&caller)
            .delete(name, which)
            .await
            .map_err(Error::from);
        allow_missing(deleted, request.get_ref().allow_missing)?;
        // Before the answer, so that the room within the tenant's quota is free then.
        skill_publish::remove_orphans(&self.0).await;
        self.0.sweep.notify_one();
        Ok(Response::new(()))
    }

    async fn refresh_skills(
        &self,
        request: Request<pb::RefreshSkillsRequest>,
    ) -> Result<Response<pb::RefreshSkillsResponse>, Status> {
        let caller = Caller::of(&request)?;
        caller.require_whole_tenant()?;
        let by = request
            .extensions()
            .get()
            .map(AnswerDeadline::wait_deadline);
        let listing = self
            .0
            .skills
            .of(&caller)
            .refresh(by)
            .await
            .map_err(Error::from)?;
        self.0.sweep.notify_one();
        Ok(Response::new(wire::refreshed_message(&listing)))
    }

    async fn preflight_skill(
        &self,
        request: Request<pb::PreflightSkillRequest>,
    ) -> Result<Response<pb::PreflightSkillResponse>, Status> {
        let caller = Caller::of(&request)?;
        let skill = skill_content::check_preflight_skill(request.get_ref())?;
        let request = request.into_inner();
        let pool = convert::requested_pool(&request.pool)?;
        let pool = self.0.registry.granted_pool(&caller, pool.as_deref())?;
        let skills = self.0.skills.of(&caller);
        let needs = skills.needs(skill.clone()).await.map_err(Error::from)?;
        let needing = skills.environment_need(skill).await.map_err(Error::from)?;
        let needs = added_needs::with_added(&needs, &needing.added_packages);
        let inventory = self.0.registry.image_inventory(pool).await?;
        let need = Arc::clone(&needing.environment_need);
        let packages = self.built_packages(caller.tenant(), needing, pool).await?;
        let image = pool.require_image()?;
        let mut given = request.env_names;
        let of_image = ImageEnvironment::new(&image.env);
        given.extend(of_image.variables().map(|(name, _)| name.to_owned()));
        let unmet = preflight::find_unmet_needs(&needs, &inventory, packages.as_ref(), &given);
        // Errors come first, and these are errors.
        let refused = need.problems.iter().filter(|problem| problem.is_error());
        let findings: Vec<_> = refused
            .map(preflight::refusal_finding)
            .chain(unmet)
            .collect();
        let image = &pool.config.image;
        Ok(Response::new(skill_content::preflight_message(
            &findings, image,
        )))
    }

    async fn prepare_skill(
        &self,
        request: Request<pb::PrepareSkillRequest>,
    ) -> Result<Response<Self::PrepareSkillStream>, Status> {
        let caller = Caller::of(&request)?;
        caller.require_whole_tenant()?;
        let request = request.into_inner();
        let (skill, replacing) = skill_content::check_prepare_skill(&request)?;
        let pool = convert::requested_pool(&request.pool)?;
        let pool = self.0.registry.granted_pool(&caller, pool.as_deref())?;
        let skills = self.0.skills.of(&caller);
        if let Some(packages) = replacing {
            let remembered = skills.remember_packages(skill.clone(), packages).await;
            remembered.map_err(Error::from)?;
        }
        let messages = prepare_skill::prepare_skill(
            &self.0,
            (caller.tenant(), &skills),
            skill,
            pool,
            request.rebuild,
        )
        .await?;
        Ok(Response::new(relay_stream(messages, ())))
    }
}
