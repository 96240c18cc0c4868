//! Sources of identities: turn a credential into its principal, and a principal into the caller of a request.

use std::sync::Arc;
use std::time::SystemTime;

use super::call_credentials::{BearerToken, CallCredentials};
use super::caller::Caller;
use super::connection_peer::PeerAddress;
use super::principal::{CredentialKind, Principal};
use super::tenants_file::{KnownNames, Membership, TenantsFile};
use super::tokens_file::{TOKEN_PREFIX, TokensFile};
use super::watched_file::{FileProblems, WatchedFile};
use super::web_token::WebTokenKeys;
use super::workspace_token::{WORKSPACE_TOKEN_PREFIX, WorkspaceTokenKey};
use crate::config::{AuthConfig, Authenticator, Config, Role, WebTokenConfig};
use crate::error::{Error, Result};

/// Sources of identities.
#[derive(Debug)]
pub(super) struct Authenticators {
    pub(super) tenants: WatchedFile<TenantsFile>,
    pub(super) tokens: Option<WatchedFile<TokensFile>>,
    pub(super) web_tokens: Option<(WebTokenConfig, WatchedFile<WebTokenKeys>)>,
    pub(super) workspace_tokens: WorkspaceTokenKey,
}

/// Files of `[auth]`: tenants, tokens, and the keys of an issuer.
type IdentityFiles = (
    WatchedFile<TenantsFile>,
    Option<WatchedFile<TokensFile>>,
    Option<(WebTokenConfig, WatchedFile<WebTokenKeys>)>,
);

impl Authenticators {
    pub(super) fn open(
        auth: &AuthConfig,
        config: &Config,
        problems: &FileProblems,
    ) -> Result<Self> {
        let (tenants, tokens, web_tokens) = Self::open_files(auth, config, problems)?;
        Ok(Self {
            tenants,
            tokens,
            web_tokens,
            workspace_tokens: WorkspaceTokenKey::open(&config.state_dir)?,
        })
    }

    /// Checks that [`Self::open`] would succeed, and changes nothing. Blocks.
    pub(super) fn check(auth: &AuthConfig, config: &Config) -> Result<()> {
        Self::open_files(auth, config, &FileProblems::default())?;
        WorkspaceTokenKey::check(&config.state_dir)
    }

    fn open_files(
        auth: &AuthConfig,
        config: &Config,
        problems: &FileProblems,
    ) -> Result<IdentityFiles> {
        let known = KnownNames::of(config);
        let path = auth.tenants_file.clone();
        let tenants = WatchedFile::open(
            "auth.tenants_file",
            vec![path.clone()],
            problems,
            move || TenantsFile::load(&path, &known),
        )?;
        let tokens = auth.tokens_file.clone().map(|path| {
            let paths = vec![path.clone()];
            WatchedFile::open("auth.tokens_file", paths, problems, move || {
                TokensFile::load(&path)
            })
        });
        let web_tokens = auth.jwt.clone().map(|jwt| {
            let (path, algorithm) = (jwt.jwks_file.clone(), jwt.algorithm);
            let paths = vec![path.clone()];
            let keys = WatchedFile::open("auth.jwt.jwks_file", paths, problems, move || {
                WebTokenKeys::load(&path, algorithm)
            });
            keys.map(|keys| (jwt, keys))
        });
        Ok((tenants, tokens.transpose()?, web_tokens.transpose()?))
    }

    pub(super) fn reload_changed_files(&self) {
        self.tenants.reload_if_changed();
        if let Some(tokens) = &self.tokens {
            tokens.reload_if_changed();
        }
        if let Some((_, keys)) = &self.web_tokens {
            keys.reload_if_changed();
        }
    }

    /// Returns the principal of a call's credentials.
    pub(super) fn authenticate(&self, call: &CallCredentials) -> Result<Arc<Principal>> {
        let peer = call.peer.as_deref();
        let accepts = |kind| peer.is_some_and(|peer| peer.authenticators.contains(&kind));
        if let Some(bearer) = call.bearer()? {
            return self.authenticate_bearer(&bearer, accepts);
        }
        let tenants = self.tenants.current();
        if let Some(certificate) = peer.and_then(|peer| peer.certificate.get())
            && accepts(Authenticator::Mtls)
        {
            let known = certificate
                .names
                .iter()
                .find_map(|name| Some((name, tenants.certificate(name)?)));
            let (name, member) = known.ok_or_else(|| {
                let names = certificate.names.iter().take(3).cloned();
                unauthenticated(format!(
                    "no tenant has a name of the client certificate ({})",
                    names.collect::<Vec<_>>().join(", ")
                ))
            })?;
            let (via, expires) = (CredentialKind::Certificate, Some(certificate.expires));
            return Ok(Arc::new(member_principal(
                name.clone(),
                member,
                via,
                expires,
            )));
        }
        if let Some(PeerAddress::Unix { uid, gid, .. }) = peer.map(|peer| peer.address)
            && accepts(Authenticator::Peer)
        {
            let member = tenants.peer(uid, gid).ok_or_else(|| {
                unauthenticated(format!(
                    "no tenant has the user with uid {uid} and gid {gid}"
                ))
            })?;
            let id = format!("uid:{uid}");
            return Ok(Arc::new(member_principal(
                id,
                member,
                CredentialKind::Peer,
                None,
            )));
        }
        Err(unauthenticated(describe_missing(accepts)))
    }

