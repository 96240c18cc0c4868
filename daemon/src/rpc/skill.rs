//! SkillService: what can be staged.

use futures::stream::BoxStream;
use skilld_proto::v1 as pb;
use skilld_proto::v1::skill_service_server::SkillService;
use tonic::{Request, Response, Status, Streaming};

use super::Shared;
use super::convert::publish as changes;
use super::convert::skill as wire;
use super::publish;
use crate::error::{Error, Result};

/// The service.
#[derive(Debug, Clone)]
pub struct SkillsRpc(pub Shared);

fn later<T>(what: &'static str) -> Result<Response<T>, Status> {
    Err(Error::NotImplemented { what }.into())
}

#[tonic::async_trait]
impl SkillService for SkillsRpc {
    type ReadSkillFileStream = BoxStream<'static, Result<pb::ReadSkillFileResponse, Status>>;

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
        _request: Request<pb::SearchSkillsRequest>,
    ) -> Result<Response<pb::SearchSkillsResponse>, Status> {
        later("SearchSkills")
    }

    async fn list_skill_files(
        &self,
        _request: Request<pb::ListSkillFilesRequest>,
    ) -> Result<Response<pb::ListSkillFilesResponse>, Status> {
        later("ListSkillFiles")
    }

    async fn read_skill_file(
        &self,
        _request: Request<pb::ReadSkillFileRequest>,
    ) -> Result<Response<Self::ReadSkillFileStream>, Status> {
        later("ReadSkillFile")
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
        _request: Request<pb::RefreshSkillsRequest>,
    ) -> Result<Response<pb::RefreshSkillsResponse>, Status> {
        let listing = self.0.skills.refresh().await?;
        self.0.sweep.notify_one();
        Ok(Response::new(wire::refreshed(&listing)))
    }

    async fn preflight_skill(
        &self,
        _request: Request<pb::PreflightSkillRequest>,
    ) -> Result<Response<pb::PreflightSkillResponse>, Status> {
        later("PreflightSkill")
    }
}
