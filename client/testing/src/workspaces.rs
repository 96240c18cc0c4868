//! WorkspaceService, ServerService and AdminService of the fake daemon, as far as tests call them.

use std::time::Duration;

use skilld_client::v1::admin_service_server::AdminService;
use skilld_client::v1::server_service_server::ServerService;
use skilld_client::v1::workspace_service_server::WorkspaceService;
use skilld_client::v1::*;
use tonic::{Code, Request, Response, Status};
use tonic_types::StatusExt;

use super::{FakeServices, State, error_details, refusal, unimplemented};

impl State {
    /// Ends a workspace, which is closing from then on if the test wants to see that, else gone.
    pub(super) fn close_workspace(&mut self, name: &str) {
        if !self.keeps_closing {
            self.workspaces.remove(name);
        } else if let Some(workspace) = self.workspaces.get_mut(name) {
            workspace.state = WorkspaceState::Closing.into();
        }
    }

    /// Checks that commands of a workspace can be reached.
    pub(super) fn check_ready(&self, workspace: &str) -> Result<(), Status> {
        match self.workspaces.get(workspace) {
            Some(found) if found.state() == WorkspaceState::Closing => Err(refusal(
                Code::FailedPrecondition,
                "WORKSPACE_NOT_READY",
                &[],
            )),
            Some(_) | None => Ok(()),
        }
    }
}

#[tonic::async_trait]
impl WorkspaceService for FakeServices {
    async fn create_workspace(
        &self,
        request: Request<CreateWorkspaceRequest>,
    ) -> Result<Response<Workspace>, Status> {
        let request = request.into_inner();
        if request.pool == "pools/full" {
            let mut details = error_details("POOL_EXHAUSTED", &[]);
            details.set_retry_info(Some(Duration::from_secs(3)));
            return Err(Status::with_error_details(
                Code::ResourceExhausted,
                "no warm container",
                details,
            ));
        }
        let name = format!("workspaces/{}", request.workspace_id);
        if !request.allow_existing && self.lock().workspaces.contains_key(&name) {
            let mut details = error_details("ID_TAKEN", &[]);
            details.set_resource_info("skilld.dev/Workspace", &name, "", "it exists");
            let message = format!("{name} exists already");
            return Err(Status::with_error_details(
                Code::AlreadyExists,
                message,
                details,
            ));
        }
        let workspace = Workspace {
            name: name.clone(),
            limits: request.limits,
            pool: request.pool,
            labels: request.labels,
            env: request.env,
            state: WorkspaceState::Ready.into(),
            ..Default::default()
        };
        self.lock().workspaces.insert(name, workspace.clone());
        Ok(Response::new(workspace))
    }

    async fn update_workspace(
        &self,
        request: Request<UpdateWorkspaceRequest>,
    ) -> Result<Response<Workspace>, Status> {
        let wanted = request.into_inner().workspace.unwrap_or_default();
        let mut state = self.lock();
        let missing = || refusal(Code::NotFound, "WORKSPACE_NOT_FOUND", &[]);
        let known = state.workspaces.get_mut(&wanted.name).ok_or_else(missing)?;
        known.labels = wanted.labels;
        Ok(Response::new(known.clone()))
    }

    async fn get_workspace(
        &self,
        request: Request<GetWorkspaceRequest>,
    ) -> Result<Response<Workspace>, Status> {
        let state = self.lock();
        let workspace = state.workspaces.get(&request.into_inner().name).cloned();
        let missing = || refusal(Code::NotFound, "WORKSPACE_NOT_FOUND", &[]);
        workspace.map(Response::new).ok_or_else(missing)
    }

    /// Two to a page.
    async fn list_workspaces(
        &self,
        request: Request<ListWorkspacesRequest>,
    ) -> Result<Response<ListWorkspacesResponse>, Status> {
        let after = request.into_inner().page_token;
        let state = self.lock();
        let mut rest = state
            .workspaces
            .values()
            .filter(|workspace| workspace.name > after);
        let workspaces: Vec<Workspace> = rest.by_ref().take(2).cloned().collect();
        let last = workspaces.last().map(|workspace| workspace.name.clone());
        let next_page_token = rest.next().and(last).unwrap_or_default();
        Ok(Response::new(ListWorkspacesResponse {
            workspaces,
            next_page_token,
        }))
    }

    async fn renew_workspace(
        &self,
        request: Request<RenewWorkspaceRequest>,
    ) -> Result<Response<Workspace>, Status> {
        let name = request.into_inner().name;
        self.get_workspace(Request::new(GetWorkspaceRequest { name }))
            .await
    }

    async fn delete_workspace(
        &self,
        request: Request<DeleteWorkspaceRequest>,
    ) -> Result<Response<()>, Status> {
        let request = request.into_inner();
        match self.lock().workspaces.remove(&request.name) {
            None if !request.allow_missing => {
                Err(refusal(Code::NotFound, "WORKSPACE_NOT_FOUND", &[]))
            }
            Some(_) | None => Ok(Response::new(())),
        }
    }
}

#[tonic::async_trait]
impl ServerService for FakeServices {
    async fn get_server_info(
        &self,
        _: Request<GetServerInfoRequest>,
    ) -> Result<Response<ServerInfo>, Status> {
        Ok(Response::new(ServerInfo {
            version: "0.1.0-fake".into(),
            limits: Some(ServerLimits {
                collect_files_max: 9999,
                ..Default::default()
            }),
            ..Default::default()
        }))
    }
}

#[tonic::async_trait]
impl AdminService for FakeServices {
    async fn list_pools(
        &self,
        _: Request<ListPoolsRequest>,
    ) -> Result<Response<ListPoolsResponse>, Status> {
        let pool = |name: &str, warm| Pool {
            name: format!("pools/{name}"),
            warm,
            warm_target: 4,
            ..Default::default()
        };
        Ok(Response::new(ListPoolsResponse {
            pools: vec![pool("default", 3), pool("a-much-longer-name", 4)],
            ..Default::default()
        }))
    }

    async fn get_pool(&self, _: Request<GetPoolRequest>) -> Result<Response<Pool>, Status> {
        unimplemented()
    }

    async fn resize_pool(
        &self,
        request: Request<ResizePoolRequest>,
    ) -> Result<Response<Pool>, Status> {
        let request = request.into_inner();
        Ok(Response::new(Pool {
            name: request.name,
            warm_target: request.warm_target.unwrap_or_default(),
            ..Default::default()
        }))
    }

    async fn check_image(
        &self,
        _: Request<CheckImageRequest>,
    ) -> Result<Response<CheckImageResponse>, Status> {
        Ok(Response::new(CheckImageResponse {
            usable: true,
            ..Default::default()
        }))
    }

    async fn drain(&self, _: Request<DrainRequest>) -> Result<Response<DrainResponse>, Status> {
        Ok(Response::new(DrainResponse {
            removed_workspace_count: 2,
            removed_container_count: 5,
        }))
    }

    async fn undrain(
        &self,
        _: Request<UndrainRequest>,
    ) -> Result<Response<UndrainResponse>, Status> {
        Ok(Response::new(UndrainResponse {}))
    }

    async fn list_problems(
        &self,
        _: Request<ListProblemsRequest>,
    ) -> Result<Response<ListProblemsResponse>, Status> {
        Ok(Response::new(ListProblemsResponse::default()))
    }
}
