//! Workspaces: create, get, list, label, renew, delete.

use std::collections::BTreeMap;

use prost_types::FieldMask;

use skilld_proto::v1::workspace_service_client::WorkspaceServiceClient;
use skilld_proto::v1::{
    CreateWorkspaceRequest, DeleteWorkspaceRequest, GetWorkspaceRequest, ListWorkspacesRequest,
    ListWorkspacesResponse, RenewWorkspaceRequest, UpdateWorkspaceRequest, Workspace,
};

use crate::client::retried_calls;
use crate::resource_names::{
    id_or_new, new_request_id, new_workspace_id, requested_pool, workspace_id, workspace_name,
};
use crate::{Client, Error};

retried_calls! { WorkspaceServiceClient:
    /// Claims a warm container. The client chooses an id or `request_id` that is left out, once for all attempts of
    /// this call. Fails with `ID_TAKEN` if a workspace of that name exists, unless `allow_existing` is set or the
    /// request repeats, with its `request_id`, the one that made it.
    create_workspace(request: CreateWorkspaceRequest) -> Workspace = CreateWorkspaceRequest {
        workspace_id: workspace_id(&id_or_new(request.workspace_id, new_workspace_id)),
        pool: requested_pool(&request.pool),
        request_id: id_or_new(request.request_id, new_request_id),
        ..request
    };

    /// Returns a workspace, by id or name.
    get_workspace(name: &str) -> Workspace = GetWorkspaceRequest { name: workspace_name(name) };

    /// Returns one page of workspaces, in the order of their names.
    list_workspaces(request: ListWorkspacesRequest) -> ListWorkspacesResponse = request;

    /// Replaces the labels of a workspace, by id or name.
    update_workspace(name: &str, labels: BTreeMap<String, String>) -> Workspace = UpdateWorkspaceRequest {
        workspace: Some(Workspace { name: workspace_name(name), labels, ..Workspace::default() }),
        update_mask: Some(FieldMask { paths: vec!["labels".to_owned()] }),
    };

    /// Restarts the idle timeout and moves the end of life if asked.
    renew_workspace(request: RenewWorkspaceRequest) -> Workspace = RenewWorkspaceRequest { name: workspace_name(&request.name), ..request };
}

impl Client {
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
