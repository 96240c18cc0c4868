//! Tokens for one workspace: what they open, and what they do not.

use skilld_proto::v1 as pb;
use tonic::{Code, Status};

use super::harness::{AccessServer, connect};
use super::streams::OpenStream;
use super::tenants::{Refusals, all_moves, attempt, claim, write_file};

#[tokio::test(flavor = "multi_thread")]
async fn a_workspace_token_opens_its_workspace_and_nothing_else() {
    let server = AccessServer::start().await;
    let admin = server.client("a", "tenant_admin").await;
    for id in ["own", "other"] {
        claim(&admin, id).await.expect("claimed");
    }
    let request = pb::CreateWorkspaceTokenRequest {
        workspace: "workspaces/own".to_owned(),
        ..Default::default()
    };
    let minted = admin.create_workspace_token(request).await.expect("minted");
    let agent = connect(&server.with_token(minted.token.clone())).await;
    let principal = agent.get_principal().await.expect("known");
    assert_eq!(
        (principal.workspace.as_str(), principal.role()),
        ("workspaces/own", pb::PrincipalRole::User)
    );
    assert!(principal.expire_time.is_some());
    write_file(&agent, "workspaces/own", "x").await;
    let listed = agent
        .list_workspaces(pb::ListWorkspacesRequest::default())
        .await
        .expect("listed");
    assert_eq!(listed.workspaces.len(), 1);
    let refusals = all_moves(&agent, "other").await;
    for (name, status) in refusals {
        let expected = matches!(status.code(), Code::NotFound | Code::PermissionDenied);
        assert!(expected, "{name}: {status}");
    }
    let refused = claim(&agent, "new").await.expect_err("it is bound");
    assert_eq!(refused.code(), Some(Code::PermissionDenied), "{refused}");
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_request_for_a_token_makes_no_further_principal() {
    let server = AccessServer::start().await;
    let admin = server.client("a", "tenant_admin").await;
    for id in ["own", "other"] {
        claim(&admin, id).await.expect("claimed");
    }
    let mint = async |workspace: &str, request_id: &str| {
        let request = pb::CreateWorkspaceTokenRequest {
            workspace: format!("workspaces/{workspace}"),
            request_id: request_id.to_owned(),
            ..Default::default()
        };
        let minted = admin.create_workspace_token(request).await?;
        let agent = connect(&server.with_token(minted.token)).await;
        agent.get_principal().await.map(|principal| principal.id)
    };
    let first = mint("own", "key-1").await.expect("minted");
    assert_eq!(mint("own", "key-1").await.expect("repeated"), first);
    for (workspace, request_id) in [("own", "key-2"), ("other", "key-1"), ("own", "")] {
        let other = mint(workspace, request_id).await.expect("minted");
        assert_ne!(other, first, "{workspace} {request_id}");
    }
    let random = mint("own", "").await.expect("minted");
    assert_ne!(mint("own", "").await.expect("minted"), random);
    let refused = mint("own", "\u{e9}").await.expect_err("not ASCII");
    assert_eq!(refused.code(), Some(Code::InvalidArgument));
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_workspace_token_ends_with_its_workspace() {
    let server = AccessServer::start().await;
    let admin = server.client("a", "tenant_admin").await;
    claim(&admin, "own").await.expect("claimed");
    let request = pb::CreateWorkspaceTokenRequest {
        workspace: "workspaces/own".to_owned(),
        ..Default::default()
    };
    let minted = admin.create_workspace_token(request).await.expect("minted");
    let agent = connect(&server.with_token(minted.token)).await;
    let list_skills = async || {
        let request = pb::ListSkillsRequest::default();
        agent.skills().list_skills(request).await.map(drop)
    };
    list_skills().await.expect("it reads skills");
    let mut stream = OpenStream::open(&agent).await;
    admin
        .delete_workspace("workspaces/own")
        .await
        .expect("deleted");
    let ended = stream.end().await;
    assert_eq!(ended.code(), Code::Unauthenticated, "{ended}");
    // A later workspace of the same name is another one.
    for is_recreated in [false, true] {
        if is_recreated {
            claim(&admin, "own").await.expect("claimed again");
        }
        let refused = list_skills().await.expect_err("its workspace has ended");
        assert_eq!(refused.code(), Code::Unauthenticated, "{refused}");
        let text = "workspaces/own has ended, and with it its token";
        assert!(refused.message().contains(text), "{refused}");
        let refused = agent.get_workspace("workspaces/own").await;
        let code = refused.expect_err("another workspace").code();
        assert_eq!(code, Some(Code::Unauthenticated));
    }
    drop(stream);
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_workspace_token_reaches_no_artifact_via_its_workspace() {
    let server = AccessServer::start().await;
    let admin = server.client("a", "tenant_admin").await;
    claim(&admin, "own").await.expect("claimed");
    let workspace = "workspaces/own".to_owned();
    let request = pb::CreateWorkspaceTokenRequest {
        workspace: workspace.clone(),
        ..Default::default()
    };
    let minted = admin.create_workspace_token(request).await.expect("minted");
    let agent = connect(&server.with_token(minted.token)).await;
    let input = |from: &str| pb::StageInputsRequest {
        workspace: workspace.clone(),
        inputs: vec![pb::InputSpec {
            content: Some(pb::input_spec::Content::Source(from.to_owned())),
            ..Default::default()
        }],
        ..Default::default()
    };
    let saving = pb::CollectSpec {
        globs: vec!["out/**".to_owned()],
        save_as_artifacts: Some(pb::SaveAsArtifacts::default()),
        ..Default::default()
    };
    let mut refusals = Refusals::new();
    attempt!(
        refusals,
        agent,
        files.stage_inputs(input("artifact://secret"))
    );
    attempt!(
        refusals,
        agent,
        files.collect_outputs(pb::CollectOutputsRequest {
            workspace,
            spec: Some(saving),
        })
    );
    assert_eq!(refusals.len(), 2);
    for (name, status) in refusals {
        assert_eq!(status.code(), Code::PermissionDenied, "{name}: {status}");
    }
    assert!(server.stop().await);
}
