//! AccessService and TenantService of the fake daemon: one principal, one tenant.

use skilld_client::v1::access_service_server::AccessService;
use skilld_client::v1::tenant_service_server::TenantService;
use skilld_client::v1::*;
use tonic::{Request, Response, Status};

use super::FakeServices;

fn principal() -> Principal {
    Principal {
        id: "somebody".into(),
        tenant: "a".into(),
        role: Role::Admin.into(),
        via: principal::Via::Token.into(),
        ..Default::default()
    }
}

fn usage() -> TenantUsage {
    let workspaces = ResourceUsage {
        resource: "workspaces".into(),
        used: 1,
        limit: Some(4),
    };
    let counters = UsageCounters {
        workspace_time: Some(prost_types::Duration {
            seconds: 5400,
            nanos: 0,
        }),
        memory_gib_seconds: 2700.0,
        cpu_time: Some(prost_types::Duration {
            seconds: 2,
            nanos: 500_000_000,
        }),
        execs: vec![
            ExecCount {
                reason: exec_result::Reason::Exited.into(),
                count: 3,
            },
            ExecCount {
                reason: exec_result::Reason::OomKilled.into(),
                count: 1,
            },
        ],
        bytes_in: 2048,
        bytes_out: 10,
        bytes_stored: 0,
    };
    TenantUsage {
        tenant: "a".into(),
        resources: vec![workspaces],
        start_time: Some(prost_types::Timestamp {
            seconds: 1_790_000_000,
            nanos: 0,
        }),
        since_start: Some(counters.clone()),
        days: vec![DailyUsage {
            date: "2026-09-21".into(),
            counters: Some(counters),
        }],
    }
}

#[tonic::async_trait]
impl AccessService for FakeServices {
    async fn get_principal(
        &self,
        _: Request<GetPrincipalRequest>,
    ) -> Result<Response<Principal>, Status> {
        Ok(Response::new(principal()))
    }

    async fn create_workspace_token(
        &self,
        request: Request<CreateWorkspaceTokenRequest>,
    ) -> Result<Response<WorkspaceToken>, Status> {
        let principal = Principal {
            workspace: request.into_inner().workspace,
            ..principal()
        };
        Ok(Response::new(WorkspaceToken {
            token: "secret".into(),
            principal: Some(principal),
        }))
    }
}

#[tonic::async_trait]
impl TenantService for FakeServices {
    async fn get_usage(
        &self,
        _: Request<GetUsageRequest>,
    ) -> Result<Response<TenantUsage>, Status> {
        Ok(Response::new(usage()))
    }

    async fn list_tenants(
        &self,
        _: Request<ListTenantsRequest>,
    ) -> Result<Response<ListTenantsResponse>, Status> {
        let tenants = vec![usage()];
        Ok(Response::new(ListTenantsResponse { tenants }))
    }
}
