//! `skillctl whoami` and `skillctl workspace token`: shows who the caller is, and creates tokens for one workspace.

use clap::{Args, ValueEnum};
use skilld_client::v1::CredentialKind;
use skilld_client::v1::{CreateWorkspaceTokenRequest, Principal, PrincipalRole};
use skilld_client::{Client, workspace_name};

use crate::output::{self, value_formats};

/// Create a token with which an agent can use one workspace and nothing else.
///
/// The daemon does not store the token, so it can't be revoked. It ends with its lifetime, or with its workspace if
/// that ends first.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  skillctl workspace token job-7 --lifetime 1h")]
pub(crate) struct WorkspaceToken {
    /// Id of the workspace.
    id: String,
    /// Role of the token's bearer.
    #[arg(long, value_enum, default_value_t = WorkspaceTokenRole::User)]
    role: WorkspaceTokenRole,
    /// Time until the token expires, at most 7 days; 1 hour if left out.
    #[arg(long, value_name = "DURATION", value_parser = value_formats::parse_duration)]
    lifetime: Option<prost_types::Duration>,
}

/// Role that a workspace's token can have.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum WorkspaceTokenRole {
    Observer,
    User,
}

/// Prints who the caller is.
pub(crate) async fn print_caller(client: &Client) -> anyhow::Result<u8> {
    let principal = client.get_principal().await?;
    output::print_message(&principal, &principal_details(&principal))
}

impl WorkspaceToken {
    /// Creates the token and prints it to stdout, alone.
    pub(crate) async fn run(self, client: &Client) -> anyhow::Result<u8> {
        let role = match self.role {
            WorkspaceTokenRole::Observer => PrincipalRole::Observer,
            WorkspaceTokenRole::User => PrincipalRole::User,
        };
        let request = CreateWorkspaceTokenRequest {
            workspace: workspace_name(&self.id),
            role: role.into(),
            lifetime: self.lifetime,
            ..CreateWorkspaceTokenRequest::default()
        };
        let token = client.create_workspace_token(request).await?;
        let text = format!("{}\n", token.token);
        output::print_message(&token, &text)
    }
}

fn principal_details(principal: &Principal) -> String {
    let via = match principal.credential_kind() {
        CredentialKind::Unspecified => "unknown",
        CredentialKind::NotRequired => "nothing: the daemon does not authenticate callers",
        CredentialKind::Peer => "user of the host",
        CredentialKind::Certificate => "client certificate",
        CredentialKind::Token => "token",
        CredentialKind::Jwt => "JSON web token",
        CredentialKind::WorkspaceToken => "token for one workspace",
    };
    let role_name = principal.role().as_str_name();
    let role = role_name
        .strip_prefix("PRINCIPAL_ROLE_")
        .unwrap_or(role_name)
        .to_lowercase();
    let mut fields = vec![
        ("id", principal.id.clone()),
        ("tenant", principal.tenant.clone()),
        ("role", role),
        ("via", via.to_owned()),
    ];
    if !principal.workspace.is_empty() {
        fields.push(("workspace", principal.workspace.clone()));
    }
    if principal.expire_time.is_some() {
        let expires = value_formats::format_time(principal.expire_time.as_ref());
        fields.push(("expires", expires));
    }
    output::text_fields(&fields)
}
