//! Programs and variables of the execs of a tenant: limited by its configuration, narrowed by each request.

use skilld_client::Client;
use skilld_proto::v1 as pb;
use skilld_proto::v1::exec_event::Event;
use tonic::Status;

use super::harness::AccessServer;
use super::quotas::set_quotas;
use crate::server::violated_fields;

const POLICY: &str = "allowed_programs = [\"python3\", \"sh\"]\ndenied_programs = [\"curl\"]\n\
                      allowed_env = [\"LANG\", \"REPORT_*\"]\nexecs = 7";

fn spec(allowed: &[&str], denied: &[&str], env: &[&str]) -> pb::ExecSpec {
    let texts = |all: &[&str]| all.iter().map(|&text| text.to_owned()).collect();
    let programs = pb::ExecPrograms {
        allowed: texts(allowed),
        denied: texts(denied),
    };
    let is_given = !allowed.is_empty() || !denied.is_empty();
    pb::ExecSpec {
        argv: texts(&["sh", "-c", "true"]),
        programs: is_given.then_some(programs),
        env: env
            .iter()
            .map(|&name| (name.to_owned(), "1".to_owned()))
            .collect(),
        ..pb::ExecSpec::default()
    }
}

/// Runs a command in a workspace of its own. Returns the programs of its effective specification.
async fn effective_programs(
    client: &Client,
    spec: pb::ExecSpec,
) -> Result<Option<pb::ExecPrograms>, Status> {
    let request = pb::RunExecRequest {
        workspace_template: Some(pb::WorkspaceTemplate::default()),
        spec: Some(spec),
        ..pb::RunExecRequest::default()
    };
    let mut events = client.execs().run_exec(request).await?.into_inner();
    let mut programs = None;
    while let Some(event) = events.message().await? {
        if let Some(Event::Started(started)) = event.event {
            programs = started.effective_spec.and_then(|spec| spec.programs);
        }
    }
    Ok(programs)
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_narrow_the_programs_of_their_tenant() {
    let server = AccessServer::start_with_commands().await;
    set_quotas(&server, POLICY, "execs", 7).await;
    let user = server.client("a", "user").await;
    for (given, allowed, denied) in [
        (spec(&[], &[], &[]), vec!["python3", "sh"], vec!["curl"]),
        (
            spec(&["ls", "sh"], &["wget"], &[]),
            vec!["sh"],
            vec!["wget", "curl"],
        ),
    ] {
        let programs = effective_programs(&user, given).await.expect("ran");
        let programs = programs.expect("narrowed");
        assert_eq!(
            (programs.allowed, programs.denied),
            (texts(allowed), texts(denied))
        );
    }
    let widened = effective_programs(&user, spec(&["ls"], &[], &[])).await;
    assert_eq!(
        violated_fields(&widened.expect_err("refused")),
        ["spec.programs.allowed"]
    );
    let other = server.client("b", "user").await;
    let programs = effective_programs(&other, spec(&[], &[], &["X"])).await;
    assert_eq!(programs.expect("ran"), None, "another tenant");
    assert!(server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_cannot_allow_what_starts_denied_programs() {
    let server = AccessServer::start_with_commands().await;
    let denied = "denied_programs = [\"curl\"]\nallowed_env = []\nexecs = 7";
    set_quotas(&server, denied, "execs", 7).await;
    let user = server.client("a", "user").await;
    let programs = effective_programs(&user, spec(&["sh"], &[], &[])).await;
    let programs = programs.expect("answered").expect("narrowed");
    for name in ["curl", "sh", "env"] {
        assert!(programs.denied.iter().any(|entry| entry == name), "{name}");
    }
    assert!(server.stop().await);
}

fn texts(all: Vec<&str>) -> Vec<String> {
    all.into_iter().map(str::to_owned).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_set_only_the_variables_of_their_tenant() {
    let server = AccessServer::start_with_commands().await;
    set_quotas(&server, POLICY, "execs", 7).await;
    let user = server.client("a", "user").await;
    effective_programs(&user, spec(&[], &[], &["LANG", "REPORT_TITLE"]))
        .await
        .expect("allowed");
    let refused = effective_programs(&user, spec(&[], &[], &["LANG", "LANGUAGE", "X"])).await;
    let expected = ["spec.env[\"LANGUAGE\"]", "spec.env[\"X\"]"];
    assert_eq!(violated_fields(&refused.expect_err("refused")), expected);
    let env = [("PATH".to_owned(), "/tmp".to_owned())];
    let create = pb::CreateWorkspaceRequest {
        env: env.clone().into(),
        ..pb::CreateWorkspaceRequest::default()
    };
    let refused = user.workspaces().create_workspace(create).await;
    assert_eq!(
        violated_fields(&refused.expect_err("refused")),
        ["env[\"PATH\"]"]
    );
    let run = pb::RunExecRequest {
        workspace_template: Some(pb::WorkspaceTemplate {
            env: env.into(),
            ..pb::WorkspaceTemplate::default()
        }),
        spec: Some(spec(&[], &[], &[])),
        ..pb::RunExecRequest::default()
    };
    let refused = user.execs().run_exec(run).await;
    let expected = ["workspace_template.env[\"PATH\"]"];
    assert_eq!(violated_fields(&refused.expect_err("refused")), expected);
    assert!(server.stop().await);
}
