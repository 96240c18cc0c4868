//! Every rpc with every role and every kind of credential, read from the descriptors.

use bytes::Bytes;
use prost::Message;
use prost_types::FileDescriptorSet;
use skilld_client::{Client, ConnectOptions, Transport};
use skilld_proto::find_method;
use skilld_proto::v1::{CreateWorkspaceTokenRequest, FILE_DESCRIPTOR_SET, PrincipalRole};
use skilld_tests::authority::Validity;
use skilld_tests::web_tokens::claims;
use tonic::{Code, Status};

use super::harness::{AccessServer, ROLES, connect, token};
use super::tenants::claim;

/// Path of an rpc, and the number of the role that it requires.
type Method = (String, i32);

/// Returns all rpcs of the API, those that change the whole server last.
fn all_methods() -> Vec<Method> {
    let set = FileDescriptorSet::decode(FILE_DESCRIPTOR_SET).expect("decodes");
    let mut methods = Vec::new();
    for file in &set.file {
        for service in &file.service {
            for method in &service.method {
                let path = format!("/{}.{}/{}", file.package(), service.name(), method.name());
                let declared = find_method(&path);
                let role = declared
                    .unwrap_or_else(|| panic!("{path} declares no role"))
                    .required_role;
                methods.push((path, role.into()));
            }
        }
    }
    methods.sort_by_key(|(path, _)| path.ends_with("/Drain"));
    methods
}

/// Calls an rpc of any kind with an empty message and returns the code of its first answer.
pub(super) async fn call(channel: Transport, path: &str) -> Code {
    call_with(channel, path, ()).await
}

/// Calls an rpc of any kind with a message and returns the code of its first answer.
pub(super) async fn call_with<M: Message + 'static>(
    channel: Transport,
    path: &str,
    message: M,
) -> Code {
    let mut grpc = tonic::client::Grpc::new(channel);
    grpc.ready().await.expect("ready");
    let codec = tonic_prost::ProstCodec::<M, ()>::default();
    let path = http::uri::PathAndQuery::from_maybe_shared(Bytes::from(path.to_owned()));
    let requests = tonic::Request::new(futures::stream::iter([message]));
    let answer: Result<_, Status> = grpc.streaming(requests, path.expect("a path"), codec).await;
    let answer = match answer {
        Err(status) => return status.code(),
        Ok(answer) => answer,
    };
    match answer.into_inner().message().await {
        Ok(_) => Code::Ok,
        Err(status) => status.code(),
    }
}

