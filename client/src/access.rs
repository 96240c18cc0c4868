//! Identity of the caller, tokens for one workspace, and usage of tenants.

use skilld_proto::v1::access_service_client::AccessServiceClient;
use skilld_proto::v1::tenant_service_client::TenantServiceClient;
use skilld_proto::v1::{
    CreateWorkspaceTokenRequest, GetPrincipalRequest, GetTenantUsageRequest,
    ListTenantUsagesRequest, ListTenantUsagesResponse, Principal, TenantUsage, WorkspaceToken,
};

use crate::Error;
use crate::client::retried_calls;

retried_calls! { AccessServiceClient:
    /// Returns who the server takes the caller for.
    get_principal() -> Principal = GetPrincipalRequest {};

    /// Creates a token with which its bearer can use one workspace and nothing else.
    create_workspace_token(request: CreateWorkspaceTokenRequest) -> WorkspaceToken = request;
}

retried_calls! { TenantServiceClient:
    /// Returns what the caller's tenant holds, and its quotas.
    get_tenant_usage() -> TenantUsage = GetTenantUsageRequest {};

    /// Returns one page of what the configured tenants hold, in the order of their names; requires the role admin.
    list_tenant_usages(request: ListTenantUsagesRequest) -> ListTenantUsagesResponse = request;
}
