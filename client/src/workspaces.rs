//! Workspaces: create, get, list, renew, delete.

use skilld_proto::v1::workspace_service_client::WorkspaceServiceClient;
use skilld_proto::v1::{
    CreateWorkspaceRequest, DeleteWorkspaceRequest, GetWorkspaceRequest, ListWorkspacesRequest,
    ListWorkspacesResponse, RenewWorkspaceRequest, Workspace,
};

use crate::resource_names::{new_request_id, new_workspace_id, workspace_name};
use crate::{Client, Error};

impl Client {
    /// Claims a warm container. The client chooses a name or `request_id` that is left out, once for all attempts of this
    /// call.
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
        self.retry_call(request, WorkspaceServiceClient::create_workspace)
            .await
    }

    /// Returns a workspace, by id or name.
    ///
    /// # Errors
    ///
    /// [`Error::Status`] if the daemon refuses the call or cannot be reached.
    pub async fn get_workspace(&self, name: &str) -> Result<Workspace, Error> {
        let request = GetWorkspaceRequest {
            name: workspace_name(name),
        };
        self.retry_call(request, WorkspaceServiceClient::get_workspace)
            .await
    }

    /// Returns one page of workspaces, in the order of their names.
    ///
    /// # Errors
    ///
    /// [`Error::Status`] if the daemon refuses the call or cannot be reached.
    pub async fn list_workspaces(
        &self,
        request: ListWorkspacesRequest,
    ) -> Result<ListWorkspacesResponse, Error> {
        self.retry_call(request, WorkspaceServiceClient::list_workspaces)
            .await
    }

    /// Restarts the idle timeout and moves the end of life if asked.
    ///
    /// # Errors
    ///
    /// [`Error::Status`] if the daemon refuses the call or cannot be reached.
    pub async fn renew_workspace(
        &self,
        mut request: RenewWorkspaceRequest,
    ) -> Result<Workspace, Error> {
        request.name = workspace_name(&request.name);
        self.retry_call(request, WorkspaceServiceClient::renew_workspace)
            .await
    }

    /// Deletes a workspace with everything in it; fails if it does not exist.
    ///
    /// # Errors
    ///
    /// [`Error::Status`] if the daemon refuses the call or cannot be reached.
    pub async fn delete_workspace(&self, name: &str) -> Result<(), Error> {
        self.delete(name, false).await
    }

    /// Deletes a workspace with everything in it, if it exists.
    ///
    /// # Errors
    ///
    /// [`Error::Status`] if the daemon refuses the call or cannot be reached.
    pub async fn delete_workspace_if_exists(&self, name: &str) -> Result<(), Error> {
        self.delete(name, true).await
    }

    async fn delete(&self, name: &str, allow_missing: bool) -> Result<(), Error> {
        let request = DeleteWorkspaceRequest {
            name: workspace_name(name),
            allow_missing,
        };
        self.retry_call(request, WorkspaceServiceClient::delete_workspace)
            .await
    }
}
