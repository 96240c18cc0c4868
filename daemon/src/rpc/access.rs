//! AccessService: who the caller is, and tokens for one workspace.

use std::time::SystemTime;

use skilld_common::unix_time::from_unix_ms;
use skilld_proto::v1 as pb;
use skilld_proto::v1::access_service_server::AccessService;
use tonic::{Request, Response, Status};

use super::SharedDependencies;
use super::convert::access as wire;
use crate::access::{BoundWorkspace, Caller};
use crate::audit::CreatedResource;
use crate::error::Error;

/// Implementation of AccessService.
#[derive(Debug, Clone)]
pub struct AccessRpc(pub SharedDependencies);

#[tonic::async_trait]
impl AccessService for AccessRpc {
    async fn get_principal(
        &self,
        request: Request<pb::GetPrincipalRequest>,
    ) -> Result<Response<pb::Principal>, Status> {
        let caller = Caller::of(&request)?;
        Ok(Response::new(wire::principal_message(caller.principal())))
    }

    async fn create_workspace_token(
        &self,
        request: Request<pb::CreateWorkspaceTokenRequest>,
    ) -> Result<Response<pb::WorkspaceToken>, Status> {
        let caller = Caller::of(&request)?;
        caller.require_whole_tenant()?;
        let wire::TokenRequest {
            workspace: id,
            role,
            lifetime,
            request_id,
        } = wire::check_create_workspace_token(request.get_ref())?;
        let workspace = self.0.registry.get(&caller, &id)?;
        let view = workspace.snapshot();
        let claim = view
            .record
            .claim
            .as_ref()
            .ok_or_else(|| Error::WorkspaceNotFound { name: id.name() })?;
        let bound = BoundWorkspace {
            id: id.as_str().to_owned(),
            create_time_ms: claim.create_time_ms,
        };
        let expires = (SystemTime::now() + lifetime).min(from_unix_ms(claim.end_time_ms));
        let minted = self
            .0
            .access
            .mint_workspace_token(&caller, bound, role, expires, request_id)?;
        let (token, principal) = minted;
        tracing::info!(
            workspace_id = %id, tenant = %caller.tenant(), principal = caller.principal().id, token_id = principal.id,
            "created a token for a workspace"
        );
        let answer = Response::new(pb::WorkspaceToken {
            token,
            principal: Some(wire::principal_message(&principal)),
        });
        let name = format!("{}/tokens/{}", id.name(), principal.id);
        Ok(CreatedResource::attach(name, answer))
    }
}
