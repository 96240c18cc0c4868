//! Caller of one request: its principal, and the tenant whose objects it means.

use std::collections::BTreeSet;
use std::sync::Arc;

use tonic::Request;

use super::principal::{CredentialKind, Principal};
use super::run_policy::RunPolicy;
use super::tenant_limits::TenantLimits;
use super::tenant_name::TenantName;
use super::tenants_file::TenantConfig;
use crate::config::Role;
use crate::error::{Error, Result};

/// Authorised caller of a request. The call layer stores it in the request's extensions.
#[derive(Debug, Clone)]
pub struct Caller {
    pub(super) principal: Arc<Principal>,
    tenant: TenantName,
    grants: TenantConfig,
    /// `true` if the tenant is configured. An admin may read and delete what another one has left.
    pub(super) is_tenant_configured: bool,
}

impl Caller {
    /// Makes a caller. `grants` is `None` if the tenant is not configured, which only an admin may mean.
    pub(super) fn new(
        principal: Arc<Principal>,
        tenant: TenantName,
        grants: Option<TenantConfig>,
    ) -> Self {
        Self {
            principal,
            tenant,
            is_tenant_configured: grants.is_some(),
            grants: grants.unwrap_or_default(),
        }
    }

    /// Returns the caller of a request.
    ///
    /// # Errors
    /// [`Error::Internal`] if the call layer did not authorise the request.
    pub fn of<T>(request: &Request<T>) -> Result<Self> {
        let caller = request.extensions().get::<Self>();
        caller
            .cloned()
            .ok_or_else(|| Error::Internal("a request was not authorised".into()))
    }

    /// Returns who calls.
    pub fn principal(&self) -> &Principal {
        &self.principal
    }

    /// Returns the tenant whose objects the request means.
    pub fn tenant(&self) -> &TenantName {
        &self.tenant
    }

    /// Returns the role of the caller.
    pub fn role(&self) -> Role {
        self.principal.role
    }

    /// Returns `true` if the caller's tenant may use a pool.
    pub fn may_use_pool(&self, pool: &str) -> bool {
        let pools = self.grants.pools.as_ref();
        pools.is_none_or(|pools| pools.contains(pool))
    }

    /// Returns the roots of skills that the caller's tenant may read, as configured; `None` means all.
    pub fn granted_roots(&self) -> Option<&Arc<BTreeSet<String>>> {
        self.grants.roots.as_ref()
    }

    /// Returns the quotas of the caller's tenant.
    pub fn limits(&self) -> &TenantLimits {
        &self.grants.limits
    }

    /// Returns the programs and variables of the tenant's execs.
    pub fn run_policy(&self) -> &RunPolicy {
        &self.grants.policy
    }

    /// Returns `true` unless authentication is off.
    pub fn is_authenticated(&self) -> bool {
        self.principal.via != CredentialKind::None
    }

    /// Checks that the caller is not limited to one workspace.
    ///
    /// # Errors
    /// [`Error::PermissionDenied`].
    pub fn require_whole_tenant(&self) -> Result<()> {
        match &self.principal.workspace {
            None => Ok(()),
            Some(bound) => Err(Error::PermissionDenied {
                why: format!(
                    "the token is for workspaces/{} only; this call needs a credential of the tenant",
                    bound.id
                ),
                required: None,
            }),
        }
    }
}