/// Checks that a caller with the role of this number may call exactly what its role permits.
async fn check(client: &Client, number: usize, credential: &str) {
    for (path, required) in all_methods() {
        if path.ends_with("/Drain") && number == ROLES.len() {
            // It would end the server; `every_role_may_call_what_it_permits_by_token` calls it last.
            continue;
        }
        let code = call(client.channel(), &path).await;
        let is_allowed = i32::try_from(number).expect("small") >= required;
        assert_eq!(
            code == Code::PermissionDenied,
            !is_allowed,
            "{path} with role {number} by {credential}: {code:?}"
        );
        assert_ne!(code, Code::Unauthenticated, "{path} by {credential}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_role_may_call_what_it_permits_by_token() {
    let server = AccessServer::start().await;
    for (index, role) in ROLES.iter().enumerate() {
        check(&server.client("a", role).await, index + 1, "token").await;
    }
    let admin = server.client("b", "admin").await;
    let code = call(admin.channel(), "/skilld.v1.AdminService/Drain").await;
    assert_eq!(code, Code::Ok);
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_role_may_call_what_it_permits_by_certificate() {
    let server = AccessServer::start().await;
    for (index, role) in ROLES.iter().enumerate() {
        let name = format!("spiffe://test/b/{role}");
        let issued = server
            .authority
            .issue_client(role, &name, Validity::Valid, 10);
        let options = server.with_certificate(issued);
        check(&connect(&options).await, index + 1, "certificate").await;
    }
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_role_may_call_what_it_permits_by_web_token() {
    let server = AccessServer::start().await;
    for (index, role) in ROLES.iter().enumerate() {
        let token = server.issuer.sign("k1", &claims("a", role, 600));
        check(&connect(&server.with_token(token)).await, index + 1, "JWT").await;
    }
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_role_may_call_what_it_permits_by_user_of_the_host() {
    let server = AccessServer::start().await;
    // The file gives the user of this process the role admin.
    check(&connect(&server.unix()).await, ROLES.len(), "peer").await;
    // A token decides, not the user of the connection.
    for (index, role) in ROLES.iter().enumerate() {
        let options = ConnectOptions {
            token: server.with_token(token("a", role)).token,
            ..server.unix()
        };
        check(
            &connect(&options).await,
            index + 1,
            "token on a Unix socket",
        )
        .await;
    }
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn no_role_below_admin_reaches_another_tenant_by_any_rpc() {
    let server = AccessServer::start().await;
    for role in &ROLES[..4] {
        let options = ConnectOptions {
            tenant: Some("b".to_owned()),
            ..server.with_token(token("a", role))
        };
        let client = connect(&options).await;
        for (path, _) in all_methods() {
            let code = call(client.channel(), &path).await;
            assert_eq!(code, Code::PermissionDenied, "{path} as {role}");
        }
    }
    assert!(server.stop().await);
}

/// The rpcs that a token for one workspace may call. A new rpc is refused until it is named here.
const WITH_WORKSPACE_TOKEN: [&str; 32] = [
    "AccessService/GetPrincipal",
    "WorkspaceService/GetWorkspace",
    "WorkspaceService/ListWorkspaces",
    "WorkspaceService/UpdateWorkspace",
    "WorkspaceService/RenewWorkspace",
    "WorkspaceService/DeleteWorkspace",
    "SkillService/ListSkills",
    "SkillService/GetSkill",
    "SkillService/GetSkillMaterial",
    "SkillService/SearchSkills",
    "SkillService/ListSkillFiles",
    "SkillService/ReadSkillFile",
    "SkillService/PreflightSkill",
    "FileService/StageSkills",
    "FileService/StageInputs",
    "FileService/StageFiles",
    "FileService/ListFiles",
    "FileService/ReadFile",
    "FileService/CollectOutputs",
    "ExecService/RunExec",
    "ExecService/StartExec",
    "ExecService/AttachExec",
    "ExecService/PollExec",
    "ExecService/WriteStdin",
    "ExecService/StreamStdin",
    "ExecService/SignalExec",
    "ExecService/KillExec",
    "ExecService/ResizeTerminal",
    "ExecService/GetExec",
    "ExecService/ListExecs",
    "ExecService/DeleteExec",
    "ServerService/GetServerInfo",
];

#[tokio::test(flavor = "multi_thread")]
async fn a_workspace_token_may_call_only_the_listed_rpcs() {
    let server = AccessServer::start().await;
    let admin = server.client("a", "tenant_admin").await;
    claim(&admin, "own").await.expect("claimed");
    let request = CreateWorkspaceTokenRequest {
        workspace: "workspaces/own".to_owned(),
        ..Default::default()
    };
    let minted = admin.create_workspace_token(request).await.expect("minted");
    let agent = connect(&server.with_token(minted.token)).await;
    let mut allowed = Vec::new();
    for (path, _) in all_methods() {
        let code = call(agent.channel(), &path).await;
        assert_ne!(code, Code::Unauthenticated, "{path}");
        if code != Code::PermissionDenied {
            allowed.push(path.trim_start_matches("/skilld.v1.").to_owned());
        }
    }
    assert_eq!(allowed, WITH_WORKSPACE_TOKEN);
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn no_rpc_but_health_works_without_a_credential() {
    let server = AccessServer::start().await;
    let client = connect(&server.tls()).await;
    for (path, _) in all_methods() {
        let code = call(client.channel(), &path).await;
        assert_eq!(code, Code::Unauthenticated, "{path}");
    }
    for path in [
        "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
        "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
    ] {
        let code = call(client.channel(), path).await;
        assert_eq!(code, Code::Unauthenticated, "{path}");
        let observer = server.client("a", "observer").await;
        let code = call(observer.channel(), path).await;
        assert_ne!(code, Code::Unauthenticated, "{path}");
    }
    let code = call(client.channel(), "/grpc.health.v1.Health/Check").await;
    assert_eq!(code, Code::Ok);
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_web_token_has_at_most_the_highest_configured_role() {
    for (line, highest) in [
        ("", PrincipalRole::User),
        ("role_max = \"publisher\"\n", PrincipalRole::Publisher),
        ("role_max = \"admin\"\n", PrincipalRole::Admin),
    ] {
        let server = AccessServer::start_with_role_max(line).await;
        for (claimed, expected) in [("admin", highest), ("observer", PrincipalRole::Observer)] {
            let token = server.issuer.sign("k1", &claims("a", claimed, 600));
            let client = connect(&server.with_token(token)).await;
            let principal = client.get_principal().await.expect("known");
            assert_eq!(principal.role(), expected, "{line}");
        }
        assert!(server.stop().await);
    }
}
