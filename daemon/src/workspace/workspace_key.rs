//! Identity of a workspace: its id, which clients see, and its tenant, without which an id means nothing.

use std::fmt;

use crate::access::TenantName;

/// Id of a workspace, for which [`is_resource_id`](skilld_common::names::is_resource_id) is `true`. Two tenants may use
/// the same.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkspaceId(String);

/// Tenant and id of a workspace, ordered by tenant and then by id.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkspaceKey {
    pub(crate) tenant: TenantName,
    pub(crate) id: WorkspaceId,
}

impl WorkspaceId {
    /// Wraps a validated id.
    pub fn new(checked: String) -> Self {
        Self(checked)
    }

    /// Returns the id without `workspaces/`.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the resource name `workspaces/{workspace}`.
    pub fn name(&self) -> String {
        format!("workspaces/{}", self.0)
    }

    /// Returns the key of a tenant's workspace with this id.
    pub fn of_tenant(&self, tenant: &TenantName) -> WorkspaceKey {
        WorkspaceKey {
            tenant: tenant.clone(),
            id: self.clone(),
        }
    }
}

impl fmt::Display for WorkspaceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
