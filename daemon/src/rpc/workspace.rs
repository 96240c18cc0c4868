//! WorkspaceService: claims, looks at and gives back workspaces.

use skilld_proto::v1 as pb;
use skilld_proto::v1::workspace_service_server::WorkspaceService;
use tonic::{Request, Response, Status};

use super::Shared;
use super::convert::{self, workspace as wire};
use crate::error::Error;

/// The service.
#[derive(Debug, Clone)]
pub struct Workspaces(pub Shared);

#[tonic::async_trait]
impl WorkspaceService for Workspaces {
    async fn create_workspace(
        &self,
        request: Request<pb::CreateWorkspaceRequest>,
    ) -> Result<Response<pb::Workspace>, Status> {
        let create = wire::create(request.into_inner(), &self.0.config.workspaces)?;
        let workspace = self.0.registry.create(create).await?;
        Ok(Response::new(wire::workspace(&workspace.view())))
    }

    async fn get_workspace(
        &self,
        request: Request<pb::GetWorkspaceRequest>,
    ) -> Result<Response<pb::Workspace>, Status> {
        let id = convert::workspace_name("name", &request.get_ref().name)?;
        let workspace = self.0.registry.get(&id)?;
        Ok(Response::new(wire::workspace(&workspace.view())))
    }

    async fn list_workspaces(
        &self,
        request: Request<pb::ListWorkspacesRequest>,
    ) -> Result<Response<pb::ListWorkspacesResponse>, Status> {
        let request = request.into_inner();
        let (size, after) = wire::list(&request)?;
        let all = self.0.registry.list_after(after.as_ref());
        let mut matching = all.iter().filter(|workspace| {
            let view = workspace.view();
            let labels = view.record.claim.as_ref().map(|claim| &claim.labels);
            request
                .labels
                .iter()
                .all(|(key, value)| labels.is_some_and(|labels| labels.get(key) == Some(value)))
        });
        let page: Vec<_> = matching.by_ref().take(size).collect();
        let next = matching
            .next()
            .and(page.last())
            .map(|last| last.id().to_string());
        Ok(Response::new(pb::ListWorkspacesResponse {
            workspaces: page
                .iter()
                .map(|workspace| wire::workspace(&workspace.view()))
                .collect(),
            next_page_token: next.unwrap_or_default(),
        }))
    }

    async fn renew_workspace(
        &self,
        request: Request<pb::RenewWorkspaceRequest>,
    ) -> Result<Response<pb::Workspace>, Status> {
        let config = &self.0.config.workspaces;
        let renew = wire::renew(request.get_ref(), config)?;
        let workspace = self.0.registry.get(&renew.id)?;
        let left = config
            .lifetime_max
            .saturating_sub(wire::age(&workspace.view()));
        let remaining = renew.remaining.map(|remaining| remaining.min(left));
        workspace.renew(renew.idle, remaining).await?;
        Ok(Response::new(wire::workspace(&workspace.view())))
    }

    async fn delete_workspace(
        &self,
        request: Request<pb::DeleteWorkspaceRequest>,
    ) -> Result<Response<()>, Status> {
        let request = request.into_inner();
        let id = convert::workspace_name("name", &request.name)?;
        match self.0.registry.get(&id) {
            Ok(workspace) => workspace.delete().await?,
            Err(Error::WorkspaceNotFound { .. }) if request.allow_missing => {}
            Err(error) => return Err(error.into()),
        }
        Ok(Response::new(()))
    }
}
