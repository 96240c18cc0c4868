//! Access control: turns the credentials of a call into its caller, or refuses the call.
//!
//! ```text
//! credentials   authorization header, else client certificate, else user of the host
//!      ↓ one authenticator, chosen by the form of the credential
//! Principal     id, tenant, role, expiry
//!      ↓ tenant is configured, credential has not expired, role suffices
//! Caller        principal, and the tenant whose objects the request means
//! ```
//!
//! A credential in the header decides alone: a wrong one never falls back to the identity of the connection. Without the
//! section `[auth]` every caller has all roles in the tenant `default`.

use std::sync::Arc;
use std::time::SystemTime;

use tokio_util::sync::CancellationToken;

use crate::config::Config;
pub use crate::config::Role;
use crate::error::{Error, Result};
use crate::metrics::Metrics;

mod authenticators;
mod call_credentials;
mod caller;
mod certificate;
mod client_trust;
mod connection_peer;
mod decision;
mod held_counter;
mod open_streams;
mod principal;
mod protected_file;
mod rate_limits;
mod revocation_list;
mod run_policy;
mod secret_key_file;
mod tenant_limits;
mod tenant_name;
mod tenants_file;
mod tls_settings;
mod tokens_file;
mod watched_file;
mod web_token;
mod workspace_lookup;
mod workspace_token;

pub(crate) use call_credentials::TENANT_HEADER;
pub use call_credentials::{BearerToken, CallCredentials};
pub use caller::Caller;
pub(crate) use certificate::PeerCertificate;
pub use connection_peer::{ConnectionOwner, ConnectionPeer, PeerAddress};
pub use held_counter::{HeldCounter, HeldUnit};
pub use open_streams::StreamGuard;
pub use principal::{BoundWorkspace, CredentialKind, Principal};
pub(crate) use protected_file::{Secrecy, read_protected_file, read_protected_text};
pub use run_policy::{PROGRAM_BYTES_MAX, PROGRAMS_MAX, RunPolicy, is_program};
pub(crate) use secret_key_file::SecretKeyFile;
pub use skilld_skills::{DAEMON_HOLDER, TenantPermit, TenantPermits};
pub use tenant_limits::{RateLimit, TenantLimits};
pub use tenant_name::{DEFAULT_TENANT, TenantName};
pub(crate) use tls_settings::{HTTP1, HTTP2, TlsSettings, open_tls};
pub use watched_file::FileProblems;
pub(crate) use watched_file::WatchedFile;

use authenticators::Authenticators;
use open_streams::OpenStreams;
use rate_limits::{RateKind, RateLimits};
use tenants_file::TenantConfig;
use workspace_lookup::WorkspaceLookup;
pub(crate) use workspace_token::WorkspaceTokenKey;

/// Decides about every call.
#[derive(Debug)]
pub struct AccessControl {
    /// `None` if authentication is off.
    authenticators: Option<Authenticators>,
    /// Caller of every call while authentication is off.
    anonymous: Caller,
    /// Table of faulty versions of files.
    pub(crate) problems: FileProblems,
    streams: OpenStreams,
    connections: HeldCounter,
    /// Counter of running execs.
    pub(crate) execs: HeldCounter,
    rates: RateLimits,
    metrics: Arc<Metrics>,
    /// Empty until the workspaces are known, before which no call is served.
    workspace_lookup: WorkspaceLookup,
}

/// Access rule of a method.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MethodAccess {
    /// Needs no principal.
    Open,
    /// Needs at least this role.
    Role(Role),
    /// Is refused, because its definition has no rule.
    Undeclared,
}

impl AccessControl {
    /// Loads all files. Authentications are counted in `metrics`. Blocks.
    ///
    /// # Errors
    /// [`Error`] for the first file that is faulty.
    pub fn open(config: &Config, metrics: Arc<Metrics>) -> Result<Self> {
        let problems = FileProblems::default();
        let authenticators = config
            .auth
            .as_ref()
            .map(|auth| Authenticators::open(auth, config, &problems))
            .transpose()?;
        let anonymous = Arc::new(Principal::unauthenticated());
        Ok(Self {
            authenticators,
            anonymous: Caller::new(
                anonymous,
                TenantName::default(),
                Some(TenantConfig::default()),
            ),
            problems,
            streams: OpenStreams::default(),
            connections: HeldCounter::new("connections"),
            execs: HeldCounter::new("execs"),
            rates: RateLimits::default(),
            metrics,
            workspace_lookup: WorkspaceLookup::default(),
        })
    }

    /// Checks that [`Self::open`] would succeed, and changes nothing. Blocks.
    ///
    /// # Errors
    /// Those of [`Self::open`].
    pub fn check(config: &Config) -> Result<()> {
        let auth = config.auth.as_ref();
        auth.map_or(Ok(()), |auth| Authenticators::check(auth, config))
    }

    /// Sets the function that returns `true` while the workspace of a token exists. Later calls change nothing.
    pub fn set_workspace_lookup(
        &self,
        exists: impl Fn(&TenantName, &BoundWorkspace) -> bool + Send + Sync + 'static,
    ) {
        drop(self.workspace_lookup.0.set(Box::new(exists)));
    }

    /// Returns `true` if callers are authenticated, so that there may be several tenants.
    pub fn is_on(&self) -> bool {
        self.authenticators.is_some()
    }

