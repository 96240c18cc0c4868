//! Workspaces: create, get, list, renew, delete.

use skilld_proto::v1::{
    CreateWorkspaceRequest, DeleteWorkspaceRequest, GetWorkspaceRequest, ListWorkspacesRequest,
    ListWorkspacesResponse, RenewWorkspaceRequest, Workspace,
};

use crate::names::{new_request_id, new_workspace_id, workspace_name};
use crate::{Client, Error};

impl Client {
    /// Claims a warm container. A name or `request_id` that is left out is chosen here, once for all attempts of
    /// this call.
    ///
    /// # Errors
    /// `ID_TAKEN` if there is a workspace of that name, unless `allow_existing` is set or the request repeats, with its
    /// `request_id`, the one that made it.
    pub async fn create_workspace(
        &self,
        mut request: CreateWorkspaceRequest,
    ) -> Result<Workspace, Error> {
        if request.name.is_empty() {
            request.name = new_workspace_id();
        }
        request.name = workspace_name(&request.name);
        if request.request_id.is_empty() {
            request.request_id = new_request_id();
        }
        self.retrying(|| {
            let (mut stub, request) = (self.workspaces(), request.clone());
            async move { stub.create_workspace(request).await }
        })
        .await
    }

    /// Returns a workspace, by id or name.
    pub async fn get_workspace(&self, name: &str) -> Result<Workspace, Error> {
        let request = GetWorkspaceRequest {
            name: workspace_name(name),
        };
        self.retrying(|| {
            let (mut stub, request) = (self.workspaces(), request.clone());
            async move { stub.get_workspace(request).await }
        })
        .await
    }

    /// One page of workspaces, in order of their names.
    pub async fn list_workspaces(
        &self,
        request: ListWorkspacesRequest,
    ) -> Result<ListWorkspacesResponse, Error> {
        self.retrying(|| {
            let (mut stub, request) = (self.workspaces(), request.clone());
            async move { stub.list_workspaces(request).await }
        })
        .await
    }

    /// Restarts the idle timeout and moves the end of life if asked.
    pub async fn renew_workspace(
        &self,
        mut request: RenewWorkspaceRequest,
    ) -> Result<Workspace, Error> {
        request.name = workspace_name(&request.name);
        self.retrying(|| {
            let (mut stub, request) = (self.workspaces(), request.clone());
            async move { stub.renew_workspace(request).await }
        })
        .await
    }

    /// Deletes a workspace with everything in it; NOT_FOUND if there is none.
    pub async fn delete_workspace(&self, name: &str) -> Result<(), Error> {
        self.delete(name, false).await
    }

    /// Deletes a workspace if it is there.
    pub async fn delete_workspace_if_exists(&self, name: &str) -> Result<(), Error> {
        self.delete(name, true).await
    }

    async fn delete(&self, name: &str, allow_missing: bool) -> Result<(), Error> {
        let request = DeleteWorkspaceRequest {
            name: workspace_name(name),
            allow_missing,
        };
        self.retrying(|| {
            let (mut stub, request) = (self.workspaces(), request.clone());
            async move { stub.delete_workspace(request).await }
        })
        .await
    }
}
