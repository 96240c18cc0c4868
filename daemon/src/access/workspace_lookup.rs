//! Lookup of the workspace to which a token is bound. The workspaces belong to a module above this one.

use std::fmt;
use std::sync::OnceLock;

use super::principal::{BoundWorkspace, Principal};
use super::tenant_name::TenantName;
use crate::error::{Error, Result};

type LookupFunction = Box<dyn Fn(&TenantName, &BoundWorkspace) -> bool + Send + Sync>;

/// Function that finds the workspaces of tokens, once it is set.
#[derive(Default)]
pub(super) struct WorkspaceLookup(pub(super) OnceLock<LookupFunction>);

impl fmt::Debug for WorkspaceLookup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WorkspaceLookup")
    }
}

impl WorkspaceLookup {
    /// Checks that the workspace of a principal's token exists. Costs nothing for principals of other kinds.
    ///
    /// # Errors
    /// [`Error::Unauthenticated`].
    pub(super) fn check(&self, principal: &Principal) -> Result<()> {
        let (Some(bound), Some(exists)) = (&principal.workspace, self.0.get()) else {
            return Ok(());
        };
        if exists(&principal.tenant, bound) {
            return Ok(());
        }
        Err(Error::Unauthenticated {
            why: format!("workspaces/{} has ended, and with it its token", bound.id),
        })
    }
}
