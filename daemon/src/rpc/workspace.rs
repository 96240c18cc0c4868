//! WorkspaceService: claims, looks at and gives back workspaces.

use prost::Message;
use skilld_proto::v1 as pb;
use skilld_proto::v1::workspace_service_server::WorkspaceService;
use tonic::{Request, Response, Status};

use super::Shared;
use super::convert::{self, workspace as wire};
use crate::error::Error;

/// A page is cut before it could be larger than a message may be.
const PAGE_BYTES_MAX: usize = 3 << 20;

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
        let matching = all.iter().filter(|workspace| {
            let view = workspace.view();
            let labels = view.record.claim.as_ref().map(|claim| &claim.labels);
            request
                .labels
                .iter()
                .all(|(key, value)| labels.is_some_and(|labels| labels.get(key) == Some(value)))
        });
        let (mut page, mut last, mut bytes) = (Vec::new(), None, 0);
        let mut more = false;
        for workspace in matching {
            let message = wire::workspace(&workspace.view());
            bytes += message.encoded_len();
            more = page.len() == size || (bytes > PAGE_BYTES_MAX && !page.is_empty());
            if more {
                break;
            }
            page.push(message);
            last = Some(workspace.id().to_string());
        }
        Ok(Response::new(pb::ListWorkspacesResponse {
            workspaces: page,
            next_page_token: last.filter(|_| more).unwrap_or_default(),
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
