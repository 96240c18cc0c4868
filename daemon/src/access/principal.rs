//! Principal: who calls, for which tenant and with which role.

use std::time::SystemTime;

use super::tenant_name::TenantName;
use crate::config::Role;

/// Identity of a caller, as its credential yields it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Principal {
    /// Id, unique within its kind: a uid, a name of a certificate, a token's id or a JWT's subject.
    pub id: String,
    /// Tenant that the principal belongs to.
    pub tenant: TenantName,
    /// Highest role.
    pub role: Role,
    /// The only workspace that the principal can use; `None` without this limit.
    pub workspace: Option<BoundWorkspace>,
    /// Kind of the credential.
    pub via: CredentialKind,
    /// Time at which the credential expires; `None` if it does not.
    pub expires: Option<SystemTime>,
}

/// Workspace to which a token is bound.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BoundWorkspace {
    /// Id without `workspaces/`.
    pub id: String,
    /// Time of the workspace's creation in milliseconds since 1970, so that a later one of the same name is another.
    pub create_time_ms: u64,
}

/// Kind of a credential.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CredentialKind {
    /// No credential, because authentication is off.
    None,
    /// Credentials of a Unix socket's peer.
    Peer,
    /// Client certificate.
    Certificate,
    /// Token of the tokens file.
    Token,
    /// JSON web token.
    WebToken,
    /// Token for one workspace.
    WorkspaceToken,
}

impl Principal {
    /// Returns the principal of every caller while authentication is off.
    pub fn unauthenticated() -> Self {
        Self {
            id: "anonymous".to_owned(),
            tenant: TenantName::default(),
            role: Role::Admin,
            workspace: None,
            via: CredentialKind::None,
            expires: None,
        }
    }
}

impl CredentialKind {
    /// Returns the name in logs and the audit log.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Peer => "peer",
            Self::Certificate => "certificate",
            Self::Token => "token",
            Self::WebToken => "jwt",
            Self::WorkspaceToken => "workspace_token",
        }
    }
}