    fn authenticate_bearer(
        &self,
        bearer: &BearerToken<'_>,
        accepts: impl Fn(Authenticator) -> bool,
    ) -> Result<Arc<Principal>> {
        let token = bearer.as_str();
        if token.starts_with(WORKSPACE_TOKEN_PREFIX) {
            let principal = self.workspace_tokens.verify(token);
            return principal
                .map(Arc::new)
                .ok_or_else(|| unauthenticated("the workspace token is not of this server"));
        }
        if token.starts_with(TOKEN_PREFIX) {
            let tokens = self
                .tokens
                .as_ref()
                .filter(|_| accepts(Authenticator::Token))
                .ok_or_else(|| unauthenticated("this listener accepts no tokens"))?;
            let found = tokens.current().find(token);
            return found.ok_or_else(|| unauthenticated("the token is unknown or was revoked"));
        }
        let accepted = self
            .web_tokens
            .as_ref()
            .filter(|_| accepts(Authenticator::Jwt));
        let (config, keys) = accepted.ok_or_else(|| {
            unauthenticated(format!(
                "the authorization header has no token that this listener accepts; a token begins with {TOKEN_PREFIX}"
            ))
        })?;
        let principal = keys.current().verify(token, config, SystemTime::now());
        principal
            .map(Arc::new)
            .map_err(|why| unauthenticated(format!("the JSON web token {why}")))
    }

    /// Checks expiry, tenant and role of a principal, and finds the tenant that the request means.
    pub(super) fn authorize(
        &self,
        call: &CallCredentials,
        principal: Arc<Principal>,
        required: Role,
    ) -> Result<Caller> {
        if let Some(expires) = principal.expires
            && expires <= SystemTime::now()
        {
            let time = humantime::format_rfc3339_seconds(expires);
            return Err(unauthenticated(format!("the credential expired at {time}")));
        }
        let tenants = self.tenants.current();
        let Some(own) = tenants.tenant(&principal.tenant) else {
            return Err(unauthenticated(format!(
                "tenant {} is not configured on this server",
                principal.tenant
            )));
        };
        if principal.role < required {
            return Err(Error::PermissionDenied {
                why: format!(
                    "it needs the role {}; {} of tenant {} has {}",
                    required.as_str(),
                    principal.id,
                    principal.tenant,
                    principal.role.as_str()
                ),
                required: Some(required.as_str()),
            });
        }
        let (tenant, config) = match call.named_tenant()? {
            Some(named) if named != principal.tenant => {
                if principal.role < Role::Admin {
                    return Err(Error::PermissionDenied {
                        why: "calls in the name of another tenant need the role admin".to_owned(),
                        required: Some(Role::Admin.as_str()),
                    });
                }
                let config = tenants.tenant(&named).cloned();
                (named, config)
            }
            Some(_) | None => (principal.tenant.clone(), Some(own.clone())),
        };
        Ok(Caller::new(principal, tenant, config))
    }
}

fn member_principal(
    id: String,
    member: &Membership,
    via: CredentialKind,
    expires: Option<SystemTime>,
) -> Principal {
    Principal {
        id,
        tenant: member.tenant.clone(),
        role: member.role,
        workspace: None,
        via,
        expires,
    }
}

pub(super) fn unauthenticated(why: impl Into<String>) -> Error {
    Error::Unauthenticated { why: why.into() }
}

/// Describes which credential a call without any should have.
fn describe_missing(accepts: impl Fn(Authenticator) -> bool) -> String {
    let kinds = [
        (Authenticator::Mtls, "a client certificate"),
        (
            Authenticator::Token,
            "a token (authorization: Bearer skt_…)",
        ),
        (
            Authenticator::Jwt,
            "a JSON web token (authorization: Bearer …)",
        ),
    ];
    let accepted: Vec<&str> = kinds
        .into_iter()
        .filter(|(kind, _)| accepts(*kind))
        .map(|(_, name)| name)
        .collect();
    if accepted.is_empty() {
        return "the request has no credential".to_owned();
    }
    format!(
        "the request has no credential; this listener accepts {}",
        accepted.join(", ")
    )
}
