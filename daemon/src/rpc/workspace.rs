//! WorkspaceService: creates, shows, changes, renews and deletes workspaces.

use std::sync::Arc;

use prost::Message;
use skilld_proto::v1 as pb;
use skilld_proto::v1::workspace_service_server::WorkspaceService;
use tonic::{Request, Response, Status};

use super::SharedDependencies;
use super::convert::{self, workspace as wire};
use super::role_restriction::restrict_workspace;
use crate::access::Caller;
use crate::audit::CreatedResource;
use crate::error::Error;
use crate::workspace::Workspace;

/// Maximum size of one page in bytes, below the smallest limit of a message.
const PAGE_BYTES_MAX: usize = 3 << 20;

/// Implementation of WorkspaceService.
#[derive(Debug, Clone)]
pub struct WorkspaceRpc(pub SharedDependencies);

#[tonic::async_trait]
impl WorkspaceService for WorkspaceRpc {
    async fn create_workspace(
        &self,
        request: Request<pb::CreateWorkspaceRequest>,
    ) -> Result<Response<pb::Workspace>, Status> {
        let caller = Caller::of(&request)?;
        caller.require_whole_tenant()?;
        let config = &self.0.config.workspaces;
        let create = wire::check_create_workspace(&caller, request.into_inner(), config)?;
        self.0.access.count_create(&caller)?;
        let registry = &self.0.registry;
        let pool = registry.granted_pool(&caller, create.pool.as_deref())?;
        let workspace = registry.create(Arc::clone(pool), create).await?;
        let answer = Response::new(visible_message(&caller, &workspace));
        Ok(CreatedResource::attach(workspace.id().name(), answer))
    }

    async fn get_workspace(
        &self,
        request: Request<pb::GetWorkspaceRequest>,
    ) -> Result<Response<pb::Workspace>, Status> {
        let id = convert::parse_workspace_name("name", &request.get_ref().name)?;
        let caller = Caller::of(&request)?;
        let workspace = self.0.registry.get(&caller, &id)?;
        Ok(Response::new(visible_message(&caller, &workspace)))
    }

    async fn list_workspaces(
        &self,
        request: Request<pb::ListWorkspacesRequest>,
    ) -> Result<Response<pb::ListWorkspacesResponse>, Status> {
        let caller = Caller::of(&request)?;
        let request = request.into_inner();
        let (size, after) = wire::check_list_workspaces(&request)?;
        let all = self.0.registry.list_after(&caller, after.as_ref());
        let matching = all.iter().filter(|workspace| {
            let view = workspace.snapshot();
            let labels = view.record.claim.as_ref().map(|claim| &claim.labels);
            request
                .labels
                .iter()
                .all(|(key, value)| labels.is_some_and(|labels| labels.get(key) == Some(value)))
        });
        let (mut page, mut last, mut bytes) = (Vec::new(), None, 0);
        let mut more = false;
        for workspace in matching {
            let message = visible_message(&caller, workspace);
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

    async fn update_workspace(
        &self,
        request: Request<pb::UpdateWorkspaceRequest>,
    ) -> Result<Response<pb::Workspace>, Status> {
        let caller = Caller::of(&request)?;
        let (id, labels) = wire::check_update_workspace(request.into_inner())?;
        let workspace = self.0.registry.get(&caller, &id)?;
        if let Some(labels) = labels {
            workspace.set_labels(labels).await?;
        }
        Ok(Response::new(visible_message(&caller, &workspace)))
    }

    async fn renew_workspace(
        &self,
        request: Request<pb::RenewWorkspaceRequest>,
    ) -> Result<Response<pb::Workspace>, Status> {
        let config = &self.0.config.workspaces;
        let renew = wire::check_renew_workspace(request.get_ref(), config)?;
        let caller = Caller::of(&request)?;
        let workspace = self.0.registry.get(&caller, &renew.id)?;
        let left = wire::tenant_lifetime_max(&caller, config)
            .saturating_sub(wire::workspace_age(&workspace.snapshot()));
        let remaining = renew.remaining.map(|remaining| remaining.min(left));
        workspace.renew(renew.idle, remaining).await?;
        Ok(Response::new(visible_message(&caller, &workspace)))
    }

    async fn delete_workspace(
        &self,
        request: Request<pb::DeleteWorkspaceRequest>,
    ) -> Result<Response<()>, Status> {
        let caller = Caller::of(&request)?;
        let request = request.into_inner();
        let id = convert::parse_workspace_name("name", &request.name)?;
        match self.0.registry.get(&caller, &id) {
            Ok(workspace) => workspace.delete().await?,
            Err(Error::WorkspaceNotFound { .. }) if request.allow_missing => {}
            Err(error) => return Err(error.into()),
        }
        Ok(Response::new(()))
    }
}

/// Makes the message of a workspace, as far as the caller may see it.
pub(super) fn visible_message(caller: &Caller, workspace: &Workspace) -> pb::Workspace {
    let mut message = wire::workspace_message(&workspace.snapshot());
    restrict_workspace(caller.role(), &mut message);
    message
}