    /// Counts a call against the rate of its principal's own tenant, also if the call means another tenant or is not
    /// permitted.
    ///
    /// # Errors
    /// [`Error::TenantQuota`].
    pub fn count_request(&self, principal: &Principal) -> Result<()> {
        let tenant = &principal.tenant;
        let rate = self.limits(tenant).and_then(|limits| limits.requests);
        self.check_rate(tenant, RateKind::Requests, rate, "requests_per_second")
    }

    /// Counts a CreateWorkspace against its tenant's rate.
    ///
    /// # Errors
    /// [`Error::TenantQuota`].
    pub fn count_create(&self, caller: &Caller) -> Result<()> {
        let rate = caller.limits().creates;
        self.check_rate(
            caller.tenant(),
            RateKind::Creates,
            rate,
            "workspace_creates_per_minute",
        )
    }

    fn check_rate(
        &self,
        tenant: &TenantName,
        kind: RateKind,
        rate: Option<RateLimit>,
        resource: &'static str,
    ) -> Result<()> {
        let Some(rate) = rate else {
            return Ok(());
        };
        let checked = self.rates.check(tenant, kind, rate);
        checked.map_err(|wait| Error::TenantQuota {
            tenant: tenant.to_string(),
            resource,
            used: u64::from(rate.count.get()),
            limit: u64::from(rate.count.get()),
            retry_after: Some(wait),
        })
    }

    /// Registers a stream, which ends when its credentials are no longer valid. If it can't end, because its client
    /// does not read, `connection` is cancelled. Returns `None` if authentication is off.
    ///
    /// # Errors
    /// [`Error::TenantQuota`] if the tenant has as many open streams as it may have.
    pub fn open_stream(
        &self,
        caller: &Caller,
        call: CallCredentials,
        required: Role,
        connection: Option<CancellationToken>,
    ) -> Result<Option<StreamGuard>> {
        if self.authenticators.is_none() {
            return Ok(None);
        }
        self.streams
            .add(caller, call, required, connection)
            .map(Some)
    }

    /// Returns the number of a tenant's open streams.
    pub fn open_streams(&self, tenant: &TenantName) -> u64 {
        self.streams.count(tenant)
    }

    /// Reserves a connection for the tenant of a principal that called on it.
    ///
    /// # Errors
    /// [`Error::TenantQuota`] if the tenant has as many open connections as it may have.
    pub fn take_connection(&self, principal: &Principal) -> Result<HeldUnit> {
        let tenants = self.authenticators.as_ref().map(|it| it.tenants.current());
        let config = tenants.as_ref().and_then(|it| it.tenant(&principal.tenant));
        let limit = config.and_then(|config| config.limits.connections);
        self.connections.take(&principal.tenant, limit)
    }

    /// Returns the number of a tenant's open connections.
    pub fn open_connections(&self, tenant: &TenantName) -> u64 {
        self.connections.count(tenant)
    }

    /// Returns the configured tenants with their quotas, sorted by name; none while authentication is off.
    pub fn tenants(&self) -> Vec<(TenantName, Arc<TenantLimits>)> {
        let authenticators = self.authenticators.iter();
        let tenants = authenticators.flat_map(|it| it.tenants.current().list());
        tenants.collect()
    }

    /// Returns the quotas of a tenant as they are now; `None` if it is not configured.
    pub fn limits(&self, tenant: &TenantName) -> Option<Arc<TenantLimits>> {
        let tenants = self.authenticators.as_ref()?.tenants.current();
        Some(Arc::clone(&tenants.tenant(tenant)?.limits))
    }

    /// Loads files that have changed. Blocks.
    pub fn reload_changed_files(&self) {
        if let Some(authenticators) = &self.authenticators {
            authenticators.reload_changed_files();
        }
    }

    /// Ends the streams whose credentials have expired or are revoked.
    pub fn end_invalid_streams(&self) {
        let is_valid = |call: &_, role, tenant: &_| self.is_valid(call, role, tenant);
        let ended = self.streams.end_invalid(is_valid);
        if ended > 0 {
            tracing::info!(
                streams = ended,
                "ended streams whose credentials expired or were revoked"
            );
        }
    }

    /// Makes a token for one workspace, and the principal for which it stands. The token expires at `expires`, in whole
    /// seconds. Calls with the same `request_id` make tokens of one principal.
    ///
    /// # Errors
    /// [`Error::AuthenticationOff`].
    pub fn mint_workspace_token(
        &self,
        caller: &Caller,
        workspace: BoundWorkspace,
        role: Role,
        expires: SystemTime,
        request_id: Option<&str>,
    ) -> Result<(String, Principal)> {
        let authenticators = self.authenticators.as_ref();
        let key = &authenticators
            .ok_or(Error::AuthenticationOff)?
            .workspace_tokens;
        let id = match request_id {
            None => uuid::Uuid::now_v7().simple().to_string(),
            Some(request_id) => key.principal_id(caller.tenant(), &workspace, request_id),
        };
        let principal = Principal {
            id,
            tenant: caller.tenant().clone(),
            role,
            workspace: Some(workspace),
            via: CredentialKind::WorkspaceToken,
            expires: Some(workspace_token::whole_seconds(expires)),
        };
        Ok((key.mint(&principal), principal))
    }
}
