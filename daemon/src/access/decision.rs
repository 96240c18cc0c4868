//! Decisions about calls: who calls, and whether this principal may. Each call is counted once.

use std::sync::Arc;

use tonic::Code;

use super::AccessControl;
use super::call_credentials::{CallCredentials, TENANT_HEADER};
use super::caller::Caller;
use super::connection_peer::PeerAddress;
use super::principal::{CredentialKind, Principal};
use super::tenant_name::TenantName;
use super::tokens_file::TOKEN_PREFIX;
use super::workspace_token::WORKSPACE_TOKEN_PREFIX;
use crate::config::{Authenticator, Role};
use crate::error::{Error, Result};

/// Maximum number of tenants that an error names.
const TENANTS_NAMED_MAX: usize = 10;

impl AccessControl {
    /// Returns who makes a call. [`Self::authorize`] follows.
    ///
    /// # Errors
    /// [`Error::Unauthenticated`] without a valid credential.
    pub fn authenticate(&self, call: &CallCredentials) -> Result<Arc<Principal>> {
        self.find_principal(call)
            .inspect_err(|error| self.count_failure(presented_kind(call), error))
    }

    /// Permits a principal to make a call.
    ///
    /// # Errors
    /// [`Error::Unauthenticated`] if the credential has expired, its tenant is not configured or its workspace has ended,
    /// [`Error::PermissionDenied`] if its role does not suffice.
    pub fn authorize(
        &self,
        call: &CallCredentials,
        principal: Arc<Principal>,
        required: Role,
    ) -> Result<Caller> {
        let via = principal.via;
        self.find_caller(call, principal, required)
            .and_then(|caller| {
                self.workspace_lookup.check(caller.principal())?;
                Ok(caller)
            })
            .inspect(|_| self.metrics.count_authentication(via.as_str(), "ok"))
            .inspect_err(|error| self.count_failure(via, error))
    }

    /// Checks that a call which changes something means a configured tenant: a misspelt one has no quotas.
    ///
    /// # Errors
    /// [`Error::Invalid`] that names tenants which exist.
    pub fn require_configured_tenant(&self, caller: &Caller) -> Result<()> {
        if caller.is_tenant_configured {
            return Ok(());
        }
        let tenants = self.tenants();
        let names = tenants.iter().map(|(name, _)| name.as_str());
        let mut known: Vec<&str> = names.take(TENANTS_NAMED_MAX).collect();
        if tenants.len() > known.len() {
            known.push("…");
        }
        let tenant = caller.tenant();
        Err(Error::invalid(
            TENANT_HEADER,
            format!(
                "tenant {tenant} is not configured, so only reads and deletions are possible in it: name one of {}, or \
                 add [tenants.{tenant}] to auth.tenants_file",
                known.join(", ")
            ),
        ))
    }

    /// Returns `true` if a stream's credentials still permit it for `tenant`. Does not count as a call.
    pub(super) fn is_valid(
        &self,
        call: &CallCredentials,
        required: Role,
        tenant: &TenantName,
    ) -> bool {
        let principal = self.find_principal(call);
        let caller = principal.and_then(|principal| self.find_caller(call, principal, required));
        // The credential may have moved to another tenant.
        caller.is_ok_and(|caller| {
            caller.tenant() == tenant && self.workspace_lookup.check(caller.principal()).is_ok()
        })
    }

    fn find_principal(&self, call: &CallCredentials) -> Result<Arc<Principal>> {
        match &self.authenticators {
            None => Ok(Arc::clone(&self.anonymous.principal)),
            Some(authenticators) => authenticators.authenticate(call),
        }
    }

    fn find_caller(
        &self,
        call: &CallCredentials,
        principal: Arc<Principal>,
        required: Role,
    ) -> Result<Caller> {
        match &self.authenticators {
            None => Ok(self.anonymous.clone()),
            Some(authenticators) => authenticators.authorize(call, principal, required),
        }
    }

    fn count_failure(&self, via: CredentialKind, error: &Error) {
        let result = failure_name(error.kind().0);
        self.metrics.count_authentication(via.as_str(), result);
    }
}

fn failure_name(code: Code) -> &'static str {
    if code == Code::Unauthenticated {
        "unauthenticated"
    } else if code == Code::PermissionDenied {
        "permission_denied"
    } else {
        "invalid"
    }
}

/// Returns the kind of the credential that decided, by its form: [`CredentialKind::None`] if the header is malformed, or
/// without any.
fn presented_kind(call: &CallCredentials) -> CredentialKind {
    let peer = call.peer.as_deref();
    let accepts = |kind| peer.is_some_and(|peer| peer.authenticators.contains(&kind));
    match call.bearer() {
        Err(_) => CredentialKind::None,
        Ok(Some(bearer)) if bearer.as_str().starts_with(WORKSPACE_TOKEN_PREFIX) => {
            CredentialKind::WorkspaceToken
        }
        Ok(Some(bearer)) if bearer.as_str().starts_with(TOKEN_PREFIX) => CredentialKind::Token,
        Ok(Some(_)) => CredentialKind::WebToken,
        Ok(None) => match peer.map(|peer| (peer.certificate.get(), peer.address)) {
            Some((Some(_), _)) if accepts(Authenticator::Mtls) => CredentialKind::Certificate,
            Some((_, PeerAddress::Unix { .. })) if accepts(Authenticator::Peer) => {
                CredentialKind::Peer
            }
            Some(_) | None => CredentialKind::None,
        },
    }
}
