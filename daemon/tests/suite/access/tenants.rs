//! Two tenants side by side: what one has does not exist for the other.

use std::collections::BTreeMap;

use skilld_client::{Client, ConnectOptions};
use skilld_proto::v1 as pb;
use tonic::{Code, Status};
use tonic_types::StatusExt;

use super::harness::{AccessServer, ROLES, connect, token};

pub(crate) async fn claim(
    client: &Client,
    id: &str,
) -> Result<pb::Workspace, skilld_client::Error> {
    let request = pb::CreateWorkspaceRequest {
        workspace_id: id.to_owned(),
        ..pb::CreateWorkspaceRequest::default()
    };
    client.create_workspace(request).await
}

/// Writes a file into a workspace and returns nothing.
pub(crate) async fn write_file(client: &Client, workspace: &str, text: &str) {
    let request = pb::StartExecRequest {
        parent: workspace.to_owned(),
        exec_id: "write".to_owned(),
        spec: Some(pb::ExecSpec {
            shell: format!("printf '{text}' > out/file; sleep 3600"),
            ..pb::ExecSpec::default()
        }),
    };
    client.start_exec(request).await.expect("started");
}

/// Returns code, message and details of a status, without what differs between two calls.
fn shown(status: &Status) -> (Code, String, String) {
    let details = status.get_error_details();
    (
        status.code(),
        status.message().to_owned(),
        format!("{details:?}"),
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn one_id_in_two_tenants_is_two_workspaces() {
    let server = AccessServer::start().await;
    let (a, b) = (
        server.client("a", "user").await,
        server.client("b", "user").await,
    );
    let of_a = claim(&a, "w").await.expect("claimed");
    let of_b = claim(&b, "w").await.expect("claimed under the same id");
    assert_eq!((of_a.tenant.as_str(), of_b.tenant.as_str()), ("a", "b"));
    assert_eq!(
        (of_a.creator.as_str(), of_b.creator.as_str()),
        ("a-user", "b-user")
    );
    claim(&b, "only-b").await.expect("claimed");
    let list = async |client: &Client| {
        let listed = client
            .list_workspaces(pb::ListWorkspacesRequest::default())
            .await;
        let names = listed.expect("listed").workspaces.into_iter();
        names
            .map(|workspace| (workspace.tenant, workspace.name))
            .collect::<Vec<_>>()
    };
    let name = |tenant: &str, id: &str| (tenant.to_owned(), format!("workspaces/{id}"));
    assert_eq!(list(&a).await, [name("a", "w")]);
    assert_eq!(list(&b).await, [name("b", "only-b"), name("b", "w")]);
    write_file(&a, "workspaces/w", "secret of a").await;
    a.delete_workspace("workspaces/w").await.expect("deleted");
    assert_eq!(
        list(&b).await.len(),
        2,
        "the other tenant's workspace stays"
    );
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_of_another_tenant_is_answered_like_an_unknown_one() {
    let server = AccessServer::start().await;
    let (a, b) = (
        server.client("a", "tenant_admin").await,
        server.client("b", "tenant_admin").await,
    );
    claim(&a, "victim").await.expect("claimed");
    write_file(&a, "workspaces/victim", "secret of a").await;
    let moves = |id: &'static str| {
        let b = b.clone();
        async move { all_moves(&b, id).await }
    };
    let (foreign, unknown) = (moves("victim").await, moves("unknown").await);
    assert!(foreign.len() >= 20, "{} moves", foreign.len());
    for ((name, foreign), (_, unknown)) in foreign.iter().zip(&unknown) {
        let expected = shown(unknown);
        let (code, message, details) = shown(foreign);
        let renamed = |text: &str| text.replace("victim", "unknown");
        assert_eq!(
            (code, renamed(&message), renamed(&details)),
            expected,
            "{name}"
        );
        assert_eq!(code, Code::NotFound, "{name}: {message}");
    }
    // The victim did not notice anything.
    let exec = a
        .get_exec("workspaces/victim/execs/write")
        .await
        .expect("it runs");
    assert_eq!(exec.name, "workspaces/victim/execs/write");
    assert!(server.stop().await);
}

/// Calls an rpc and notes the status with which it is refused.
macro_rules! attempt {
    ($refusals:ident, $client:ident, $service:ident.$method:ident($request:expr)) => {
        let answer = $client.$service().$method($request).await;
        let refused = answer
            .err()
            .unwrap_or_else(|| Status::ok("it was answered"));
        $refusals.insert(stringify!($method), refused);
    };
}
pub(crate) use attempt;

/// Refusals by the name of the rpc.
pub(crate) type Refusals = BTreeMap<&'static str, Status>;

/// Tries to reach a workspace by every rpc that takes its name or the name of an exec in it.
pub(crate) async fn all_moves(client: &Client, id: &str) -> Refusals {
    let workspace = format!("workspaces/{id}");
    let exec = format!("{workspace}/execs/write");
    let mut refusals = Refusals::new();
    move_workspace(client, &workspace, &mut refusals).await;
    move_execs(client, &workspace, &exec, &mut refusals).await;
    move_running_execs(client, &workspace, &exec, &mut refusals).await;
    move_files_in(client, &workspace, &mut refusals).await;
    move_files_out(client, &workspace, &mut refusals).await;
    refusals
}

/// Tries to use, renew and delete the workspace.
async fn move_workspace(client: &Client, workspace: &str, refusals: &mut Refusals) {
    attempt!(
        refusals,
        client,
        workspaces.get_workspace(pb::GetWorkspaceRequest {
            name: workspace.to_owned()
        })
    );
    attempt!(
        refusals,
        client,
        workspaces.renew_workspace(pb::RenewWorkspaceRequest {
            name: workspace.to_owned(),
            ..Default::default()
        })
    );
    attempt!(
        refusals,
        client,
        workspaces.delete_workspace(pb::DeleteWorkspaceRequest {
            name: workspace.to_owned(),
            allow_missing: false
        })
    );
}

/// Tries to start commands and to reach one that runs.
async fn move_execs(client: &Client, workspace: &str, exec: &str, refusals: &mut Refusals) {
    let spec = || {
        Some(pb::ExecSpec {
            shell: "true".to_owned(),
            ..pb::ExecSpec::default()
        })
    };
    attempt!(
        refusals,
        client,
        execs.run_exec(pb::RunExecRequest {
            parent: workspace.to_owned(),
            spec: spec(),
            ..Default::default()
        })
    );
    attempt!(
        refusals,
        client,
        execs.start_exec(pb::StartExecRequest {
            parent: workspace.to_owned(),
            spec: spec(),
            ..Default::default()
        })
    );
    attempt!(
        refusals,
        client,
        execs.attach_exec(pb::AttachExecRequest {
            name: exec.to_owned(),
            ..Default::default()
        })
    );
    attempt!(
        refusals,
        client,
        execs.poll_exec(pb::PollExecRequest {
            name: exec.to_owned(),
            ..Default::default()
        })
    );
    attempt!(
        refusals,
        client,
        execs.write_stdin(pb::WriteStdinRequest {
            name: exec.to_owned(),
            data: "x".into(),
            ..Default::default()
        })
    );
    let header = pb::StreamStdinHeader {
        name: exec.to_owned(),
        offset: None,
    };
    let stdin = pb::StreamStdinRequest {
        header: Some(header),
        ..Default::default()
    };
    attempt!(
        refusals,
        client,
        execs.stream_stdin(futures::stream::iter([stdin]))
    );
}

/// Tries to control and to read commands.
async fn move_running_execs(client: &Client, workspace: &str, exec: &str, refusals: &mut Refusals) {
    attempt!(
        refusals,
        client,
        execs.signal_exec(pb::SignalExecRequest {
            name: exec.to_owned(),
            signal: 15,
            ..Default::default()
        })
    );
    attempt!(
        refusals,
        client,
        execs.kill_exec(pb::KillExecRequest {
            name: exec.to_owned(),
            ..Default::default()
        })
    );
    attempt!(
        refusals,
        client,
        execs.resize_terminal(pb::ResizeTerminalRequest {
            name: exec.to_owned(),
            rows: 24,
            cols: 80
        })
    );
    attempt!(
        refusals,
        client,
        execs.get_exec(pb::GetExecRequest {
            name: exec.to_owned()
        })
    );
    attempt!(
        refusals,
        client,
        execs.list_execs(pb::ListExecsRequest {
            parent: workspace.to_owned(),
            ..Default::default()
        })
    );
    attempt!(
        refusals,
        client,
        execs.delete_exec(pb::DeleteExecRequest {
            name: exec.to_owned(),
            allow_missing: false,
        })
    );
}

/// Tries to bring skills and files in, and to read files.
async fn move_files_in(client: &Client, workspace: &str, refusals: &mut Refusals) {
    let skill = pb::StageSkillsRequest {
        workspace: workspace.to_owned(),
        skills: vec!["skills/x".to_owned()],
        ..Default::default()
    };
    attempt!(refusals, client, files.stage_skills(skill));
    let input = pb::InputSpec {
        content: Some(pb::input_spec::Content::Source("artifact://x".to_owned())),
        ..Default::default()
    };
    let inputs = pb::StageInputsRequest {
        workspace: workspace.to_owned(),
        inputs: vec![input],
        ..Default::default()
    };
    attempt!(refusals, client, files.stage_inputs(inputs));
    let header = pb::stage_files_request::Payload::Header(pb::StageFilesHeader {
        workspace: workspace.to_owned(),
        path: "work/x".to_owned(),
        ..Default::default()
    });
    let payload = Some(header);
    let upload = pb::StageFilesRequest { payload };
    attempt!(
        refusals,
        client,
        files.stage_files(futures::stream::iter([upload]))
    );
    attempt!(
        refusals,
        client,
        files.list_files(pb::ListFilesRequest {
            parent: workspace.to_owned(),
            path: "out".to_owned(),
            ..Default::default()
        })
    );
    attempt!(
        refusals,
        client,
        files.read_file(pb::ReadFileRequest {
            workspace: workspace.to_owned(),
            path: "out/file".to_owned(),
            ..Default::default()
        })
    );
}

/// Tries to take files out, and to make a token.
async fn move_files_out(client: &Client, workspace: &str, refusals: &mut Refusals) {
    let spec = pb::CollectSpec {
        globs: vec!["out/*".to_owned()],
        ..Default::default()
    };
    let collect = pb::CollectOutputsRequest {
        workspace: workspace.to_owned(),
        spec: Some(spec),
    };
    attempt!(refusals, client, files.collect_outputs(collect));
    let header = pb::save_artifact_request::Payload::Header(pb::SaveArtifactHeader {
        name: "artifacts/stolen".to_owned(),
        workspace: workspace.to_owned(),
        path: "out/file".to_owned(),
        ..Default::default()
    });
    let payload = Some(header);
    let save = pb::SaveArtifactRequest { payload };
    attempt!(
        refusals,
        client,
        artifacts.save_artifact(futures::stream::iter([save]))
    );
    let token = pb::CreateWorkspaceTokenRequest {
        workspace: workspace.to_owned(),
        ..Default::default()
    };
    attempt!(refusals, client, access.create_workspace_token(token));
}

/// Returns the header of an upload of the artifact `report`.
fn report_header() -> pb::save_artifact_request::Payload {
    pb::save_artifact_request::Payload::Header(pb::SaveArtifactHeader {
        name: "artifacts/report".to_owned(),
        ..pb::SaveArtifactHeader::default()
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn artifacts_of_one_tenant_do_not_exist_for_the_other() {
    let server = AccessServer::start().await;
    let (a, b) = (
        server.client("a", "user").await,
        server.client("b", "user").await,
    );
    let save = async |client: &Client, data: &'static str| {
        let data = pb::save_artifact_request::Payload::Data(data.into());
        let payloads = [report_header(), data].map(Some);
        let messages = payloads.map(|payload| pb::SaveArtifactRequest { payload });
        let stream = futures::stream::iter(messages);
        client
            .artifacts()
            .save_artifact(stream)
            .await
            .expect("saved")
            .into_inner()
            .version
    };
    let load = async |client: &Client| {
        let request = pb::LoadArtifactRequest {
            name: "artifacts/report".to_owned(),
            ..Default::default()
        };
        client.artifacts().load_artifact(request).await.map(drop)
    };
    assert_eq!(save(&a, "of a").await, 0);
    assert_eq!(
        load(&b).await.expect_err("another tenant's").code(),
        Code::NotFound
    );
    let listed = b
        .artifacts()
        .list_artifacts(pb::ListArtifactsRequest::default())
        .await;
    assert!(listed.expect("listed").into_inner().artifacts.is_empty());
    assert_eq!(
        save(&b, "of b").await,
        0,
        "the versions of a tenant begin at 0"
    );
    let delete = pb::DeleteArtifactRequest {
        name: "artifacts/report".to_owned(),
        ..Default::default()
    };
    b.artifacts()
        .delete_artifact(delete)
        .await
        .expect("deleted");
    load(&a).await.expect("the other tenant's artifact stays");
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn only_an_admin_may_name_another_tenant() {
    let server = AccessServer::start().await;
    let b = server.client("b", "user").await;
    claim(&b, "w").await.expect("claimed");
    let as_tenant = async |role: &str, tenant: &str| {
        let options = ConnectOptions {
            tenant: Some(tenant.to_owned()),
            ..server.with_token(token("a", role))
        };
        let client = connect(&options).await;
        match client.get_workspace("workspaces/w").await {
            Ok(_) => Code::Ok,
            Err(error) => error.code().expect("a status"),
        }
    };
    assert_eq!(as_tenant("admin", "b").await, Code::Ok);
    for role in ["observer", "user", "publisher", "tenant_admin"] {
        assert_eq!(as_tenant(role, "b").await, Code::PermissionDenied, "{role}");
        assert_eq!(
            as_tenant(role, "a").await,
            Code::NotFound,
            "the own tenant may be named"
        );
    }
    assert_eq!(as_tenant("admin", "a b").await, Code::InvalidArgument);
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_created_in_a_tenant_that_is_not_configured() {
    let server = AccessServer::start().await;
    let options = ConnectOptions {
        tenant: Some("misspelt".to_owned()),
        ..server.with_token(token("a", "admin"))
    };
    let admin = connect(&options).await;
    let error = claim(&admin, "w").await.expect_err("no quota would hold");
    assert_eq!(error.code(), Some(Code::InvalidArgument), "{error}");
    let text = error.to_string();
    for part in [
        "skilld-tenant",
        "tenant misspelt is not configured",
        "name one of a, b",
        "add [tenants.misspelt] to auth.tenants_file",
    ] {
        assert!(text.contains(part), "{text}");
    }
    let payload = Some(report_header());
    let save = pb::SaveArtifactRequest { payload };
    let mut artifacts = admin.artifacts();
    let saved = artifacts.save_artifact(futures::stream::iter([save]));
    let error = saved.await.expect_err("an upload").code();
    assert_eq!(error, Code::InvalidArgument);
    // An admin may still see and remove what a tenant has left.
    let listed = admin.list_workspaces(pb::ListWorkspacesRequest::default());
    assert!(listed.await.expect("a read").workspaces.is_empty());
    let gone = admin.delete_workspace("workspaces/w").await;
    assert_eq!(
        gone.expect_err("nothing there").code(),
        Some(Code::NotFound)
    );
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn only_an_admin_sees_slot_and_container_of_a_workspace() {
    let server = AccessServer::start().await;
    let user = server.client("a", "user").await;
    let created = claim(&user, "w").await.expect("claimed");
    assert!(
        created.slot.is_empty() && created.container_id.is_empty(),
        "{created:?}"
    );
    for role in ROLES {
        let client = server.client("a", role).await;
        let mut seen = vec![client.get_workspace("w").await.expect("read")];
        let all = client.list_workspaces(pb::ListWorkspacesRequest::default());
        seen.extend(all.await.expect("listed").workspaces);
        if role != "observer" {
            let renew = pb::RenewWorkspaceRequest {
                name: "workspaces/w".to_owned(),
                ..Default::default()
            };
            seen.push(client.renew_workspace(renew).await.expect("renewed"));
        }
        for workspace in seen {
            let shown = [&workspace.slot, &workspace.container_id].map(|text| !text.is_empty());
            assert_eq!(shown, [role == "admin"; 2], "{role}: {workspace:?}");
        }
    }
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_observer_sees_no_command_and_no_environment() {
    let server = AccessServer::start().await;
    let (user, observer) = (
        server.client("a", "user").await,
        server.client("a", "observer").await,
    );
    let request = pb::CreateWorkspaceRequest {
        workspace_id: "w".to_owned(),
        env: [("SECRET".to_owned(), "canary".to_owned())].into(),
        ..Default::default()
    };
    user.create_workspace(request).await.expect("claimed");
    write_file(&user, "workspaces/w", "canary").await;
    let request = pb::StartExecRequest {
        parent: "workspaces/w".to_owned(),
        spec: Some(pb::ExecSpec {
            argv: vec!["true".to_owned()],
            cwd: "work/canary".to_owned(),
            ..pb::ExecSpec::default()
        }),
        ..pb::StartExecRequest::default()
    };
    user.start_exec(request).await.expect("it fails to start");
    let input = pb::InputSpec {
        path: "work/inputs/canary".to_owned(),
        content: Some(pb::input_spec::Content::Data(b"x".to_vec().into())),
        ..Default::default()
    };
    let inputs = pb::StageInputsRequest {
        workspace: "workspaces/w".to_owned(),
        inputs: vec![input],
        ..Default::default()
    };
    user.files().stage_inputs(inputs).await.expect("staged");
    let request = pb::ListExecsRequest {
        parent: "workspaces/w".to_owned(),
        ..Default::default()
    };
    let seen = [
        format!(
            "{:?}",
            observer
                .get_workspace("workspaces/w")
                .await
                .expect("a workspace")
        ),
        format!(
            "{:?}",
            observer
                .list_workspaces(pb::ListWorkspacesRequest::default())
                .await
                .expect("a list")
        ),
        format!(
            "{:?}",
            observer.list_execs(request.clone()).await.expect("execs")
        ),
    ];
    for text in seen {
        assert!(!text.contains("canary"), "{text}");
    }
    let execs = user.list_execs(request).await.expect("execs").execs;
    let exec = |text: &str| execs.iter().any(|exec| format!("{exec:?}").contains(text));
    for text in [
        "printf 'canary'",
        "working directory /workspace/work/canary",
    ] {
        assert!(exec(text), "{text}: {execs:?}");
    }
    assert!(server.stop().await);
}
