//! SkillService: what can be staged.

use futures::StreamExt;
use skilld_proto::v1 as pb;
use skilld_proto::v1::read_skill_file_response::Payload;
use skilld_proto::v1::skill_service_server::SkillService;
use tonic::{Request, Response, Status, Streaming};

use super::convert::publish as changes;
use super::convert::{reading, skill as wire};
use super::publish;
use super::relay::{Relayed, bounded};
use super::{AnswerBy, Shared};
use crate::error::Result;
use crate::shutdown::Tasks;
use crate::skills::files::Part;
use crate::skills::preflight;

/// The service.
#[derive(Debug, Clone)]
pub struct SkillsRpc(pub Shared);

/// The bytes of a file; the next ones are read when somebody wants them.
fn chunks(
    part: Part,
    tasks: Tasks,
) -> impl futures::Stream<Item = Result<pb::ReadSkillFileResponse>> + Send {
    futures::stream::try_unfold((part, tasks), |(mut part, tasks)| async move {
        let (part, data) = tasks
            .blocking(move || part.chunk().map(|data| (part, data)))
            .await?;
        let message = |data: Vec<u8>| pb::ReadSkillFileResponse {
            payload: Some(Payload::Data(data.into())),
        };
        Ok(data.map(|data| (message(data), (part, tasks))))
    })
}

#[tonic::async_trait]
impl SkillService for SkillsRpc {
    type ReadSkillFileStream = Relayed<pb::ReadSkillFileResponse>;

    async fn list_skills(
        &self,
        request: Request<pb::ListSkillsRequest>,
    ) -> Result<Response<pb::ListSkillsResponse>, Status> {
        let wanted = wire::list(request.get_ref())?;
        let (after, size, profile) = (wanted.after, wanted.size, wanted.profile);
        let page = self.0.skills.page(after, size, profile).await?;
        Ok(Response::new(wire::page(&page)))
    }

    async fn get_skill(
        &self,
        request: Request<pb::GetSkillRequest>,
    ) -> Result<Response<pb::Skill>, Status> {
        let (wanted, profile) = wire::get(request.get_ref())?;
        let (skill, body) = self.0.skills.get(wanted, profile).await?;
        Ok(Response::new(wire::skill(&skill, body)))
    }

    async fn search_skills(
        &self,
        request: Request<pb::SearchSkillsRequest>,
    ) -> Result<Response<pb::SearchSkillsResponse>, Status> {
        let wanted = reading::search(request.get_ref())?;
        let search = self
            .0
            .skills
            .search(wanted.query, wanted.limit, wanted.compat);
        Ok(Response::new(reading::matches(&search.await?)))
    }

    async fn list_skill_files(
        &self,
        request: Request<pb::ListSkillFilesRequest>,
    ) -> Result<Response<pb::ListSkillFilesResponse>, Status> {
        let wanted = reading::list(request.get_ref())?;
        let manifest = self.0.skills.files(wanted.skill.clone()).await?;
        Ok(Response::new(reading::page(&manifest, &wanted)))
    }

    async fn read_skill_file(
        &self,
        request: Request<pb::ReadSkillFileRequest>,
    ) -> Result<Response<Self::ReadSkillFileStream>, Status> {
        let wanted = reading::read(request.get_ref())?;
        let opening = self
            .0
            .skills
            .open_file(wanted.skill, wanted.path, wanted.workspace_paths);
        let (file, opened) = opening.await?;
        let described = pb::ReadSkillFileResponse {
            payload: Some(Payload::File(reading::file(&file))),
        };
        let part = Part::new(opened, wanted.offset, wanted.length)?;
        let first = futures::stream::once(std::future::ready(Ok(described)));
        let messages = first.chain(chunks(part, self.0.tasks.clone()));
        Ok(Response::new(bounded(messages.boxed(), (), &self.0.relays)))
    }

    async fn publish_skill(
        &self,
        request: Request<Streaming<pb::PublishSkillRequest>>,
    ) -> Result<Response<pb::Skill>, Status> {
        let skill = publish::receive(&self.0, request.into_inner()).await?;
        Ok(Response::new(wire::skill(&skill, String::new())))
    }

    async fn delete_skill(
        &self,
        request: Request<pb::DeleteSkillRequest>,
    ) -> Result<Response<()>, Status> {
        let (name, which) = changes::delete(request.get_ref())?;
        self.0.skills.delete(name, which).await?;
        self.0.sweep.notify_one();
        Ok(Response::new(()))
    }

    async fn refresh_skills(
        &self,
        request: Request<pb::RefreshSkillsRequest>,
    ) -> Result<Response<pb::RefreshSkillsResponse>, Status> {
        let by = request.extensions().get().map(AnswerBy::nearly);
        let listing = self.0.skills.refresh(by).await?;
        self.0.sweep.notify_one();
        Ok(Response::new(wire::refreshed(&listing)))
    }

    async fn preflight_skill(
        &self,
        request: Request<pb::PreflightSkillRequest>,
    ) -> Result<Response<pb::PreflightSkillResponse>, Status> {
        let wanted = reading::preflight(request.get_ref())?;
        let pool = self.0.registry.pool(wanted.pool.as_deref())?;
        let needs = self.0.skills.needs(wanted.skill).await?;
        let inventory = pool.inventory().await?;
        let findings = preflight::findings(&needs, &inventory, &wanted.env);
        let image = &pool.image().reference;
        Ok(Response::new(reading::preflighted(&findings, image)))
    }
}
