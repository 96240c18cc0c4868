//! Skills as each tenant sees them.

use crate::access::{Caller, TenantName};
use crate::skills::{SkillScope, Skills};

/// Skills of all tenants. A request gets at them only as its caller sees them.
#[derive(Debug, Clone)]
pub struct SkillsByTenant {
    skills: Skills,
}

impl SkillsByTenant {
    /// Wraps the skills of the daemon.
    pub fn new(skills: Skills) -> Self {
        Self { skills }
    }

    /// Returns the skills that a caller sees.
    pub fn of(&self, caller: &Caller) -> Skills {
        if !caller.is_authenticated() {
            return self.skills.clone();
        }
        self.skills.in_scope(SkillScope::Tenant {
            name: caller.tenant().to_string(),
            roots: caller.granted_roots().cloned(),
        })
    }

    /// Returns the skills for work on a tenant's workspaces, which resolves no name of a request.
    pub fn working_for(&self, tenant: &TenantName) -> Skills {
        self.skills.working_for(tenant.as_str())
    }

    /// Returns the skills for work of the daemon itself, which resolves no name of a request.
    pub fn of_daemon(&self) -> &Skills {
        &self.skills
    }
}
