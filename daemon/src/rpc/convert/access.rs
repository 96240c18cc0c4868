//! Conversion of AccessService's requests and answers.

use std::time::Duration;

use skilld_proto::v1 as pb;

use super::timestamp_message;
use super::violation_collector::ViolationCollector;
use crate::access::{CredentialKind, Principal, Role};
use crate::error::Result;
use crate::workspace::WorkspaceId;

/// Shortest lifetime of a workspace's token.
const LIFETIME_MIN: Duration = Duration::from_secs(1);
/// Longest lifetime of a workspace's token, because it cannot be revoked.
const LIFETIME_MAX: Duration = Duration::from_secs(7 * 24 * 60 * 60);
/// Lifetime of a workspace's token if the request sets none.
const LIFETIME_DEFAULT: Duration = Duration::from_secs(60 * 60);

/// Checked request for a workspace's token.
#[derive(Debug)]
pub struct TokenRequest<'a> {
    /// Workspace that the token opens.
    pub workspace: WorkspaceId,
    /// Role of the token's bearer.
    pub role: Role,
    /// Time until the token expires.
    pub lifetime: Duration,
    /// Idempotency key; `None` if the request has none.
    pub request_id: Option<&'a str>,
}

/// Checks a `CreateWorkspaceTokenRequest`.
///
/// # Errors
/// [`crate::error::Error::Invalid`] with every violation.
pub fn check_create_workspace_token(
    request: &pb::CreateWorkspaceTokenRequest,
) -> Result<TokenRequest<'_>> {
    let mut violations = ViolationCollector::default();
    let id = violations.workspace_name("workspace", &request.workspace);
    let role = match request.role {
        0 => Some(Role::User),
        number => Role::from_number(number).filter(|role| *role <= Role::User),
    };
    if role.is_none() {
        violations.add(
            "role",
            "must be PRINCIPAL_ROLE_USER or PRINCIPAL_ROLE_OBSERVER",
        );
    }
    let lifetime =
        violations.duration_within("lifetime", request.lifetime, LIFETIME_MIN, LIFETIME_MAX);
    violations.request_id("request_id", &request.request_id);
    let (workspace, role) = violations.finish_with(id.zip(role))?;
    let request_id = Some(request.request_id.as_str());
    Ok(TokenRequest {
        workspace,
        role,
        lifetime: lifetime.unwrap_or(LIFETIME_DEFAULT),
        request_id: request_id.filter(|id| !id.is_empty()),
    })
}

/// Makes the message of a principal.
pub fn principal_message(principal: &Principal) -> pb::Principal {
    use pb::CredentialKind as Kind;
    let kind = match principal.via {
        CredentialKind::None => Kind::NotRequired,
        CredentialKind::Peer => Kind::Peer,
        CredentialKind::Certificate => Kind::Certificate,
        CredentialKind::Token => Kind::Token,
        CredentialKind::WebToken => Kind::Jwt,
        CredentialKind::WorkspaceToken => Kind::WorkspaceToken,
    };
    let workspace = principal.workspace.as_ref();
    pb::Principal {
        id: principal.id.clone(),
        tenant: principal.tenant.to_string(),
        role: principal.role.message().into(),
        credential_kind: kind.into(),
        workspace: workspace
            .map(|bound| format!("workspaces/{}", bound.id))
            .unwrap_or_default(),
        expire_time: principal.expires.and_then(timestamp_message),
    }
}
