//! AccessService and TenantService of the fake daemon: one principal, one tenant.

use skilld_client::v1::access_service_server::AccessService;
use skilld_client::v1::tenant_service_server::TenantService;
use skilld_client::v1::*;
use tonic::{Request, Response, Status};

use super::FakeServices;

fn usage() -> TenantUsage {
    TenantUsage {
        tenant: "a".into(),
        ..Default::default()
    }
}

#[tonic::async_trait]
impl AccessService for FakeServices {
    async fn get_principal(
        &self,
        _: Request<GetPrincipalRequest>,
    ) -> Result<Response<Principal>, Status> {
        Ok(Response::new(Principal::default()))
    }

    async fn create_workspace_token(
        &self,
        _: Request<CreateWorkspaceTokenRequest>,
    ) -> Result<Response<WorkspaceToken>, Status> {
        Ok(Response::new(WorkspaceToken::default()))
    }
}

#[tonic::async_trait]
impl TenantService for FakeServices {
    async fn get_tenant_usage(
        &self,
        _: Request<GetTenantUsageRequest>,
    ) -> Result<Response<TenantUsage>, Status> {
        Ok(Response::new(usage()))
    }

    async fn list_tenant_usages(
        &self,
        _: Request<ListTenantUsagesRequest>,
    ) -> Result<Response<ListTenantUsagesResponse>, Status> {
        Ok(Response::new(ListTenantUsagesResponse {
            tenant_usages: vec![usage()],
            ..Default::default()
        }))
    }
}
