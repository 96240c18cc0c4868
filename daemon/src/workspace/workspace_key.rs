//! Identity of a workspace: its id, which clients see, and its tenant, without which an id means nothing.

use std::fmt;

use crate::access::TenantName;

/// Maximum length of an id, in bytes.
pub(super) const ID_BYTES_MAX: usize = 63;

/// Id of a workspace, for which [`is_id`] is `true`. Two tenants may use the same.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkspaceId(String);

/// Tenant and id of a workspace, ordered by tenant and then by id.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkspaceKey {
    pub(crate) tenant: TenantName,
    pub(crate) id: WorkspaceId,
}

/// Returns `true` for the id of a workspace or of an exec: `[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?`.
#[must_use]
pub fn is_id(text: &str) -> bool {
    let bytes = text.as_bytes();
    let edge = |byte: Option<&u8>| {
        byte.is_some_and(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
    };
    let inner = |byte: &u8| {
        byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'.' | b'_' | b'-')
    };
    bytes.len() <= ID_BYTES_MAX
        && edge(bytes.first())
        && edge(bytes.last())
        && bytes.iter().all(inner)
}

impl WorkspaceId {
    /// Wraps a validated id.
    #[must_use]
    pub fn new(checked: String) -> Self {
        Self(checked)
    }

    /// Returns the id without `workspaces/`.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the resource name `workspaces/{workspace}`.
    #[must_use]
    pub fn name(&self) -> String {
        format!("workspaces/{}", self.0)
    }

    /// Returns the key of a tenant's workspace with this id.
    #[must_use]
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
